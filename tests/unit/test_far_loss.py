"""Groups of tokens and comparison of losses, on losses whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyridgefill.evaluation.tasks.far_loss import GROUPS, FarText, compare


def text(seed: int, n: int = 40, far: int = 10) -> FarText:
    draw = np.random.default_rng(seed)
    exact = draw.uniform(1, 2, n)
    removed = exact + np.where(np.arange(n) < far, 1.0, 0.1)
    return FarText(tuple(range(100)), n + 1, 1, exact, removed, np.arange(n) % 2 == 0)


def test_the_threshold_finds_far_tokens() -> None:
    one = text(0)
    assert one.mask("far").sum() == 10
    assert one.mask("far", 1.01).sum() == 0
    assert one.mask("far", 0.01).sum() == 40
    assert not (one.mask("far") & one.mask("not_far")).any()
    assert one.mask("novel").sum() == one.mask("repeated").sum() == 20
    assert one.mask("all").all()


def test_means_are_over_tokens() -> None:
    texts = [text(0), text(1, far=4), text(2, far=0)]
    losses = [item.exact + np.where(item.mask("far"), 0.5, -0.1) for item in texts]
    found = {item.group: item for item in compare(texts, losses)}
    assert set(found) == set(GROUPS)
    far = found["far"]
    assert (far.tokens, far.texts) == (14, 2)
    exact = np.concatenate([item.exact[item.mask("far")] for item in texts]).mean()
    assert far.exact == pytest.approx(exact)
    assert far.fill == pytest.approx(exact + 0.5)
    assert far.removed == pytest.approx(exact + 1)
    assert far.difference.value == far.difference.low == far.difference.high == pytest.approx(0.5)
    assert far.relative.value == pytest.approx(0.5 / exact)
    assert far.relative.low <= far.relative.value <= far.relative.high
    assert far.perplexity.value == pytest.approx(math.exp(0.5) - 1)
    everything = found["all"]
    assert (everything.tokens, everything.texts) == (120, 3)
    assert everything.difference.value == pytest.approx((14 * 0.5 - 106 * 0.1) / 120)
    assert everything.difference.low < everything.difference.value < everything.difference.high


def test_luck_has_no_part_in_what_is_far_for_both() -> None:
    draw = np.random.default_rng(0)
    n = 20_000
    base = draw.uniform(1, 2, n)
    removed = base + draw.uniform(0, 1.4, n)
    exact, fill = (base + draw.normal(0, 0.3, n) for _ in range(2))
    item = FarText(tuple(range(100)), n + 1, 1, exact, removed, np.zeros(n, np.bool_))
    found = {group.group: group for group in compare([item], [fill])}
    assert found["far"].relative.value > 0.05, "as good, but not as lucky"
    assert abs(found["far_for_both"].relative.value) < 0.005


def test_a_group_without_tokens_is_left_out() -> None:
    texts = [text(0, far=0)]
    found = {item.group: item for item in compare(texts, [texts[0].exact])}
    assert set(found) == set(GROUPS) - {"far", "far_for_both"}
    assert math.isnan(found["all"].difference.low), "one text has no interval"
