"""Matrices in `.npz` and `.safetensors` files, one at a time."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyridgefill.errors import MapsError
from pyridgefill.maps.model import RowSource


class NpzRows:
    """An array in an `.npz`, which is read when rows of it are asked for, and not kept."""

    def __init__(self, archive: Any, name: str, path: Path) -> None:
        self._archive, self._name = archive, name
        array = archive[name]
        if array.dtype.kind not in "fiu":
            raise MapsError(f"{path}: {name} has type {array.dtype}, expected numbers")
        self.shape: tuple[int, ...] = array.shape

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = self._archive[self._name][rows]
        return array


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
        if not zipfile.is_zipfile(path):
            raise MapsError(f"{path}: not an .npz file", "write it with numpy.savez")
        try:
            archive = np.load(path)
            return {name: NpzRows(archive, name, path) for name in archive.files}
        except (zipfile.BadZipFile, zlib.error, ValueError, EOFError) as error:
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
