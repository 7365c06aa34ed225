"""A setting that can be tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyridgefill.maps.model import Target
from pyridgefill.words import selected


@dataclass(frozen=True)
class Point:
    """One setting.

    Attributes
    ----------
    split, tail
        As in `RidgeFillConfig`.
    budget
        Share of the filled rows that attention selects, 0: none.
    target, rank, weight_type
        Of the maps.
    """

    split: int
    tail: int
    budget: float
    target: Target = "proj"
    rank: int = 0
    weight_type: str = "f16"

    @property
    def select(self) -> Literal["attention", "none"]:
        """How rows are selected."""
        return "attention" if self.budget else "none"

    def work(self, n_layer: int, n_prompt: int) -> float:
        """Rows times layers of a prompt, as a share of an exact one's.

        Filled rows run the layers below the split, the selected ones among them and the tail all layers.
        """
        spared = (1 - self.split / n_layer) * (1 - self.budget)
        return 1 - spared * max(0, n_prompt - self.tail) / n_prompt

    def __str__(self) -> str:
        """For people."""
        maps = f"{self.target} maps, {f'rank {self.rank}, ' if self.rank else ''}{self.weight_type}"
        return f"split {self.split}, {selected(self.budget)}, tail {self.tail}, {maps}"
