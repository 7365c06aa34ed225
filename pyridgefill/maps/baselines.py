"""Map sets that need no statistics: identity (baseline and ORACLE fixture), zero, and random values (POISON)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from pyridgefill.maps.base import BaseModel
from pyridgefill.maps.model import MapSet, Recommended, Site, SiteMap, Split, Target


def input_sites(base: BaseModel, split: int) -> list[Site]:
    """The `input` sites of all layers above a split, for models in which each layer writes memory."""
    return [Site(layer, "input", base.embedding_length) for layer in range(split + 1, base.block_count)]


def identity_maps(
    base: BaseModel,
    splits: Sequence[int],
    *,
    layers: Iterable[int] | None = None,
    recommended: Recommended | None = None,
) -> MapSet:
    """Maps that take the split state for the input of every upper layer: weight I, no bias, raw features.

    Parameters
    ----------
    base
        The model, for example from `read_base_model`.
    splits
        The splits of the file, ascending.
    layers
        The layers that write memory, if not all do (a model whose upper layers borrow K and V from lower ones).
    recommended
        Settings to store; by default none.

    Returns
    -------
    MapSet
        With target `input`; all maps share one `[embedding_length, embedding_length]` array.
    """
    identity = np.eye(base.embedding_length, dtype=np.float32)
    writing = None if layers is None else set(layers)
    maps = [
        SiteMap(split, site.layer, site.name, weight=identity, solver="identity")
        for split in splits
        for site in input_sites(base, split)
        if writing is None or site.layer in writing
    ]
    return MapSet(
        base=base,
        splits=tuple(Split(split, "input") for split in splits),
        maps=tuple(maps),
        recommended=recommended or Recommended(),
    )


def zero_maps(like: MapSet) -> MapSet:
    """Maps that predict zero for every value that other maps predict; their heads and settings are taken over."""
    maps = []
    for item in like.maps:
        last = item.weight if item.weight is not None else item.weight_b
        assert last is not None, "a valid map has a weight"
        shape = int(last.shape[0]), like.base.embedding_length
        maps.append(SiteMap(item.split, item.layer, item.site, weight=np.zeros(shape, np.float32), solver="zero"))
    return replace(like, splits=tuple(replace(split, rank=0) for split in like.splits), maps=tuple(maps))


def poison_maps(
    base: BaseModel,
    split: int,
    sites: Sequence[Site] | None = None,
    *,
    target: Target = "input",
    scale: float = 100.0,
    seed: int = 0,
    recommended: Recommended | None = None,
) -> MapSet:
    """Valid maps with large random values: whatever they fill is visibly broken, so that a leak shows.

    Parameters
    ----------
    base
        The model, for example from `read_base_model`.
    split
        The only split of the file.
    sites
        The sites to fill; all layers' inputs if None. Required for target `proj`.
    target
        What the sites are.
    scale
        Standard deviation of the weights and biases.
    seed
        The same seed gives the same maps.
    recommended
        Settings to store; by default none.
    """
    if sites is None:
        if target != "input":
            raise ValueError("target 'proj' needs the list of sites")
        sites = input_sites(base, split)
    random = np.random.default_rng(seed)
    maps = [
        SiteMap(
            split,
            site.layer,
            site.name,
            weight=(scale * random.standard_normal((site.width, base.embedding_length))).astype(np.float32),
            bias=(scale * random.standard_normal(site.width)).astype(np.float32),
            solver="poison",
        )
        for site in sites
        if site.layer > split
    ]
    return MapSet(
        base=base,
        splits=(Split(split, target),),
        maps=tuple(maps),
        recommended=recommended or Recommended(),
    )
