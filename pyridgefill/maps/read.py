"""Reader of maps files with the checks of the engine's loader; tensors stay in the file until they are used."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from pyridgefill.errors import MapsError
from pyridgefill.maps.base import BaseModel
from pyridgefill.maps.container import MapsContainer
from pyridgefill.maps.model import HEAD_SHARES, Calibration, MapSet, Recommended, RetrievalHead, SiteMap, Split
from pyridgefill.maps.write import FORMAT_VERSION

_TENSOR = re.compile(r"ridgefill\.(\d+\.blk\.\d+\..+)\.(weight|weight_a|weight_b|bias)")
_NAME = re.compile(r"(\d+)\.blk\.(\d+)\.(.+)")
_CHECK_ROWS_BYTES = 32 << 20


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a maps file. Slices of rows are float32 copies; `type_name` is the stored type in lower case."""

    data: npt.NDArray[Any]
    type: GGMLQuantizationType
    shape: tuple[int, ...]

    @property
    def type_name(self) -> str:
        return self.type.name.lower()

    @property
    def n_bytes(self) -> int:
        return int(self.data.nbytes)

    def __getitem__(self, rows: slice) -> npt.NDArray[np.float32]:
        if self.type == GGMLQuantizationType.F32:
            return np.array(self.data[rows])
        return dequantize(np.ascontiguousarray(self.data[rows]), self.type).astype(np.float32, copy=False)


def read_maps(path: str | os.PathLike[str], *, check_values: bool = False) -> MapSet:
    """Read and check a maps file; its weights are decoded when they are used.

    Parameters
    ----------
    path
        The file.
    check_values
        Also look at all weights: is each a finite number? The engine does when it loads maps, the writer when it
        writes them.

    Returns
    -------
    MapSet
        Its tensors are `StoredTensor` objects over a memory map of the file.

    Raises
    ------
    MapsError
        If anything breaks docs/map-format.md; names the key or tensor, what was expected and what was found.
    """
    container = MapsContainer(Path(path))
    for key, expected in (("general.type", "adapter"), ("adapter.type", "ridgefill")):
        if (found := container.string(key)) != expected:
            container.fail(f"key {key}: expected {expected!r}, found {found!r}", "this is not a maps file")
    if (version := container.integer("ridgefill.format_version", "u32")) != FORMAT_VERSION:
        container.fail(
            f"key ridgefill.format_version: expected {FORMAT_VERSION}, found {version}", "update pyridgefill"
        )
    maps = MapSet(
        base=_base(container),
        splits=_splits(container),
        maps=_maps(container),
        feature_norm=container.string("ridgefill.feature_norm"),  # type: ignore[arg-type]  # checked by validate
        feature_norm_eps=_eps(container),
        recommended=_recommended(container),
        calibration=Calibration(
            tokens=container.integer("ridgefill.calibration.tokens", "u64"),
            corpora=tuple(container.strings("ridgefill.calibration.corpora", optional=True)),
            rows_massive=container.integer("ridgefill.calibration.rows_massive", "u64"),
            rows_nonfinite=container.integer("ridgefill.calibration.rows_nonfinite", "u64"),
        ),
        heads=_heads(container),
    )
    try:
        maps.validate()
    except MapsError as error:
        container.fail(error.message, error.hint or "make the file again")
    if check_values:
        _check_values(container, maps)
    return maps


def _base(container: MapsContainer) -> BaseModel:
    base = BaseModel(
        architecture=container.string("general.architecture"),
        block_count=container.integer("ridgefill.base.block_count", "u32"),
        embedding_length=container.integer("ridgefill.base.embedding_length", "u32"),
        vocab_size=container.integer("ridgefill.base.vocab_size", "u32"),
        vocab_hash=container.string("ridgefill.base.vocab_hash"),
        weights_hash=container.string("ridgefill.base.weights_hash"),
    )
    for key in ("vocab_hash", "weights_hash"):
        if not re.fullmatch("[0-9a-f]{16}", getattr(base, key)):
            container.fail(f"key ridgefill.base.{key}: expected 16 hex digits, found {getattr(base, key)!r}")
    return base


def _splits(container: MapsContainer) -> tuple[Split, ...]:
    layers = container.integers("ridgefill.splits")
    targets = container.strings("ridgefill.targets", count=len(layers))
    ranks = container.integers("ridgefill.ranks", count=len(layers))
    return tuple(Split(*item) for item in zip(layers, targets, ranks, strict=True))  # type: ignore[arg-type]


def _recommended(container: MapsContainer) -> Recommended:
    prefix = "ridgefill.recommended"
    split, sink, tail, min_prompt = (
        container.optional_integer(f"{prefix}.{key}", "i32") for key in ("split", "sink", "tail", "min_prompt")
    )
    before, after, queries = (
        container.optional_integer(f"{prefix}.{key}", "u32") for key in ("pool_before", "pool_after", "queries")
    )
    if (before is None) != (after is None):
        container.fail(f"keys {prefix}.pool_before, {prefix}.pool_after: one is missing", "make the file again")
    budget = f"{prefix}.budget"
    return Recommended(
        split,
        sink,
        tail,
        min_prompt,
        select=container.string(f"{prefix}.select") if container.has(f"{prefix}.select") else None,
        # the number that was written: the shortest one of its f32
        budget=float(str(np.float32(container.floats(budget, scalar=True)[0]))) if container.has(budget) else None,
        pool=None if before is None or after is None else (before, after),
        queries=queries,
    )


def _heads(container: MapsContainer) -> tuple[RetrievalHead, ...]:
    if not container.has("ridgefill.heads.splits"):
        return ()
    splits = container.integers("ridgefill.heads.splits")
    layers = container.integers("ridgefill.heads.layers", count=len(splits))
    heads = container.integers("ridgefill.heads.heads", count=len(splits))
    recalls = (container.floats(f"ridgefill.heads.recall_{share}", count=len(splits)) for share in HEAD_SHARES)
    numbers = zip(splits, layers, heads, zip(*recalls, strict=True), strict=True)
    return tuple(RetrievalHead(*item) for item in numbers)


def _eps(container: MapsContainer) -> float:
    if container.string("ridgefill.feature_norm") != "rms":
        return 0.0
    return container.floats("ridgefill.feature_norm_eps", scalar=True)[0]


def _maps(container: MapsContainer) -> tuple[SiteMap, ...]:
    names = container.strings("ridgefill.map.names")
    numbers = [container.floats(f"ridgefill.map.{key}", count=len(names)) for key in ("lambda", "r2", "condition")]
    solvers = container.strings("ridgefill.map.solver", count=len(names))
    tensors: dict[str, dict[str, StoredTensor]] = {name: {} for name in names}
    for tensor in container.tensors.values():
        match = _TENSOR.fullmatch(tensor.name)
        if match is None or match.group(1) not in tensors:
            container.fail(f"tensor {tensor.name}: unknown, expected tensors of the maps in ridgefill.map.names")
        if match.group(2) == "bias" and tensor.raw_type != GGMLQuantizationType.F32:
            container.fail(f"tensor {tensor.name}: expected type F32, found {tensor.type_name}")
        stored = StoredTensor(container.data(tensor), GGMLQuantizationType(tensor.raw_type), tensor.dims[::-1])
        tensors[match.group(1)][match.group(2)] = stored
    maps = []
    for name, damping, r2, condition, solver in zip(names, *numbers, solvers, strict=True):
        match = _NAME.fullmatch(name)
        if match is None:
            container.fail(f"key ridgefill.map.names: expected <split>.blk.<l>.<site>, found {name!r}")
        split, layer, site = int(match.group(1)), int(match.group(2)), match.group(3)
        parts = tensors[name]
        if not parts:
            container.fail(f"tensor ridgefill.{name}.weight: missing, named in ridgefill.map.names")
        maps.append(SiteMap(split, layer, site, **parts, damping=damping, r2=r2, condition=condition, solver=solver))
    return tuple(maps)


def _check_values(container: MapsContainer, maps: MapSet) -> None:
    for item in maps.maps:
        for name, source in item.tensors().items():
            step = max(1, _CHECK_ROWS_BYTES // (4 * int(np.prod(source.shape[1:], dtype=np.int64))))
            for start in range(0, source.shape[0], step):
                if not np.isfinite(source[start : start + step]).all():
                    container.fail(f"tensor {name}: value that is not finite", "calibrate again")
