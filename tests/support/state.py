"""Reads K and V out of a saved sequence state, in the layout of the pinned llama.cpp."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = 0xAF143CD8
_DTYPES = {0: np.dtype(np.float32), 1: np.dtype(np.float16)}


@dataclass(frozen=True)
class KVCells:
    """The cells of one sequence in an unquantized cache, in order of position.

    Attributes
    ----------
    pos
        Positions, ``[n]``.
    k, v
        One array ``[n][width]`` per layer.
    """

    pos: NDArray[np.int32]
    k: list[NDArray[Any]]
    v: list[NDArray[Any]]


def parse_kv(data: bytes) -> KVCells:
    """Parse the state of a sequence of a model with one plain KV cache.

    Raises
    ------
    ValueError
        If the data has another layout.
    """
    reader = _Reader(data)
    if reader.unpack("I") not in (MAGIC, MAGIC ^ 1 << 31):  # the other one: with filled rows
        raise ValueError("not a sequence state")
    reader.unpack("i")  # sequence id
    cells: KVCells | None = None
    for _ in range(reader.unpack("I")):
        n = reader.unpack("I")
        if n == 0:
            continue
        if cells is not None:
            raise ValueError("the sequence has cells in several streams")
        pos = np.empty(n, np.int32)
        for i in range(n):
            pos[i] = reader.unpack("i")
            for _ in range(reader.unpack("I")):
                reader.unpack("i")
        v_trans, n_layer = reader.unpack("I"), reader.unpack("I")
        k = []
        for _ in range(n_layer):
            dtype, row = _DTYPES[reader.unpack("i")], reader.unpack("Q")
            k.append(reader.array(dtype, (n, row // dtype.itemsize)))
        v = []
        for _ in range(n_layer):
            dtype = _DTYPES[reader.unpack("i")]
            if v_trans:
                reader.unpack("I")  # element size
                v.append(reader.array(dtype, (reader.unpack("I"), n)).T)
            else:
                v.append(reader.array(dtype, (n, reader.unpack("Q") // dtype.itemsize)))
        order = np.argsort(pos)
        cells = KVCells(pos[order], [a[order] for a in k], [a[order] for a in v])
    if cells is None:
        raise ValueError("the sequence has no cells")
    return cells


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    def unpack(self, kind: str) -> int:
        (value,) = struct.unpack_from("<" + kind, self.data, self.offset)
        self.offset += struct.calcsize("<" + kind)
        return int(value)

    def array(self, dtype: np.dtype[Any], shape: tuple[int, int]) -> NDArray[Any]:
        values = np.frombuffer(self.data, dtype, shape[0] * shape[1], self.offset).reshape(shape)
        self.offset += values.nbytes
        return values
