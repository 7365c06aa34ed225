"""Writer of maps files: streams one block of rows at a time, to a new file that is renamed when complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from gguf.quants import quant_shape_to_byte_shape, quantize

from pyridgefill.errors import MapsError, RidgeFillError, UsageError
from pyridgefill.files import replacing
from pyridgefill.maps.model import HEAD_SHARES, MapSet, RowSource

FORMAT_VERSION = 1

WEIGHT_TYPES = {
    "f32": GGMLQuantizationType.F32,
    "f16": GGMLQuantizationType.F16,
    "bf16": GGMLQuantizationType.BF16,
    "q8_0": GGMLQuantizationType.Q8_0,
    "q4_0": GGMLQuantizationType.Q4_0,
}

_BLOCK = 32
_ROWS_BYTES = 32 << 20
# the scale of a quantized block is stored as f16
_LARGEST = {
    "f32": float(np.finfo(np.float32).max),
    "f16": 65504.0,
    "bf16": 3.38e38,
    "q8_0": 65504.0 * 127,
    "q4_0": 65504.0 * 8,
}


def write_maps(
    path: str | os.PathLike[str], maps: MapSet, *, weight_type: str | None = "f16", alignment: int = 32
) -> None:
    """Write a maps file as docs/map-format.md describes it.

    Parameters
    ----------
    path
        The file; an existing one is replaced when the new one is complete.
    maps
        The map set; its arrays are read by blocks of rows, so memory maps are never held in memory.
    weight_type
        `f32`, `f16`, `bf16`, `q8_0` or `q4_0`; biases are always f32. None: each map has the type of the file that it
        was read from, `f16` if it is an array.
    alignment
        Of tensor data in bytes, a power of two.

    Raises
    ------
    MapsError
        If the map set is not valid, or a value is not finite or too large for the type; names the tensor.
    """
    if weight_type is not None and weight_type not in WEIGHT_TYPES:
        raise MapsError(f"weight type {weight_type!r}: expected one of {', '.join(WEIGHT_TYPES)}")
    if alignment < 8 or alignment & (alignment - 1):
        raise MapsError(f"alignment {alignment}: expected a power of two from 8 on")
    maps.validate()
    with replacing(path) as temporary:
        writer = GGUFWriter(temporary, maps.base.architecture)
        try:
            if alignment != writer.data_alignment:
                writer.add_custom_alignment(alignment)
            _add_metadata(writer, maps)
            tensors = {name: source for item in maps.maps for name, source in item.tensors().items()}
            types = {
                name: "f32" if name.endswith(".bias") else weight_type or item.weight_type or "f16"
                for item in maps.maps
                for name in item.tensors()
            }
            for name, source in tensors.items():
                _add_tensor_info(writer, name, source, types[name])
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            _write_data(writer, tensors, types)
        finally:
            writer.close()


def _add_metadata(writer: GGUFWriter, maps: MapSet) -> None:
    base = maps.base
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "ridgefill")
    writer.add_uint32("ridgefill.format_version", FORMAT_VERSION)
    writer.add_uint32("ridgefill.base.block_count", base.block_count)
    writer.add_uint32("ridgefill.base.embedding_length", base.embedding_length)
    writer.add_uint32("ridgefill.base.vocab_size", base.vocab_size)
    writer.add_string("ridgefill.base.vocab_hash", base.vocab_hash)
    writer.add_string("ridgefill.base.weights_hash", base.weights_hash)
    writer.add_array("ridgefill.splits", [split.layer for split in maps.splits])
    writer.add_array("ridgefill.targets", [split.target for split in maps.splits])
    writer.add_array("ridgefill.ranks", [split.rank for split in maps.splits])
    writer.add_string("ridgefill.feature_norm", maps.feature_norm)
    if maps.feature_norm == "rms":
        writer.add_float32("ridgefill.feature_norm_eps", maps.feature_norm_eps)
    for key in ("split", "sink", "tail", "min_prompt"):
        value = getattr(maps.recommended, key)
        if value is not None:
            writer.add_int32(f"ridgefill.recommended.{key}", value)
    if maps.recommended.select is not None:
        writer.add_string("ridgefill.recommended.select", maps.recommended.select)
    if maps.recommended.budget is not None:
        writer.add_float32("ridgefill.recommended.budget", maps.recommended.budget)
    if maps.recommended.pool is not None:
        for key, rows in zip(("pool_before", "pool_after"), maps.recommended.pool, strict=True):
            writer.add_uint32(f"ridgefill.recommended.{key}", rows)
    if maps.recommended.queries is not None:
        writer.add_uint32("ridgefill.recommended.queries", maps.recommended.queries)
    if maps.heads:
        writer.add_array("ridgefill.heads.splits", [item.split for item in maps.heads])
        writer.add_array("ridgefill.heads.layers", [item.layer for item in maps.heads])
        writer.add_array("ridgefill.heads.heads", [item.head for item in maps.heads])
        for index, share in enumerate(HEAD_SHARES):
            writer.add_array(f"ridgefill.heads.recall_{share}", [float(item.recall[index]) for item in maps.heads])
    writer.add_uint64("ridgefill.calibration.tokens", maps.calibration.tokens)
    writer.add_array("ridgefill.calibration.corpora", list(maps.calibration.corpora))
    writer.add_uint64("ridgefill.calibration.rows_massive", maps.calibration.rows_massive)
    writer.add_uint64("ridgefill.calibration.rows_nonfinite", maps.calibration.rows_nonfinite)
    writer.add_array("ridgefill.map.names", [item.name for item in maps.maps])
    for key, values in (
        ("lambda", [item.damping for item in maps.maps]),
        ("r2", [item.r2 for item in maps.maps]),
        ("condition", [item.condition for item in maps.maps]),
    ):
        # converted first: struct raises on a float that does not fit into 32 bits
        with np.errstate(over="ignore"):
            narrow = np.asarray(values, dtype=np.float64).astype(np.float32).tolist()
        writer.add_key_value(f"ridgefill.map.{key}", narrow, GGUFValueType.ARRAY, GGUFValueType.FLOAT32)
    writer.add_array("ridgefill.map.solver", [item.solver for item in maps.maps])


def check_weight_type(weight_type: str, width: int, rank: int = 0) -> None:
    """Raise if maps of a model of this width, of this rank or full (0), cannot have the weight type.

    Raises
    ------
    UsageError
        If the type is not known, or quantized in blocks that rows are no multiple of.
    """
    if weight_type not in WEIGHT_TYPES:
        raise UsageError(f"weight type {weight_type!r}: expected one of {', '.join(WEIGHT_TYPES)}")
    for what, size in (("width", width), ("rank", rank)):
        _check_row(f"{what} {size}", weight_type, size, UsageError)


def _check_row(what: str, weight_type: str, size: int, error: type[RidgeFillError] = MapsError) -> None:
    if weight_type in ("q8_0", "q4_0") and size % _BLOCK:
        raise error(f"{what}: {weight_type} needs rows of a multiple of {_BLOCK}, found {size}", "choose f16 or bf16")


def _add_tensor_info(writer: GGUFWriter, name: str, source: RowSource, weight_type: str) -> None:
    shape = tuple(int(size) for size in source.shape)
    _check_row(f"tensor {name}", weight_type, shape[-1])
    raw_type = WEIGHT_TYPES[weight_type]
    if weight_type in ("f32", "f16"):
        dtype = np.dtype(np.float32 if weight_type == "f32" else np.float16)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        writer.add_tensor_info(name, shape, dtype, size, raw_type)
    else:
        byte_shape = quant_shape_to_byte_shape(shape, raw_type)
        size = int(np.prod(byte_shape, dtype=np.int64))
        writer.add_tensor_info(name, byte_shape, np.dtype(np.uint8), size, raw_type)


def _write_data(writer: GGUFWriter, tensors: dict[str, RowSource], types: dict[str, str]) -> None:
    assert writer.fout is not None
    (file,) = writer.fout
    writer.write_padding(file, file.tell())
    for name, source in tensors.items():
        for block in _blocks(name, source, types[name]):
            # not ndarray.tofile, which hides the reason of a failed write
            file.write(block.data)
        writer.write_padding(file, file.tell())


def _blocks(name: str, source: RowSource, weight_type: str) -> Iterator[npt.NDArray[Any]]:
    row_bytes = 4 * int(np.prod(source.shape[1:], dtype=np.int64))
    step = max(1, _ROWS_BYTES // row_bytes)
    for start in range(0, source.shape[0], step):
        raw = np.asarray(source[start : start + step])
        largest = float(np.abs(raw).max())
        if not np.isfinite(raw).all():
            raise MapsError(
                f"tensor {name}: value that is not finite in rows from {start}", "check the data it was made from"
            )
        if largest > _LARGEST[weight_type]:
            raise MapsError(
                f"tensor {name}: value {largest:.6g} is too large for {weight_type}, limit {_LARGEST[weight_type]:.6g}",
                "use a wider type, or RMS-normalised features",
            )
        rows = np.ascontiguousarray(raw, dtype=np.float32)
        if weight_type == "f32":
            yield rows
        elif weight_type == "f16":
            yield rows.astype(np.float16)
        else:
            yield np.ascontiguousarray(quantize(rows, WEIGHT_TYPES[weight_type]))
