"""POISON maps never change what was asked to be exact."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.engine import Context, DecodeError, Maps, Model
from support.families import FAMILIES
from support.options import ContextOptions
from support.tokens import tokens

N, TAIL = 300, 64
EXACT = tokens(192, seed=1)
FILLED = tokens(700, seed=2)


@pytest.fixture(params=FAMILIES)
def name(request) -> str:
    return request.param


def open_context(workshop, name: str, options: ContextOptions) -> Iterator[Context]:
    with (
        Model(workshop.model(name)) as model,
        Maps(model, workshop.maps(name, "poison")) as loaded,
        Context(model, options) as context,
    ):
        context.set_maps(loaded)
        yield context


def test_an_exact_sequence_beside_a_filled_one_is_untouched_bit_for_bit(workshop, name):
    """Both in the same batches, each with its own cells; the neighbour's prompt is filled all the way."""
    for context in open_context(workshop, name, ContextOptions(n_ctx=4096, n_seq_max=2)):
        half = context.options.n_batch // 2
        for p0 in range(0, len(EXACT), half):
            alone = context.decode({0: EXACT[p0 : p0 + half]}, half, start={0: p0})[0]
        alone_state = context.state(0)
        context.clear()
        context.mark(1, (0, len(FILLED)))
        for p0 in range(0, len(EXACT), half):
            beside = context.decode(
                {0: EXACT[p0 : p0 + half], 1: FILLED[p0 : p0 + half]}, {0: half, 1: 0}, start={0: p0, 1: p0}
            )[0]
        assert context.n_filled(1) == len(EXACT)
        assert context.n_filled(0) == 0
        assert np.array_equal(beside, alone)
        assert context.state(0) == alone_state


def test_an_exact_prompt_after_a_filled_one(workshop, name):
    """In the same cells, in either order."""
    prompt = tokens(N)
    for context in open_context(workshop, name, ContextOptions()):
        first = context.decode({0: prompt}, TAIL)[0]
        context.clear()
        context.mark(0, (4, N - TAIL))
        filled = context.decode({0: prompt}, TAIL)[0]
        assert np.abs(filled - first).max() > 0.1 * first.std()
        context.clear()
        context.mark(0)
        assert np.array_equal(context.decode({0: prompt}, TAIL)[0], first)


def test_a_reused_prefix_ends_before_the_first_filled_cell(workshop, name):
    """As a server does it: keep what is reusable, remove the rest, decode from there."""
    prompt = tokens(N)
    for context in open_context(workshop, name, ContextOptions()):
        exact = context.decode({0: prompt}, TAIL)[0]
        context.clear()
        context.mark(0, (100, N - TAIL))
        context.decode({0: prompt})
        context.mark(0)
        keep = context.reusable(0, N - 1)
        assert keep <= 100
        if not context.seq_rm(0, keep, -1):  # a recurrent state cannot be rolled back
            assert FAMILIES[name].recurrent
            context.clear()
            keep = 0
        got = context.decode({0: prompt[keep:]}, TAIL, start={0: keep})[0]
        np.testing.assert_allclose(got, exact, atol=5e-3 * np.ptp(exact))


def test_the_tail_is_computed_by_the_full_model(workshop, name):
    """The first cell after the filled range depends on poisoned memory, but its layers below the split do not."""
    prompt = tokens(N)
    for context in open_context(workshop, name, ContextOptions()):
        context.mark(0, (4, N - TAIL))
        context.decode({0: prompt})
        counters = context.counters()
        assert counters.n_filled == N - TAIL - 4
        assert counters.n_exact == TAIL + 4


def test_logits_of_filled_rows_are_refused(workshop, name):
    """With the reason, and without a trace: the same batch without them goes through."""
    prompt = tokens(N)
    for context in open_context(workshop, name, ContextOptions()):
        context.mark(0, (4, N - TAIL))
        with pytest.raises(DecodeError, match="fill"):
            context.decode({0: prompt[:10]}, 1)
        assert context.seq_pos_max(0) == -1
        context.decode({0: prompt}, TAIL)
        assert context.n_filled(0) == N - TAIL - 4


def test_maps_of_two_contexts_do_not_mix(workshop):
    """One model, two contexts, one poisoned and one with identity maps."""
    prompt = tokens(N)
    name, live = "llama", FAMILIES["llama"].n_layer - 1
    with (
        Model(workshop.oracle(name, live)) as model,
        Maps(model, workshop.maps(name, "poison")) as bad,
        Maps(model, workshop.maps(name, "identity")) as good,
        Context(model) as poisoned,
        Context(model) as right,
    ):
        exact = right.decode({0: prompt}, TAIL)[0]
        right.clear()
        poisoned.set_maps(bad)
        right.set_maps(good)
        for context in (poisoned, right):
            context.mark(0, (4, N - TAIL))
        for p0 in range(0, N, 50):
            n_logits = 50 if p0 == N - 50 else 0
            broken = poisoned.decode({0: prompt[p0 : p0 + 50]}, n_logits, start={0: p0})[0]
            filled = right.decode({0: prompt[p0 : p0 + 50]}, n_logits, start={0: p0})[0]
        assert np.abs(filled - exact[-50:]).max() < 1e-3 * np.ptp(exact)
        assert np.abs(broken - exact[-50:]).max() > 0.02 * np.ptp(exact)
