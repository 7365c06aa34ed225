"""Matrices in `.npz` and `.safetensors` files, read by rows so that packing never holds a whole one."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from pyridgefill.errors import MapsError
from pyridgefill.maps.model import RowSource


class NpzRows:
    """An array in an `.npz`: the member is streamed, since it may be compressed; rows are best read in order."""

    def __init__(self, path: Path, member: str) -> None:
        self._path, self._member = path, member
        with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
            self.shape, fortran, self.dtype = _header(stream)
        if fortran and len(self.shape) > 1:
            raise MapsError(f"{path}: {member} is in Fortran order", "save it with numpy.ascontiguousarray")
        if self.dtype.hasobject or self.dtype.kind not in "fiu":
            raise MapsError(f"{path}: {member} has type {self.dtype}, expected numbers")
        self._stream: IO[bytes] | None = None
        self._next = 0

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        if self._stream is None or start < self._next:
            self._stream = zipfile.ZipFile(self._path).open(self._member)  # noqa: SIM115  # kept for the next rows
            _header(self._stream)
            self._next = 0
        width = int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize
        self._stream.seek((start - self._next) * width, 1)
        data = self._stream.read((stop - start) * width)
        if len(data) != (stop - start) * width:
            raise MapsError(f"{self._path}: {self._member} ends early", "the file is truncated")
        self._next = stop
        return np.frombuffer(data, dtype=self.dtype).reshape(stop - start, *self.shape[1:])


class SafetensorsRows:
    """A tensor in a memory-mapped `.safetensors`."""

    def __init__(self, file: Any, name: str) -> None:
        self._slice = file.get_slice(name)
        self.shape = tuple(int(size) for size in self._slice.get_shape())

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        array: npt.NDArray[Any] = self._slice[start:stop]
        return array


def open_arrays(path: Path) -> Mapping[str, RowSource]:
    """All arrays of an `.npz` or `.safetensors` file by name.

    Raises
    ------
    MapsError
        If the file cannot be read, has another suffix, or needs the safetensors package and that is missing.
    """
    if not path.is_file():
        raise MapsError(f"{path}: no such file", "give an .npz or .safetensors file, or identity, mean or zero")
    if path.suffix == ".npz":
        try:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
            return {name.removesuffix(".npy"): NpzRows(path, name) for name in names}
        except (zipfile.BadZipFile, ValueError, EOFError) as error:
            raise MapsError(f"{path}: not an .npz file: {error}", "write it with numpy.savez") from error
    if path.suffix == ".safetensors":
        return _open_safetensors(path)
    raise MapsError(f"{path}: unknown kind of file {path.suffix!r}", "give an .npz or .safetensors file")


def _open_safetensors(path: Path) -> Mapping[str, RowSource]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise MapsError(f"{path}: the safetensors package is missing", "pip install safetensors") from error
    try:
        file = safe_open(path, framework="numpy")
        names: list[str] = file.keys()  # type: ignore[no-untyped-call]
        return {name: SafetensorsRows(file, name) for name in names}
    except SafetensorError as error:
        raise MapsError(f"{path}: not a safetensors file: {error}", "write it with the safetensors package") from error


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    return tuple(shape), bool(fortran), dtype
