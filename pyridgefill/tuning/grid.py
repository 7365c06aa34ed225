"""The settings that are tried, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyridgefill.errors import RidgeFillError
from pyridgefill.maps.model import Target
from pyridgefill.selection.point import Point


@dataclass(frozen=True)
class Grid:
    """Candidates of each dimension; the first target, rank and type are those of the sweep.

    Raises
    ------
    RidgeFillError
        If a dimension is empty, a budget is no share, or a tail or rank no number that maps can have.
    """

    splits: tuple[int, ...]
    budgets: tuple[float, ...]
    tails: tuple[int, ...]
    targets: tuple[Target, ...] = ("proj",)
    ranks: tuple[int, ...] = (0,)
    types: tuple[str, ...] = ("f16",)

    def __post_init__(self) -> None:
        for name in ("splits", "budgets", "tails", "targets", "ranks", "types"):
            if not getattr(self, name):
                raise RidgeFillError(f"--{name}: nothing to try", "give at least one value")
        for budget in self.budgets:
            if not 0 <= budget <= 1:
                raise RidgeFillError(f"--budgets: {budget:g} is no share of the filled rows", "give shares like 0,0.05")
        if min(self.tails) < 1:
            raise RidgeFillError(
                f"--tails: {min(self.tails)} rows", "the last row of a prompt runs exact: give 1 or more"
            )
        if min(self.ranks) < 0:
            raise RidgeFillError(f"--ranks: {min(self.ranks)} is no rank", "give 0 for full maps, or ranks like 64")

    def families(self) -> list[list[Point]]:
        """Settings that differ in the split only, from the highest split down, for each tail and budget."""
        target, rank, weight_type = self.targets[0], self.ranks[0], self.types[0]
        return [
            [Point(split, tail, budget, target, rank, weight_type) for split in sorted(self.splits, reverse=True)]
            for tail in sorted(self.tails)
            for budget in sorted(self.budgets, reverse=True)
        ]

    def neighbours(self, point: Point) -> Iterator[tuple[str, Point]]:
        """Settings that differ from one in its maps, in one dimension at a time: the dimension and the setting."""
        for target in self.targets[1:]:
            yield "target", replace(point, target=target)
        for rank in self.ranks[1:]:
            yield "rank", replace(point, rank=rank)
        for weight_type in self.types[1:]:
            yield "type", replace(point, weight_type=weight_type)
