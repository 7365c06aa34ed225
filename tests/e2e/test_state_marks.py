"""Fill marks follow the cells through every operation on the memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.capi import RefusedError
from support.engine import Context, Maps, Model
from support.families import FAMILIES
from support.options import ContextOptions
from support.tokens import tokens

N, TAIL, SINK = 300, 64, 4
FILLED = (SINK, N - TAIL)
N_FILLED = FILLED[1] - FILLED[0]
PROMPT = tokens(N)

LAYOUTS = {
    "split": ContextOptions(n_ctx=4096, n_seq_max=4),
    "unified": ContextOptions(n_ctx=4096, n_seq_max=4, kv_unified=True),
}
DENSE = ["llama", "deepseek2"]
WINDOWED = [name for name, f in FAMILIES.items() if f.windowed and not f.recurrent]
RECURRENT = [name for name, f in FAMILIES.items() if f.recurrent]


@pytest.fixture(params=LAYOUTS)
def layout(request) -> ContextOptions:
    return LAYOUTS[request.param]


@pytest.fixture(params=DENSE)
def context(request, workshop, layout) -> Iterator[Context]:
    yield from filled_context(workshop, request.param, layout)


def filled_context(workshop, name: str, options: ContextOptions) -> Iterator[Context]:
    """A context whose sequence 0 holds a filled prompt."""
    with (
        Model(workshop.model(name)) as model,
        Maps(model, workshop.maps(name, "identity")) as loaded,
        Context(model, options) as context,
    ):
        context.set_maps(loaded)
        context.mark(0, FILLED)
        context.decode({0: PROMPT})
        context.mark(0)
        yield context


def test_filled_cells_are_counted_by_range(context):
    assert context.n_filled(0) == N_FILLED
    assert context.n_filled(0, 0, SINK) == 0
    assert context.n_filled(0, 100, 110) == 10
    assert context.n_filled(0, FILLED[1] - 5, FILLED[1] + 5) == 5
    assert context.n_filled(0, FILLED[1], -1) == 0
    assert context.n_filled(1) == 0


def test_an_exact_prompt_reuses_up_to_the_first_filled_cell(context):
    assert context.reusable(0, N) == SINK
    assert context.reusable(0, 3) == 3
    assert context.reusable(0, 0) == 0


def test_a_filled_prompt_reuses_up_to_where_it_asks_for_exact_rows(context):
    assert context.reusable(0, N, FILLED) == N
    assert context.reusable(0, 280, (SINK, 500)) == 280
    # its tail begins inside the cells that were filled for the longer prompt
    assert context.reusable(0, N, (SINK, 100)) == 100
    assert context.reusable(0, N, (100, FILLED[1])) == SINK
    assert context.reusable(0, N, (SINK, 50), (60, FILLED[1])) == 50


def test_exact_cells_serve_a_filled_prompt(context):
    context.decode({1: PROMPT[:100]})
    assert context.reusable(1, 100, (SINK, 90)) == 100


def test_a_copy_has_the_marks_too(context):
    context.seq_cp(0, 1)
    assert context.n_filled(1) == context.n_filled(0) == N_FILLED
    assert context.reusable(1, N) == SINK
    context.seq_rm(0, -1, -1)
    assert context.n_filled(0) == 0
    assert context.n_filled(1) == N_FILLED


def test_a_copy_is_independent(context):
    context.seq_cp(0, 1)
    assert context.seq_rm(1, 100, -1)
    context.decode({1: PROMPT[100:200]}, start={1: 100})
    assert context.n_filled(1) == 100 - SINK
    assert context.n_filled(0) == N_FILLED


def test_removed_cells_lose_their_marks(context):
    assert context.seq_rm(0, 100, -1)
    assert context.n_filled(0) == 100 - SINK
    context.decode({0: PROMPT[100:]}, start={0: 100})
    assert context.n_filled(0) == 100 - SINK
    assert context.n_filled(0, 100, -1) == 0
    assert context.seq_rm(0, SINK, -1)
    context.decode({0: PROMPT[SINK:]}, start={0: SINK})
    assert context.n_filled(0) == 0
    assert context.reusable(0, N) == N


@pytest.mark.parametrize("end", [-1, N, 100_000])
def test_a_sequence_that_was_removed_whole_is_exact(context, end):
    assert context.seq_rm(0, 0, end)
    assert context.reusable(0, N) == N
    assert context.seq_pos_max(0) == -1


def test_a_freed_cell_is_not_filled_for_its_next_owner(context):
    assert context.seq_rm(0, -1, -1)
    context.decode({seq: tokens(N, seed=seq) for seq in range(4)})
    assert [context.n_filled(seq) for seq in range(4)] == [0] * 4


def test_clear_and_keep(context):
    context.seq_cp(0, 1)
    context.seq_keep(1)
    assert context.n_filled(0) == 0
    assert context.n_filled(1) == N_FILLED
    context.clear()
    assert context.n_filled(1) == 0
    assert context.reusable(1, 0) == 0


@pytest.mark.parametrize("family", ["llama"])
def test_marks_move_with_shifted_positions(workshop, layout, family):
    for context in filled_context(workshop, family, layout):
        # drop an exact and a filled part from the middle, close the gap
        assert context.seq_rm(0, 2, 50)
        context.seq_add(0, 50, -1, -48)
        assert context.seq_pos_max(0) == N - 1 - 48
        assert context.n_filled(0) == N_FILLED - 46
        assert context.reusable(0, N - 48) == 2
        assert context.n_filled(0, 0, 2) == 0
        assert context.n_filled(0, FILLED[1] - 48, -1) == 0
        # the shift is applied at the next decode
        context.decode({0: PROMPT[:10]}, start={0: N - 48})
        assert context.n_filled(0) == N_FILLED - 46
        assert context.n_filled(0, FILLED[1] - 48, -1) == 0


SHIFTS = {
    "filled rows go behind those that saw them": ([(*FILLED, 1000)], FILLED[1]),
    "and these go on": ([(*FILLED, 1000), (FILLED[1], N, -200)], FILLED[1] - 200),
    "exact rows go on": ([(FILLED[1], N, 1000)], SINK),
    "all rows go on": ([(0, -1, 10)], SINK + 10),
    "first rows go to the end": ([(0, SINK, 1000)], SINK),
}


@pytest.mark.parametrize("shifts", SHIFTS)
def test_rows_that_saw_filled_ones_stay_known_wherever_they_go(workshop, layout, shifts):
    moves, first = SHIFTS[shifts]
    for context in filled_context(workshop, "llama", layout):
        for move in moves:
            context.seq_add(0, *move)
        assert context.reusable(0, context.seq_pos_max(0) + 1) == first


def test_marks_survive_saving(context):
    state = context.state(0)
    expected = context.decode({0: PROMPT[:8]}, 8, start={0: N})[0]
    context.seq_rm(0, -1, -1)
    context.set_state(2, state)
    assert context.n_filled(2) == N_FILLED
    assert context.reusable(2, N) == SINK
    got = context.decode({2: PROMPT[:8]}, 8, start={2: N})[2]
    np.testing.assert_allclose(got, expected, atol=1e-3)
    context.set_state(0, state)
    assert context.state(0) == state


def test_a_loaded_exact_state_replaces_filled_cells(context):
    context.decode({1: PROMPT})
    exact = context.state(1)
    context.set_state(0, exact)
    assert context.n_filled(0) == 0
    assert context.reusable(0, N) == N


@pytest.mark.parametrize("name", WINDOWED)
def test_dropped_cells_of_a_window(workshop, name):
    """The long-range cache still has every cell; an exact prompt still reuses none that was filled."""
    for context in filled_context(workshop, name, ContextOptions()):
        assert context.n_filled(0) == N_FILLED
        assert context.reusable(0, N) == SINK
        assert context.reusable(0, N, FILLED) == N
        state = context.state(0)
        context.clear()
        assert context.n_filled(0) == 0
        context.set_state(0, state)
        assert context.reusable(0, N) == SINK


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_memory(workshop, name):
    """A recurrent state that has passed filled rows is worth nothing to an exact prompt, K and V cells or not."""
    for context in filled_context(workshop, name, ContextOptions(n_seq_max=2)):
        assert context.reusable(0, N) <= SINK
        assert context.reusable(0, N, FILLED) == N
        context.seq_cp(0, 1)
        assert context.reusable(1, N) <= SINK
        state = context.state(0)
        context.clear()
        assert context.reusable(0, 0) == 0
        context.decode({0: PROMPT})
        assert context.reusable(0, N) == N
        context.clear()
        context.set_state(0, state)
        assert context.reusable(0, N) <= SINK
        assert context.reusable(0, N, FILLED) == N


@pytest.mark.parametrize("ranges", [((5, 5),), ((5, 4),), ((-1, 4),), ((10, 20), (15, 30)), ((10, 20), (0, 5))])
def test_bad_ranges_are_refused_by_name(context, ranges):
    with pytest.raises(RefusedError, match="range"):
        context.mark(0, *ranges)


@pytest.mark.parametrize("seq", [-1, 4, 1000])
def test_bad_sequences_are_refused_by_name(context, seq):
    if seq == 4 and context.options.kv_unified:
        context.mark(seq, (1, 2))  # a unified cache holds any sequence
        return
    with pytest.raises(RefusedError, match="seq"):
        context.mark(seq, (1, 2))


def test_a_failed_mark_changes_nothing(context):
    context.seq_rm(0, -1, -1)
    context.mark(0, FILLED)
    with pytest.raises(RefusedError):
        context.mark(0, (5, 4))
    context.decode({0: PROMPT})
    assert context.n_filled(0) == N_FILLED


def test_marks_need_maps(workshop):
    with (
        Model(workshop.model("llama")) as model,
        Context(model) as context,
        pytest.raises(RefusedError, match="maps"),
    ):
        context.mark(0, FILLED)
