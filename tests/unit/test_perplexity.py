"""Perplexity: what is refused, and numbers that follow from known losses."""

from __future__ import annotations

import math
from dataclasses import astuple

import pytest

from pyridgefill.errors import UsageError
from pyridgefill.evaluation.tasks.perplexity import check_score, summarise_losses

EXACT = [2.0, 2.5, 3.0, 3.5]


def test_rows_that_may_be_scored() -> None:
    check_score(256, 256)
    check_score(2, 256)
    with pytest.raises(
        UsageError, match="perplexity of 257 rows, but only the last 256 run exact: filled rows have no"
    ):
        check_score(257, 256)
    with pytest.raises(UsageError, match="perplexity of 1 rows"):
        check_score(1, 256)


def test_exact_has_no_difference() -> None:
    summary = summarise_losses(EXACT, None, 1020, 0)
    assert summary.loss == pytest.approx(2.75)
    assert summary.perplexity.value == pytest.approx(math.exp(2.75))
    assert summary.perplexity.low < math.exp(2.75) < summary.perplexity.high
    assert summary.tokens == 1020
    assert summary.difference is None


def test_the_same_change_on_all_texts_is_certain() -> None:
    summary = summarise_losses([loss + 0.1 for loss in EXACT], EXACT, 1020, 0)
    assert astuple(summary.difference) == pytest.approx([0.1] * 3)
    assert astuple(summary.relative) == pytest.approx([math.expm1(0.1)] * 3)


def test_intervals_are_of_pairs() -> None:
    # texts differ by far more than the change does
    summary = summarise_losses([2.1, 2.65, 3.1, 3.65], EXACT, 1020, 0)
    assert summary.difference.value == pytest.approx(0.125)
    assert 0.09 < summary.difference.low < 0.125 < summary.difference.high < 0.16
