"""Splice tests: exact parts in a filled memory, and filled parts in an exact one, to see which parts carry the error.

The rows before the tail run twice, exact and filled. What the memory then holds is saved, and each configuration starts
from it: parts of one run go into the other, the tail runs exact on top, and its loss and answers tell what the part is
worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyridgefill import fill
from pyridgefill.config import RidgeFillConfig
from pyridgefill.errors import ModelError
from pyridgefill.evaluation.run.session import Logits, Session
from pyridgefill.evaluation.run.way import Way

# what the parts go into, and what their effect is
DIRECTIONS = {"fill": "exact parts in the filled memory: what they recover", "exact": "filled parts: what they harm"}

_DONOR = 1  # sequence


@dataclass(frozen=True)
class Splice:
    """One configuration.

    Attributes
    ----------
    into
        One of `DIRECTIONS`; the parts are those of the other one.
    components
        Some of `pyridgefill.fill.COMPONENTS`.
    first, last
        Layers.
    """

    into: str
    components: tuple[str, ...]
    first: int
    last: int

    @property
    def part(self) -> str:
        """The components in one word."""
        return "+".join(self.components)

    @property
    def layers(self) -> str:
        """The layers in one word."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    def cell(self) -> dict[str, Any]:
        """What tells its results from others."""
        return {"into": self.into, "components": list(self.components), "layers": [self.first, self.last]}


def make_splices(kept: Sequence[Sequence[str]], split: int, groups: int, into: Sequence[str]) -> list[Splice]:
    """Configurations of the layers above a split.

    Parameters
    ----------
    kept
        By layer, which of `pyridgefill.fill.COMPONENTS` it keeps in the memory.
    split
        Layers up to this one are exact in any case.
    groups
        Groups of neighbouring layers; 0: each layer on its own.
    into
        Some of `DIRECTIONS`.

    Returns
    -------
    list
        For each direction: each component of all layers, K and V together, everything; then everything in each group,
        in the groups from the split up, and in those from the top down.

    Raises
    ------
    ModelError
        If no layer above the split keeps anything.
    """
    layers = [layer for layer in range(split + 1, len(kept)) if kept[layer]]
    if not layers:
        raise ModelError(f"no layer above the split {split} keeps anything in the memory", "choose a lower split")
    pieces = [piece.tolist() for piece in np.array_split(layers, min(groups or len(layers), len(layers)))]
    everything = _found(kept, layers)
    parts = [(name,) for name in everything] + [tuple(name for name in everything if name != "state"), everything]
    ranges = [(piece[0], piece[-1]) for piece in pieces]
    ranges += [(layers[0], piece[-1]) for piece in pieces] + [(piece[0], layers[-1]) for piece in pieces[::-1]]
    made = [(part, layers[0], layers[-1]) for part in parts if part]
    made += [(_found(kept, range(first, last + 1)), first, last) for first, last in ranges]
    return [Splice(direction, *item) for direction in into for item in dict.fromkeys(made)]


def _found(kept: Sequence[Sequence[str]], layers: Sequence[int]) -> tuple[str, ...]:
    return tuple(name for name in fill.COMPONENTS if any(name in kept[layer] for layer in layers))


class States:
    """What rows before a tail leave in the memory, exact and filled, in files as large as the cache of the rows.

    Parameters
    ----------
    folder
        For two files of each prompt; it must live as long as this object.
    sink, tail
        Rows at both ends of each prompt that run exact.
    """

    def __init__(self, folder: Path, *, sink: int, tail: int) -> None:
        self._folder, self.sink, self.tail = folder, sink, tail
        self._files: dict[tuple[RidgeFillConfig | None, tuple[int, ...]], Path] = {}

    def get(
        self, session: Session, config: RidgeFillConfig | None, tokens: Sequence[int]
    ) -> npt.NDArray[np.uint8]:  # fmt: skip
        """The state of all rows of a prompt but its tail, with the filled ones filled, or all exact without maps.

        Raises
        ------
        ModelError
            If the maps' plan has another sink or tail.
        """
        end = len(tokens) - self.tail
        key = config, tuple(tokens[:end])
        if key not in self._files:
            planned = session.plan(len(tokens))
            if config is not None and planned != [(self.sink, end)]:
                raise ModelError(f"the plan fills {planned}, expected {[(self.sink, end)]}", "use one sink and tail")
            session.clear()
            session.mark(len(tokens), planned if config is not None else [])
            # exact and filled rows in the same ubatches: what both compute exactly is equal to the bit
            for start, stop in ((0, min(self.sink, end)), (self.sink, end)):
                if start < stop:
                    session.decode(tokens[start:stop], start, stop)
            session.mark(len(tokens), [])
            path = self._folder / f"{len(self._files)}.state"
            session.save().tofile(path)
            self._files[key] = path
        return np.fromfile(self._files[key], np.uint8)


class Spliced(Way):
    """Another way in two parts, so that what the first leaves in the memory can be changed before the tail runs.

    Parameters
    ----------
    base
        Exact, or a way that fills all rows.
    splice
        What is changed; None: nothing.
    states
        Shared by all ways of a run.

    Raises
    ------
    ModelError
        If rows of the base are selected, or its memory cannot be spliced.
    """

    n_sequences = 2

    def __init__(self, base: Way, splice: Splice | None, states: States) -> None:
        super().__init__(base.name, base.config)
        if base.no_splice or (base.config is not None and base.config.select != "none"):
            raise ModelError("splice tests need all rows filled", "leave selected and dropped rows out")
        self.cell = base.cell if splice is None else {**base.cell, "splice": splice.cell()}
        self.base, self.splice, self.states = base, splice, states
        # the same without a splice
        self.plain = self

    def of(self, splice: Splice) -> Spliced:
        """The same way with a splice."""
        made = Spliced(self.base, splice, self.states)
        made.plain = self.plain
        return made

    def prefill(self, session: Session, tokens: Sequence[int], n_logits: int = 1, *, reuse: bool = False) -> Logits:
        """Run the tail on what the rows before it left; these run once for all splices, exact and filled.

        Raises
        ------
        ModelError
            If there are no rows before the tail, or logits of them are wanted.
        """
        end = len(tokens) - self.states.tail
        if end < 1 or n_logits > self.states.tail:
            raise ModelError(
                f"logits of {n_logits} rows of a prompt of {len(tokens)} tokens with a tail of {self.states.tail}",
                "ask for longer prompts, or logits of the tail only",
            )
        into, other = self.config, None
        if self.splice is not None and self.splice.into == "exact":
            into, other = other, into
        state = self.states.get(session, into, tokens)
        donor = None if self.splice is None else self.states.get(session, other, tokens)
        session.restore(state)
        if donor is not None and self.splice is not None:
            session.restore(donor, _DONOR)
            session.splice(_DONOR, (self.splice.first, self.splice.last), self.splice.components)
        logits = session.run_prompt(tokens, [], n_logits, start=end)
        session.ranges, session.n_reused = [] if into is None else [(self.states.sink, end)], end
        return logits
