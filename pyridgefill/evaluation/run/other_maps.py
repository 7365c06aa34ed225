"""Fill with maps that know little, at the same settings: a good map must beat them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, Self

from pyridgefill import defaults
from pyridgefill.calibration.builtin_corpora import DEFAULT_CORPORA
from pyridgefill.calibration.collect import CollectOptions, collect
from pyridgefill.calibration.corpus import Corpus
from pyridgefill.calibration.means import mean_maps
from pyridgefill.calibration.statistics_file import read_statistics
from pyridgefill.errors import Interrupted
from pyridgefill.evaluation.run.way import Recipe, Way
from pyridgefill.files import file_name
from pyridgefill.maps import MapSet, Recommended, identity_maps, read_maps, write_maps, zero_maps


class OtherMaps(Way):
    """Base of ways that fill from maps made for the sites of the measured ones."""

    @classmethod
    def make(cls, name: str, recipe: Recipe) -> Self:
        """Write the maps, and fill from them; results are told apart by name and measured maps."""
        split = recipe.config.split
        assert split is not None
        stored = read_maps(str(recipe.config.maps)).keep([split], Recommended(split=split))
        made, cell = cls.make_maps(stored, split, recipe)
        path = recipe.folder / f"{name}.ridgefill.gguf"
        write_maps(path, replace(made, heads=stored.heads), weight_type="f32")
        way = cls(name, recipe.config, **cell)
        way.config = replace(recipe.config, maps=path)
        return way

    @classmethod
    @abstractmethod
    def make_maps(cls, stored: MapSet, split: int, recipe: Recipe) -> tuple[MapSet, dict[str, Any]]:
        """Maps for the sites of stored ones, which have this split alone, and what else tells results apart."""


class Identity(OtherMaps):
    """Every upper layer's input is taken to be the split state."""

    @classmethod
    def make_maps(cls, stored: MapSet, split: int, recipe: Recipe) -> tuple[MapSet, dict[str, Any]]:
        """Of the layers that the stored maps fill."""
        return identity_maps(
            stored.base, [split], layers={item.layer for item in stored.maps}, recommended=stored.recommended
        ), {}


class Zero(OtherMaps):
    """Every value is zero."""

    @classmethod
    def make_maps(cls, stored: MapSet, split: int, recipe: Recipe) -> tuple[MapSet, dict[str, Any]]:
        """Of the sites that the stored maps fill."""
        return zero_maps(stored.keep([split], replace(stored.recommended, split=split))), {}


class Mean(OtherMaps):
    """Every value is its mean over calibration text, from the recipe's sums or from sums of built-in text."""

    @classmethod
    def make_maps(cls, stored: MapSet, split: int, recipe: Recipe) -> tuple[MapSet, dict[str, Any]]:
        """Results say which sums."""
        target = stored.splits[0].target
        if recipe.statistics is not None:
            statistics, source = read_statistics(recipe.statistics), file_name(recipe.statistics)
        else:
            options = CollectOptions(
                (split,), (target,), tokens=defaults.MEAN_TOKENS, n_threads=recipe.n_threads
            )  # fmt: skip
            statistics, complete = collect(
                recipe.model,
                [Corpus(name) for name in DEFAULT_CORPORA],
                recipe.folder / "statistics.npz",
                options,
                on_step=lambda step: recipe.on_progress(step.done, defaults.MEAN_TOKENS),
            )
            if not complete:
                raise Interrupted("interrupted", "finished results are kept, run the same command again")
            source = "built-in"
        made = mean_maps(statistics, target, [split], stored.recommended)
        return made, {"statistics": source}
