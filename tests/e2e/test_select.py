"""Selected rows: the tail waits for them, and all of them together are an exact prompt."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import llama_cpp
import numpy as np
import pytest
from e2e.test_heal import ATTENTION, SINK, TAIL, N, context, decode, options
from support import capi
from support.engine import DecodeError
from support.tokens import tokens


def filled(
    ctx: Any, prompt: list[int], kind: str, budget: int, seq: int = 0, n_logits: int = 1, **more: Any
) -> np.ndarray:
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


HEADS = [(0, 0), (1, 1), (2, 0)]


@pytest.mark.parametrize("family", ATTENTION)
def test_scores_are_those_of_the_models_own_softmax(workshop: Any, family: str) -> None:
    # without flash attention the probabilities are the model's, with it they are computed beside it;
    # the layers below round differently with it, which moves a probability of 0.5 by up to 0.003
    # the tiny gemma3 has one head, gemma4 only two layers below its split
    heads = {"gemma3": [(0, 0), (1, 0), (2, 0)], "gemma4": [(0, 0), (1, 1)]}.get(family, HEADS)
    prompt, found = tokens(N), []
    for flash in (False, True):
        with context(workshop, family, options(family, "f16", flash)) as ctx:
            filled(ctx, prompt, "attention", 24, heads=heads, n_query=40)
            found.append(ctx.scores(N))
    assert found[0].shape == (len(heads), N)
    assert (found[0].max(axis=1) > 0.01).all()
    assert np.abs(found[0] - found[1]).max() < 1e-2


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
@pytest.mark.parametrize("flash", [False, True])
def test_all_heads_of_a_layer_score_like_each_alone(workshop: Any, kind: str, flash: bool) -> None:
    prompt = tokens(N)
    with context(workshop, "llama", options("llama", kind, flash)) as ctx:
        filled(ctx, prompt, "attention", 24, heads=[(0, -1), (2, 1)], n_query=40)
        together = ctx.scores(N)
        ctx.clear()
        singly = [(0, head) for head in range(len(together) - 1)]
        filled(ctx, prompt, "attention", 24, heads=[*singly, (2, 1)], n_query=40)
        assert len(singly) > 1
        assert (ctx.scores(N) == together).all()


@pytest.mark.parametrize(
    ("pool", "budget"), [((0, 0), 10), ((3, 3), 10), ((3, 3), 1), ((1, 1), 100), ((0, 9), 50), ((2, 400), 60)]
)
def test_the_best_rows_are_selected(workshop: Any, pool: tuple[int, int], budget: int) -> None:
    prompt = tokens(N)
    with context(workshop, "llama", options("llama")) as ctx:
        filled(ctx, prompt, "attention", budget, heads=HEADS, pool=pool, n_query=40)
        best = ctx.scores(N).max(axis=0)
        selected = ctx.selected()
        assert ctx.counters().n_selected == budget == len(set(selected))
        assert ctx.n_filled(0) == N - TAIL - SINK - budget
        assert ctx.reusable(0, N) == min(set(range(SINK, N)) - set(selected))
    rows = set(range(SINK, N - TAIL))
    assert set(selected) < rows
    assert selected == sorted(selected)
    assert best[selected].min() >= best[sorted(rows - set(selected))].max()


def spread(scores: np.ndarray, before: int, after: int) -> np.ndarray:
    """The sum of all rows' scores, halved by distance, ``[n_heads][n_prompt]``."""
    distance = np.subtract.outer(np.arange(N), np.arange(N))  # of a row from one that scored: positive behind it
    half = np.where(distance > 0, after, before)
    weights = np.where(distance == 0, 1.0, np.where(half > 0, 0.5 ** (np.abs(distance) / np.maximum(half, 1)), 0.0))
    return scores @ weights.T


@pytest.mark.parametrize("pool", [(3, 3), (0, 9), (9, 0), (2, 5), (100, 100)])
def test_scores_are_pooled_over_neighbours(workshop: Any, pool: tuple[int, int]) -> None:
    before, after = pool
    prompt = tokens(N)
    with context(workshop, "llama", options("llama")) as ctx:

        def scores(pool: tuple[int, int], n_query: int) -> np.ndarray:
            ctx.clear()
            filled(ctx, prompt, "attention", 24, heads=HEADS, pool=pool, n_query=n_query)
            return ctx.scores(N)

        alone, end, pooled = scores((0, 0), 40), scores((0, 0), 32), scores(pool, 40)
    assert (end < alone).any(), "the last 32 rows are not all that ask"
    want = np.maximum(spread(alone, before, after), spread(end, before, 8 * after))
    np.testing.assert_allclose(pooled, want, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("unified", [True, False])
def test_prompts_that_end_in_one_batch(workshop: Any, unified: bool) -> None:
    prompts = {0: tokens(N), 1: tokens(N - 30, 5), 2: tokens(40, 6)}
    more = {"n_seq_max": 3, "n_ctx": 3072, "kv_unified": unified, "n_batch": 1024}

    def run(ctx: Any, seqs: list[int]) -> dict[int, np.ndarray]:
        for seq in seqs:
            n = len(prompts[seq])
            if n > TAIL + SINK:
                ctx.mark(seq, (SINK, n - TAIL))
                ctx.select(seq, "attention", n, TAIL, 30, heads=HEADS, pool=(1, 1))
        return ctx.decode({seq: prompts[seq] for seq in seqs}, 4)

    with context(workshop, "llama", options("llama", **more)) as ctx:
        together = run(ctx, [0, 1, 2])
    for seq in prompts:
        with context(workshop, "llama", options("llama", **more)) as ctx:
            alone = run(ctx, [seq])[seq]
        assert np.abs(together[seq] - alone).max() < 2e-3 * np.ptp(alone)


def test_heal_after_selection(workshop: Any) -> None:
    prompt = tokens(N)
    with context(workshop, "llama", options("llama")) as ctx:
        want = ctx.decode({0: prompt}, 1)[0]
        ctx.clear()
        filled(ctx, prompt, "attention", 24, heads=HEADS)
        while ctx.heal(0, 50):
            pass
        assert ctx.reusable(0, N) == N
        follow = ctx.decode({0: tokens(3, 8)}, 3, {0: N})[0]
        ctx.clear()
        assert np.array_equal(ctx.decode({0: prompt}, 1)[0], want)
        assert np.abs(follow - ctx.decode({0: tokens(3, 8)}, 3, {0: N})[0]).max() < 1e-3 * np.ptp(follow)


def test_rows_that_saw_filled_ones_are_not_exact(workshop: Any) -> None:
    """Rows 100 to 109 ran before the filled rows in front of them were selected."""
    prompt = tokens(N)
    with context(workshop, "llama", options("llama")) as ctx:
        ctx.decode({0: prompt}, 1)
        want = ctx.state(0)
        ctx.clear()
        ctx.mark(0, (SINK, 100), (110, N - TAIL))
        ctx.select(0, "stride", N, TAIL, N)
        ctx.decode({0: prompt}, 1)
        ctx.mark(0)
        assert ctx.n_filled(0) == 0
        assert ctx.reusable(0, N) == 100
        while ctx.heal(0, 50):
            pass
        assert ctx.reusable(0, N) == N
        assert len(ctx.state(0)) == len(want)  # nothing is noted behind the cells


def test_reused_rows_are_selected_if_they_are_filled(workshop: Any) -> None:
    prompt, n = tokens(N), N - 80
    with context(workshop, "llama", options("llama")) as ctx:
        filled(ctx, prompt[:n], "stride", 50)
        first = set(ctx.selected())
        ctx.mark(0, (SINK, N - TAIL))
        ctx.select(0, "stride", N, TAIL, N)
        ctx.decode({0: prompt[n:]}, 1, {0: n})
        assert ctx.selected() == sorted(({*range(SINK, n - TAIL)} - first) | {*range(n, N - TAIL)})
        # the very first one had only the sink before it, the next one saw filled cells
        assert sorted(first)[0] == SINK
        assert ctx.reusable(0, N) == sorted(first)[1]


def test_a_prompt_that_stops_in_its_tail_leaves_nothing_to_reuse(workshop: Any) -> None:
    prompt = tokens(N)
    with context(workshop, "llama", options("llama")) as ctx:
        ctx.mark(0, (SINK, N - TAIL))
        ctx.select(0, "attention", N, TAIL, 24, heads=HEADS)
        ctx.decode({0: prompt[: N - 10]}, 0)
        assert ctx.reusable(0, N - 10, (SINK, N - TAIL)) == N - TAIL
        assert ctx.reusable(0, N - 10) == SINK


@pytest.mark.parametrize("sequences", [(0, 1), (1, 0)])
def test_a_tail_is_in_one_sequence(workshop: Any, sequences: tuple[int, int]) -> None:
    """Its rows wait for the selected ones: in a sequence that does not wait they would be without upper layers."""
    prompt = tokens(N)
    with context(workshop, "llama", options("llama", n_seq_max=2, n_ctx=1024, kv_unified=True)) as ctx:
        ctx.mark(0, (SINK, N - TAIL))
        ctx.select(0, "stride", N, TAIL, 8)
        rows = [(token, position, sequences) for position, token in enumerate(prompt)]
        with pytest.raises(DecodeError, match=f"position {N - TAIL} of sequence 0 needs rows of a tail that waits"):
            ctx.decode_rows(rows, [False] * (N - 1) + [True])
        ctx.clear()
        ctx.select(0, "stride", N, TAIL, 8)
        ctx.decode({0: prompt}, 1)
        assert len(ctx.selected()) > 0, "the refused batch has changed nothing"


def test_an_aborted_batch_is_not_reported_with_an_older_reason(workshop: Any) -> None:
    abort = llama_cpp.ggml_abort_callback(lambda data: True)
    with context(workshop, "llama", options("llama")) as ctx:
        ctx.mark(0, (SINK, N - TAIL))
        with pytest.raises(DecodeError):
            ctx.decode({0: tokens(N)}, N)
        assert "asks for output" in capi.last_error()
        llama_cpp.llama_set_abort_callback(ctx.handle, abort, None)
        with pytest.raises(DecodeError):
            ctx.decode({0: tokens(N)}, 1)
        assert capi.last_error() == ""


def test_what_cannot_be_selected(workshop: Any) -> None:
    with context(workshop, "llama", options("llama")) as ctx:
        for heads in ([(-1, 0)], [(0, -2)], [(7, 0)], [(0, 99)]):
            with pytest.raises(capi.RefusedError, match="expected heads that exist in layers below"):
                ctx.select(0, "attention", N, TAIL, 8, heads=heads)
        with pytest.raises(capi.RefusedError, match="at most 32 heads"):
            ctx.select(0, "attention", N, TAIL, 8, heads=[(0, 0)] * 33)
        with pytest.raises(
            capi.RefusedError, match=r"a prompt of at most 2048 rows as the context .* found 2147483647"
        ):
            ctx.select(0, "attention", 2**31 - 1, TAIL, 8, heads=HEADS)
        with pytest.raises(capi.RefusedError, match="no retrieval heads"):
            ctx.select(0, "attention", N, TAIL, 8)
        ctx.mark(0, (SINK, N - TAIL))
        ctx.select(0, "attention", N, TAIL, 8, heads=HEADS)
        with pytest.raises(DecodeError, match="before the end of its prompt"):
            ctx.decode({0: tokens(N - 10)}, 1)
    for family in ("qwen35", "mamba2"):
        with (
            pytest.raises(capi.RefusedError, match="cannot run filled rows again"),
            context(workshop, family, options(family)),
        ):
            pass


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize(("tail", "n_query"), [(100, 90), (40, 8), (20, 500)])
def test_scores_are_the_same_however_the_tail_is_cut(workshop: Any, tail: int, n_query: int, flash: bool) -> None:
    """The last 32 rows lie in one ubatch, in several, or in several calls."""
    prompt, n = tokens(N), N
    found = []
    for n_ubatch, cuts in ((512, [0, n]), (8, [0, n]), (64, [0, n - 50, n - 20, n - 1, n])):
        with context(workshop, "llama", options("llama", "f16", flash, n_batch=512, n_ubatch=n_ubatch)) as ctx:

            def scores(n_query: int, pool: tuple[int, int], ctx: Any = ctx, cuts: list[int] = cuts) -> np.ndarray:
                ctx.clear()
                ctx.mark(0, (SINK, n - tail))
                ctx.select(0, "attention", n, tail, 30, pool, n_query, [(0, -1), (2, 0)])
                for start, end in pairwise(cuts):
                    ctx.decode({0: prompt[start:end]}, int(end == n), {0: start})
                return ctx.scores(n)

            found.append((scores(n_query, (0, 0)), scores(min(n_query, 32), (0, 0)), scores(n_query, (0, 5))))
    for alone, ends, pooled in found:
        assert np.abs(alone - found[0][0]).max() < 5e-3
        assert np.abs(ends - found[0][1]).max() < 5e-3
        assert np.abs(pooled - found[0][2]).max() < 5e-3
        assert (min(tail, n_query) > 32) == bool((ends < alone).any())


def test_queries_that_score_in_chunks(workshop: Any) -> None:
    """The probabilities of all heads of a layer for 512 queries take more than a chunk may, those for 64 do not."""
    n, tail, found = 10240, 512, []
    prompt = tokens(n)
    for n_ubatch in (512, 64):
        with context(
            workshop, "llama", options("llama", "f16", True, n_ctx=n + 64, n_batch=512, n_ubatch=n_ubatch)
        ) as ctx:
            ctx.mark(0, (SINK, n - tail))
            ctx.select(0, "attention", n, tail, 30, heads=[(0, -1)], n_query=512)
            ctx.decode({0: prompt}, 1)
            found.append(ctx.scores(n))
    assert len(found[0]) * n * 512 * 4 > 32 << 20 > len(found[0]) * n * 64 * 4
    assert found[0].max() > 0.01
    assert np.abs(found[0] - found[1]).max() < 5e-3
