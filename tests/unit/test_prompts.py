"""Summaries of scored prompts, and the divergence of logits that are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from pyridgefill.evaluation.intervals import mcnemar, wilson
from pyridgefill.evaluation.tasks.kld import kl_divergence
from pyridgefill.evaluation.tasks.scored import Answer, summarise


def answers(scores: list[float], depths: list[Any], false: list[bool] | None = None) -> list[Answer]:
    return [
        Answer("", score, depth, None if false is None else false[i])
        for i, (score, depth) in enumerate(zip(scores, depths, strict=True))
    ]


def test_summary_against_exact() -> None:
    depths = [(i + 0.5) / 10 for i in range(10)]
    exact = summarise(answers([1.0] * 9 + [0.5], depths), None, 0)
    scores = [1.0] * 5 + [0.5, 0.0, 1.0, 1.0, 1.0]
    summary = summarise(answers(scores, depths), exact, 0)
    assert (summary.hits, summary.prompts) == (8, 10)
    assert summary.accuracy.low == wilson(8, 10).low
    assert summary.score.value == pytest.approx(0.85)
    assert summary.difference.value == pytest.approx(-10)
    assert summary.difference.low < -10 < summary.difference.high
    assert summary.mcnemar_p == mcnemar([True] * 9 + [False], [score == 1 for score in scores])
    assert [row.depth for row in summary.by_depth] == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])
    assert [row.value for row in summary.by_depth] == [1, 1, 0.5, 0.5, 1]
    assert exact.difference is None


def test_false_answers_against_exact() -> None:
    nothing = [0.0] * 10, [None] * 10
    alone = summarise(answers(*nothing, [True] * 2 + [False] * 8), None, 0)
    summary = summarise(answers(*nothing, [True] * 7 + [False] * 3), alone, 0)
    assert alone.false_rate.value == 0.2
    assert alone.false_difference is None
    assert (summary.hits, summary.by_depth) == (0, ())
    assert (summary.false_rate.value, summary.false_rate.low) == (0.7, wilson(7, 10).low)
    assert summary.false_difference.value == pytest.approx(50)
    assert summary.false_mcnemar_p == mcnemar([True] * 2 + [False] * 8, [True] * 7 + [False] * 3)


def test_kl_divergence_is_that_of_scipy() -> None:
    draw = np.random.default_rng(0)
    a, b = draw.normal(0, 3, (2, 5, 40)).astype(np.float32)
    p, q = (np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum(axis=1, keepdims=True) for x in (a, b))
    assert kl_divergence(a, b) == pytest.approx(stats.entropy(p, q, axis=1))
    assert kl_divergence(a, a + 5) == pytest.approx(np.zeros(5), abs=1e-6)
