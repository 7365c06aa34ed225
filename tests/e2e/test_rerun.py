"""UPPER over rows that ran below the split, or were filled: together they are the full model."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.test_heal import ATTENTION, SINK, TAIL, N, context, decode, options
from support import maps
from support.capi import RefusedError
from support.engine import Context, Maps, Model
from support.families import FAMILIES
from support.llama_numpy import LlamaNumpy
from support.state import parse_kv
from support.tokens import tokens

CACHES = (("f16", False), ("f16", True), ("q8_0", True))
PROMPT = tokens(N)
FILLED = (SINK, N - TAIL)
LAST = N % 64  # rows of the last batch


def lower_then_upper(ctx: Context, prompt: list[int], n_logits: int) -> np.ndarray:
    """The whole prompt is the tail: all its rows run below the split, and then from the split on."""
    ctx.select(0, "stride", len(prompt), len(prompt), 0)
    return ctx.decode({0: prompt}, n_logits)[0]


@pytest.mark.parametrize(("kind", "flash"), CACHES)
@pytest.mark.parametrize("family", ATTENTION)
def test_lower_then_upper_is_the_full_model_bit_for_bit(workshop: Any, family: str, kind: str, flash: bool) -> None:
    with context(workshop, family, options(family, kind, flash)) as ctx:
        exact = ctx.decode({0: PROMPT}, LAST)[0]
        want = ctx.state(0)
        ctx.clear()
        got = lower_then_upper(ctx, PROMPT, LAST)
        assert np.array_equal(got, exact)
        assert ctx.state(0) == want
        assert ctx.reusable(0, N) == N


@pytest.mark.parametrize(
    ("family", "states", "tolerance"),
    # F16 split states round each row to 11 bits, where the exact run keeps F32; a router of experts may turn by that
    [*((family, "f32", 1e-3) for family in ATTENTION), ("llama", "f16", 5e-3), ("gemma3", "f16", 5e-3)],
)
def test_lower_then_upper_in_other_ubatches(workshop: Any, family: str, states: str, tolerance: float) -> None:
    with context(workshop, family, options(family, n_batch=50), states) as ctx:
        exact = ctx.decode({0: PROMPT}, 50)[0]
        ctx.clear()
        got = lower_then_upper(ctx, PROMPT, 50)
        assert np.abs(got - exact).max() < tolerance * np.ptp(exact)


def greedy(ctx: Context, seq: int, prompt: list[int], n: int) -> list[int]:
    """Continue a prompt whose cells exist; its last row runs again for its logits."""
    assert ctx.seq_rm(seq, len(prompt) - 1, -1)
    token, found = prompt[-1], []
    for pos in range(len(prompt) - 1, len(prompt) - 1 + n):
        token = int(ctx.decode({seq: [token]}, 1, {seq: pos})[seq][0].argmax())
        found.append(token)
    return found


@pytest.mark.parametrize(("kind", "flash"), CACHES)
@pytest.mark.parametrize("family", ATTENTION)
def test_healed_poison_continues_like_an_exact_prefill(workshop: Any, family: str, kind: str, flash: bool) -> None:
    with context(workshop, family, options(family, kind, flash)) as ctx:
        ctx.decode({0: PROMPT}, 0)
        want = ctx.state(0)
        answer = greedy(ctx, 0, PROMPT, 50)
        ctx.clear()
        decode(ctx, PROMPT, (32, 224))
        poisoned = ctx.state(0)
        while ctx.heal(0, 64):
            pass
        assert ctx.state(0) == want != poisoned
        assert greedy(ctx, 0, PROMPT, 50) == answer


def patterns(rng: random.Random) -> dict[str, list[int]]:
    """Rows of the filled range to select, as blocks at random places."""
    rows = range(*FILLED)
    tenth: set[int] = set()
    while len(tenth) < len(rows) // 10:
        start = rng.choice(rows)
        tenth.update(range(start, min(start + rng.randint(1, 9), rows.stop)))
    return {"none": [], "one": [rng.choice(rows)], "tenth": sorted(tenth), "all": list(rows)}


def fill_front(ctx: Context) -> None:
    """All rows before the tail."""
    ctx.mark(0, FILLED)
    ctx.decode({0: PROMPT[: FILLED[1]]}, 0)
    ctx.mark(0)


@pytest.mark.parametrize("family", ATTENTION)
@pytest.mark.parametrize("flash", [False, True])
def test_selected_rows_of_an_oracle_change_nothing(workshop: Any, family: str, flash: bool) -> None:
    for live in range(FAMILIES[family].split, FAMILIES[family].n_layer):
        with (
            Model(workshop.oracle(family, live)) as model,
            Maps(model, workshop.maps(family, "identity")) as loaded,
            Context(model, options(family, "f16", flash)) as ctx,
        ):
            exact = ctx.decode({0: PROMPT}, TAIL)[0]
            ctx.clear()
            ctx.set_maps(loaded, states="f32")
            fill_front(ctx)
            for name, rows in patterns(random.Random(live)).items():
                ctx.upper(0, rows)
                got = ctx.decode({0: PROMPT[FILLED[1] :]}, TAIL, {0: FILLED[1]})[0]
                assert np.abs(got - exact).max() < 1e-3 * np.ptp(exact), (live, name)
                assert ctx.seq_rm(0, FILLED[1], -1)
            ctx.set_maps(None)


def test_selected_rows_matter_where_maps_are_wrong(workshop: Any) -> None:
    """Each pattern comes closer to the exact tail, and all rows give it."""
    found = {}
    with context(workshop, "llama", options("llama")) as ctx:
        exact = ctx.decode({0: PROMPT}, TAIL)[0]
        for name, rows in patterns(random.Random(0)).items():
            ctx.clear()
            fill_front(ctx)
            ctx.upper(0, rows)
            got = ctx.decode({0: PROMPT[FILLED[1] :]}, TAIL, {0: FILLED[1]})[0]
            found[name] = float(np.abs(got - exact).mean() / np.ptp(exact))
    assert found["all"] < 1e-4 < found["tenth"] < found["none"]


# differences of probabilities, up to 0.7 here: F16 keys round to 11 bits, Q8_0 keys to 8 bits of their block's largest
# value, and the layers below the head round as much
@pytest.mark.parametrize(("kind", "tolerance"), [("f16", 1e-2), ("q8_0", 5e-2)])
@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("n_query", [1, 32, 40])
def test_scores_are_a_softmax_over_the_same_queries_and_keys(
    workshop: Any, tmp_path: Path, kind: str, tolerance: float, flash: bool, n_query: int
) -> None:
    family = replace(FAMILIES["llama"], n_head=6, n_head_kv=2, head=32)  # three heads share keys
    path = family.write(tmp_path / "model.gguf")
    probabilities = LlamaNumpy(path).probabilities(PROMPT)
    heads = [(layer, head) for layer in range(family.split) for head in range(family.n_head)]
    want = np.stack([probabilities[layer][head, -n_query:].max(axis=0) for layer, head in heads])
    with Model(path) as model, Context(model, options("llama", kind, flash)) as ctx:
        made = maps.identity(path, [family.split], family.sites())
        ctx.set_maps(model.own(Maps(model, maps.write(tmp_path / "maps.gguf", made))), states="f32")
        ctx.mark(0, FILLED)
        ctx.select(0, "attention", N, TAIL, 8, heads=heads, n_query=n_query)
        ctx.decode({0: PROMPT}, 1)
        got = ctx.scores(N)
        ctx.set_maps(None)
    assert want.max() > 0.2
    np.testing.assert_allclose(got, want, atol=tolerance)


# several sequences at once

LAYOUTS = {
    "split": {"n_seq_max": 4, "n_ctx": 4096},
    "unified": {"n_seq_max": 4, "n_ctx": 2048, "kv_unified": True},
}
LENGTHS = {0: 300, 1: 300, 2: 150, 3: 217}


@pytest.mark.parametrize("family", ["llama", "gpt-oss", "deepseek2"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("flash", [False, True])
def test_healing_several_sequences_at_once(workshop: Any, family: str, layout: str, flash: bool) -> None:
    prompts = {seq: tokens(n, seq) for seq, n in LENGTHS.items()}
    with context(workshop, family, options(family, "f16", flash, **LAYOUTS[layout])) as ctx:

        def fill() -> None:
            ctx.clear()
            for seq, prompt in prompts.items():
                ctx.mark(seq, (SINK, len(prompt) - 20))
            ctx.decode(prompts, 0)
            for seq in prompts:
                ctx.mark(seq)

        fill()
        for seq in prompts:
            while ctx.heal(seq, 32):
                pass
        # each row's logits, through all that was healed
        want = {seq: ctx.decode({seq: tokens(8, 9)}, 8, {seq: n})[seq] for seq, n in LENGTHS.items()}
        fill()
        ctx.reset_counters()
        steps = []
        while n := ctx.heal(-1, 50):
            steps.append(n)
        assert max(steps) == 50
        assert ctx.counters().n_healed == sum(steps) == sum(n - SINK for n in LENGTHS.values())
        for seq, n in LENGTHS.items():
            assert ctx.reusable(seq, n) == n
            got = ctx.decode({seq: tokens(8, 9)}, 8, {seq: n})[seq]
            assert np.abs(got - want[seq]).max() < 1e-3 * np.ptp(want[seq])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_selected_rows_of_prompts_that_end_together(workshop: Any, layout: str) -> None:
    """All rows are selected, so that each prompt must come out exact, in cells that hold it alone or with others."""
    prompts = {seq: tokens(n, seq) for seq, n in LENGTHS.items()}
    opts = options("llama", n_batch=1024, **LAYOUTS[layout])
    with context(workshop, "llama", opts) as ctx:
        exact, cells = {}, {}
        for seq, prompt in prompts.items():
            exact[seq] = ctx.decode({seq: prompt}, 5)[seq]
            cells[seq] = parse_kv(ctx.state(seq))
            ctx.clear()
        for seq, n in LENGTHS.items():
            ctx.mark(seq, (SINK, n - TAIL))
            ctx.select(seq, "stride", n, TAIL, n)
        got = ctx.decode(prompts, {0: 5, 1: 3, 2: 5, 3: 1})
        for seq, n in LENGTHS.items():
            want = exact[seq][-len(got[seq]) :]
            assert np.abs(got[seq] - want).max() < 1e-3 * np.ptp(want)
            assert ctx.reusable(seq, n) == n
            found = parse_kv(ctx.state(seq))
            for a, b in zip([*found.k, *found.v], [*cells[seq].k, *cells[seq].v], strict=True):
                np.testing.assert_allclose(a, b, rtol=4e-3, atol=4e-3)


def test_sequences_that_share_cells_heal_together(workshop: Any) -> None:
    with context(workshop, "llama", options("llama", **LAYOUTS["unified"])) as ctx:
        ctx.decode({0: PROMPT}, 0)
        want = ctx.decode({0: tokens(8, 9)}, 8, {0: N})[0]
        ctx.clear()
        decode(ctx, PROMPT, FILLED)
        ctx.seq_cp(0, 1)
        while ctx.heal(-1, 64):
            pass
        for seq in (0, 1):
            assert ctx.reusable(seq, N) == N
            got = ctx.decode({seq: tokens(8, 9)}, 8, {seq: N})[seq]
            assert np.abs(got - want).max() < 1e-3 * np.ptp(want)


def test_cells_that_another_sequence_has_behind_other_rows_do_not_heal(workshop: Any) -> None:
    shared = (50, 150)
    with context(workshop, "llama", options("llama", **LAYOUTS["unified"])) as ctx:
        ctx.decode({0: PROMPT}, 0)
        want = ctx.decode({0: tokens(8, 9)}, 8, {0: N})[0]
        ctx.clear()
        decode(ctx, PROMPT, FILLED)
        decode(ctx, tokens(50, 5), (SINK, 40), seq=1)
        ctx.seq_cp(0, 1, *shared)
        for seq in (0, 1):
            with pytest.raises(RefusedError, match="in cells that another sequence has behind other rows"):
                ctx.heal(seq, N)
        while ctx.heal(-1, 64):
            pass
        assert ctx.reusable(0, N) <= shared[0]
        assert ctx.seq_rm(1, 0, -1)
        while ctx.heal(0, 64):
            pass
        assert ctx.reusable(0, N) == N
        got = ctx.decode({0: tokens(8, 9)}, 8, {0: N})[0]
        assert np.abs(got - want).max() < 1e-3 * np.ptp(want)


# rows that came as embeddings


@pytest.mark.parametrize("family", ["llama", "gemma3", "gemma4"])
def test_rows_of_embeddings_heal_where_upper_layers_read_no_tokens(workshop: Any, family: str) -> None:
    rows = np.random.default_rng(0).normal(size=(10, FAMILIES[family].n_embd)).astype(np.float32)
    with context(workshop, family, options(family)) as ctx:

        def read() -> bytes:
            ctx.decode({0: PROMPT[:40]}, 0)
            ctx.decode_embeddings(rows, 40)
            ctx.decode({0: PROMPT[50:70]}, 0, {0: 50})
            return ctx.state(0)

        want = read()
        ctx.clear()
        ctx.mark(0, (32, 40))
        assert read() != want
        assert ctx.heal(0, 8) == 8
        if family == "gemma4":
            with pytest.raises(RefusedError, match="came as embeddings cannot run again"):
                ctx.heal(0, 10)
            return
        assert (ctx.heal(0, 10), ctx.heal(0, 20)) == (10, 20)
        assert ctx.state(0) == want


# where rows cannot run again


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("qwen35", "not an attention cache with one position per row"),
        ("mamba2", "not an attention cache with one position per row"),
        ("gemma3", "sliding windows have dropped them .hint: .* swa_full"),
    ],
)
def test_the_reason_is_told_at_load(workshop: Any, family: str, reason: str) -> None:
    opts = options(family, n_ctx=2048, n_batch=512)
    with Model(workshop.model(family)) as model, Maps(model, workshop.maps(family, "identity")) as loaded:
        for swa_full in (True, False):
            with Context(model, replace(opts, swa_full=swa_full)) as ctx:
                can, why = ctx.can_keep_states()
                assert can == (family == "gemma3" and swa_full)
                if can:
                    assert why == ""
                    ctx.set_maps(loaded, states="f32")
                else:
                    with pytest.raises(RefusedError, match=reason) as refused:
                        ctx.set_maps(loaded, states="f32")
                    assert str(refused.value) == why
                    ctx.set_maps(loaded)  # fill without selection works
                    ctx.mark(0, FILLED)
                    ctx.decode({0: PROMPT})
                    assert ctx.n_filled(0) == FILLED[1] - FILLED[0]
                ctx.set_maps(None)
