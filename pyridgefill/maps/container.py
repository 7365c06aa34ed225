"""Typed access to the keys of a maps file, and checks of its container, on top of the gguf package."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from gguf import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFEndian,
    GGUFReader,
    GGUFValueType,
    ReaderField,
    ReaderTensor,
)

from pyridgefill.errors import MapsError
from pyridgefill.maps.model import MAX_NAME_BYTES

_INTEGERS = {"u32": GGUFValueType.UINT32, "i32": GGUFValueType.INT32, "u64": GGUFValueType.UINT64}

# types with both a ggml kernel for matrix products and a numpy decoder
_TENSOR_TYPES = frozenset(
    GGMLQuantizationType[name]
    for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
)


class _CheckedReader(GGUFReader):
    """The package's reader finds a tensor that leaves the file only when it reshapes it, and does not say which."""

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        names: set[str] = set()
        for field in fields:
            _, name_data, _, dims, raw_type, offset = field.parts
            name = name_data.tobytes().decode("utf-8", errors="replace")
            if name in names:
                raise MapsError(f"tensor {name}: stored twice")
            names.add(name)
            if len(name_data) > MAX_NAME_BYTES:
                raise MapsError(f"tensor {name}: name has {len(name_data)} bytes, at most {MAX_NAME_BYTES} fit")
            if int(raw_type[0]) not in {int(known) for known in _TENSOR_TYPES}:
                accepted = ", ".join(sorted(known.name for known in _TENSOR_TYPES))
                raise MapsError(f"tensor {name}: type {_type_name(int(raw_type[0]))}, expected one of {accepted}")
            block_size, type_size = GGML_QUANT_SIZES[GGMLQuantizationType(int(raw_type[0]))]
            shape = [int(size) for size in dims]
            if not 1 <= len(shape) <= 2 or min(shape) < 1:
                raise MapsError(f"tensor {name}: expected one or two dimensions, found shape {shape}")
            if shape[0] % block_size:
                raise MapsError(f"tensor {name}: expected rows of a multiple of {block_size}, found shape {shape}")
            if int(offset[0]) % self.alignment:
                raise MapsError(f"tensor {name}: offset {int(offset[0])} is not aligned to {self.alignment} bytes")
            end = start_offs + int(offset[0]) + int(np.prod(shape, dtype=object)) * type_size // block_size
            if end > len(self.data):
                raise MapsError(
                    f"tensor {name}: data ends at byte {end}, the file has {len(self.data)}", "the file is truncated"
                )
        super()._build_tensors(start_offs, fields)


def _type_name(raw: int) -> str:
    return GGMLQuantizationType(raw).name if raw in set(GGMLQuantizationType) else str(raw)


class MapsContainer:
    """An open maps file: keys with the type that docs/map-format.md gives them, or an error that names the key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = _CheckedReader(path)
        except MapsError as error:
            self.fail(error.message, error.hint or "make the file again")
        except OSError as error:
            self.fail(f"cannot open: {error.strerror or error}")
        except (ValueError, KeyError, IndexError, OverflowError, MemoryError) as error:
            self.fail(f"not a readable GGUF file: {error}", "the file is truncated or not a maps file")
        if self._reader.endianess != GGUFEndian.LITTLE:
            self.fail("expected little-endian byte order, found big-endian", "make the file again on this machine")
        if self._reader.get_field("split.count") is not None:
            self.fail("key split.count: maps files are not sharded", "merge the shards with gguf-split first")

    @property
    def tensors(self) -> list[ReaderTensor]:
        return self._reader.tensors

    def fail(self, message: str, hint: str = "") -> NoReturn:
        """Raise a MapsError that names the file."""
        raise MapsError(f"{self.path}: {message}", hint)

    def string(self, key: str) -> str:
        return str(self._scalar(key, GGUFValueType.STRING))

    def integer(self, key: str, kind: str) -> int:
        return int(self._scalar(key, _INTEGERS[kind]))

    def optional_integer(self, key: str, kind: str) -> int | None:
        return None if self._reader.get_field(key) is None else self.integer(key, kind)

    def has(self, key: str) -> bool:
        """Whether the file has a key."""
        return self._reader.get_field(key) is not None

    def integers(self, key: str, count: int | None = None) -> list[int]:
        return [int(value) for value in self._array(key, GGUFValueType.INT32, count)]

    def floats(self, key: str, count: int | None = None, *, scalar: bool = False) -> list[float]:
        if scalar:
            return [float(self._scalar(key, GGUFValueType.FLOAT32))]
        return [float(value) for value in self._array(key, GGUFValueType.FLOAT32, count)]

    def strings(self, key: str, count: int | None = None, *, optional: bool = False) -> list[str]:
        if optional and self._reader.get_field(key) is None:
            return []
        return [str(value) for value in self._array(key, GGUFValueType.STRING, count)]

    def _field(self, key: str, types: list[GGUFValueType]) -> Any:
        field = self._reader.get_field(key)
        if field is None:
            self.fail(f"key {key} is missing", "make the file again")
        if field.types != types:
            self.fail(f"key {key}: expected type {_types(types)}, found {_types(field.types)}")
        try:
            return field.contents()
        except UnicodeDecodeError:
            self.fail(f"key {key}: text that is not UTF-8")

    def _scalar(self, key: str, kind: GGUFValueType) -> Any:
        return self._field(key, [kind])

    def _array(self, key: str, kind: GGUFValueType, count: int | None) -> list[Any]:
        values: list[Any] = self._field(key, [GGUFValueType.ARRAY, kind])
        if count is not None and len(values) != count:
            self.fail(f"key {key}: expected {count} entries, found {len(values)}")
        return values


def _types(types: list[GGUFValueType]) -> str:
    return " of ".join(kind.name.lower() for kind in types)
