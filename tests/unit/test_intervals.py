"""Intervals and tests against scipy and against values that are known."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from scipy import stats

from pyridgefill.evaluation.intervals import mcnemar, mean_difference, paired_bootstrap, ratio_of_sums, wilson


def test_wilson_by_its_formula() -> None:
    z = stats.norm.ppf(0.975)
    for hits, n in [(0, 10), (9, 10), (10, 10), (37, 80)]:
        p = hits / n
        centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
        half = z / (1 + z**2 / n) * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
        found = wilson(hits, n)
        assert (found.value, found.low, found.high) == pytest.approx((p, centre - half, centre + half))
    assert math.isnan(wilson(0, 0).value)
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0, 1)
    with pytest.raises(ValueError, match="3 hits of 2"):
        wilson(3, 2)


def test_mcnemar_counts_the_prompts_that_differ() -> None:
    a = [True] * 9 + [False] * 1 + [True] * 50
    b = [False] * 9 + [True] * 1 + [True] * 50
    assert mcnemar(a, b) == pytest.approx(2 * (1 + 10) / 2**10)
    assert mcnemar(a, b) == mcnemar(b, a)
    assert mcnemar(a, b) == mcnemar(a[:10], b[:10])
    assert mcnemar(a, a) == 1
    assert mcnemar([True], [False]) == 1
    with pytest.raises(ValueError, match="shorter"):
        mcnemar(a, b[:-1])


def test_bootstrap_is_that_of_scipy() -> None:
    draw = np.random.default_rng(1)
    a = draw.exponential(size=40)
    b = a + draw.normal(0.2, 0.1, 40)
    for statistic in (mean_difference, ratio_of_sums):
        found = paired_bootstrap(statistic, (a, b), seed=5)
        want = stats.bootstrap(
            (a, b), statistic, paired=True, vectorized=True, method="BCa", rng=np.random.default_rng(5)
        ).confidence_interval
        assert (found.low, found.high) == pytest.approx((want.low, want.high))
        assert found.low < found.value < found.high
        assert found == paired_bootstrap(statistic, (a, b), seed=5)
        assert found != paired_bootstrap(statistic, (a, b), seed=6)


def test_bootstrap_keeps_pairs_together() -> None:
    # texts differ much more among each other than the methods do on one of them
    a = np.random.default_rng(2).normal(0, 100, 30)
    found = paired_bootstrap(mean_difference, (a, a + 1))
    assert (found.value, found.low, found.high) == pytest.approx((1, 1, 1))


def test_bootstrap_covers() -> None:
    draw = np.random.default_rng(3)
    inside = 0
    for trial in range(100):
        a, b = draw.normal(0, 1, (2, 30))
        found = paired_bootstrap(mean_difference, (a, b + 0.5), seed=trial, resamples=999)
        inside += found.low <= 0.5 <= found.high
    assert 86 <= inside <= 100


@pytest.mark.parametrize("a", [[0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [1.0] * 19 + [0.0]])
def test_bootstrap_of_little(a) -> None:
    a = np.asarray(a)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = paired_bootstrap(mean_difference, (np.zeros_like(a), a))
    assert found.value == pytest.approx(a.mean())
    if len(a) == 1:
        assert math.isnan(found.low)
        assert math.isnan(found.high)
    else:
        assert found.low <= found.value <= found.high
