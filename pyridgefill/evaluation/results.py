"""Results as JSON lines: written as they come, and not computed again when a run is repeated."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyridgefill.errors import RidgeFillError
from pyridgefill.files import check_folder

Cell = dict[str, Any]


class ResultFile:
    """A file of lines `{"cell": {...}, "result": {...}}`; a cell says everything that its result depends on.

    Parameters
    ----------
    path
        Lines of earlier runs stay; None keeps results in memory only.

    Raises
    ------
    RidgeFillError
        If the folder does not exist, or the file holds something else.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._found: dict[str, dict[str, Any]] = {}
        if path is not None:
            check_folder(path)
            if path.exists():
                self._read(path)

    def _read(self, path: Path) -> None:
        data = path.read_bytes()
        complete = data.rfind(b"\n") + 1
        if complete < len(data):
            # an interrupted run left half a line
            with path.open("rb+") as file:
                file.truncate(complete)
        for number, line in enumerate(data[:complete].splitlines(), start=1):
            try:
                record = json.loads(line)
                self._found[_key(record["cell"])] = record["result"]
            except (ValueError, KeyError, TypeError) as error:
                raise RidgeFillError(
                    f"{path}: line {number} is not a result: {error}", "give a new file, or one of the same command"
                ) from error

    def find(self, cell: Cell) -> dict[str, Any] | None:
        """The result of a finished cell."""
        return self._found.get(_key(cell))

    def records(self) -> Iterator[tuple[Cell, dict[str, Any]]]:
        """All cells with their results."""
        for key, result in self._found.items():
            yield json.loads(key), result

    def add(self, cell: Cell, result: dict[str, Any], info: dict[str, Any]) -> None:
        """Store a result; `info` is written with it and does not tell cells apart."""
        result = plain(result)
        self._found[_key(cell)] = result
        if self.path is None:
            return
        line = json.dumps({"cell": plain(cell), "result": result, "info": plain(info)}, ensure_ascii=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())


def plain(value: Any) -> Any:
    """A value as JSON gives it back: tuples are lists, numbers that are not finite None, floats of six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _key(cell: Cell) -> str:
    return json.dumps(plain(cell), sort_keys=True, ensure_ascii=False)
