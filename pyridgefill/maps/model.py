"""What a maps file holds, as dataclasses, and the checks that reader and writer share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from pyridgefill import defaults
from pyridgefill.errors import MapsError
from pyridgefill.maps.base import BaseModel

Target = Literal["proj", "input"]
FeatureNorm = Literal["rms", "none"]

TARGETS: tuple[Target, ...] = ("proj", "input")
FEATURE_NORMS: tuple[FeatureNorm, ...] = ("rms", "none")

# ggml keeps names in 64 bytes, the last one is zero
MAX_NAME_BYTES = 63

# budgets in percent at which a head's recall is stored
HEAD_SHARES = (2, 5, 10)


class RowSource(Protocol):
    """A matrix or vector that is read by rows: a numpy array, a memory map, a tensor in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: slice, /) -> npt.NDArray[Any]: ...


@dataclass(frozen=True)
class Site:
    """A named value of a layer that a map predicts, for example `attn_k` of layer 21, 192 values wide."""

    layer: int
    name: str
    width: int


@dataclass(frozen=True)
class Split:
    """One split of the file: maps serve the layers above `layer`; `rank` is 0 for full-rank maps."""

    layer: int
    target: Target
    rank: int = 0


@dataclass(frozen=True)
class SiteMap:
    """The map of one site: `weight @ x + bias`, or `weight_b @ (weight_a @ x) + bias`.

    Attributes
    ----------
    weight
        `[width, embedding_length]`, or None for a low-rank map.
    weight_a, weight_b
        `[rank, embedding_length]` and `[width, rank]`, or None.
    bias
        `[width]` or None.
    damping
        The ridge parameter λ, in units of the Gram matrix of the (centred) features.
    r2, condition
        R² on held-out text and condition number of the damped Gram matrix; NaN if not measured.
    solver
        `eigh`, `cholesky` in older files, or the name of a baseline.
    """

    split: int
    layer: int
    site: str
    weight: RowSource | None = None
    weight_a: RowSource | None = None
    weight_b: RowSource | None = None
    bias: RowSource | None = None
    damping: float = 0.0
    r2: float = float("nan")
    condition: float = float("nan")
    solver: str = "given"

    @property
    def name(self) -> str:
        """The entry in `ridgefill.map.names`: `<split>.blk.<l>.<site>`."""
        return f"{self.split}.blk.{self.layer}.{self.site}"

    @property
    def weight_type(self) -> str | None:
        """The type that the weights have in the file they were read from; None for arrays."""
        return getattr(self.weight if self.weight is not None else self.weight_a, "type_name", None)

    def tensors(self) -> dict[str, RowSource]:
        """The map's tensors under their names in the file, in file order."""
        parts = {"weight": self.weight, "weight_a": self.weight_a, "weight_b": self.weight_b, "bias": self.bias}
        return {f"ridgefill.{self.name}.{part}": source for part, source in parts.items() if source is not None}


@dataclass(frozen=True)
class Recommended:
    """Settings that were measured to be as good as the exact model; None where the file says nothing.

    Attributes
    ----------
    split
        None: no setting was measured to be as good as exact.
    sink, tail, min_prompt
        As in `RidgeFillConfig`.
    select
        `attention` or `none`, for the recommended split.
    budget
        Share of the filled rows that is selected.
    pool
        A row's score counts for the rows around it too: half with every so many rows before and after it.
    queries
        Last rows of the prompt that ask.
    """

    split: int | None = None
    sink: int | None = None
    tail: int | None = None
    min_prompt: int | None = None
    select: str | None = None
    budget: float | None = None
    pool: tuple[int, int] | None = None
    queries: int | None = None

    def complete(self) -> Recommended:
        """Pool and queries where rows are selected and none are given; nothing of selection where none is."""
        if self.select == "none":
            return replace(self, budget=None, pool=None, queries=None)
        if self.select == "attention":
            return replace(self, pool=self.pool or defaults.POOL, queries=self.queries or defaults.QUERIES)
        return self


@dataclass(frozen=True)
class RetrievalHead:
    """An attention head below a split that finds the rows a prompt's end asks for.

    Attributes
    ----------
    split
        The split that it serves.
    layer, head
        Where it is, `layer < split`.
    recall
        Share of the needles' rows among its best rows at budgets of 2, 5 and 10 %, on needles of kinds that it was
        not chosen by.
    """

    split: int
    layer: int
    head: int
    recall: tuple[float, float, float] = (float("nan"),) * 3


@dataclass(frozen=True)
class Calibration:
    """Where the maps come from: rows used by the fit, corpus names, rows that were left out."""

    tokens: int = 0
    corpora: tuple[str, ...] = ()
    rows_massive: int = 0
    rows_nonfinite: int = 0


@dataclass(frozen=True)
class MapSet:
    """All maps of one file. `validate` checks what can be checked without the model's graph."""

    base: BaseModel
    splits: tuple[Split, ...]
    maps: tuple[SiteMap, ...]
    feature_norm: FeatureNorm = "none"
    feature_norm_eps: float = 1e-6
    recommended: Recommended = field(default_factory=Recommended)
    calibration: Calibration = field(default_factory=Calibration)
    heads: tuple[RetrievalHead, ...] = ()

    def defaults(self, split: int | None = None) -> Recommended:
        """The settings in use where a caller gives none; no value is None. See docs/map-format.md, Default settings.

        Parameters
        ----------
        split
            The caller's; None: the recommended one, else the highest, without selection.

        Raises
        ------
        MapsError
            If there is no such split.
        """
        stored = self.recommended
        there = [item.layer for item in self.splits]
        if split is None:
            split = max(there) if stored.split is None else stored.split
        if split not in there:
            raise MapsError(f"split {split} is not in the maps file", f"it has {there}")
        selects = stored.select == "attention" and any(head.split == split for head in self.heads)
        return Recommended(
            split,
            defaults.SINK if stored.sink is None else stored.sink,
            defaults.TAIL if stored.tail is None else stored.tail,
            defaults.MIN_PROMPT if stored.min_prompt is None else stored.min_prompt,
            select="attention" if selects else "none",
            budget=stored.budget or defaults.BUDGET,
            pool=stored.pool or defaults.POOL,
            queries=stored.queries or defaults.QUERIES,
        )

    def keep(self, splits: Sequence[int], recommended: Recommended) -> MapSet:
        """The maps and heads of some splits, with other recommended settings.

        Raises
        ------
        MapsError
            If there is no such split, or the recommended one is not among those that stay.
        """
        there = [split.layer for split in self.splits]
        for layer in splits:
            if layer not in there:
                raise MapsError(f"split {layer} is not in the maps file", f"it has {there}")
        if recommended.split is not None and recommended.split not in splits:
            raise MapsError(
                f"the recommended split {recommended.split} would not stay",
                f"keep it, or recommend one of {sorted(splits)} with --split",
            )
        return replace(
            self,
            splits=tuple(split for split in self.splits if split.layer in splits),
            maps=tuple(item for item in self.maps if item.split in splits),
            heads=tuple(head for head in self.heads if head.split in splits),
            recommended=recommended,
        )

    def validate(self) -> None:
        """Check splits, layers, names, ranks and shapes.

        Raises
        ------
        MapsError
            Names the key or tensor, what was expected and what was found.
        """
        self._validate_metadata()
        splits = {split.layer: split for split in self.splits}
        seen: set[str] = set()
        for item in self.maps:
            if item.name in seen:
                raise MapsError(f"map {item.name}: given twice", "give each site of a layer one map")
            seen.add(item.name)
            if item.split not in splits:
                raise MapsError(f"map {item.name}: split {item.split} is not in ridgefill.splits {sorted(splits)}")
            _validate_map(item, splits[item.split], self.base)
        for split in self.splits:
            if not any(item.split == split.layer for item in self.maps):
                raise MapsError(f"split {split.layer}: no maps, expected maps for the layers above it")

    def _validate_selection(self) -> None:
        recommended = self.recommended
        if recommended.select not in (None, "none", "attention"):
            raise MapsError(f"ridgefill.recommended.select: expected none or attention, found {recommended.select!r}")
        if recommended.select == "attention" and recommended.split is None:
            raise MapsError(
                "ridgefill.recommended.select: attention without ridgefill.recommended.split",
                "recommend a split with it",
            )
        if recommended.select == "attention" and recommended.split not in {item.split for item in self.heads}:
            raise MapsError(
                f"ridgefill.recommended.select: expected retrieval heads for split {recommended.split}, found none",
                "pyridgefill heads finds them",
            )
        if recommended.budget is not None and not 0 < recommended.budget <= 1:
            raise MapsError(
                f"ridgefill.recommended.budget: expected a share above 0 and up to 1, found {recommended.budget}"
            )
        if recommended.pool is not None and min(recommended.pool) < 0:
            raise MapsError(f"ridgefill.recommended.pool_before, pool_after: expected rows, found {recommended.pool}")
        if recommended.queries is not None and recommended.queries < 1:
            raise MapsError(f"ridgefill.recommended.queries: expected 1 or more, found {recommended.queries}")

    def _validate_metadata(self) -> None:
        layers = [split.layer for split in self.splits]
        if not layers or layers != sorted(set(layers)):
            raise MapsError(f"ridgefill.splits: expected ascending layers, found {layers}")
        for split in self.splits:
            if not 0 <= split.layer < self.base.block_count - 1:
                raise MapsError(
                    f"ridgefill.splits: expected 0 to {self.base.block_count - 2}, found {split.layer}",
                    "at least one layer must be above the split",
                )
            if split.target not in TARGETS:
                raise MapsError(f"ridgefill.targets: expected one of {TARGETS}, found {split.target!r}")
            if split.rank < 0:
                raise MapsError(f"ridgefill.ranks: expected 0 or more, found {split.rank}")
        if self.feature_norm not in FEATURE_NORMS:
            raise MapsError(f"ridgefill.feature_norm: expected one of {FEATURE_NORMS}, found {self.feature_norm!r}")
        if self.feature_norm == "rms" and not 0 <= self.feature_norm_eps < np.inf:
            raise MapsError(f"ridgefill.feature_norm_eps: expected 0 or more, found {self.feature_norm_eps}")
        if self.recommended.split is not None and self.recommended.split not in layers:
            raise MapsError(f"ridgefill.recommended.split: expected one of {layers}, found {self.recommended.split}")
        for key, least in (("sink", 0), ("tail", 1), ("min_prompt", 0)):
            value = getattr(self.recommended, key)
            if value is not None and not least <= value < 1 << 31:
                raise MapsError(f"ridgefill.recommended.{key}: expected {least} to {(1 << 31) - 1}, found {value}")
        self._validate_selection()
        for item in self.heads:
            if item.split not in layers or not 0 <= item.layer < item.split or item.head < 0:
                raise MapsError(
                    f"ridgefill.heads: head {item.layer}.{item.head} of split {item.split}",
                    "a retrieval head is in a layer below one of the file's splits",
                )


def _validate_map(item: SiteMap, split: Split, base: BaseModel) -> None:
    if not split.layer < item.layer < base.block_count:
        raise MapsError(
            f"map {item.name}: layer {item.layer}, expected {split.layer + 1} to {base.block_count - 1}",
            "maps serve the layers above their split",
        )
    if (item.site == "input") != (split.target == "input") or not re.fullmatch(r"[A-Za-z0-9_.]+", item.site):
        raise MapsError(f"map {item.name}: site {item.site!r} does not fit target {split.target!r}")
    tensors = {name.rsplit(".", 1)[1]: source for name, source in item.tensors().items()}
    required = {"weight_a", "weight_b"} if split.rank else {"weight"}
    if tensors.keys() - {"bias"} != required:
        raise MapsError(f"map {item.name}: rank {split.rank} expects {sorted(required)}, found {sorted(tensors)}")
    width = tensors["weight_b" if split.rank else "weight"].shape[0]
    if item.site == "input":
        width = base.embedding_length
    expected = {
        "weight": (width, base.embedding_length),
        "weight_a": (split.rank, base.embedding_length),
        "weight_b": (width, split.rank),
        "bias": (width,),
    }
    for name, source in item.tensors().items():
        shape = expected[name.rsplit(".", 1)[1]]
        if tuple(source.shape) != shape:
            raise MapsError(
                f"tensor {name}: expected shape {_gguf_shape(shape)}, found {_gguf_shape(source.shape)}",
                "shapes are printed as GGUF stores them, columns first",
            )
        if len(name.encode()) > MAX_NAME_BYTES:
            raise MapsError(f"tensor {name}: name has {len(name.encode())} bytes, at most {MAX_NAME_BYTES} fit")


def _gguf_shape(shape: Iterable[int]) -> list[int]:
    return [int(size) for size in reversed(tuple(shape))]
