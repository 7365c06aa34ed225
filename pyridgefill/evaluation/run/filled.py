"""Fill, with the maps that are measured."""

from __future__ import annotations

from pyridgefill.evaluation.run.way import Way


class Filled(Way):
    """The maps and settings of the recipe."""
