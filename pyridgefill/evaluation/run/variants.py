"""What is compared: the exact model, the maps, and baselines that a good map must beat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyridgefill import defaults
from pyridgefill.calibration.builtin_corpora import DEFAULT_CORPORA
from pyridgefill.calibration.collect import CollectOptions, collect
from pyridgefill.calibration.corpus import Corpus
from pyridgefill.calibration.statistics_file import read_statistics
from pyridgefill.config import RidgeFillConfig
from pyridgefill.errors import Interrupted, RidgeFillError
from pyridgefill.evaluation.run.session import Session
from pyridgefill.files import digest, file_name
from pyridgefill.maps import MapSet, identity_maps, read_maps, write_maps, zero_maps
from pyridgefill.maps.pack import constant_maps

BASELINES = {
    "identity": "every upper layer's input is taken to be the split state",
    "mean": "every value is its mean over calibration text",
    "zero": "every value is zero",
    "drop": "filled rows that are not selected are removed from the cache",
    "neutral-filler": "the upper layers hold a meaningless text of the same length",
}

NEUTRAL = "neutral-filler"


@dataclass(frozen=True)
class Variant:
    """A way to run a prompt.

    Attributes
    ----------
    name
        `exact`, `fill`, or one of `BASELINES`.
    config
        None: exact.
    cell
        What tells its results from those of other variants.
    """

    name: str
    config: RidgeFillConfig | None
    cell: dict[str, Any]

    def set_on(self, session: Session) -> None:
        """Run the session's next prompts this way."""
        session.set_maps(self.config, drop=self.name == "drop", neutral=self.name == NEUTRAL)


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


def make_cell(config: RidgeFillConfig) -> dict[str, Any]:
    """What tells results with this configuration, as `resolve` returns it, from others."""
    cell: dict[str, Any] = {"maps": digest(str(config.maps)), "split": config.split, "select": config.select}
    if config.select != "none":
        cell["budget"] = config.budget
        cell["pool"] = list(config.pool or ())
    if config.select == "attention":
        cell["queries"] = config.queries
        cell["heads"] = [f"{layer}.{head}" for layer, head in config.heads]
    return cell


def n_sequences(baselines: Sequence[str]) -> int:
    """How many sequences a session needs for these baselines."""
    return 2 if NEUTRAL in baselines else 1


def make_variants(
    model: Path,
    config: RidgeFillConfig,
    baselines: Sequence[str],
    folder: Path,
    *,
    statistics: Path | None = None,
    n_threads: int = 0,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Variant]:
    """Exact, fill, and baselines, in this order.

    Parameters
    ----------
    model
        The model's GGUF.
    config
        As `resolve` returns it.
    baselines
        Some of `BASELINES`; see `n_sequences` for what their session needs.
    folder
        Takes the maps of baselines; must live as long as the variants.
    statistics
        Sums that `mean` takes the means from; without them they are collected from the built-in corpora.
    n_threads, on_progress
        For this collection.
    """
    for name in baselines:
        if name not in BASELINES:
            raise RidgeFillError(f"baseline {name!r} is not known", f"choose among {', '.join(BASELINES)}")
    if NEUTRAL in baselines and config.select != "none":
        raise RidgeFillError(
            f"the baseline {NEUTRAL} with selected rows: rows of another text cannot run again", "add --select none"
        )
    assert config.maps is not None
    stored = read_maps(config.maps)
    cell = make_cell(config)
    variants = [Variant("exact", None, {"variant": "exact"}), Variant("fill", config, {"variant": "fill", **cell})]
    for name in dict.fromkeys(baselines):
        if name in ("drop", NEUTRAL):
            variants.append(Variant(name, config, {"variant": name, **cell}))
            continue
        own = dict(cell)
        if name == "mean":
            own["statistics"] = "built-in" if statistics is None else file_name(statistics)
            if statistics is None:
                statistics = _collect(model, stored, config, folder, n_threads, on_progress)
        path = folder / f"{name}.ridgefill.gguf"
        write_maps(path, _baseline(name, stored, config, statistics), weight_type="f32")
        variants.append(Variant(name, replace(config, maps=path), {"variant": name, **own}))
    return variants


def _baseline(name: str, stored: MapSet, config: RidgeFillConfig, statistics: Path | None) -> MapSet:
    split = config.split
    assert split is not None
    if name == "zero":
        return zero_maps(stored, split)
    recommended = replace(stored.recommended, split=split)
    if name == "identity":
        layers = {item.layer for item in stored.maps if item.split == split}
        made = identity_maps(stored.base, [split], layers=layers, recommended=recommended)
    else:
        assert statistics is not None
        target = next(item.target for item in stored.splits if item.layer == split)
        made = constant_maps(read_statistics(statistics), target, [split], mean=True, recommended=recommended)
    return replace(made, heads=tuple(head for head in stored.heads if head.split == split))


def _collect(
    model: Path,
    stored: MapSet,
    config: RidgeFillConfig,
    folder: Path,
    n_threads: int,
    on_progress: Callable[[int, int], None],
) -> Path:
    assert config.split is not None
    target = next(item.target for item in stored.splits if item.layer == config.split)
    options = CollectOptions((config.split,), (target,), tokens=defaults.MEAN_TOKENS, n_threads=n_threads)
    path = folder / "statistics.npz"
    corpora = [Corpus(name) for name in DEFAULT_CORPORA]
    _, complete = collect(
        model, corpora, path, options, on_progress=lambda state: on_progress(state.tokens, defaults.MEAN_TOKENS)
    )
    if not complete:
        raise Interrupted("interrupted", "finished results are kept, run the same command again")
    return path
