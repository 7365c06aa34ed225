"""Time to first token, in pairs: exact and filled runs of the same prompt take turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from pyridgefill.calibration.chunks import ChatFormatter
from pyridgefill.config import RidgeFillConfig
from pyridgefill.errors import RidgeFillError
from pyridgefill.evaluation.prompts.text import text_windows
from pyridgefill.evaluation.run.found import Speed
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.task import Params, Run, Task
from pyridgefill.evaluation.run.way import Way
from pyridgefill.server import Server

# `plain` has no selection, `empty` one of no rows: all that selection needs but the selected rows themselves, which is
# the split-state cache, the scores, and the tail in two passes with its gathers
_WAYS = ("exact", "fill", "plain", "empty")


class Timed(Way):
    """The maps that are timed; lines of this task name no way, since each compares exact with fill."""

    def __init__(self, config: RidgeFillConfig) -> None:
        super().__init__("fill", config)
        del self.cell["variant"]


@dataclass(frozen=True, kw_only=True)
class SpeedParams(Params):
    """Runs of each way, whether selection is timed by its parts (None) or not (False), and `server` or None."""

    repeats: int = 5
    parts: bool | None = None
    through: str | None = None

    unsaid: ClassVar[tuple[str, ...]] = ("seed", "corpus")


@dataclass(frozen=True)
class Round:
    """One run of each way: seconds, those in which rows were filled if they are known, and rows filled and selected."""

    seconds: dict[str, float] = field(default_factory=dict)
    filled_seconds: float | None = None
    n_filled: int = 0
    n_selected: int = 0


# of the configuration, the prompt's tokens and its selected rows
Bound = Callable[[RidgeFillConfig, int, int], float | None]


class SpeedTask(Task[SpeedParams, tuple[int, list[int]], Round, Speed]):
    """Times one prompt with an empty memory, again and again, in an order that changes each time."""

    name = "ttft"

    def __init__(self, params: SpeedParams, bound: Bound = lambda _config, _ctx, _n_selected: None) -> None:
        super().__init__(params)
        self._bound = bound

    @property
    def size(self) -> int:
        """Rounds."""
        return self.params.repeats

    def prepare(self, session: Session, chat: ChatFormatter | None) -> list[tuple[int, list[int]]]:
        """The prompt for each round, after a run that is not counted."""
        tokens = next(text_windows(session, self.params.ctx, corpus=self.params.corpus))
        session.set_maps(None)
        session.prefill(tokens)
        return [(index, tokens) for index in range(self.params.repeats)]

    def measure(self, session: Session, way: Way, item: tuple[int, list[int]]) -> Round:
        """Run each way once.

        Raises
        ------
        RidgeFillError
            If rows were cached, or none were filled.
        """
        index, tokens = item
        assert way.config is not None
        configs: dict[str, RidgeFillConfig | None] = {"exact": None, "fill": way.config}
        if self.params.parts is not False and way.config.select not in (None, "none"):
            configs["plain"] = replace(way.config, select="none", keep_states=False)
            configs["empty"] = replace(way.config, budget=0)
        seconds: dict[str, float] = {}
        filled_seconds: float | None = None
        rows = 0, 0
        for name in list(configs)[:: 1 if index % 2 == 0 else -1]:
            session.set_maps(configs[name])
            # the memory of the compute graph is laid out anew after a change of maps: not a part of a prompt's time
            session.prefill(tokens[:64])
            session.reset_counters()
            start = time.perf_counter()
            int(np.argmax(session.prefill(tokens)))
            seconds[name] = time.perf_counter() - start
            if name == ("plain" if "plain" in configs else "fill"):
                filled_seconds = session.filled_seconds()
            if name == "fill":
                rows = sum(end - first for first, end in session.ranges), len(session.selected)
            if session.n_reused:
                raise RidgeFillError(f"{session.n_reused} rows of a timing run were cached")
        if not rows[0]:
            raise RidgeFillError(f"a prompt of {len(tokens)} tokens has no rows to fill", "its times would say nothing")
        return Round(seconds, filled_seconds, *rows)

    def summarise(self, run: Run[tuple[int, list[int]], Round, Speed]) -> Speed:
        """Medians over rounds."""
        seconds = {name: [one.seconds[name] for one in run.measured if name in one.seconds] for name in _WAYS}
        ratios = np.divide(seconds["exact"], seconds["fill"])
        assert run.way.config is not None
        bound = self._bound(run.way.config, self.params.ctx, run.measured[-1].n_selected)
        overhead = None
        if seconds["empty"]:
            parts = np.divide(np.subtract(seconds["empty"], seconds["plain"]), seconds["fill"])
            overhead = round(float(np.median(parts)), 4)
        return Speed(
            ratio=round(float(np.median(ratios)), 4),
            ratios=tuple(round(float(ratio), 4) for ratio in ratios),
            selection_overhead=overhead,
            n_filled=run.measured[-1].n_filled,
            n_selected=run.measured[-1].n_selected,
            seconds={name: tuple(round(t, 4) for t in times) for name, times in seconds.items()},
            filled_seconds=tuple(
                round(one.filled_seconds, 4) for one in run.measured if one.filled_seconds is not None
            ),
            bound=None if bound is None else round(bound, 4),
            cached=0,
        )


class ServedSpeedTask(SpeedTask):
    """The same through the bundled server: seconds from the request to the first token of the stream.

    Parameters
    ----------
    params, bound
        As for `SpeedTask`; selection is not timed by its parts.
    server
        With the maps, and no prompt shorter than those that it fills.
    """

    def __init__(self, params: SpeedParams, server: Server, bound: Bound) -> None:
        super().__init__(replace(params, parts=False, through="server"), bound)
        self._server = server

    def prepare(self, session: Session, chat: ChatFormatter | None) -> list[tuple[int, list[int]]]:
        """The prompt for each round, after a pair that is not counted."""
        tokens = next(text_windows(session, self.params.ctx, corpus=self.params.corpus))
        for fill in (False, True):
            self._ask(tokens, fill=fill)
        return [(index, tokens) for index in range(self.params.repeats)]

    def measure(self, session: Session, way: Way, item: tuple[int, list[int]]) -> Round:
        """One request of each way.

        Raises
        ------
        RidgeFillError
            If rows were cached, or rows were filled where none should be, or none where they should.
        """
        index, tokens = item
        seconds: dict[str, float] = {}
        rows = 0, 0
        for name in ("exact", "fill")[:: 1 if index % 2 == 0 else -1]:
            seconds[name], timings = self._ask(tokens, fill=name == "fill")
            if name == "fill":
                rows = timings["ridgefill"]["filled"], timings["ridgefill"]["selected"]
        return Round(seconds, None, *rows)

    def _ask(self, tokens: list[int], *, fill: bool) -> tuple[float, dict[str, Any]]:
        start = time.perf_counter()
        events = self._server.stream(
            prompt=tokens, n_predict=1, cache_prompt=False, ridgefill=fill, temperature=0, ignore_eos=True
        )
        last = next(events)
        seconds = time.perf_counter() - start
        for event in events:
            last = event
        timings: dict[str, Any] = last["timings"]
        if timings["cache_n"] != 0 or bool(timings["ridgefill"]["filled"]) != fill:
            raise RidgeFillError(f"a timing run cached or filled other rows than asked: {timings}")
        return seconds, timings
