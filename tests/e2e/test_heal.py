"""UPPER and heal: rows that were filled become exact ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
from support.capi import RefusedError
from support.engine import Context, Maps, Model
from support.options import ContextOptions
from support.tokens import tokens

N, TAIL, SINK = 300, 64, 4
ATTENTION = ("llama", "llama-moe", "qwen2", "qwen3", "gemma3", "gpt-oss", "deepseek2", "gemma4")


def options(family: str, kind: str = "f16", flash: bool = False, **more: Any) -> ContextOptions:
    flash = flash or (kind == "q8_0" and family == "deepseek2")
    return ContextOptions(type_k=kind, type_v=kind if flash else "f16", flash_attn=flash, swa_full=True, **more)


@contextmanager
def context(workshop: Any, family: str, opts: ContextOptions, states: str | None = "f32") -> Iterator[Context]:
    with ExitStack() as stack:
        model = stack.enter_context(Model(workshop.model(family)))
        ctx = stack.enter_context(Context(model, opts))
        maps = Maps(model, workshop.maps(family, "poison"))
        stack.callback(maps.close)
        ctx.set_maps(maps, states=states)
        stack.callback(ctx.set_maps, None)
        yield ctx


def decode(ctx: Context, prompt: list[int], *ranges: tuple[int, int], seq: int = 0) -> np.ndarray:
    ctx.mark(seq, *ranges)
    logits = ctx.decode({seq: prompt})[seq]
    ctx.mark(seq)
    return logits


@pytest.mark.parametrize("family", ATTENTION)
@pytest.mark.parametrize(("kind", "flash"), [("f16", False), ("f16", True), ("q8_0", True)])
def test_heal_gives_the_cache_of_an_exact_prefill(workshop: Any, family: str, kind: str, flash: bool) -> None:
    prompt = tokens(N)
    with context(workshop, family, options(family, kind, flash)) as ctx:
        exact = decode(ctx, prompt)
        want = ctx.state(0)
        ctx.clear()
        poisoned = decode(ctx, prompt, (32, 224))
        assert np.abs(poisoned - exact).max() > 0.01 * np.ptp(exact)
        assert ctx.reusable(0, N) == 32
        healed = 0
        while n := ctx.heal(0, 32):
            healed += n
            assert ctx.reusable(0, N) == min(N, 32 + healed)
        assert healed == N - 32
        assert ctx.counters().n_healed == healed
        assert ctx.n_filled(0) == 0
        assert ctx.state(0) == want
        assert ctx.reusable(0, N) == N


@pytest.mark.parametrize("family", ["gemma3", "gemma4", "gpt-oss"])
def test_rows_whose_window_is_gone_do_not_heal(workshop: Any, family: str) -> None:
    """A saved sequence has the rows of its last window, but not what the first of them attended to."""
    prompt = tokens(N)
    with context(workshop, family, options(family)) as ctx:
        exact = decode(ctx, prompt)
        decode_more = ctx.decode({0: prompt[:8]}, 8, {0: N})[0]
        ctx.clear()
        decode(ctx, prompt, (N - 12, N - 8))
        saved = ctx.state(0)
        while ctx.heal(0, 32):
            pass
        assert np.abs(ctx.decode({0: prompt[:8]}, 8, {0: N})[0] - decode_more).max() < 1e-3 * np.ptp(exact)
        ctx.clear()
        ctx.set_state(0, saved)
        with pytest.raises(
            RefusedError, match=f"position {N - 12} of sequence 0 attends to rows that a sliding window"
        ):
            ctx.heal(0, 32)
        assert ctx.heal(-1, 32) == 0
        assert ctx.reusable(0, N) == N - 12


@pytest.mark.parametrize("family", ["gemma3", "gemma4", "gpt-oss"])
def test_cells_that_a_window_has_left_stay_for_healing(workshop: Any, family: str) -> None:
    """Another sequence looks for room where cells of rows lie that no later row attends to."""
    prompt, other = tokens(N), tokens(200, seed=5)
    with context(workshop, family, options(family, n_seq_max=2, n_ctx=1024, kv_unified=True)) as ctx:
        decode(ctx, tokens(20, seed=6), seq=1)
        exact = decode(ctx, prompt)
        want = ctx.decode({0: prompt[:8]}, 8, {0: N})[0]
        ctx.clear()
        decode(ctx, tokens(20, seed=6), seq=1)
        decode(ctx, prompt, (32, 224))
        ctx.seq_rm(1, -1, -1)
        decode(ctx, other, seq=1)
        while ctx.heal(0, 32):
            pass
        assert ctx.reusable(0, N) == N
        assert np.abs(ctx.decode({0: prompt[:8]}, 8, {0: N})[0] - want).max() < 1e-3 * np.ptp(exact)


def test_maps_can_be_switched_while_states_are_kept(workshop: Any) -> None:
    prompt = tokens(N)
    with (
        Model(workshop.model("llama")) as model,
        Maps(model, workshop.maps("llama", "identity")) as first,
        Maps(model, workshop.maps("llama", "poison")) as second,
        Context(model, options("llama")) as ctx,
    ):
        exact = decode(ctx, prompt)
        ctx.clear()
        ctx.set_maps(first, states="f32")
        decode(ctx, prompt, (32, 224))
        ctx.set_maps(second, states="f32")
        with pytest.raises(RefusedError, match="has no split state"):
            ctx.heal(0, 8)
        ctx.clear()
        assert np.abs(decode(ctx, prompt, (32, 224)) - exact).max() > 0.01 * np.ptp(exact)
        while ctx.heal(0, 32):
            pass
        assert ctx.reusable(0, N) == N
        ctx.set_maps(None)
