"""Synthetic activations with a known relation between features and targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyridgefill.calibration.statistics import Statistics
from pyridgefill.calibration.sums import Settings
from pyridgefill.maps import BaseModel, Site

WIDTH = 12
LAYERS = 6
SPLITS = (2, 3)
BASE = BaseModel("llama", LAYERS, WIDTH, 100, "0123456789abcdef", "fedcba9876543210")
SITES = [Site(layer, name, 4) for layer in range(2, LAYERS) for name in ("attn_k", "attn_v")]
SITES += [Site(layer, "input", WIDTH) for layer in range(2, LAYERS)]

Values = dict[Site, NDArray[np.float32]]


@dataclass
class Relation:
    """The true maps: for each site above the lowest split `y = W f + b`, with f the normalised split state."""

    weight: dict[Site, NDArray[np.float64]]
    bias: dict[Site, NDArray[np.float64]]

    @classmethod
    def random(cls, seed: int = 0) -> Relation:
        random = np.random.default_rng(seed)
        weight = {site: random.standard_normal((site.width, WIDTH)) for site in SITES}
        return cls(weight, {site: random.standard_normal(site.width) for site in SITES})


def activations(rows: int, seed: int, relation: Relation | None = None, noise: float = 0.0) -> Values:
    """Values of all sites; with a relation those above split 2 follow from the input of layer 2 (raw features)."""
    random = np.random.default_rng(seed)
    values = {site: random.standard_normal((rows, site.width)).astype(np.float32) for site in SITES}
    if relation is not None:
        x = values[Site(2, "input", WIDTH)].astype(np.float64)
        for site in SITES:
            if site.layer > 2:
                y = (
                    x @ relation.weight[site].T
                    + relation.bias[site]
                    + noise * random.standard_normal((rows, site.width))
                )
                values[site] = y.astype(np.float32)
    return values


def part(values: Values, start: int, stop: int) -> Values:
    return {site: array[start:stop] for site, array in values.items()}


def collected(values: Values, held: Values | None = None, **settings: object) -> Statistics:
    """Statistics of fitted and held-out rows in one block each; raw features unless asked otherwise."""
    chosen = {"feature_norm": "none", "skip_first": 0, **settings}
    statistics = Statistics.empty(BASE, Settings(**chosen), SPLITS, SITES)  # type: ignore[arg-type]
    statistics.add_block(values)
    if held is not None:
        statistics.add_block(held, held_out=True, chunk=1)
    return statistics
