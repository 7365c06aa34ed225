"""Map sets from arrays that were fitted elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyridgefill.errors import MapsError
from pyridgefill.maps.base import BaseModel
from pyridgefill.maps.model import FeatureNorm, MapSet, Recommended, RowSource, SiteMap, Split

_KEY = re.compile(r"(?:ridgefill\.)?(\d+)\.blk\.(\d+)\.(.+)\.(weight|weight_a|weight_b|bias)")


def maps_from_arrays(
    base: BaseModel,
    arrays: Mapping[str, RowSource],
    *,
    feature_norm: FeatureNorm = "none",
    feature_norm_eps: float = 1e-6,
    recommended: Recommended | None = None,
) -> MapSet:
    """Build a map set from named arrays.

    Parameters
    ----------
    base
        The model that the maps belong to.
    arrays
        Keys as in the maps file, with or without `ridgefill.`: `20.blk.21.attn_k.weight` of shape
        `[width, embedding_length]`, `.weight_a` `[rank, embedding_length]`, `.weight_b` `[width, rank]`,
        `.bias` `[width]`. Target and rank of a split follow from its names and shapes.
    feature_norm, feature_norm_eps
        What the maps expect their input to be.
    recommended
        Settings to store; none if None.

    Raises
    ------
    MapsError
        If a key does not follow the pattern, or the set is not valid.
    """
    parts: dict[tuple[int, int, str], dict[str, RowSource]] = {}
    for key, source in arrays.items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise MapsError(f"array {key!r}: unknown name", "expected <split>.blk.<layer>.<site>.weight or .bias")
        split, layer, site, part = int(match.group(1)), int(match.group(2)), match.group(3), match.group(4)
        if part in parts.setdefault((split, layer, site), {}):
            raise MapsError(f"array {key!r}: given twice, with and without 'ridgefill.'")
        parts[split, layer, site][part] = source
    maps = [
        SiteMap(*place, found.get("weight"), found.get("weight_a"), found.get("weight_b"), found.get("bias"))
        for place, found in sorted(parts.items())
    ]
    splits = []
    for layer in sorted({item.split for item in maps}):
        members = [item for item in maps if item.split == layer]
        low_rank = members[0].weight_a
        rank = 0 if low_rank is None else int(low_rank.shape[0])
        splits.append(Split(layer, "input" if members[0].site == "input" else "proj", rank))
    if not splits:
        raise MapsError("no arrays to pack", "give arrays named <split>.blk.<layer>.<site>.weight")
    result = MapSet(
        base=base,
        splits=tuple(splits),
        maps=tuple(maps),
        feature_norm=feature_norm,
        feature_norm_eps=feature_norm_eps,
        recommended=recommended or Recommended(),
    )
    result.validate()
    return result
