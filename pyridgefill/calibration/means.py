"""The baseline `mean`: maps that predict what a site is on average, whatever the text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyridgefill.calibration.statistics import Statistics
from pyridgefill.errors import MapsError
from pyridgefill.maps.model import MapSet, Recommended, SiteMap, Split, Target


def mean_maps(statistics: Statistics, target: Target, splits: Sequence[int], recommended: Recommended) -> MapSet:
    """Maps without a weight, whose bias is each site's mean over the fitted rows.

    Raises
    ------
    MapsError
        If a split or the target was not collected.
    """
    maps = []
    for split in splits:
        item = statistics.splits.get(split)
        sites = [] if item is None else [site for site in item.sites if (site.name == "input") == (target == "input")]
        if item is None or not sites:
            raise MapsError(f"split {split}: target {target!r} was not collected", "collect it first")
        for site in sites:
            bias = (item.fit.y[item.columns(site)] / max(item.fit.rows, 1)).astype(np.float32)
            weight = np.zeros((site.width, statistics.base.embedding_length), np.float32)
            maps.append(SiteMap(split, site.layer, site.name, weight=weight, bias=bias, solver="mean"))
    return MapSet(
        base=statistics.base,
        splits=tuple(Split(split, target) for split in splits),
        maps=tuple(maps),
        feature_norm=statistics.settings.feature_norm,
        feature_norm_eps=statistics.settings.feature_norm_eps,
        recommended=recommended,
    )
