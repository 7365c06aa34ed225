"""Ridge regression from sums: pure mathematics, numpy arrays in and out.

With centred features x and targets y of the fitted rows, G = Σ x xᵀ and C = Σ y xᵀ, the map is W = C (G + λI)⁻¹
(Hoerl and Kennard, Ridge Regression, Technometrics 12, 1970). One eigendecomposition of G serves the choice of λ for
all targets, see `RidgeProblem.choose`, and the maps: W = C V (Λ + λ)⁻¹ Vᵀ. A Cholesky factorisation of G + λI is more
accurate where features differ much in size, but no file can hold the difference: at a condition number of 1e10 what
the map predicts is off by 3e-11 with the eigendecomposition, by 3e-15 with Cholesky, and by 6e-8 in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from pyridgefill.calibration.sums import Array, Sums

# candidates for λ in units of the mean eigenvalue of G, so that they do not depend on the scale of the features
DAMPING_GRID: Array = np.logspace(-8, 1, 28)


@dataclass(frozen=True)
class Solution:
    """A fitted map: `weight @ x + bias` or `weight_b @ (weight_a @ x) + bias`, with how it was solved.

    Attributes
    ----------
    weight
        `[m, d]`, None for a low-rank map.
    weight_a, weight_b
        `[rank, d]` and `[m, rank]`, None for a full-rank map.
    bias
        `[m]`, None without bias.
    condition
        Condition number of G + λI.
    """

    weight: Array | None
    weight_a: Array | None
    weight_b: Array | None
    bias: Array | None
    condition: float

    def dense(self) -> Array:
        """The `[m, d]` matrix that the map applies."""
        if self.weight is not None:
            return self.weight
        assert self.weight_a is not None
        assert self.weight_b is not None
        return self.weight_b @ self.weight_a


def symmetric(lower: Array) -> Array:
    """The full matrix `[d, d]` from its lower triangle."""
    full = np.tril(lower)
    full += np.tril(lower, -1).T
    return full


def residual(sums: Sums, columns: slice, weight: Array, bias: Array | None) -> float:
    """Σ |y - W x - b|² over the rows of `sums`, in closed form: no row is needed.

    Parameters
    ----------
    sums
        The sums over the rows.
    columns
        The targets that the map predicts.
    weight, bias
        `[m, d]`, and `[m]` or None.
    """
    gram = symmetric(sums.xx)
    value = sums.yy[columns].sum() - 2 * np.vdot(weight, sums.yx[columns]) + np.vdot(weight @ gram, weight)
    if bias is not None:
        value += sums.rows * (bias @ bias) - 2 * bias @ (sums.y[columns] - weight @ sums.x)
    return float(max(value, 0.0))


def r_squared(sums: Sums, columns: slice, weight: Array, bias: Array | None) -> float:
    """1 - Σ |y - W x - b|² / Σ |y - ȳ|² over the rows of `sums` and all targets; NaN without variation."""
    if sums.rows == 0:
        return float("nan")
    total = float(sums.yy[columns].sum() - (sums.y[columns] @ sums.y[columns]) / sums.rows)
    # a target that does not vary leaves only the rounding of its sums
    if total <= 1e-12 * float(sums.yy[columns].sum()):
        return float("nan")
    return 1.0 - residual(sums, columns, weight, bias) / total


class RidgeProblem:
    """All maps of one split: they share the features, so they share the eigendecomposition.

    Parameters
    ----------
    fit, held
        Sums over the fitted and the held-out rows.
    bias
        Whether maps get a bias, by centring features and targets on the means of the fitted rows.
    """

    def __init__(self, fit: Sums, held: Sums, *, bias: bool = True) -> None:
        self.fit, self.held, self.bias = fit, held, bias
        zero = np.zeros_like
        self._mean_x = fit.x / fit.rows if bias else zero(fit.x)
        self._mean_y = fit.y / fit.rows if bias else zero(fit.y)
        self._gram = self._centred_gram(fit)
        self.eigenvalues, self._vectors = eigh(self._gram)
        # eigenvalues of a Gram matrix are not negative, their rounding errors are
        self.eigenvalues = np.maximum(self.eigenvalues, 0.0)
        self.mean_eigenvalue = float(np.trace(self._gram) / self._gram.shape[0])
        self._held_gram = self._vectors.T @ self._centred_gram(held) @ self._vectors

    def _centred_gram(self, sums: Sums) -> Array:
        mean = self._mean_x
        cross = np.outer(sums.x, mean)
        return np.asarray(symmetric(sums.xx) - cross - cross.T + sums.rows * np.outer(mean, mean))

    def _centred_cross(self, sums: Sums, columns: slice) -> Array:
        mean_x, mean_y = self._mean_x, self._mean_y[columns]
        cross = sums.yx[columns] - np.outer(sums.y[columns], mean_x) - np.outer(mean_y, sums.x)
        return np.asarray(cross + sums.rows * np.outer(mean_y, mean_x))

    def _centred_square(self, sums: Sums, columns: slice) -> float:
        mean_y = self._mean_y[columns]
        return float(sums.yy[columns].sum() - 2 * mean_y @ sums.y[columns] + sums.rows * (mean_y @ mean_y))

    def held_out_curve(self, columns: slice, dampings: Array) -> Array:
        """Σ |y - W x - b|² over the held-out rows for each λ in `dampings`, `[len(dampings)]`.

        In the eigenbasis of G the map is W = A D with A = C Q and the diagonal D = (Λ + λ)⁻¹, so that
        tr(W H Wᵀ) = δᵀ (H ∘ AᵀA) δ with δ the diagonal of D and H the held-out Gram matrix: after one matrix product
        per target each further λ costs d² multiply-adds.
        """
        rotated = self._centred_cross(self.fit, columns) @ self._vectors
        held = self._centred_cross(self.held, columns) @ self._vectors
        quadratic = self._held_gram * (rotated.T @ rotated)
        linear = np.einsum("md,md->d", rotated, held)
        constant = self._centred_square(self.held, columns)
        inverse = [_inverse(self.eigenvalues + damping) for damping in dampings]
        return np.array([constant - 2 * linear @ delta + delta @ quadratic @ delta for delta in inverse])

    def choose(self, columns: slice, ratios: Array = DAMPING_GRID) -> float:
        """The λ with the least held-out residual among `ratios` times the mean eigenvalue of G."""
        dampings = ratios * self.mean_eigenvalue
        return float(dampings[int(np.argmin(self.held_out_curve(columns, dampings)))])

    def solve(self, columns: slice, damping: float, rank: int = 0) -> Solution:
        """Fit the map of some targets.

        Parameters
        ----------
        columns
            The targets, as a slice of the rows of `Sums.yx`.
        damping
            λ.
        rank
            0 for full rank, else the rank of the map.

        Notes
        -----
        Low rank is reduced-rank ridge regression (Izenman, J. Multivariate Analysis 5, 1975; Mukherjee and Zhu,
        Statistical Analysis and Data Mining 4, 2011): project on the leading eigenvectors of the Gram matrix of the
        fitted values, W (G + λI) Wᵀ = W Cᵀ, which minimises the damped residual. Truncating the SVD of W itself does
        not, because it ignores how large the features are.
        """
        cross = self._centred_cross(self.fit, columns)
        largest, smallest = self.eigenvalues[-1] + damping, self.eigenvalues[0] + damping
        condition = float(largest / smallest) if smallest > 0 else float("inf")
        weight = (cross @ self._vectors * _inverse(self.eigenvalues + damping)) @ self._vectors.T
        weight_a = weight_b = None
        if 0 < rank < min(weight.shape):
            fitted = weight @ cross.T
            size = fitted.shape[0]
            _, weight_b = eigh((fitted + fitted.T) / 2, subset_by_index=[size - rank, size - 1])
            weight_a = weight_b.T @ weight
        elif rank:
            raise ValueError(f"rank {rank}: expected less than {min(weight.shape)}")
        bias = None
        if self.bias:
            mapped = weight @ self._mean_x if weight_a is None else weight_b @ (weight_a @ self._mean_x)
            bias = self._mean_y[columns] - mapped
        return Solution(weight if weight_a is None else None, weight_a, weight_b, bias, condition)


def _inverse(values: Array) -> Array:
    """Pseudo-inverse of a diagonal: directions without any variation get no weight."""
    cutoff = len(values) * np.finfo(np.float64).eps * float(values.max(initial=0.0))
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > cutoff)
