"""Retrieval heads and recommended settings, measured on the model with maps that are not yet in their place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from pyridgefill import defaults
from pyridgefill.cli import common
from pyridgefill.config import RidgeFillConfig
from pyridgefill.maps import MapSet, write_maps

if TYPE_CHECKING:
    from pyridgefill.selection.propose import Trial


@contextmanager
def trial_file(output: Path, maps: MapSet, weight_type: str) -> Iterator[Path]:
    """The maps in a file beside the output, deleted at the end."""
    path = output.with_name(output.name + ".trial")
    write_maps(path, maps, weight_type=weight_type)
    try:
        yield path
    finally:
        path.unlink()


def with_heads(model: Path, path: Path, maps: MapSet, config: RidgeFillConfig, **options: Any) -> MapSet:
    """The maps with retrieval heads for each split.

    Parameters
    ----------
    model
        The model's GGUF.
    path, maps
        The maps, in a file and read.
    config, **options
        For `find_heads`.
    """
    from pyridgefill.selection.finding import find_heads  # loads the native library

    with common.progress_bar("prompts") as bar:
        task = bar.add_task("heads", total=None)
        found = find_heads(
            model,
            replace(config, maps=path),
            splits=[split.layer for split in maps.splits],
            on_progress=lambda done, total: bar.update(task, completed=done, total=total),
            **options,
        )
    return replace(maps, heads=tuple(found))


def with_recommendation(
    model: Path, path: Path, maps: MapSet, config: RidgeFillConfig, **options: Any
) -> tuple[MapSet, list[Trial]]:
    """The maps with the split and budget of the least work that find needles as the exact model does.

    If no setting does, the highest split is recommended, with the largest budget that was tried.

    Returns
    -------
    maps, trials
        The exact model's trial is the first.
    """
    from pyridgefill.selection.propose import propose  # loads the native library

    splits = [split.layer for split in maps.splits]
    heads = {split: [(item.layer, item.head) for item in maps.heads if item.split == split] for split in splits}
    with common.progress_bar() as bar:
        task = bar.add_task("settings", total=1 + len(defaults.BUDGETS) * sum(map(bool, heads.values())) + 1)
        accepted, trials = propose(
            model, replace(config, maps=path), heads, splits=splits, on_trial=lambda _: bar.advance(task), **options
        )
    if accepted is None:
        common.stderr.print("no setting was as good as the exact model; the highest split is recommended")
    split = max(splits) if accepted is None else accepted.split
    selects = bool(heads[max(splits)]) if accepted is None else accepted.select == "attention"
    recommended = replace(
        maps.recommended,
        split=split,
        select="attention" if selects else "none",
        budget=max(defaults.BUDGETS) if accepted is None else accepted.budget,
        pool=config.pool,
        queries=config.queries,
    )
    return replace(maps, recommended=recommended.complete()), trials


def print_trials(trials: Sequence[Trial]) -> None:
    """A table of the settings that were tried."""
    table = Table("split", "select", "budget", "needles", "loss", "as good as exact")
    for trial in trials:
        table.add_row(
            "exact" if trial.split is None else str(trial.split),
            "" if trial.split is None else trial.select,
            f"{trial.budget:.0%}" if trial.budget else "",
            f"{trial.hits}/{trial.n}",
            "" if trial.loss is None else f"{trial.loss:.3f}",
            "" if trial.split is None else "yes" if trial.accepted else "no",
        )
    common.stdout.print(table)
