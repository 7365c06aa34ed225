"""Selected rows: the tail waits for them, and all of them together are an exact prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from e2e.test_heal import ATTENTION, N, SINK, TAIL, context, decode, options
from support.tokens import tokens


def filled(ctx: Any, prompt: list[int], kind: str, budget: int, seq: int = 0, n_logits: int = 1, **more: Any) -> np.ndarray:
    ctx.mark(seq, (SINK, len(prompt) - TAIL))
    ctx.select(seq, kind, len(prompt), TAIL, budget, **more)
    logits = ctx.decode({seq: prompt}, n_logits)[seq]
    ctx.mark(seq)
    return logits


@pytest.mark.parametrize("family", ATTENTION)
@pytest.mark.parametrize(("kind", "flash"), [("f16", False), ("f16", True), ("q8_0", True)])
def test_all_rows_are_an_exact_prompt(workshop: Any, family: str, kind: str, flash: bool) -> None:
    prompt = tokens(N)
    with context(workshop, family, options(family, kind, flash)) as ctx:
        exact = ctx.decode({0: prompt}, 20)[0]
        ctx.clear()
        got = filled(ctx, prompt, "stride", N, n_logits=20)
        assert ctx.selected() == list(range(SINK, N - TAIL))
        assert ctx.n_filled(0) == 0
        assert ctx.reusable(0, N) == N
        assert np.abs(got - exact).max() < 1e-3 * np.ptp(exact)


@pytest.mark.parametrize("n", [2, 65, 68, 69, 100, 128, 133, 300, 449])
def test_lengths(workshop: Any, n: int) -> None:
    prompt = tokens(n)
    with context(workshop, "llama", options("llama")) as ctx:
        exact = ctx.decode({0: prompt}, 1)[0]
        ctx.clear()
        ctx.mark(0, *([(SINK, n - TAIL)] if n - TAIL > SINK else []))
        ctx.select(0, "stride", n, TAIL, n)
        got = ctx.decode({0: prompt}, 1)[0]
        assert np.abs(got - exact).max() < 1e-3 * np.ptp(exact)
        ctx.mark(0)
        follow = ctx.decode({0: tokens(5, 3)}, 5, {0: n})[0]
    with context(workshop, "llama", options("llama")) as ctx:
        ctx.decode({0: prompt}, 1)
        assert np.abs(follow - ctx.decode({0: tokens(5, 3)}, 5, {0: n})[0]).max() < 1e-3 * np.ptp(exact)


def test_no_budget_is_a_filled_prompt(workshop: Any) -> None:
    prompt = tokens(N)
    with context(workshop, "llama", options("llama")) as ctx:
        want = decode(ctx, prompt, (SINK, N - TAIL))
        ctx.clear()
        got = filled(ctx, prompt, "stride", 0)
        assert ctx.selected() == []
        assert np.abs(got - want).max() < 1e-3 * np.ptp(want)
