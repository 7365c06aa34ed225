"""Rows of a tail whose selection was given up have nothing above the split: no row is computed from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.test_heal import SINK, TAIL, N, context, options
from e2e.test_llama import answer
from support.capi import RefusedError
from support.engine import Context, DecodeError
from support.tokens import tokens

from pyridgefill import Llama, RidgeFillConfig

PROMPT = tokens(N)
FRONT = N - TAIL
READ = N - 10  # rows that were read before the selection was given up
MATCH = f"comes behind rows from {FRONT} on that wait"


def give_up(ctx: Context, seq: int = 0) -> None:
    """A prompt that stops in its tail."""
    ctx.mark(seq, (SINK, FRONT))
    ctx.select(seq, "stride", N, TAIL, 20)
    ctx.decode({seq: PROMPT[:READ]}, 0)
    ctx.mark(seq)
    ctx.select(seq, "none", 0, 0, 0)


def go_on(ctx: Context, start: int, seq: int = 0) -> np.ndarray:
    return ctx.decode({seq: PROMPT[start:]}, 1, {seq: start})[seq]


def test_no_row_is_computed_from_rows_that_wait(workshop: Any) -> None:
    with context(workshop, "llama", options("llama")) as ctx:
        give_up(ctx)
        with pytest.raises(DecodeError, match=MATCH):
            go_on(ctx, READ)
        ctx.mark(0, (READ, N))
        with pytest.raises(DecodeError, match=MATCH):
            ctx.decode({0: PROMPT[READ:]}, 0, {0: READ})
        ctx.mark(0)
        assert ctx.seq_pos_max(0) == READ - 1, "a refused batch has changed nothing"

        assert ctx.seq_rm(0, FRONT, -1)
        got = go_on(ctx, FRONT)
        ctx.clear()
        ctx.mark(0, (SINK, FRONT))
        want = ctx.decode({0: PROMPT}, 1)[0]
        assert np.abs(got - want).max() < 1e-3 * np.ptp(want)


def test_a_tail_that_is_selected_for_again_goes_on(workshop: Any) -> None:
    with context(workshop, "llama", options("llama")) as ctx:
        ctx.mark(0, (SINK, FRONT))
        ctx.select(0, "stride", N, TAIL, 20)
        want = ctx.decode({0: PROMPT}, 1)[0]
        ctx.clear()
        give_up(ctx)
        # a longer prompt, whose tail begins behind them
        ctx.mark(0, (SINK, N))
        ctx.select(0, "stride", N + TAIL, TAIL, 20)
        with pytest.raises(DecodeError, match=MATCH):
            ctx.decode({0: PROMPT[READ:] + tokens(TAIL, 2)}, 1, {0: READ})
        # the same prompt
        ctx.mark(0, (SINK, FRONT))
        ctx.select(0, "stride", N, TAIL, 20)
        got = go_on(ctx, READ)
        assert np.abs(got - want).max() < 1e-3 * np.ptp(want)
        assert ctx.decode({0: [1]}, 1, {0: N})[0].any()


def test_rows_that_wait_run_again_in_order(workshop: Any) -> None:
    with context(workshop, "llama", options("llama")) as ctx:
        ctx.mark(0, (SINK, FRONT))
        want = ctx.decode({0: PROMPT}, 1)[0]
        ctx.clear()
        give_up(ctx)
        with pytest.raises(RefusedError, match=f"attends to row {FRONT}, which waits"):
            ctx.upper(0, range(FRONT + 1, READ))
        ctx.upper(0, range(FRONT, READ))
        assert ctx.reusable(0, READ) == SINK
        got = go_on(ctx, READ)
        assert np.abs(got - want).max() < 1e-3 * np.ptp(want)


def test_rows_that_wait_heal(workshop: Any) -> None:
    with context(workshop, "llama", options("llama")) as ctx:
        want = ctx.decode({0: PROMPT}, 1)[0]
        ctx.clear()
        give_up(ctx)
        while ctx.heal(0, 50):
            pass
        got = go_on(ctx, READ)
        assert np.abs(got - want).max() < 1e-3 * np.ptp(want)


@pytest.mark.parametrize("unified", [False, True])
def test_copies_and_saved_states_remember_what_waits(workshop: Any, tmp_path: Path, unified: bool) -> None:
    opts = options("llama", n_seq_max=3, n_ctx=3072, kv_unified=unified)
    with context(workshop, "llama", opts) as ctx, context(workshop, "llama", opts, states=None) as other:
        give_up(ctx)
        ctx.seq_cp(0, 1)
        with pytest.raises(DecodeError, match=MATCH):
            go_on(ctx, READ, 1)
        ctx.set_state(2, ctx.state(1))
        with pytest.raises(DecodeError, match=MATCH):
            go_on(ctx, READ, 2)
        ctx.save(tmp_path / "state", 0)
        other.set_maps(None)
        other.load(tmp_path / "state", 1)
        with pytest.raises(DecodeError, match=MATCH):
            go_on(other, READ, 1)
        for c, seq in ((ctx, 0), (ctx, 1), (ctx, 2), (other, 1)):
            assert c.seq_rm(seq, FRONT, -1)
            assert go_on(c, FRONT, seq).any()


def test_python_calls_are_refused_too(workshop: Any) -> None:
    settings = RidgeFillConfig(
        maps=workshop.maps("llama", "poison"), tail=TAIL, sink=SINK, min_prompt=0, select="stride", budget=0.1
    )
    llm = Llama(str(workshop.model("llama")), ridgefill=settings, n_ctx=1024, n_batch=64, n_ubatch=32, verbose=False)
    try:
        assert llm._fill is not None
        llm._batch.filled = llm._fill.begin(0, N, [(SINK, FRONT)])
        llm.eval(PROMPT[:READ])
        llm._batch.filled = llm._fill.begin(0, 0, [])
        with pytest.raises(RuntimeError):
            llm.eval(PROMPT[READ:])
        with pytest.raises(RuntimeError):
            answer(llm, PROMPT[READ:], reset=False)
        assert len(answer(llm, PROMPT, 4)) == 4, "a call of its own computes what waits anew"
    finally:
        llm.close()
