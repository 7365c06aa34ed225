"""The statistics file: an `.npz` with the sums as float64 arrays and their provenance as JSON."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyridgefill.calibration.statistics import Statistics
from pyridgefill.calibration.sums import LeftOut, NormHistogram, Settings, SplitStatistics, Sums
from pyridgefill.errors import StatisticsError
from pyridgefill.files import replacing
from pyridgefill.maps.base import BaseModel
from pyridgefill.maps.model import TARGETS, Site

FORMAT_VERSION = 1

_ARRAYS = ("xx", "yx", "x", "y", "yy")


def write_statistics(path: str | os.PathLike[str], statistics: Statistics) -> None:
    """Write all sums to a new file and rename it to `path` when it is complete."""
    header: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "base": asdict(statistics.base),
        "settings": asdict(statistics.settings),
        "nonfinite": {str(layer): asdict(item) for layer, item in statistics.nonfinite.items()},
        "provenance": statistics.provenance,
        "progress": statistics.progress,
        "splits": [
            {
                "split": split,
                "sites": [[site.layer, site.name, site.width] for site in item.sites],
                "massive": asdict(item.massive),
                "rows": {"fit": item.fit.rows, "held": item.held.rows},
            }
            for split, item in statistics.splits.items()
        ],
    }
    arrays: dict[str, Any] = {"header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)}
    for split, item in statistics.splits.items():
        arrays[f"{split}.norms"] = item.norms.counts
        for part, sums in (("fit", item.fit), ("held", item.held)):
            arrays.update({f"{split}.{part}.{name}": getattr(sums, name) for name in _ARRAYS})
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def read_statistics(path: str | os.PathLike[str]) -> Statistics:
    """Read and check a statistics file.

    Raises
    ------
    StatisticsError
        If the file cannot be read, has another version, lacks an array, or holds one of a wrong shape or type
        or with values that are not finite; names the array.
    """
    with _arrays(path) as arrays:
        return _read(Path(path), arrays)


@dataclass(frozen=True)
class Summary:
    """What a statistics file says about itself: the model, splits, targets of the sums, and where they come from."""

    base: BaseModel
    splits: tuple[int, ...]
    targets: tuple[str, ...]
    provenance: dict[str, Any]


def read_summary(path: str | os.PathLike[str]) -> Summary:
    """Read a statistics file without its sums.

    Raises
    ------
    StatisticsError
        As for `read_statistics`.
    """
    with _arrays(path) as arrays:
        header = _header(Path(path), arrays)
        names = {str(site[1]) for entry in header["splits"] for site in entry["sites"]}
        targets = tuple(
            t for t in TARGETS if (t == "input" and "input" in names) or (t == "proj" and names - {"input"})
        )
        splits = tuple(sorted(int(entry["split"]) for entry in header["splits"]))
        return Summary(BaseModel(**header["base"]), splits, targets, dict(header["provenance"]))


@contextmanager
def _arrays(path: str | os.PathLike[str]) -> Iterator[Any]:
    """An open file; what goes wrong while it is read is told as an error of the file."""
    file = Path(path)
    try:
        with np.load(file, allow_pickle=False) as arrays:
            yield arrays
    except OSError as error:
        raise StatisticsError(
            f"{file}: cannot read: {error.strerror or error}", "give a file made by collect"
        ) from error
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, EOFError, RecursionError) as error:
        if not zipfile.is_zipfile(file):
            raise StatisticsError(f"{file}: not a statistics file", "give a file made by collect") from error
        raise StatisticsError(f"{file}: not a statistics file: {error}", "give a file made by collect") from error


def _header(file: Path, arrays: Any) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(arrays["header"].tobytes())
    if header["format_version"] != FORMAT_VERSION:
        raise StatisticsError(
            f"{file}: format_version: expected {FORMAT_VERSION}, found {header['format_version']}", "collect again"
        )
    return header


def _read(file: Path, arrays: Any) -> Statistics:
    header = _header(file, arrays)
    base = BaseModel(**header["base"])
    splits = {}
    for entry in header["splits"]:
        split = int(entry["split"])
        sites = tuple(Site(int(layer), str(name), int(width)) for layer, name, width in entry["sites"])
        sums = {}
        for part in ("fit", "held"):
            zero = Sums.zeros(0, 0)
            zero.rows = int(entry["rows"][part])
            d, m = base.embedding_length, sum(site.width for site in sites)
            shapes = {"xx": (d, d), "yx": (m, d), "x": (d,), "y": (m,), "yy": (m,)}
            for name, shape in shapes.items():
                array = _array(file, arrays, f"{split}.{part}.{name}", shape, np.dtype(np.float64))
                setattr(zero, name, np.asfortranarray(array) if name == "xx" else np.ascontiguousarray(array))
            sums[part] = zero
        norms = _array(file, arrays, f"{split}.norms", NormHistogram().counts.shape, np.dtype(np.int64))
        splits[split] = SplitStatistics(
            split, sites, sums["fit"], sums["held"], NormHistogram(norms.copy()), LeftOut(**entry["massive"])
        )
    return Statistics(
        base=base,
        settings=Settings(**header["settings"]),
        splits=splits,
        nonfinite={int(layer): LeftOut(**item) for layer, item in header["nonfinite"].items()},
        provenance=header["provenance"],
        progress=header["progress"],
    )


def _array(file: Path, arrays: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    if name not in arrays:
        raise StatisticsError(f"{file}: array {name} is missing", "collect again")
    array = arrays[name]
    if array.shape != shape or array.dtype != dtype:
        raise StatisticsError(
            f"{file}: array {name}: expected {dtype} {list(shape)}, found {array.dtype} {list(array.shape)}",
            "collect again",
        )
    if not np.isfinite(array).all():
        raise StatisticsError(f"{file}: array {name}: value that is not finite", "collect with --nonfinite skip")
    return array
