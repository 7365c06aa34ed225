"""The maps file: what it holds, reading, writing, and map sets that need no calibration."""

from __future__ import annotations

from pyridgefill.maps.base import BaseModel, read_base_model
from pyridgefill.maps.baselines import identity_maps, poison_maps, zero_maps
from pyridgefill.maps.model import (
    Calibration,
    MapSet,
    Recommended,
    RetrievalHead,
    RowSource,
    Site,
    SiteMap,
    Split,
)
from pyridgefill.maps.read import read_maps
from pyridgefill.maps.write import WEIGHT_TYPES, write_maps

__all__ = [
    "WEIGHT_TYPES",
    "BaseModel",
    "Calibration",
    "MapSet",
    "Recommended",
    "RetrievalHead",
    "RowSource",
    "Site",
    "SiteMap",
    "Split",
    "identity_maps",
    "poison_maps",
    "read_base_model",
    "read_maps",
    "write_maps",
    "zero_maps",
]
