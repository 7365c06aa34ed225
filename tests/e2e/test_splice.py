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


@pairs("llama", "qwen2", layouts=("split", "split-fa", "unified", "unified-fa"))
@pytest.mark.parametrize("part", [K, V])
def test_only_these_cells_change(pair: Pair, part: int) -> None:
    pair.put()
    before, donor = parse_kv(pair.context.state(FILLED)), parse_kv(pair.context.state(EXACT))
    pair.context.splice(EXACT, FILLED, (4, 5), part, (50, 131))
    after = parse_kv(pair.context.state(FILLED))
    assert pair.context.state(EXACT) == pair.exact
    for name, changed in (("k", part == K), ("v", part == V)):
        for layer in range(pair.n_layer):
            old, new, want = (getattr(cells, name)[layer] for cells in (before, after, donor))
            assert not np.array_equal(old[50:131], want[50:131]) or layer <= 3
            rows = slice(50, 131) if changed and layer in (4, 5) else slice(0, 0)
            expected = old.copy()
            expected[rows] = want[rows]
            assert np.array_equal(new, expected), (name, layer)


@pairs("llama", layouts=("split", "unified"))
def test_scattered_cells(pair: Pair) -> None:
    """Cells that lie apart: rows of a sequence that came back after others had taken their place."""
    context = pair.context
    pair.put()
    context.seq_rm(FILLED, 40, -1)
    context.decode({EXACT: PROMPT[END:]}, start={EXACT: END})
    context.mark(FILLED, (SINK, END))
    context.decode({FILLED: PROMPT[40:END]}, 0, start={FILLED: 40})
    context.mark(FILLED)
    donor = parse_kv(context.state(EXACT))
    context.splice(EXACT, FILLED, (0, 7), K | V)
    after = parse_kv(context.state(FILLED))
    for layer in range(pair.n_layer):
        assert np.array_equal(after.k[layer], donor.k[layer][:END])
        assert np.array_equal(after.v[layer], donor.v[layer][:END])


def test_layers_tell_what_they_keep(workshop: Any) -> None:
    wanted = {
        "llama": [K | V] * 8,
        "deepseek2": [K] * 8,
        "gemma4": [K | V] * 6 + [0] * 2,
        "mamba2": [STATE] * 8,
        "falcon-h1": [K | V | STATE] * 8,
        "qwen35": [STATE, K | V] * 4,
        "lfm2-swa": [STATE, STATE, K | V, STATE, STATE, K | V, STATE, STATE],
    }
    for name, components in wanted.items():
        with Model(workshop.model(name)) as model, Context(model, SPLIT) as context:
            assert [context.components(layer) for layer in range(8)] == components, name
            for layer in (-1, 8):
                with pytest.raises(RefusedError, match=f"there is no layer {layer}"):
                    context.components(layer)


@pairs("llama", "mamba2", "falcon-h1")
@pytest.mark.parametrize("src", [EXACT, FILLED])
def test_spliced_rows_are_nobodys(pair: Pair, src: int) -> None:
    """Neither an exact prompt nor one that asks for a fill reuses them, not after saving either."""
    context, dst = pair.context, 1 - src
    pair.put()
    assert context.n_filled(EXACT) == 0
    assert context.reusable(FILLED, END, (SINK, END)) == END
    context.splice(src, dst, (7, 7), context.components(7))
    for _ in range(2):
        assert context.n_filled(dst) == END
        assert context.reusable(dst, END) == 0
        assert context.reusable(dst, END, (SINK, END)) == 0
        context.set_state(dst, context.state(dst))
    assert context.n_filled(src) == (0 if src == EXACT else END - SINK)
    context.seq_rm(dst, -1, -1)
    context.decode({dst: PROMPT[:END]})
    assert context.reusable(dst, END) == END


def test_spliced_rows_do_not_heal(workshop: Any) -> None:
    with (
        Model(workshop.model("llama")) as model,
        Maps(model, workshop.maps("llama", "poison")) as loaded,
        Context(model, SPLIT) as context,
    ):
        context.set_maps(loaded, states="f32")
        context.decode({EXACT: PROMPT[:END]})
        context.mark(FILLED, (SINK, END))
        context.decode({FILLED: PROMPT[:END]}, 0)
        context.splice(EXACT, FILLED, (4, 7), K, (100, 110))
        context.mark(EXACT, (50, 60))
        context.seq_rm(EXACT, 50, -1)
        context.decode({EXACT: PROMPT[50:END]}, start={EXACT: 50})
        context.mark(EXACT)
        # rows up to the spliced ones, and all of the other sequence
        assert context.heal(-1, 2 * END) == (100 - SINK) + (END - 50)
        assert context.reusable(EXACT, END) == END
        with pytest.raises(RefusedError, match="position 100 of sequence 1 has no split state"):
            context.heal(FILLED, 96)
        assert context.heal(-1, 96) == 0


@pairs(*[name for name, family in FAMILIES.items() if family.windowed])
def test_rows_that_a_window_has_left_need_not_be_there(pair: Pair) -> None:
    context = pair.context
    assert not context.options.swa_full
    long = tokens(600)
    context.clear()
    for seq in (EXACT, FILLED):
        if seq == FILLED:
            context.mark(FILLED, (SINK, 600))
        context.decode({seq: long}, 0)
    context.mark(FILLED)
    exact, filled = context.state(EXACT), context.state(FILLED)
    for seq in (EXACT, FILLED):
        context.seq_rm(seq, -1, -1)
    context.set_state(EXACT, exact)
    context.set_state(FILLED, filled)
    context.splice(EXACT, FILLED, (0, 7), pair.components())
    want, got = (context.decode({seq: long[:32]}, 32, start={seq: 600})[seq] for seq in (EXACT, FILLED))
    assert np.array_equal(got, want)
    if not pair.components() & STATE:
        # the donor's window moves on
        context.set_state(FILLED, filled)
        context.decode({EXACT: long[:600]}, start={EXACT: 632})
        state = context.state(FILLED)
        with pytest.raises(RefusedError, match=r"position \d+ of sequence 0 is not in the cache.*windows"):
            context.splice(EXACT, FILLED, (0, 7), K)
        assert context.state(FILLED) == state


ERRORS = {
    "one sequence": ((0, 0, (0, 7), K), "expected two sequences, found 0 twice"),
    "negative sequence": ((-1, 1, (0, 7), K), "no sequence -1"),
    "unknown sequence": ((0, 2, (0, 7), K), "no sequence 2"),
    "no component": ((0, 1, (0, 7), 0), "expected components from 1 to 7, found 0"),
    "unknown component": ((0, 1, (0, 7), 9), "expected components from 1 to 7, found 9"),
    "no state": ((0, 1, (0, 7), K | STATE), "no layer from 0 to 7 has a recurrent state of its own"),
    "negative layer": ((0, 1, (-1, 7), K), "expected layers from 0 to 7 in ascending order, found -1 to 7"),
    "missing layer": ((0, 1, (3, 8), K), "expected layers from 0 to 7 in ascending order, found 3 to 8"),
    "descending layers": ((0, 1, (3, 2), K), "expected layers from 0 to 7 in ascending order, found 3 to 2"),
    "no rows": ((0, 1, (0, 7), K, (5, 5)), r"expected ascending positions in \[0, 224\) of sequence 1, found \[5, 5\)"),
    "too many rows": ((0, 1, (0, 7), K, (5, 225)), r"expected ascending positions in \[0, 224\) .* found \[5, 225\)"),
    "rows that the donor lacks": ((0, 1, (0, 7), K), "position 100 of sequence 0 is not in the cache"),
}


@pairs("llama")
@pytest.mark.parametrize("case", ERRORS)
def test_errors(pair: Pair, case: str) -> None:
    arguments, message = ERRORS[case]
    pair.put()
    if case.startswith("rows"):
        pair.context.seq_rm(EXACT, 100, -1)
    with pytest.raises(RefusedError, match=message):
        pair.context.splice(*arguments)
    assert pair.context.state(FILLED) == pair.filled


@pairs("llama", "mamba2", "falcon-h1", layouts=("unified",))
def test_shared_cells_are_refused(pair: Pair) -> None:
    context = pair.context
    pair.put()
    context.seq_rm(FILLED, -1, -1)
    context.seq_cp(EXACT, FILLED)
    part = K if pair.components() & K else STATE
    with pytest.raises(RefusedError, match=f"sequence {FILLED} shares its"):
        context.splice(EXACT, FILLED, (0, 7), part)
    if pair.components() & STATE:
        with pytest.raises(RefusedError, match="shares its recurrent state"):
            context.splice(EXACT, FILLED, (0, 7), STATE)


@pairs("deepseek2")
def test_latent_attention_has_no_v(pair: Pair) -> None:
    pair.put()
    with pytest.raises(RefusedError, match="no layer from 0 to 7 has a V of its own"):
        pair.context.splice(EXACT, FILLED, (0, 7), K | V)


@pairs(*WITH_STATE)
def test_a_state_is_replaced_at_the_end_only(pair: Pair) -> None:
    context, components = pair.context, pair.components()
    pair.put()
    with pytest.raises(
        RefusedError, match=f"recurrent state of sequence 0 is that after position {END - 1}, expected 99"
    ):
        context.splice(EXACT, FILLED, (0, 7), components, (0, 100))
    context.decode({EXACT: PROMPT[END:]}, start={EXACT: END})
    with pytest.raises(RefusedError, match=f"sequence 0 is that after position {END + TAIL - 1}, expected {END - 1}"):
        context.splice(EXACT, FILLED, (0, 7), STATE)
    context.seq_rm(EXACT, -1, -1)
    with pytest.raises(RefusedError, match="sequence 0 has no recurrent state"):
        context.splice(EXACT, FILLED, (0, 7), STATE)
    assert context.state(FILLED) == pair.filled


def test_rows_that_wait_are_refused(workshop: Any) -> None:
    with (
        Model(workshop.model("llama")) as model,
        Maps(model, workshop.maps("llama", "identity")) as loaded,
        Context(model, SPLIT) as context,
    ):
        context.set_maps(loaded, states="f32")
        context.decode({EXACT: PROMPT[:END]})
        context.mark(FILLED, (SINK, END - TAIL))
        context.select(FILLED, "stride", END + 1, TAIL + 1, 10)
        context.decode({FILLED: PROMPT[:END]}, 0)
        with pytest.raises(RefusedError, match="rows of sequence 1 wait for the end of their prompt"):
            context.splice(EXACT, FILLED, (0, 7), K)


def test_other_memories_are_refused_by_name(tmp_path: Path) -> None:
    command = [paths.model_maker(), "-s", "1", "-a", "deepseek32", "-o", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.gguf")
    with Model(path) as model, Context(model, ContextOptions(n_ctx=512, n_seq_max=2)) as context:
        for call in (lambda: context.components(0), lambda: context.splice(0, 1, (0, 0), K)):
            with pytest.raises(
                RefusedError, match=re.escape("architecture 'deepseek32' cannot be spliced: its memory")
            ):
                call()
