"""Parts of one sequence's memory in another one's: every part takes effect, all of them together are the donor."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support import paths
from support.capi import RefusedError
from support.engine import Context, Maps, Model
from support.families import FAMILIES
from support.options import ContextOptions
from support.state import parse_kv
from support.tokens import tokens

END, TAIL, SINK = 224, 32, 4
PROMPT = tokens(END + TAIL)
EXACT, FILLED = 0, 1
K, V, STATE = 1, 2, 4

SPLIT = ContextOptions(n_ctx=4096, n_seq_max=2)
UNIFIED = ContextOptions(n_ctx=4096, n_seq_max=2, kv_unified=True)
# with and without flash attention, which stores V the other way round
LAYOUTS = {
    "split": SPLIT,
    "split-fa": ContextOptions(n_ctx=4096, n_seq_max=2, flash_attn=True),
    "split-q8_0": ContextOptions(n_ctx=4096, n_seq_max=2, flash_attn=True, type_k="q8_0", type_v="q8_0"),
    "unified": UNIFIED,
    "unified-fa": ContextOptions(n_ctx=4096, n_seq_max=2, flash_attn=True, kv_unified=True),
}
WITH_STATE = [name for name, family in FAMILIES.items() if family.recurrent]
RUNS = [(name, layout) for name in FAMILIES for layout in ("split", "split-q8_0" if name == "llama" else "unified-fa")]


@dataclass
class Pair:
    """A context with an exact and a filled prompt but for their tails, and the states of both."""

    context: Context
    exact: bytes
    filled: bytes
    n_layer: int

    def put(self) -> None:
        """Both sequences as they were before any splice."""
        for seq in (EXACT, FILLED):
            self.context.seq_rm(seq, -1, -1)
        self.context.set_state(EXACT, self.exact)
        self.context.set_state(FILLED, self.filled)

    def tail(self, seq: int) -> NDArray[np.float32]:
        """Logits of the tail behind a sequence, which is then as it was before."""
        return self.context.decode({seq: PROMPT[END:]}, TAIL, start={seq: END})[seq]

    def components(self, first: int = 0) -> int:
        found = 0
        for layer in range(first, self.n_layer):
            found |= self.context.components(layer)
        return found

    def spliced(self, *calls: tuple[tuple[int, int], int], src: int = EXACT) -> NDArray[np.float32]:
        """Logits of the tail after these splices of (layers, components)."""
        self.put()
        for layers, components in calls:
            self.context.splice(src, 1 - src, layers, components)
        return self.tail(1 - src)


def make_pair(workshop: Any, model: Path, maps: Path, options: ContextOptions, n_layer: int = 8) -> Iterator[Pair]:
    with Model(model) as loaded, Maps(loaded, maps, skip_fingerprint=True) as fill, Context(loaded, options) as context:
        context.set_maps(fill)
        context.decode({EXACT: PROMPT[:END]})
        context.mark(FILLED, (SINK, END))
        context.decode({FILLED: PROMPT[:END]}, 0)
        context.mark(FILLED)
        yield Pair(context, context.state(EXACT), context.state(FILLED), n_layer)


@pytest.fixture
def pair(request: pytest.FixtureRequest, workshop: Any) -> Iterator[Pair]:
    """Of a family and layout; the maps predict noise."""
    name, layout = request.param
    yield from make_pair(workshop, workshop.model(name), workshop.maps(name, "poison"), LAYOUTS[layout])


def pairs(*names: str, layouts: tuple[str, ...] = ("split",)) -> Any:
    return pytest.mark.parametrize("pair", [(name, layout) for name in names for layout in layouts], indirect=True)


def differs(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    return bool(np.abs(a - b).max() > 0.01 * np.ptp(b))


@pytest.mark.parametrize("pair", RUNS, indirect=True)
def test_all_parts_of_all_layers_are_the_donor(pair: Pair) -> None:
    pair.put()
    exact, filled = pair.tail(EXACT), pair.tail(FILLED)
    assert differs(filled, exact)
    whole = (0, pair.n_layer - 1)
    near = 1e-3 * np.ptp(exact) if pair.context.options.kv_unified else 0  # other cells: another order of sums
    assert np.abs(pair.spliced((whole, pair.components())) - exact).max() <= near
    assert np.abs(pair.spliced((whole, pair.components()), src=FILLED) - filled).max() <= near
    # one part after the other, one layer after the other
    parts = [(whole, part) for part in (K, V, STATE) if pair.components() & part]
    assert np.abs(pair.spliced(*parts) - exact).max() <= near
    kept = [(layer, pair.context.components(layer)) for layer in range(pair.n_layer)]
    layers = [((layer, layer), components) for layer, components in kept if components]
    assert np.abs(pair.spliced(*layers) - exact).max() <= near


@pytest.mark.parametrize("pair", RUNS, indirect=True)
def test_each_part_takes_effect(request: pytest.FixtureRequest, pair: Pair) -> None:
    split = FAMILIES[request.node.callspec.params["pair"][0]].split
    pair.put()
    exact, filled = pair.tail(EXACT), pair.tail(FILLED)
    above = (split + 1, pair.n_layer - 1)
    parts = [part for part in (K, V, STATE) if pair.components(split + 1) & part]
    for part in parts:
        got = pair.spliced((above, part))
        assert differs(got, filled), part
        assert len(parts) == 1 or differs(got, exact), part
    # the layers up to the split are exact anyway
    if not pair.context.options.kv_unified:
        below = 0
        for layer in range(split + 1):
            below |= pair.context.components(layer)
        assert np.array_equal(pair.spliced(((0, split), below)), filled)
        assert np.array_equal(pair.spliced((above, pair.components(split + 1))), exact)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_oracle_loses_nothing(workshop: Any, name: str) -> None:
    live = FAMILIES[name].n_layer - 1
    for pair in make_pair(workshop, workshop.oracle(name, live), workshop.maps(name, "identity"), SPLIT):
        pair.put()
        exact, filled = pair.tail(EXACT), pair.tail(FILLED)
        assert np.array_equal(filled, exact)
        for part in (K, V, STATE):
            if pair.components() & part:
                for src in (EXACT, FILLED):
                    assert np.array_equal(pair.spliced(((0, live), part), src=src), exact)
        for layer in range(pair.n_layer):
            if components := pair.context.components(layer):
                assert np.array_equal(pair.spliced(((layer, layer), components)), exact)


@pairs("llama", "qwen2", "gemma3", layouts=("split", "split-fa", "unified", "unified-fa"))
@pytest.mark.parametrize("part", [K, V])
def test_only_these_cells_change(pair: Pair, part: int, request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["pair"][0] == "gemma3":
        pytest.importorskip("llama_cpp")
    pair.put()
    before, donor = parse_kv_all(pair.context, FILLED), parse_kv_all(pair.context, EXACT)
    pair.context.splice(EXACT, FILLED, (4, 5), part, (50, 131))
    after = parse_kv_all(pair.context, FILLED)
    assert parse_kv_all(pair.context, EXACT) == donor
