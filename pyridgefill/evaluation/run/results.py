"""Results as JSON lines: written as they come, and not computed again when a run is repeated."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from pyridgefill.errors import RidgeFillError
from pyridgefill.evaluation.run import found
from pyridgefill.evaluation.run.typed import from_json
from pyridgefill.files import check_output

Cell = dict[str, Any]
T = TypeVar("T")

# the keys that tell one way to run the same prompts from another; all others in a cell tell the prompts
SETTING = ("variant", "maps", "split", "select", "budget", "pool", "queries", "heads", "statistics")


class Record(NamedTuple):
    """A line of a file of results."""

    cell: Cell
    result: dict[str, Any]
    info: dict[str, Any]

    @property
    def about(self) -> found.Cell:
        """The cell, typed."""
        return self._typed(found.Cell, self.cell)

    def found(self, kind: type[T]) -> T:
        """The result, as one of the types of `pyridgefill.evaluation.run.found`."""
        return self._typed(kind, self.result)

    def _typed(self, kind: type[T], value: dict[str, Any]) -> T:
        try:
            return from_json(kind, value)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            task = self.cell.get("task")
            raise RidgeFillError(f"a result of {task} has another form: {error}", "measure it again") from error


_BLOCK = 1 << 16

_LINE_START = b'{"cell": '


class ResultFile:
    """A file of lines `{"cell": {...}, "result": {...}}`; a cell says everything that its result depends on.

    Parameters
    ----------
    path
        Lines of earlier runs stay; None keeps results in memory only. The file is changed when a result is added, not
        before: others may read it, or be the one who writes it.

    Raises
    ------
    RidgeFillError
        If the folder does not exist, or the file holds something else.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._found: dict[str, Record] = {}
        if path is not None:
            check_output(path, appends=True)
            if path.exists():
                self._read(path)

    def _read(self, path: Path) -> None:
        data = path.read_bytes()
        *lines, half = data.split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                if not isinstance(record["cell"], dict) or not isinstance(record["result"], dict):
                    raise TypeError("its cell and result are no objects")
                self._found[_key(record["cell"])] = Record(record["cell"], record["result"], record.get("info", {}))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise _no_result(path, number, str(error)) from error
        # an interrupted run leaves half a line, other files do not look like one
        if half[: len(_LINE_START)] != _LINE_START[: len(half)]:
            raise _no_result(path, len(lines) + 1, f"expected {_LINE_START.decode()}...")

    def find(self, cell: Cell) -> dict[str, Any] | None:
        """The result of a finished cell."""
        found = self._found.get(_key(cell))
        return None if found is None else found.result

    def records(self) -> Iterator[Record]:
        """All lines, each cell once."""
        yield from self._found.values()

    def add(self, cell: Cell, result: dict[str, Any], info: dict[str, Any]) -> None:
        """Store a result; `info` is written with it and does not tell cells apart."""
        record = Record(plain(cell), plain(result), plain(info))
        self._found[_key(cell)] = record
        if self.path is None:
            return
        line = json.dumps(record._asdict(), ensure_ascii=False)
        with self.path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _cut_half_line(file)
            # half of a pair of code units, which a file name can have, is written as its escape
            file.write(line.encode(errors="backslashreplace") + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _cut_half_line(file: BinaryIO) -> None:
    """Remove what a run that was killed left behind the last line."""
    end = size = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - _BLOCK)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        end = start + found + 1 if found >= 0 else start
        if found >= 0:
            break
    if end < size:
        file.truncate(end)


def plain(value: Any) -> Any:
    """A value as JSON gives it back: tuples are lists, numbers that are not finite None, floats of six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _no_result(path: Path, number: int, reason: str) -> RidgeFillError:
    return RidgeFillError(
        f"{path}: line {number} is not a result: {reason}", "give a new file, or one of the same command"
    )


def _key(cell: Cell) -> str:
    return json.dumps(plain(cell), sort_keys=True, ensure_ascii=False)
