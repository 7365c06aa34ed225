"""Maps of a sweep: fitted when they are first wanted, kept in a folder, and found there by a later run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pyridgefill.calibration.fit import FitOptions, fit_maps
from pyridgefill.calibration.statistics import Statistics
from pyridgefill.calibration.statistics_file import read_statistics
from pyridgefill.config import RidgeFillConfig
from pyridgefill.evaluation.run.lab import model_cell
from pyridgefill.evaluation.run.results import ResultFile, plain
from pyridgefill.files import digest, file_name
from pyridgefill.maps import MapSet, Recommended, RetrievalHead, write_maps
from pyridgefill.maps.model import Target
from pyridgefill.selection.finding import find_heads

# called with what is done, and with steps done and all of them
OnStep = Callable[[str, int, int], None]


class MapStore:
    """Fits maps from sums, with retrieval heads.

    Parameters
    ----------
    model, statistics
        The model's GGUF, and sums that were collected from it.
    folder
        Takes the maps files.
    results
        Where heads, and what the files hold, are noted.
    recommended
        Sink, tail and shortest prompt to store in the files; heads are found with them.
    prompts
        For `find_heads`.
    on_step
        Called while maps are fitted and heads are searched.
    **options
        For the engine.
    """

    def __init__(
        self,
        model: Path,
        statistics: Path,
        folder: Path,
        results: ResultFile,
        *,
        recommended: Recommended,
        prompts: int,
        on_step: OnStep,
        **options: Any,
    ) -> None:
        self._model, self._statistics, self._folder, self._results = model, statistics, folder, results
        self._recommended, self._prompts, self._on_step, self._options = recommended, prompts, on_step, options
        self._sums: Statistics | None = None
        self._fits: dict[FitOptions, MapSet] = {}
        self._base = {**model_cell(model), "statistics": file_name(statistics)}

    @property
    def sums(self) -> Statistics:
        """The sums, read once."""
        if self._sums is None:
            self._on_step("read statistics", 0, 1)
            self._sums = read_statistics(self._statistics)
            self._on_step("read statistics", 1, 1)
        return self._sums

    def get(
        self, splits: tuple[int, ...], target: Target, rank: int, weight_type: str, heads: list[RetrievalHead] | None
    ) -> dict[str, Any]:
        """Maps of some splits.

        Parameters
        ----------
        splits, target, rank, weight_type
            What is wanted.
        heads
            To store; None finds them.

        Returns
        -------
        dict
            `file` (its name), `bytes`, `digest`, `r2` by map, `heads`.
        """
        cell: dict[str, Any] = {"task": "maps", **self._base, "splits": list(splits), "target": target, "rank": rank}
        cell |= {"type": weight_type, "sink": self._recommended.sink, "tail": self._recommended.tail}
        cell["heads"] = self._prompts if heads is None else [[item.split, item.layer, item.head] for item in heads]
        name = f"{target}{f'-r{rank}' if rank else ''}-{weight_type}-{'-'.join(map(str, splits))}.ridgefill.gguf"
        path = self._folder / name
        found = self._results.find(cell)
        if found is not None and path.is_file() and digest(path) == found["digest"]:
            return found
        maps = self._fit(splits, target, rank)
        if heads is None:
            # what heads find does not depend on how good the maps are
            write_maps(path, maps, weight_type=weight_type)
            heads = self._find_heads(splits, path)
        maps = replace(maps, heads=tuple(heads))
        write_maps(path, maps, weight_type=weight_type)
        result = {
            "file": name,
            "bytes": path.stat().st_size,
            "digest": digest(path),
            "r2": [{"split": item.split, "layer": item.layer, "site": item.site, "r2": item.r2} for item in maps.maps],
            "heads": [asdict(item) for item in maps.heads],
            "parameters": sum(source.shape[0] * (source.shape[1] if len(source.shape) > 1 else 1)
                              for item in maps.maps for source in item.tensors().values()),
        }  # fmt: skip
        if found != plain(result):
            # the file is another one where a fit is not the same to the bit, as on another machine
            self._results.add(cell, result, {})
        stored = self._results.find(cell)
        assert stored is not None
        return stored

    def path(self, maps: dict[str, Any]) -> Path:
        """The file of what `get` returned."""
        return self._folder / str(maps["file"])

    def _fit(self, splits: tuple[int, ...], target: Target, rank: int) -> MapSet:
        options = FitOptions(target, rank)
        whole = self._fits.get(options)
        if whole is None or not set(splits) <= {item.layer for item in whole.splits}:
            whole = fit_maps(
                self.sums,
                options,
                splits=splits,
                recommended=self._recommended,
                progress=lambda done, total: self._on_step("fit maps", done, total),
            )
            self._fits[options] = whole
        return whole.keep(splits, self._recommended)

    def _find_heads(self, splits: tuple[int, ...], path: Path) -> list[RetrievalHead]:
        tail, sink = self._recommended.tail, self._recommended.sink
        cell = {"task": "heads", **self._base, "splits": list(splits), "sink": sink, "tail": tail}
        cell |= {"prompts": self._prompts, "seed": 0}
        del cell["statistics"]
        found = self._results.find(cell)
        if found is None:
            heads = find_heads(
                self._model,
                RidgeFillConfig(path, sink=sink, tail=tail),
                splits=splits,
                prompts=self._prompts,
                on_progress=lambda done, total: self._on_step("find retrieval heads", done, total),
                **self._options,
            )
            self._results.add(cell, {"heads": [asdict(head) for head in heads]}, {})
            return heads
        return to_heads(found["heads"])


def to_heads(items: list[dict[str, Any]]) -> list[RetrievalHead]:
    """Heads as results hold them."""
    return [RetrievalHead(**(item | {"recall": tuple(item["recall"])})) for item in items]
