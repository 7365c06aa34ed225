"""GGUF files byte by byte, so that tests can write what the gguf package refuses to."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf

_SCALARS = {
    gguf.GGUFValueType.UINT8: "B",
    gguf.GGUFValueType.INT8: "b",
    gguf.GGUFValueType.UINT16: "H",
    gguf.GGUFValueType.INT16: "h",
    gguf.GGUFValueType.UINT32: "I",
    gguf.GGUFValueType.INT32: "i",
    gguf.GGUFValueType.FLOAT32: "f",
    gguf.GGUFValueType.BOOL: "?",
    gguf.GGUFValueType.UINT64: "Q",
    gguf.GGUFValueType.INT64: "q",
    gguf.GGUFValueType.FLOAT64: "d",
}


@dataclass
class RawTensor:
    """A tensor as the file stores it; ``dims`` fastest first, ``kind`` the number of its type."""

    name: str
    dims: list[int]
    kind: int
    data: bytes


@dataclass
class RawKey:
    """A metadata key; ``kind`` is the type of the value, or of the elements if the value is a list."""

    name: str
    kind: gguf.GGUFValueType
    value: Any


@dataclass
class RawGGUF:
    """Everything that a GGUF file says, in file order; nothing is checked."""

    keys: list[RawKey] = field(default_factory=list)
    tensors: list[RawTensor] = field(default_factory=list)
    version: int = 3
    alignment: int = 32
    magic: bytes = b"GGUF"

    @classmethod
    def read(cls, path: Path) -> RawGGUF:
        reader = gguf.GGUFReader(path)
        raw = cls()
        for name, entry in reader.fields.items():
            if not name.startswith("GGUF."):
                raw.keys.append(RawKey(name, entry.types[-1], entry.contents()))
        for tensor in reader.tensors:
            raw.tensors.append(
                RawTensor(tensor.name, [int(n) for n in tensor.shape], int(tensor.tensor_type), tensor.data.tobytes())
            )
        return raw

    def key(self, name: str) -> RawKey:
        return next(key for key in self.keys if key.name == name)

    def tensor(self, name: str) -> RawTensor:
        return next(tensor for tensor in self.tensors if tensor.name == name)

    def head(self) -> bytes:
        """Header, metadata and tensor list, up to where the padding before the data begins."""
        out = self.magic + struct.pack("<IQQ", self.version, len(self.tensors), len(self.keys))
        for key in self.keys:
            out += _string(key.name) + _value(key)
        offset = 0
        for tensor in self.tensors:
            out += _string(tensor.name)
            out += struct.pack(f"<I{len(tensor.dims)}QIQ", len(tensor.dims), *tensor.dims, tensor.kind, offset)
            offset += self._padded(len(tensor.data))
        return out

    def write(self, path: Path) -> Path:
        out = self.head()
        out = out.ljust(self._padded(len(out)), b"\0")
        for tensor in self.tensors:
            out += tensor.data.ljust(self._padded(len(tensor.data)), b"\0")
        path.write_bytes(out)
        return path

    def _padded(self, n: int) -> int:
        return -(-n // self.alignment) * self.alignment


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _scalar(kind: gguf.GGUFValueType, value: Any) -> bytes:
    return _string(value) if kind == gguf.GGUFValueType.STRING else struct.pack("<" + _SCALARS[kind], value)


def _value(key: RawKey) -> bytes:
    if not isinstance(key.value, list):
        return struct.pack("<I", key.kind) + _scalar(key.kind, key.value)
    head = struct.pack("<IIQ", gguf.GGUFValueType.ARRAY, key.kind, len(key.value))
    return head + b"".join(_scalar(key.kind, value) for value in key.value)
