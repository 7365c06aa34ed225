"""Time to first token, in pairs: exact and filled runs of the same prompt take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pyridgefill.config import RidgeFillConfig
from pyridgefill.evaluation.session import Session


@dataclass(frozen=True)
class Timing:
    """Times of one prompt length; all lists have one entry per repetition.

    Attributes
    ----------
    exact, fill
        Seconds from the call to the first token's logits.
    plain
        The same maps without selection.
    empty
        With a selection of no rows: everything that selection needs but the selected rows themselves, which is the
        split-state cache, the scores, and the tail in two passes with its gathers. Empty lists where nothing selects.
    n_filled, n_selected
        Rows of the filled run.
    """

    exact: list[float]
    fill: list[float]
    plain: list[float]
    empty: list[float]
    n_filled: int
    n_selected: int

    @property
    def ratio(self) -> float:
        """How many times sooner the first token comes: the median over pairs."""
        return float(np.median(np.divide(self.exact, self.fill)))

    @property
    def overhead(self) -> float | None:
        """Share of a filled run that selection takes beside the selected rows: the median over repetitions."""
        if not self.empty:
            return None
        return float(np.median(np.divide(np.subtract(self.empty, self.plain), self.fill)))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        times = {name: [round(t, 4) for t in getattr(self, name)] for name in ("exact", "fill", "plain", "empty")}
        ratios = [round(float(x), 4) for x in np.divide(self.exact, self.fill)]
        overhead = None if self.overhead is None else round(self.overhead, 4)
        found = {"ratio": round(self.ratio, 4), "ratios": ratios, "selection_overhead": overhead}
        return {**found, "n_filled": self.n_filled, "n_selected": self.n_selected, "seconds": times}


def measure_ttft(
    session: Session,
    config: RidgeFillConfig,
    tokens: Sequence[int],
    *,
    repeats: int,
    on_progress: Callable[[], None] = lambda: None,
) -> Timing:
    """Time one prompt with an empty memory, again and again, in an order that changes each time.

    Parameters
    ----------
    session
        The model.
    config
        What is measured; its settings are those of the maps file where they are None.
    tokens
        The prompt.
    repeats
        Runs of each way, after one that is not counted.
    on_progress
        Called after each run.
    """
    plain = replace(config, select="none", keep_states=False)
    ways: dict[str, RidgeFillConfig | None] = {"exact": None, "fill": config}
    if config.select not in (None, "none"):
        ways |= {"plain": plain, "empty": replace(config, budget=0)}
    times: dict[str, list[float]] = {name: [] for name in ("exact", "fill", "plain", "empty")}
    rows = (0, 0)
    session.prefill(tokens)
    for repetition in range(repeats):
        names = list(ways)
        for name in names[:: 1 if repetition % 2 == 0 else -1]:
            session.set_maps(ways[name])
            # the memory of the compute graph is laid out anew after a change of maps: not a part of a prompt's time
            session.prefill(tokens[:64])
            start = time.perf_counter()
            int(np.argmax(session.prefill(tokens)))
            times[name].append(time.perf_counter() - start)
            if name == "fill":
                rows = (sum(end - first for first, end in session.ranges), len(session.selected))
            on_progress()
    session.set_maps(None)
    return Timing(**times, n_filled=rows[0], n_selected=rows[1])
