"""The table of ways: a new one is a file with its class, and a row here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pyridgefill.errors import RidgeFillError
from pyridgefill.evaluation.run.dropped import Dropped
from pyridgefill.evaluation.run.exact import Exact
from pyridgefill.evaluation.run.neutral import Neutral
from pyridgefill.evaluation.run.other_maps import Identity, Mean, Zero
from pyridgefill.evaluation.run.spliced import Spliced
from pyridgefill.evaluation.run.way import Recipe, Way


class Row(NamedTuple):
    """A class, one line about it, and whether it is a baseline that commands offer."""

    way: type[Way]
    summary: str
    baseline: bool = True


WAYS = {
    "exact": Row(Exact, "the model without maps", baseline=False),
    "fill": Row(Way, "the maps that are measured", baseline=False),
    "splice": Row(Spliced, "exact parts in a filled memory, or filled ones in an exact one", baseline=False),
    "identity": Row(Identity, "every upper layer's input is taken to be the split state"),
    "mean": Row(Mean, "every value is its mean over calibration text"),
    "zero": Row(Zero, "every value is zero"),
    "drop": Row(Dropped, "filled rows that are not selected are removed from the cache"),
    "neutral-filler": Row(Neutral, "the upper layers hold a meaningless text of the same length"),
}


def baselines() -> dict[str, str]:
    """What commands offer to compare with, and one line about each."""
    return {name: row.summary for name, row in WAYS.items() if row.baseline}


def n_sequences(names: Iterable[str]) -> int:
    """How many sequences a session needs for these ways."""
    return max((WAYS[name].way.n_sequences for name in names if name in WAYS), default=1)


def make_ways(names: Iterable[str], recipe: Recipe) -> list[Way]:
    """Exact, fill, and then baselines, each once; see `n_sequences` for what their session needs.

    Raises
    ------
    RidgeFillError
        If a baseline is not known, or does not fit the recipe.
    """
    offered = baselines()
    names = list(dict.fromkeys(names))
    for name in names:
        if name not in offered:
            raise RidgeFillError(f"baseline {name!r} is not known", f"choose among {', '.join(offered)}")
    return [WAYS[name].way.make(name, recipe) for name in ("exact", "fill", *names)]
