"""Intervals and tests for paired results: Wilson, exact McNemar, bootstrap; numpy in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

Array = npt.NDArray[np.float64]

CONFIDENCE = 0.95
_RESAMPLES = 9999


@dataclass(frozen=True)
class Interval:
    """A value and its confidence interval; NaN where there are too few samples for one."""

    value: float
    low: float
    high: float

    def show(self, form: str, factor: float = 1) -> str:
        """In words, `factor` times as large; a value that is NaN is empty."""
        value, *bounds = (format(factor * number, form) for number in (self.value, self.low, self.high))
        if math.isnan(self.value):
            return ""
        return value if math.isnan(self.low) or math.isnan(self.high) else f"{value} ({bounds[0]} to {bounds[1]})"

    def scaled(self, factor: float) -> Interval:
        """In another unit."""
        return Interval(factor * self.value, factor * self.low, factor * self.high)

    @property
    def bounds(self) -> tuple[float, float]:
        """The ends, the value where it has none."""
        return self.value if math.isnan(self.low) else self.low, self.value if math.isnan(self.high) else self.high

    def percent(self, form: str = ".0f") -> str:
        """A share in percent."""
        return self.show(form, 100)


def wilson(hits: int, n: int, confidence: float = CONFIDENCE) -> Interval:
    """Share of hits with its Wilson score interval (Wilson 1927).

    Raises
    ------
    ValueError
        If `hits` is not in `[0, n]`.
    """
    if not 0 <= hits <= n:
        raise ValueError(f"{hits} hits of {n}")
    if n == 0:
        return Interval(float("nan"), 0.0, 1.0)
    found = stats.binomtest(hits, n).proportion_ci(confidence, method="wilson")
    return Interval(hits / n, float(found.low), float(found.high))


def least_hits(hits: int, n: int) -> int:
    """The fewest hits of n that are not below the 95 % Wilson interval of `hits` of n."""
    return math.ceil(wilson(hits, n).low * n)


def mcnemar(a: Sequence[bool], b: Sequence[bool]) -> float:
    """Two-sided p value of the exact McNemar test: whether two methods hit equally often on the same prompts.

    Only prompts on which they differ count: under the null hypothesis each falls either way with probability 1/2.

    Parameters
    ----------
    a, b
        Hits of both, by prompt.
    """
    only_a = sum(x and not y for x, y in zip(a, b, strict=True))
    only_b = sum(y and not x for x, y in zip(a, b, strict=True))
    return 1.0 if only_a + only_b == 0 else float(stats.binomtest(only_a, only_a + only_b).pvalue)


def paired_bootstrap(
    statistic: Callable[..., Array],
    samples: Sequence[npt.ArrayLike],
    *,
    seed: int = 0,
    confidence: float = CONFIDENCE,
    resamples: int = _RESAMPLES,
) -> Interval:
    """Bootstrap interval (BCa, Efron 1987) of a statistic of paired samples.

    The percentile interval stands in where BCa is not defined, because the statistic is the same in all resamples but
    a few.

    Parameters
    ----------
    statistic
        Takes the samples as arrays, resampled along `axis`, as for `scipy.stats.bootstrap` with `vectorized=True`.
    samples
        Arrays of equal length; entries of one index are drawn together.
    seed
        The same seed gives the same interval.
    confidence, resamples
        Of the interval.

    Returns
    -------
    Interval
        With NaN bounds for fewer than two samples.
    """
    arrays = tuple(np.asarray(sample, dtype=np.float64) for sample in samples)
    value = float(statistic(*arrays, axis=-1))
    if len(arrays[0]) < 2:
        return Interval(value, float("nan"), float("nan"))
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = stats.bootstrap(
            arrays,
            statistic,
            n_resamples=resamples,
            paired=True,
            vectorized=True,
            method="percentile",
            confidence_level=confidence,
            rng=np.random.default_rng(seed),
        )
        if float(np.ptp(drawn.bootstrap_distribution)) == 0:
            return Interval(value, value, value)
        # resamples nothing: turns the same distribution into the BCa interval
        found = stats.bootstrap(
            arrays,
            statistic,
            n_resamples=0,
            bootstrap_result=drawn,
            paired=True,
            vectorized=True,
            method="BCa",
            confidence_level=confidence,
        ).confidence_interval
    if not np.isfinite([found.low, found.high]).all():
        found = drawn.confidence_interval
    return Interval(value, float(found.low), float(found.high))


def mean_difference(a: Array, b: Array, axis: int = -1) -> Array:
    """Mean of `b - a`."""
    return np.asarray(np.mean(b - a, axis=axis))


def ratio_of_sums(a: Array, b: Array, axis: int = -1) -> Array:
    """Σ b / Σ a."""
    return np.asarray(np.sum(b, axis=axis) / np.sum(a, axis=axis))
