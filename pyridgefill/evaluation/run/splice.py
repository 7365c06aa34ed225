"""Splice tests: exact parts in a filled memory, and filled parts in an exact one, to see which parts carry the error.

The rows before the tail run twice, exact and filled. What the memory then holds is saved, and each configuration starts
from it: parts of one run go into the other, the tail runs exact on top, and its loss and answers tell what the part is
worth.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyridgefill import fill
from pyridgefill.config import RidgeFillConfig
from pyridgefill.errors import ModelError
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.variants import Variant

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


@dataclass(frozen=True)
class SpliceVariant(Variant):
    """A filled variant with a splice."""

    splice: Splice

    @classmethod
    def of(cls, variant: Variant, splice: Splice) -> SpliceVariant:
        """A variant's maps with a splice."""
        return cls(variant.name, variant.config, {**variant.cell, "splice": splice.cell()}, splice)

    def set_on(self, session: Session) -> None:
        """Run the session's next prompts this way."""
        assert isinstance(session, SpliceSession)
        session.set_maps(self.config)
        session.splice = self.splice


class SpliceSession(Session):
    """A session whose prompts run in two parts, so that what the first one leaves can be changed before the tail.

    Parameters
    ----------
    model_path
        A model's GGUF.
    n_ctx
        Tokens of a prompt and its continuation at most; the context holds two.
    sink, tail
        Rows at both ends of each prompt that run exact.
    folder
        For what prompts leave in the memory before their tails, exact and filled: two files for each, as large as the
        cache of its rows. It must live as long as the session.
    **options
        For `Session`.

    Attributes
    ----------
    splice
        Set: how prompts run, with maps.
    """

    def __init__(
        self, model_path: str | os.PathLike[str], *, n_ctx: int, sink: int, tail: int, folder: Path, **options: Any
    ) -> None:
        self.sink, self.tail, self._folder = sink, tail, folder
        self.splice: Splice | None = None
        self._config: RidgeFillConfig | None = None
        self._files: dict[tuple[RidgeFillConfig | None, tuple[int, ...]], Path] = {}
        super().__init__(model_path, n_ctx=n_ctx, n_sequences=2, **options)

    def set_maps(self, config: RidgeFillConfig | None, *, drop: bool = False, neutral: bool = False) -> None:
        """Use these maps from the next prompt on, without a splice; None: exact."""
        if drop or neutral or (config is not None and config.select != "none"):
            raise ModelError("splice tests need all rows filled", "leave selected and dropped rows out")
        self.splice = None
        if config != self._config:
            self._config = None
            super().set_maps(config)
            self._config = config

    def components(self) -> list[tuple[str, ...]]:
        """What each layer keeps in the memory: some of `pyridgefill.fill.COMPONENTS`."""
        count = int(self._c.llama_model_n_layer(self._model))
        return [fill.layer_components(self._context, layer) for layer in range(count)]

    def prefill(self, tokens: Sequence[int], n_logits: int = 1, *, reuse: bool = False) -> npt.NDArray[np.float32]:  # noqa: ARG002
        """Run a prompt.

        Parameters
        ----------
        tokens, n_logits
            As for `Session`.
        reuse
            Makes no difference: what rows before a tail leave in the memory is computed once, exact and filled.

        Raises
        ------
        ModelError
            If there are no rows before the tail, logits of them are wanted, or the maps' plan has another sink or tail.
        """
        end = len(tokens) - self.tail
        if end < 1 or n_logits > self.tail:
            raise ModelError(
                f"logits of {n_logits} rows of a prompt of {len(tokens)} tokens with a tail of {self.tail}",
                "ask for longer prompts, or logits of the tail only",
            )
        splice = self.splice
        into_fill = self._fill is not None if splice is None else splice.into == "fill"
        state = self._saved(tokens, end, filled=into_fill)
        if splice is None:
            self.restore(np.fromfile(state, np.uint8))
        else:
            donor = self._saved(tokens, end, filled=not into_fill)
            self.restore(np.fromfile(state, np.uint8))
            self.restore(np.fromfile(donor, np.uint8), _DONOR)
            fill.splice(self._context, _DONOR, 0, (splice.first, splice.last), splice.components)
        self.ranges = [(self.sink, end)] if into_fill else []
        self.n_reused = end
        rows = self._decode(tokens[end:], end, len(tokens) - n_logits)
        self._position = len(tokens)
        return rows

    def _saved(self, tokens: Sequence[int], end: int, *, filled: bool) -> Path:
        """A file with what the rows before the tail leave in the memory."""
        key = self._config if filled else None, tuple(tokens[:end])
        if key not in self._files:
            self._c.llama_memory_clear(self._memory, True)
            if self._fill is not None:
                planned = self._fill.plan(len(tokens))
                if planned != [(self.sink, end)]:
                    raise ModelError(
                        f"the plan fills {planned}, expected {[(self.sink, end)]}", "use one sink and tail"
                    )
                self._fill.begin(0, len(tokens), planned if filled else [])
            # exact and filled rows in the same ubatches: what both compute exactly is equal to the bit
            for start, stop in ((0, min(self.sink, end)), (self.sink, end)):
                if start < stop:
                    self._decode(tokens[start:stop], start, stop)
            if self._fill is not None:
                self._fill.begin(0, len(tokens), [])
            path = self._folder / f"{len(self._files)}.state"
            self.save().tofile(path)
            self._files[key] = path
        return self._files[key]
