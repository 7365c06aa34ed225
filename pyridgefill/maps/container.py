"""Typed access to the keys of a maps file, and checks of its tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from pyridgefill.errors import MapsError
from pyridgefill.maps.gguf_file import TEXT, GGUFFile, Tensor
from pyridgefill.maps.model import MAX_NAME_BYTES

_INTEGERS = {"u32": GGUFValueType.UINT32, "i32": GGUFValueType.INT32, "u64": GGUFValueType.UINT64}

# types with both a ggml kernel for matrix products and a numpy decoder
_TENSOR_TYPES = {
    int(GGMLQuantizationType[name]): name
    for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
}


class MapsContainer(GGUFFile):
    """An open maps file: keys with the type that docs/map-format.md gives them, or an error that names the key."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, MapsError)
        if self.has("split.count"):
            self.fail("key split.count: maps files are not sharded", "merge the shards with gguf-split first")

    def _check_tensor(self, tensor: Tensor) -> None:
        name, shape = tensor.name, list(tensor.dims)
        if len(name.encode()) > MAX_NAME_BYTES:
            self.fail(f"tensor {name}: name has {len(name.encode())} bytes, at most {MAX_NAME_BYTES} fit")
        if tensor.raw_type not in _TENSOR_TYPES:
            accepted = ", ".join(sorted(_TENSOR_TYPES.values()))
            self.fail(f"tensor {name}: type {tensor.type_name}, expected one of {accepted}")
        block, _ = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.raw_type)]
        if not 1 <= len(shape) <= 2 or min(shape) < 1:
            self.fail(f"tensor {name}: expected one or two dimensions, found shape {shape}")
        if shape[0] % block:
            self.fail(f"tensor {name}: expected rows of a multiple of {block}, found shape {shape}")
        super()._check_tensor(tensor)

    def string(self, key: str) -> str:
        return self._text(key, self.field(key, TEXT))

    def integer(self, key: str, kind: str) -> int:
        return int(self.field(key, (_INTEGERS[kind],)))

    def optional_integer(self, key: str, kind: str) -> int | None:
        return self.integer(key, kind) if self.has(key) else None

    def has(self, key: str) -> bool:
        """Whether the file has a key."""
        return key in self.types

    def integers(self, key: str, count: int | None = None) -> list[int]:
        return [int(value) for value in self._array(key, GGUFValueType.INT32, count)]

    def floats(self, key: str, count: int | None = None, *, scalar: bool = False) -> list[float]:
        if scalar:
            return [float(self.field(key, (GGUFValueType.FLOAT32,)))]
        return [float(value) for value in self._array(key, GGUFValueType.FLOAT32, count)]

    def strings(self, key: str, count: int | None = None, *, optional: bool = False) -> list[str]:
        if optional and not self.has(key):
            return []
        return [self._text(key, value) for value in self._array(key, GGUFValueType.STRING, count)]

    def _text(self, key: str, value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError:
            self.fail(f"key {key}: text that is not UTF-8")

    def _array(self, key: str, kind: GGUFValueType, count: int | None) -> Any:
        values = self.field(key, (GGUFValueType.ARRAY, kind))
        if count is not None and len(values) != count:
            self.fail(f"key {key}: expected {count} entries, found {len(values)}")
        return values
