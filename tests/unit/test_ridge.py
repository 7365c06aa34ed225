from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from pyridgefill.calibration.ridge import DAMPING_GRID, RidgeProblem, r_squared, residual
from pyridgefill.calibration.sums import Sums

Array = NDArray[np.float64]
ALL = slice(None)


def sums_of(x: Array, y: Array) -> Sums:
    """Sums over rows x `[n, d]` and y `[n, m]`, written down plainly."""
    return Sums(
        rows=len(x),
        xx=np.asfortranarray(np.tril(x.T @ x)),
        yx=np.ascontiguousarray(y.T @ x),
        x=x.sum(axis=0),
        y=y.sum(axis=0),
        yy=(y**2).sum(axis=0),
    )


def data(n: int, d: int = 8, m: int = 5, noise: float = 0.0, seed: int = 0) -> tuple[Array, Array, Array, Array]:
    random = np.random.default_rng(seed)
    weight, bias = np.random.default_rng(99).standard_normal((m, d)), np.arange(m, dtype=float)
    x = random.standard_normal((n, d)) * np.logspace(0, 2, d) + 3.0
    return x, x @ weight.T + bias + noise * random.standard_normal((n, m)), weight, bias


def problem(n: int = 400, *, noise: float = 0.5, bias: bool = True, **shape: int) -> tuple[RidgeProblem, Array, Array]:
    x, y, _, _ = data(n, noise=noise, **shape)
    held_x, held_y, _, _ = data(100, noise=noise, seed=1, **shape)
    return RidgeProblem(sums_of(x, y), sums_of(held_x, held_y), bias=bias), held_x, held_y


def test_known_weights_are_recovered() -> None:
    x, y, weight, bias = data(500)
    held = data(50, seed=1)
    ridge = RidgeProblem(sums_of(x, y), sums_of(held[0], held[1]))
    solution = ridge.solve(ALL, ridge.choose(ALL))
    np.testing.assert_allclose(solution.weight, weight, rtol=1e-4)
    np.testing.assert_allclose(solution.bias, bias, atol=1e-2)
    assert r_squared(sums_of(held[0], held[1]), ALL, solution.dense(), solution.bias) > 0.999999


@pytest.mark.parametrize("bias", [True, False])
def test_solution_minimises_the_damped_residual(bias: bool) -> None:
    ridge, _, _ = problem(bias=bias)
    x, y, _, _ = data(400, noise=0.5)
    damping = 1e3
    solution = ridge.solve(ALL, damping)
    mean_x, mean_y = (x.mean(axis=0), y.mean(axis=0)) if bias else (0.0, 0.0)
    # the formula W = Y Xᵀ (X Xᵀ + λI)⁻¹, samples as rows here
    expected = np.linalg.solve((x - mean_x).T @ (x - mean_x) + damping * np.eye(8), (x - mean_x).T @ (y - mean_y)).T
    np.testing.assert_allclose(solution.weight, expected, rtol=1e-8)
    if bias:
        np.testing.assert_allclose(solution.bias, mean_y - expected @ mean_x, rtol=1e-8)
    else:
        assert solution.bias is None


@pytest.mark.parametrize("with_bias", [True, False])
def test_residual_and_r2_equal_those_of_the_rows(with_bias: bool) -> None:
    x, y, weight, bias = data(60, noise=2.0)
    guess = weight + 0.01
    shift = bias - 0.3 if with_bias else None
    error = y - x @ guess.T - (0 if shift is None else shift)
    assert residual(sums_of(x, y), ALL, guess, shift) == pytest.approx((error**2).sum(), rel=1e-9)
    expected = 1 - (error**2).sum() / ((y - y.mean(axis=0)) ** 2).sum()
    assert r_squared(sums_of(x, y), ALL, guess, shift) == pytest.approx(expected, rel=1e-9)


def test_r2_of_nothing_is_not_a_number() -> None:
    assert np.isnan(r_squared(Sums.zeros(3, 2), ALL, np.zeros((2, 3)), None))
    constant = sums_of(np.random.default_rng(0).standard_normal((9, 3)), np.full((9, 2), 0.1))
    assert np.isnan(r_squared(constant, ALL, np.zeros((2, 3)), None))


@pytest.mark.parametrize("bias", [True, False])
def test_held_out_curve_equals_the_rows_residual(bias: bool) -> None:
    ridge, held_x, held_y = problem(bias=bias)
    columns = slice(1, 4)
    dampings = DAMPING_GRID[::6] * ridge.mean_eigenvalue
    direct = []
    for damping in dampings:
        solution = ridge.solve(columns, damping)
        error = held_y[:, columns] - held_x @ solution.dense().T - (0 if solution.bias is None else solution.bias)
        direct.append((error**2).sum())
    np.testing.assert_allclose(ridge.held_out_curve(columns, dampings), direct, rtol=1e-6)


def test_choice_of_damping_equals_brute_force() -> None:
    # few rows and much noise, so that the best damping lies inside the grid
    ridge, held_x, held_y = problem(12, noise=40.0)
    candidates = DAMPING_GRID * ridge.mean_eigenvalue
    losses = []
    for damping in candidates:
        solution = ridge.solve(ALL, damping)
        losses.append(((held_y - held_x @ solution.dense().T - solution.bias) ** 2).sum())
    best = int(np.argmin(losses))
    assert 0 < best < len(candidates) - 1
    assert ridge.choose(ALL) == candidates[best]


def test_collinear_features() -> None:
    x, y, _, _ = data(300)
    x = np.hstack([x, x, x @ np.random.default_rng(3).standard_normal((8, 30)), np.zeros((300, 1))])
    ridge = RidgeProblem(sums_of(x, y), sums_of(x, y))
    damped = ridge.solve(ALL, 1e-8 * ridge.mean_eigenvalue)
    assert r_squared(ridge.held, ALL, damped.dense(), damped.bias) > 0.999999
    undamped = ridge.solve(ALL, 0.0)
    assert r_squared(ridge.held, ALL, undamped.dense(), undamped.bias) > 0.999999
    # of all exact maps the one with the smallest weights
    least = np.linalg.lstsq(x - x.mean(axis=0), y - y.mean(axis=0), rcond=1e-10)[0].T
    np.testing.assert_allclose(undamped.weight, least, atol=1e-6)


def test_fewer_rows_than_features() -> None:
    x, y, _, _ = data(20, d=64)
    ridge = RidgeProblem(sums_of(x, y), sums_of(x, y))
    solution = ridge.solve(ALL, ridge.choose(ALL))
    assert np.isfinite(solution.dense()).all()
    assert r_squared(ridge.fit, ALL, solution.dense(), solution.bias) > 0.999


def test_low_rank_is_optimal_and_better_than_truncating_the_weights() -> None:
    ridge, _, _ = problem(noise=5.0)
    x, y, _, _ = data(400, noise=5.0)
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    damping, rank = 1e3, 2
    solution = ridge.solve(ALL, damping, rank)
    assert solution.weight is None
    assert (solution.weight_a.shape, solution.weight_b.shape) == ((2, 8), (5, 2))  # type: ignore[union-attr]

    def loss(weight: Array) -> float:
        return float(((y - x @ weight.T) ** 2).sum() + damping * (weight**2).sum())

    # with λ as additional rows the best map of a rank is the truncated SVD of the fitted values
    full = ridge.solve(ALL, damping).dense()
    rows = np.vstack([x, np.sqrt(damping) * np.eye(8)])
    _, _, right = np.linalg.svd(rows @ full.T, full_matrices=False)
    best = right[:rank].T @ right[:rank] @ full
    assert loss(solution.dense()) == pytest.approx(loss(best), rel=1e-9)

    left, sizes, right = np.linalg.svd(full, full_matrices=False)
    truncated = (left[:, :rank] * sizes[:rank]) @ right[:rank]
    assert loss(solution.dense()) < 0.99 * loss(truncated)

    random = np.random.default_rng(5)
    for _ in range(200):
        a = solution.weight_a + 1e-3 * random.standard_normal((2, 8))
        b = solution.weight_b + 1e-3 * random.standard_normal((5, 2))
        assert loss(b @ a) >= loss(solution.dense())


def test_rank_must_be_below_the_shape() -> None:
    ridge, _, _ = problem()
    with pytest.raises(ValueError, match="rank 5: expected less than 5"):
        ridge.solve(ALL, 1.0, 5)


def test_condition_number_is_that_of_the_damped_matrix() -> None:
    ridge, _, _ = problem()
    x, _, _, _ = data(400, noise=0.5)
    x = x - x.mean(axis=0)
    assert ridge.solve(ALL, 7.0).condition == pytest.approx(np.linalg.cond(x.T @ x + 7.0 * np.eye(8)), rel=1e-8)


def test_features_of_very_different_size() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((2000, 64)) * np.logspace(-3, 2, 64)
    x[:, 7] *= 1000
    y = x @ random.standard_normal((64, 8)) + random.standard_normal((2000, 8))
    ridge = RidgeProblem(sums_of(x, y), sums_of(x, y), bias=False)
    damping = 1e-8 * ridge.mean_eigenvalue
    solution = ridge.solve(ALL, damping)
    assert solution.condition > 1e9
    # the same ridge problem as least squares, which never squares the condition number
    stacked = np.vstack([x, np.sqrt(damping) * np.eye(64)])
    expected = np.linalg.lstsq(stacked, np.vstack([y, np.zeros((64, 8))]), rcond=None)[0].T
    assert np.linalg.norm(x @ (solution.dense() - expected).T) < 1e-9 * np.linalg.norm(x @ expected.T)
