"""Split states follow the cells: through saving and loading, copies, shifts and removals."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.test_heal import SINK, TAIL, N, context, decode, options
from e2e.test_select import HEADS
from support.capi import RefusedError
from support.engine import Context, Maps, Model
from support.restore import Fenced, set_data
from support.state import parse_kv
from support.tokens import tokens

PROMPT = tokens(N)
FILLED = (SINK, N - TAIL)
WINDOWED = ("gemma3", "gpt-oss", "gemma4")
FAMILIES = ("llama", "deepseek2", *WINDOWED)
LAYOUTS = {
    "one": {},
    "split": {"n_seq_max": 3, "n_ctx": 3072},
    "unified": {"n_seq_max": 3, "n_ctx": 2048, "kv_unified": True},
}


def heal(ctx: Context, seq: int = 0) -> None:
    while ctx.heal(seq, 32):
        pass


def exact_cells(ctx: Context, prompt: list[int] = PROMPT) -> bytes:
    ctx.decode({0: prompt}, 0)
    want = ctx.state(0)
    ctx.clear()
    return want


def by_bytes(a: Context, b: Context, path: Path) -> None:
    b.set_state(0, a.state(0))


def by_file(a: Context, b: Context, path: Path) -> None:
    a.save(path, 0)
    b.load(path, 0)


def by_context(a: Context, b: Context, path: Path) -> None:
    b.set_whole_state(a.whole_state())


def by_context_file(a: Context, b: Context, path: Path) -> None:
    a.save(path)
    b.load(path)


WAYS = {"bytes": by_bytes, "file": by_file, "context": by_context, "context file": by_context_file}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("states", ["f32", "f16"])
def test_a_restored_context_heals_like_the_saved_one(workshop: Any, family: str, states: str) -> None:
    with (
        context(workshop, family, options(family), states) as a,
        context(workshop, family, options(family), states) as b,
    ):
        exact = exact_cells(a)
        decode(a, PROMPT, FILLED)
        saved = a.whole_state()
        b.set_whole_state(saved)
        assert b.whole_state() == saved
        heal(a)
        heal(b)
        assert b.reusable(0, N) == N
        assert b.state(0) == a.state(0)
        assert (b.state(0) == exact) == (states == "f32")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("flash", [False, True])
def test_each_way_to_save(workshop: Any, tmp_path: Path, way: str, layout: str, flash: bool) -> None:
    opts = options("llama", "f16", flash, **LAYOUTS[layout])
    with context(workshop, "llama", opts) as a, context(workshop, "llama", opts) as b:
        exact = exact_cells(a)
        decode(a, PROMPT, FILLED)
        b.decode({0: tokens(100, 7)}, 0)  # is replaced
        WAYS[way](a, b, tmp_path / "state")
        heal(b)
        assert b.state(0) == exact


@pytest.mark.parametrize("whole", [False, True], ids=["sequence", "context"])
@pytest.mark.parametrize("beyond", [0, 1, 3, 6])
def test_a_file_that_is_cut_off_does_not_pass_for_an_exact_one(
    workshop: Any, tmp_path: Path, whole: bool, beyond: int
) -> None:
    path = tmp_path / "state"
    with (
        context(workshop, "llama", options("llama")) as ctx,
        Model(workshop.model("llama")) as model,
        Context(model, options("llama")) as plain,
    ):
        decode(ctx, PROMPT, FILLED)
        ctx.save(path, None if whole else 0)
        data = path.read_bytes()
        path.write_bytes(data[: data.rfind(b"rfil") + beyond])
        for reader in (ctx, plain):
            with pytest.raises(RuntimeError, match="cannot load"):
                reader.load(path, None if whole else 0)
            assert reader.seq_pos_max(0) == -1
        path.write_bytes(data)
        plain.load(path, None if whole else 0)
        assert plain.reusable(0, N) == SINK


def test_files_with_filled_cells_have_a_version_of_their_own(workshop: Any, tmp_path: Path) -> None:
    path = tmp_path / "state"
    with context(workshop, "llama", options("llama")) as ctx:
        exact_cells(ctx)
        ctx.decode({0: PROMPT}, 0)
        ctx.save(path, 0)
        exact = path.read_bytes()[:8]
        ctx.clear()
        decode(ctx, PROMPT, FILLED)
        ctx.save(path, 0)
        filled = path.read_bytes()[:8]
    assert exact[:4] == filled[:4]
    assert struct.unpack("<I", filled[4:]) == (struct.unpack("<I", exact[4:])[0] | 1 << 31,)


@pytest.mark.parametrize("family", WINDOWED)
def test_the_state_of_a_windowed_sequence_lacks_the_cells_to_heal(workshop: Any, family: str) -> None:
    with context(workshop, family, options(family)) as ctx:
        decode(ctx, PROMPT, FILLED)
        ctx.set_state(0, ctx.state(0))
        assert ctx.reusable(0, N) == SINK
        with pytest.raises(RefusedError, match="attends to rows that a sliding window has dropped"):
            ctx.heal(0, 8)
        ctx.upper(0, range(N - 8, N))  # rows in the window still can


@pytest.mark.parametrize("layout", ["split", "unified"])
def test_restored_into_another_sequence(workshop: Any, layout: str) -> None:
    with context(workshop, "llama", options("llama", **LAYOUTS[layout])) as ctx:
        exact = parse_kv(exact_cells(ctx))
        ctx.decode({1: tokens(70, 3)}, 0)  # other cells than before
        decode(ctx, PROMPT, FILLED)
        saved = ctx.state(0)
        ctx.clear()
        ctx.decode({0: tokens(90, 5)}, 0)
        ctx.set_state(2, saved)
        heal(ctx, 2)
        # in a unified cache the rows are in other cells, and attention adds up in the order of the cells
        assert_same_cells(parse_kv(ctx.state(2)), exact, 0.0 if layout == "split" else 3e-3)


def assert_same_cells(got: Any, want: Any, tolerance: float = 0.0) -> None:
    assert (got.pos == want.pos).all()
    for a, b in zip([*got.k, *got.v], [*want.k, *want.v], strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_a_context_saves_shared_rows_once(workshop: Any) -> None:
    opts = options("llama", **LAYOUTS["unified"])
    with context(workshop, "llama", opts) as a, context(workshop, "llama", opts) as b:
        exact = parse_kv(exact_cells(a))
        decode(a, PROMPT, FILLED)
        alone = len(a.whole_state())
        a.seq_cp(0, 1)
        saved = a.whole_state()
        assert len(saved) < alone + 20 * N
        b.set_whole_state(saved)
        assert b.whole_state() == saved
        for seq in (0, 1):
            assert b.n_filled(seq) == FILLED[1] - FILLED[0]
        heal(b, 1)
        assert_same_cells(parse_kv(b.state(1)), exact)


def test_a_restored_prompt_selects_like_the_saved_one(workshop: Any) -> None:
    n = N - 80
    found = []
    with context(workshop, "llama", options("llama")) as a, context(workshop, "llama", options("llama")) as b:
        decode(a, PROMPT[:n], (SINK, n - TAIL))
        b.set_state(0, a.state(0))
        for ctx in (a, b):
            ctx.mark(0, (SINK, N - TAIL))
            ctx.select(0, "attention", N, TAIL, 60, heads=HEADS, pool=(2, 2))
            logits = ctx.decode({0: PROMPT[n:]}, 3, {0: n})[0]
            found.append((ctx.selected(), logits.tobytes(), ctx.state(0)))
    assert min(found[0][0]) < n - TAIL  # restored rows are among them
    assert found[0] == found[1]


def test_states_are_dropped_where_rows_do_not_run_again(workshop: Any) -> None:
    with (
        context(workshop, "llama", options("llama")) as keeps,
        Model(workshop.model("llama")) as model,
        Maps(model, workshop.maps("llama", "poison")) as maps,
        Context(model, options("llama")) as bare,
    ):
        decode(keeps, PROMPT, FILLED)
        saved = keeps.state(0)
        follow = keeps.decode({0: PROMPT[:8]}, 8, {0: N})[0]
        for _ in range(2):  # without maps, then with maps that keep no states
            bare.set_state(0, saved)
            assert bare.n_filled(0) == FILLED[1] - FILLED[0]
            assert bare.reusable(0, N) == SINK
            assert np.array_equal(bare.decode({0: PROMPT[:8]}, 8, {0: N})[0], follow)
            assert bare.seq_rm(0, N, -1)
            bare.set_maps(maps)
        lean = bare.state(0)
        assert len(lean) < len(saved)
        with pytest.raises(RefusedError, match="split states are not kept"):
            bare.heal(0, 8)
        keeps.set_state(0, lean)
        assert keeps.reusable(0, N) == SINK
        with pytest.raises(RefusedError, match="has no split state"):
            keeps.heal(0, 8)
        bare.set_maps(None)


def test_exact_sequences_are_saved_as_without_ridgefill(workshop: Any) -> None:
    with (
        context(workshop, "llama", options("llama")) as keeps,
        Model(workshop.model("llama")) as model,
        Context(model, options("llama")) as plain,
    ):
        assert exact_cells(keeps) == exact_cells(plain)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_copy_has_split_states_of_its_own(workshop: Any, family: str) -> None:
    with context(workshop, family, options(family, **LAYOUTS["split"])) as ctx:
        ctx.decode({2: PROMPT}, 0)
        want = ctx.state(2)
        ctx.clear()
        decode(ctx, PROMPT, FILLED)
        ctx.decode({2: tokens(100, 5)}, 0)  # is replaced
        ctx.seq_cp(0, 2)
        assert ctx.seq_rm(0, -1, -1)
        ctx.decode({0: tokens(N, 9)}, 0)  # other rows in the cells of the original
        heal(ctx, 2)
        assert ctx.state(2) == want


def test_a_copy_of_a_copy_that_is_saved_at_once(workshop: Any) -> None:
    with context(workshop, "llama", options("llama", **LAYOUTS["split"])) as ctx:
        decode(ctx, PROMPT, FILLED)
        section = ctx.state(0).partition(b"rfst")[2]
        ctx.seq_cp(0, 1)
        ctx.seq_cp(1, 2)
        n_data = 4 * N  # behind the ranges, which name the sequence
        assert ctx.state(2).partition(b"rfst")[2][-n_data:] == section[-n_data:]
        heal(ctx, 2)
        assert ctx.reusable(2, N) == N


def test_shifted_rows_heal_at_their_new_positions(workshop: Any) -> None:
    """Like an exact prompt that is shifted, and whose rows then run again."""
    found = []
    with context(workshop, "llama", options("llama")) as ctx:
        for ranges in ([], [FILLED]):
            decode(ctx, PROMPT, *ranges)
            assert ctx.seq_rm(0, 2, 50)
            ctx.seq_add(0, 50, -1, -48)
            if ranges:
                heal(ctx)
            else:
                for p0 in range(2, N - 48, 32):
                    ctx.upper(0, range(p0, min(N - 48, p0 + 32)))
            found.append(ctx.state(0))
            ctx.clear()
    assert found[0] == found[1]


def test_rows_behind_removed_ones_heal(workshop: Any) -> None:
    prompt = PROMPT[:192] + tokens(60, 5)
    with context(workshop, "llama", options("llama")) as ctx:
        want = exact_cells(ctx, prompt)
        decode(ctx, PROMPT, FILLED)
        assert ctx.seq_rm(0, 192, -1)
        ctx.decode({0: prompt[192:]}, 0, {0: 192})
        ctx.set_state(0, ctx.state(0))
        heal(ctx)
        assert len(ctx.state(0)) == len(want)
        assert parse_kv(ctx.state(0)).pos[-1] == len(prompt) - 1


# hostile files

HEADER = struct.Struct("<iiIQII")  # split, type, width, maps, ranges, rows
RANGE = struct.Struct("<iii")  # sequence, positions [p0, p1)


def with_header(**fields: int) -> Callable[[bytes], bytes]:
    def change(section: bytes) -> bytes:
        names = ("split", "type", "width", "maps", "n_ranges", "n_rows")
        values = dict(zip(names, HEADER.unpack_from(section), strict=True)) | fields
        return HEADER.pack(*values.values()) + section[HEADER.size :]

    return change


def with_range(*values: int) -> Callable[[bytes], bytes]:
    def change(section: bytes) -> bytes:
        return section[: HEADER.size] + RANGE.pack(*values) + section[HEADER.size + RANGE.size :]

    return change


def with_token(token: int) -> Callable[[bytes], bytes]:
    start = HEADER.size + RANGE.size
    return lambda section: section[:start] + struct.pack("<i", token) + section[start + 4 :]


HOSTILE = {
    "split": (with_header(split=2), "expected split 3"),
    "maps": (with_header(maps=1), "found 3 and 0000000000000001"),
    "f16": (with_header(type=1), "expected type f32, found f16"),
    "no type": (with_header(type=-1), "expected 64 values"),
    "big type": (with_header(type=1 << 30), "expected 64 values"),
    "width": (with_header(width=65), "found 65"),
    "no width": (with_header(width=0), "found 0"),
    "fewer rows": (with_header(n_rows=1), "expected 296 rows, found 1"),
    "more rows": (with_header(n_rows=0xFFFFFFFF), "expected 296 rows"),
    "no ranges": (with_header(n_ranges=0), "expected 0 rows, found 296"),
    "more ranges": (with_header(n_ranges=0xFFFFFFFF), "bad range"),
    "rows beyond the prompt": (with_range(0, SINK, N + 1), "not all rows"),
    "very many rows": (with_range(0, 0, 0x7FFFFFFF), "there are no rows"),
    "negative position": (with_range(0, -1, N), "bad range"),
    "empty range": (with_range(0, 5, 5), "bad range"),
    "negative sequence": (with_range(-1, SINK, N), "bad range"),
    "no such sequence": (with_range(1 << 20, SINK, N), "bad range"),
    "token": (with_token(1 << 30), "no token 1073741824"),
    "negative token": (with_token(-2), "no token -2"),
    "no header": (lambda section: section[:7], "end of buffer"),
    "cut ranges": (lambda section: section[: HEADER.size + 5], "end of buffer"),
    "cut tokens": (lambda section: section[: HEADER.size + 100], "end of buffer"),
    "cut rows": (lambda section: section[:-1], "end of buffer"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_bad_states_are_refused_with_the_reason(workshop: Any, case: str) -> None:
    change, reason = HOSTILE[case]
    with context(workshop, "llama", options("llama")) as ctx:
        decode(ctx, PROMPT, FILLED)
        before, magic, section = ctx.state(0).partition(b"rfst")
        with pytest.raises(RuntimeError, match=reason):
            ctx.set_state(0, before + magic + change(section))
        # nothing of it is left, and the context works
        assert ctx.seq_pos_max(0) == -1
        assert ctx.n_filled(0) == 0
        ctx.set_state(0, before + magic + section)
        heal(ctx)
        want = ctx.state(0)
        ctx.clear()
        assert exact_cells(ctx) == want


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("slack", [b"more", b"rfil" + bytes(40), b"\xaa" * 64], ids=["word", "section", "noise"])
def test_a_buffer_may_be_larger_than_the_state(workshop: Any, keeps: bool, slack: bytes) -> None:
    with context(workshop, "llama", options("llama")) as ctx:
        decode(ctx, PROMPT, FILLED)
        state, whole = ctx.state(0), ctx.whole_state()
        target = ctx
        with ExitStack() as stack:
            if not keeps:
                target = stack.enter_context(Context(ctx.model, ctx.options))
            for restore in (lambda: target.set_state(0, state + slack), lambda: target.set_whole_state(whole + slack)):
                target.clear()
                restore()
                assert target.n_filled(0) == ctx.n_filled(0)
                assert target.reusable(0, N) == SINK


def test_a_state_whose_size_is_not_told_keeps_its_marks(workshop: Any) -> None:
    """llama_set_state_data reads no byte beyond the state, and knows which rows are filled."""
    with context(workshop, "llama", options("llama")) as ctx:
        decode(ctx, PROMPT, FILLED)
        whole = ctx.whole_state()
        ctx.clear()
        with Fenced(whole) as buffer:
            assert set_data(ctx, buffer, None) == len(whole)
        assert ctx.reusable(0, N) == SINK
        heal(ctx)
        want = ctx.state(0)
        ctx.clear()
        assert exact_cells(ctx) == want


@pytest.mark.parametrize("whole", [True, False], ids=["context", "sequence"])
def test_states_with_filled_rows_are_refused_where_nobody_knows_of_them(workshop: Any, whole: bool) -> None:
    """The number or name in front, which stock llama.cpp checks, is another one."""
    with context(workshop, "llama", options("llama")) as ctx:
        exact_cells(ctx)
        ctx.decode({0: PROMPT}, 0)
        exact = ctx.whole_state() if whole else ctx.state(0)
        ctx.clear()
        decode(ctx, PROMPT, FILLED)
        filled = ctx.whole_state() if whole else ctx.state(0)
    assert filled[: 4 + len("llama")] != exact[: 4 + len("llama")]


def test_other_maps_are_refused(workshop: Any) -> None:
    with ExitStack() as stack:
        poisoned = stack.enter_context(context(workshop, "llama", options("llama")))
        model = stack.enter_context(Model(workshop.model("llama")))
        ctx = stack.enter_context(Context(model, options("llama")))
        maps = stack.enter_context(Maps(model, workshop.maps("llama", "identity")))
        ctx.set_maps(maps, states="f32")
        stack.callback(ctx.set_maps, None)
        decode(poisoned, PROMPT, FILLED)
        with pytest.raises(RuntimeError, match="they fit the maps they were saved with"):
            ctx.set_whole_state(poisoned.whole_state())
        assert ctx.seq_pos_max(0) == -1


@pytest.mark.parametrize("keeps", [True, False])
def test_random_damage_never_does_harm(workshop: Any, keeps: bool) -> None:
    rng = random.Random(0)
    with context(workshop, "gemma4", options("gemma4")) as ctx, ExitStack() as stack:
        decode(ctx, PROMPT, FILLED)
        before, magic, section = ctx.state(0).partition(b"rfil")
        target = ctx
        if not keeps:
            target = stack.enter_context(Context(ctx.model, ctx.options))
        loaded = 0
        for _ in range(100):
            damaged = bytearray(section)
            start = rng.choice([0, damaged.index(b"rfst")])
            for _ in range(rng.randint(1, 3)):
                damaged[start + rng.randrange(60)] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            try:
                target.set_state(0, before + magic + bytes(damaged))
            except RuntimeError:
                assert target.seq_pos_max(0) == -1
                continue
            loaded += 1
            with suppress(RefusedError):
                heal(target)
        assert 0 < loaded < 100
