"""Reads GGUF files: every length is compared with the file's before anything is made of it.

The gguf package's reader walks over an array as long as its length says, also beyond the end of the file, and makes
an object of each of its values; it reads every key and tensor of a model where a few of them are asked for.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.quants import quant_shape_to_byte_shape

from pyridgefill.errors import RidgeFillError

_SCALARS = {
    GGUFValueType.UINT8: "u1",
    GGUFValueType.INT8: "i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}
TEXT, TEXTS = (GGUFValueType.STRING,), (GGUFValueType.ARRAY, GGUFValueType.STRING)
_WHOLE = [(GGUFValueType[name],) for name in ("UINT32", "INT32", "UINT64", "INT64", "UINT16", "INT16", "UINT8", "INT8")]
_NUMBERS = [*((kind,) for kind in _SCALARS), *((GGUFValueType.ARRAY, kind) for kind in _SCALARS)]
_LENGTH = struct.Struct("<Q")
_VERSIONS = (2, 3)
_MAX_DIMS = 4


@dataclass(frozen=True)
class Tensor:
    """Where a tensor is in the file; `dims` fastest first, `raw_type` the number of its type, `offset` in the data."""

    name: str
    dims: tuple[int, ...]
    raw_type: int
    offset: int

    @property
    def type_name(self) -> str:
        known = self.raw_type in set(GGMLQuantizationType)
        return GGMLQuantizationType(self.raw_type).name if known else str(self.raw_type)


class GGUFFile:
    """A GGUF file: the types of its keys and its tensors are known, values and data are read when they are asked for.

    Parameters
    ----------
    path
        The file, little-endian.
    error
        Raised for everything that is wrong; the message starts with the path.

    Attributes
    ----------
    types
        Of each key: its type, and after ARRAY that of the elements.
    tensors
        By name, in the order of the file.
    """

    def __init__(self, path: Path, error: type[RidgeFillError]) -> None:
        self.path, self._error = path, error
        self.types: dict[str, tuple[GGUFValueType, ...]] = {}
        self.tensors: dict[str, Tensor] = {}
        self._places: dict[str, tuple[int, int]] = {}  # where a value starts, and how many there are
        self._at = 0
        if path.exists() and not path.is_file():  # a pipe would be waited for
            self.fail("not a file", "give the path of a GGUF file")
        try:
            with path.open("rb") as file:
                self.size = file.seek(0, 2)
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else b""
        except OSError as problem:
            self.fail(f"cannot open: {problem.strerror or problem}", "give the path of a GGUF file")
        self._read()

    def fail(self, message: str, hint: str = "") -> NoReturn:
        """Raise an error that names the file."""
        raise self._error(f"{self.path}: {message}", hint)

    def field(self, key: str, *accepted: tuple[GGUFValueType, ...]) -> Any:
        """The value of a key that must be there, of one of the types."""
        if key not in self.types:
            self.fail(f"key {key} is missing", "the file is of another kind, or was not written to the end")
        if self.types[key] not in accepted:
            self.fail(f"key {key}: expected type {_words(accepted[0])}, found {_words(self.types[key])}")
        return self.value(key)

    def text(self, key: str) -> str:
        """The text of a key that must be there."""
        return bytes(self.field(key, TEXT)).decode("utf-8", errors="replace")

    def whole(self, key: str) -> int:
        """The whole number of a key that must be there."""
        return int(self.field(key, *_WHOLE))

    def numbers(self, key: str, default: float | None = None) -> list[float]:
        """The number of a key or those of its array; the default, if there is one, where the key is missing."""
        if key not in self.types and default is not None:
            return [default]
        found: list[float] = np.atleast_1d(self.field(key, *_NUMBERS)).tolist()
        return found or self.fail(f"key {key}: expected a number, found none")

    def value(self, key: str) -> Any:
        """The value of a key: a number, a bool, bytes, a numpy array, or a list of bytes; texts are not decoded."""
        start, count = self._places[key]
        kinds = self.types[key]
        self._at = start
        if kinds[-1] == GGUFValueType.STRING:
            texts = [self._take(self._length()) for _ in range(count)]
            return texts if len(kinds) > 1 else texts[0]
        found: npt.NDArray[Any] = np.frombuffer(self._map, _SCALARS[kinds[-1]], count, start)
        return found if len(kinds) > 1 else found[0].item()

    def data(self, tensor: Tensor) -> npt.NDArray[Any]:
        """A tensor's values, or the bytes of its blocks, as an array over the file, slowest dimension first."""
        shape = tuple(reversed(tensor.dims))
        kind = GGMLQuantizationType(tensor.raw_type)
        dtype = {GGMLQuantizationType.F32: "<f4", GGMLQuantizationType.F16: "<f2"}.get(kind, "u1")
        stored = shape if dtype != "u1" else quant_shape_to_byte_shape(shape, kind)
        count = int(np.prod(stored, dtype=np.int64))
        return np.frombuffer(self._map, dtype, count, self._data_start + tensor.offset).reshape(stored)

    def _read(self) -> None:
        if self.size < 24 or self._take(4) != b"GGUF":
            self.fail("not a readable GGUF file: it does not start with 'GGUF' and a header", "give a GGUF file")
        version = self._number("<I")
        if version & 0xFFFF == 0:
            self.fail("expected little-endian byte order, found big-endian", "make the file again on this machine")
        if version not in _VERSIONS:
            self.fail(f"not a readable GGUF file: version {version}, expected one of {_VERSIONS}")
        n_tensors, n_keys = self._number("<Q"), self._number("<Q")
        for _ in range(n_keys):
            self._read_key()
        self.alignment = 32
        if "general.alignment" in self.types:
            self.alignment = self.value("general.alignment") if self._is_number("general.alignment") else 0
            if self.alignment < 1 or self.alignment & (self.alignment - 1):
                self.fail(f"key general.alignment: expected a power of two, found {self.alignment}")
            self._at = self._end
        for _ in range(n_tensors):
            self._read_tensor()
        self._data_start = -(-self._at // self.alignment) * self.alignment
        for tensor in self.tensors.values():
            self._check_tensor(tensor)

    def _is_number(self, key: str) -> bool:
        return self.types[key] == (GGUFValueType.UINT32,)

    def _read_key(self) -> None:
        name = self._name("key")
        if name in self.types:
            self.fail(f"not a readable GGUF file: key {name} is stored twice")
        kinds = [self._kind(name)]
        count = 1
        if kinds[0] == GGUFValueType.ARRAY:
            kinds.append(self._kind(name))
            count = self._number("<Q")
        self.types[name], self._places[name] = tuple(kinds), (self._at, count)
        if kinds[-1] == GGUFValueType.STRING:
            self._skip_texts(name, count)
        elif kinds[-1] == GGUFValueType.ARRAY:
            self.fail(f"not a readable GGUF file: key {name} is an array of arrays")
        else:
            self._skip(count * np.dtype(_SCALARS[kinds[-1]]).itemsize, f"key {name}: {count} values")
        self._end = self._at

    def _skip_texts(self, name: str, count: int) -> None:
        # a vocabulary has some hundred thousand
        at, end = self._at, self.size - 8
        for _ in range(count):
            if at > end:
                self._cut(f"key {name}: a text")
            at += 8 + _LENGTH.unpack_from(self._map, at)[0]
        self._skip(at - self._at, f"key {name}: a text")

    def _kind(self, name: str) -> GGUFValueType:
        number = self._number("<I")
        if number not in set(GGUFValueType):
            self.fail(f"not a readable GGUF file: key {name} has a value of the unknown type {number}")
        return GGUFValueType(number)

    def _read_tensor(self) -> None:
        name = self._name("tensor")
        n_dims = self._number("<I")
        if n_dims > _MAX_DIMS:
            self.fail(f"tensor {name}: expected {_MAX_DIMS} dimensions at most, found {n_dims}")
        dims = tuple(self._number("<Q") for _ in range(n_dims))
        if name in self.tensors:
            self.fail(f"tensor {name}: stored twice")
        self.tensors[name] = Tensor(name, dims, self._number("<I"), self._number("<Q"))

    def _check_tensor(self, tensor: Tensor) -> None:
        if tensor.offset % self.alignment:
            self.fail(f"tensor {tensor.name}: offset {tensor.offset} is not aligned to {self.alignment} bytes")
        if tensor.raw_type not in set(GGMLQuantizationType):
            return  # nothing is known of its size; who asks for its data must know the type
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.raw_type)]
        end = self._data_start + tensor.offset + int(np.prod(tensor.dims, dtype=object)) * size // block
        if end > self.size:
            self.fail(f"tensor {tensor.name}: data ends at byte {end}, the file has {self.size}", "it is truncated")

    def _name(self, what: str) -> str:
        return self._take(self._length(), f"the name of a {what}").decode("utf-8", errors="replace")

    def _length(self) -> int:
        return self._number("<Q")

    def _number(self, form: str) -> int:
        if self._at + struct.calcsize(form) > self.size:
            self._cut("a number")
        (number,) = struct.unpack_from(form, self._map, self._at)
        self._at += struct.calcsize(form)
        return int(number)

    def _take(self, count: int, what: str = "a text") -> bytes:
        start = self._at
        self._skip(count, what)
        return bytes(self._map[start : self._at])

    def _skip(self, count: int, what: str) -> None:
        if count > self.size - self._at:
            self._cut(what)
        self._at += count

    def _cut(self, what: str) -> NoReturn:
        self.fail(f"not a readable GGUF file: {what} at byte {self._at} would end behind the file", "it is damaged")


def _words(types: tuple[GGUFValueType, ...]) -> str:
    return " of ".join(kind.name.lower() for kind in types)
