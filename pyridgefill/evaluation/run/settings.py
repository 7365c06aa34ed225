"""Settings of fill as results tell them: what the maps file says is filled in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyridgefill.config import RidgeFillConfig
from pyridgefill.errors import RidgeFillError
from pyridgefill.files import digest
from pyridgefill.maps import MapSet


def resolve(config: RidgeFillConfig, maps: MapSet) -> RidgeFillConfig:
    """Fill settings that are None in from the maps file, so that results say what they were made with.

    Raises
    ------
    RidgeFillError
        If the file has no such split, or no heads for a selection by attention.
    """
    best = maps.defaults(config.split)
    heads = config.heads or tuple((head.layer, head.head) for head in maps.heads if head.split == best.split)
    select = config.select or best.select
    if select == "attention" and not heads:
        raise RidgeFillError(
            "the maps file has no retrieval heads", "give --heads, or make them with pyridgefill heads"
        )
    return replace(
        config,
        split=best.split,
        sink=best.sink if config.sink is None else config.sink,
        tail=best.tail if config.tail is None else config.tail,
        min_prompt=0,
        select=select,  # type: ignore[arg-type]  # a maps file that was read names one of them
        budget=best.budget if config.budget is None else config.budget,
        pool=config.pool or best.pool,
        queries=config.queries or best.queries,
        heads=heads if select == "attention" else (),
    )


def setting_cell(config: RidgeFillConfig) -> dict[str, Any]:
    """What tells results with this configuration, as `resolve` returns it, from others."""
    cell: dict[str, Any] = {"maps": digest(str(config.maps)), "split": config.split, "select": config.select}
    if config.select != "none":
        cell["budget"] = config.budget
        cell["pool"] = list(config.pool or ())
    if config.select == "attention":
        cell["queries"] = config.queries
        cell["heads"] = [f"{layer}.{head}" for layer, head in config.heads]
    return cell
