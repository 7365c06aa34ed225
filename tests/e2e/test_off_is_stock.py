"""Without filled rows the engine computes what an unpatched build of the same pin computes, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from support import restore
from support.capi import plan
from support.engine import Context, Maps, Model
from support.families import FAMILIES
from support.options import ContextOptions
from support.runs import Job, Result, run, run_apart, run_stock
from support.tokens import tokens

N, TAIL = 161, 64
ONE = {0: tokens(N)}
FOUR = {seq: tokens(N // 2 + 17 * seq, seed=seq) for seq in range(4)}

SHAPES: dict[str, tuple[ContextOptions, dict[int, list[int]]]] = {
    "f16": (ContextOptions(), ONE),
    "q8_0-fa": (ContextOptions(type_k="q8_0", type_v="q8_0", flash_attn=True), ONE),
    "four-split": (ContextOptions(n_ctx=4096, n_seq_max=4), FOUR),
    "four-unified": (ContextOptions(n_ctx=4096, n_seq_max=4, kv_unified=True), FOUR),
}

Open = Callable[[Model], Maps]
Off = Callable[[Open, Model, Context], None]


def no_maps(open_maps: Open, model: Model, context: Context) -> None:
    pass


def maps_loaded(open_maps: Open, model: Model, context: Context) -> None:
    open_maps(model)


def maps_set(open_maps: Open, model: Model, context: Context) -> None:
    context.set_maps(open_maps(model))


def maps_set_and_unset(open_maps: Open, model: Model, context: Context) -> None:
    context.set_maps(open_maps(model))
    context.mark(0, (4, 70))
    context.set_maps(None)


def marks_taken_back(open_maps: Open, model: Model, context: Context) -> None:
    context.set_maps(open_maps(model))
    context.mark(0, (4, 70))
    context.mark(0)


def tail_covers_the_prompt(open_maps: Open, model: Model, context: Context) -> None:
    context.set_maps(open_maps(model))
    for seq in range(context.options.n_seq_max):
        context.mark(seq, *plan(n_prompt=N, sink=4, tail=N))


def after_a_filled_prompt(open_maps: Open, model: Model, context: Context) -> None:
    context.set_maps(open_maps(model))
    context.mark(0, (4, 70))
    context.decode({0: tokens(100, seed=9)})
    context.clear()
    context.mark(0)


OFF: list[Off] = [
    no_maps,
    maps_loaded,
    maps_set,
    maps_set_and_unset,
    marks_taken_back,
    tail_covers_the_prompt,
    after_a_filled_prompt,
]


def job(workshop, name: str, shape: str) -> Job:
    options, prompts = SHAPES[shape]
    return Job(workshop.model(name), options, prompts, TAIL)


@pytest.fixture(scope="module")
def stock(workshop) -> dict[tuple[str, str], Result]:
    keys = [(name, shape) for name in FAMILIES for shape in SHAPES]
    return dict(zip(keys, run_stock([job(workshop, *key) for key in keys]), strict=True))


def cases() -> list[tuple[str, str, Off]]:
    """Every way to be off meets every family and every shape, half of the combinations of the three."""
    return [
        (name, shape, off)
        for i, name in enumerate(FAMILIES)
        for j, shape in enumerate(SHAPES)
        for k, off in enumerate(OFF)
        if off is no_maps or (i + j + k) % 2
    ]


@pytest.mark.parametrize(("name", "shape", "off"), cases())
def test_logits_and_state_are_those_of_the_unpatched_build(workshop, stock, name, shape, off):
    def open_maps(model: Model) -> Maps:
        # closed by the model's owner: before the model, after the context
        return model.own(Maps(model, workshop.maps(name, "poison")))

    got = run(job(workshop, name, shape), partial(off, open_maps))
    expected = stock[name, shape]
    for seq, logits in expected.logits.items():
        assert np.array_equal(got.logits[seq], logits)
        assert got.states[seq] == expected.states[seq]


def test_smollm2_equals_the_unpatched_build(smollm2):
    job = Job(smollm2, ContextOptions(), {0: tokens(97, n_vocab=49152)}, TAIL)
    (expected,) = run_stock([job])
    got = run(job)
    assert np.array_equal(got.logits[0], expected.logits[0])
    assert got.states[0] == expected.states[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_states_travel_between_both_builds(workshop, stock, name):
    """A state of the unpatched build loads, holds no filled cell, and gives the same next logits."""
    with Model(workshop.model(name)) as model, Context(model) as context:
        context.set_state(0, stock[name, "f16"].states[0])
        assert context.n_filled(0) == 0
        assert context.state(0) == stock[name, "f16"].states[0]


def restore_job(workshop, name: str) -> restore.Job:
    return restore.Job(workshop.model(name), ContextOptions(), tokens(N), tokens(40, seed=3))


@pytest.fixture(scope="module")
def stock_restored(workshop) -> dict[str, restore.Restored]:
    return dict(zip(FAMILIES, run_stock([restore_job(workshop, name) for name in FAMILIES]), strict=True))


@pytest.mark.parametrize("name", FAMILIES)
def test_states_are_put_back_as_the_unpatched_build_does(workshop, stock_restored, name):
    """Same values returned, same memory afterwards, also where a buffer is larger than the state or has no size.

    In a process of its own: what reads beyond the data ends it.
    """
    (got,) = run_apart([restore_job(workshop, name)], {})
    assert got == stock_restored[name]


@pytest.mark.parametrize("off", [maps_loaded, maps_set, after_a_filled_prompt])
def test_exact_states_are_put_back_as_the_unpatched_build_does(workshop, stock_restored, off):
    def open_maps(model: Model) -> Maps:
        return model.own(Maps(model, workshop.maps("llama", "poison")))

    assert restore.run(restore_job(workshop, "llama"), partial(off, open_maps)) == stock_restored["llama"]
