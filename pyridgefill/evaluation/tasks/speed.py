"""Time to first token, in pairs: exact and filled runs of the same prompt take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pyridgefill.config import RidgeFillConfig
from pyridgefill.errors import RidgeFillError
from pyridgefill.evaluation.prompts.layout import check_rows
from pyridgefill.evaluation.prompts.text import text_windows
from pyridgefill.evaluation.run.lab import Advance, Job, Result
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.settings import setting_cell
from pyridgefill.evaluation.run.way import Way

_WAYS = ("exact", "fill", "plain", "empty")


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
    filled_part
        Seconds of the `plain` runs, or of the `fill` runs where nothing selects, in which rows were filled: the layers
        below the split and the maps. The rest is the rows that run exact, the tail for the most part. An empty list
        where a device may work on while the program goes on, which makes this time unknown.
    n_filled, n_selected
        Rows of the filled run.
    """

    exact: list[float]
    fill: list[float]
    plain: list[float]
    empty: list[float]
    filled_part: list[float]
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
        times = {name: [round(t, 4) for t in getattr(self, name)] for name in _WAYS}
        ratios = [round(float(x), 4) for x in np.divide(self.exact, self.fill)]
        overhead = None if self.overhead is None else round(self.overhead, 4)
        found = {"ratio": round(self.ratio, 4), "ratios": ratios, "selection_overhead": overhead}
        rows = {"n_filled": self.n_filled, "n_selected": self.n_selected}
        return {**found, **rows, "seconds": times, "filled_seconds": [round(t, 4) for t in self.filled_part]}


def measure_ttft(
    session: Session,
    config: RidgeFillConfig,
    tokens: Sequence[int],
    *,
    repeats: int,
    parts: bool = True,
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
    parts
        With a selection also run the ways `plain` and `empty`, which tell what it costs.
    on_progress
        Called after each run.
    """
    plain = replace(config, select="none", keep_states=False)
    ways: dict[str, RidgeFillConfig | None] = {"exact": None, "fill": config}
    if parts and config.select not in (None, "none"):
        ways |= {"plain": plain, "empty": replace(config, budget=0)}
    times: dict[str, list[float]] = {name: [] for name in _WAYS}
    filled_part: list[float] = []
    rows = (0, 0)
    session.prefill(tokens)
    for repetition in range(repeats):
        names = list(ways)
        for name in names[:: 1 if repetition % 2 == 0 else -1]:
            session.set_maps(ways[name])
            # the memory of the compute graph is laid out anew after a change of maps: not a part of a prompt's time
            session.prefill(tokens[:64])
            session.reset_counters()
            start = time.perf_counter()
            int(np.argmax(session.prefill(tokens)))
            times[name].append(time.perf_counter() - start)
            if name == ("plain" if "plain" in ways else "fill"):
                seconds = session.filled_seconds()
                filled_part += [] if seconds is None else [seconds]
            if name == "fill":
                rows = (sum(end - first for first, end in session.ranges), len(session.selected))
            if session.n_reused:
                raise RidgeFillError(f"{session.n_reused} rows of a timing run were cached")
            on_progress()
    session.set_maps(None)
    if not rows[0]:
        raise RidgeFillError(f"a prompt of {len(tokens)} tokens has no rows to fill", "its times would say nothing")
    return Timing(**times, filled_part=filled_part, n_filled=rows[0], n_selected=rows[1])


def speed_jobs(
    config: RidgeFillConfig, *, lengths: Sequence[int], repeats: int, corpus: str, parts: bool = True
) -> list[Job]:
    """Time to first token for prompts of each length.

    Parameters
    ----------
    config
        As `resolve` returns it.
    lengths, corpus
        Tokens of the prompts, and the text they are taken from.
    repeats, parts
        As for `measure_ttft`.
    """
    variant = Way("fill", config)
    variant.cell = setting_cell(config)  # lines of this task name no variant
    assert config.sink is not None
    assert config.tail is not None
    for ctx in lengths:
        check_rows(ctx, config.sink, config.tail)
    ways = 4 if parts and config.select != "none" else 2

    def job(ctx: int) -> Job:
        def run(session: Session, _way: Way, advance: Advance, _exact: Result | None) -> Result:
            tokens = next(text_windows(session, ctx, corpus=corpus))
            timing = measure_ttft(session, config, tokens, repeats=repeats, parts=parts, on_progress=advance)
            return timing.to_dict()

        params = {"ctx": ctx, "sink": config.sink, "tail": config.tail, "repeats": repeats}
        if not parts:
            params["parts"] = False
        return Job("ttft", params, variant, ways * repeats, run)

    return [job(ctx) for ctx in lengths]
