"""Runs tasks on one model: what is finished is skipped, results are written as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Generic

from pyridgefill import __version__
from pyridgefill.calibration.chunks import ChatFormatter
from pyridgefill.chat import chat_formatter
from pyridgefill.evaluation.run.found import RESULTS
from pyridgefill.evaluation.run.results import Cell, ResultFile
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.task import Found, Run, Task
from pyridgefill.evaluation.run.typed import from_json, to_json
from pyridgefill.evaluation.run.way import Way
from pyridgefill.files import digest
from pyridgefill.maps.base import model_shards


@dataclass(frozen=True)
class Outcome(Generic[Found]):
    """A task's result in one way."""

    task: Task[Any, Any, Any, Found]
    way: Way
    found: Found


@cache
def model_cell(path: Path) -> dict[str, Any]:
    """What tells a model from others in results: name, size and a hash of its content."""
    files = model_shards(path)
    content = "-".join(map(digest, files))
    return {"model": path.name, "model_bytes": sum(file.stat().st_size for file in files), "model_digest": content}


@dataclass
class Lab:
    """A session with its model's name and the file that results go to; `info` is written with each line."""

    model: Path
    session: Session
    results: ResultFile
    info: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def chat(self) -> ChatFormatter | None:
        """The model's chat template, None for models that have none."""
        return chat_formatter(self.session, add_generation_prompt=True)

    def cell(self, task: Task[Any, Any, Any, Any], way: Way) -> Cell:
        """What a result depends on."""
        return {**task.cell(), **model_cell(self.model), **way.cell}

    def run(
        self,
        tasks: Iterable[Task[Any, Any, Any, Found]],
        ways: Sequence[Way],
        *,
        on_start: Callable[[int], None] = lambda _total: None,
        advance: Callable[[], None] = lambda: None,
    ) -> list[Outcome[Found]]:
        """Run what is not finished: each task in all ways, in order.

        Parameters
        ----------
        tasks, ways
            The exact way, which others are compared with, comes first.
        on_start
            Called with the number of prompts that are left.
        advance
            Called after each prompt.
        """
        tasks = list(tasks)
        on_start(sum(task.size for task in tasks for way in ways if self._find(task, way) is None))
        outcomes = []
        for task in tasks:
            earlier: dict[Way, Found] = {}
            for way in ways:
                found = self._find(task, way)
                earlier[way] = self._measure(task, way, earlier, advance) if found is None else found
            outcomes += [Outcome(task, way, found) for way, found in earlier.items()]
        return outcomes

    def _find(self, task: Task[Any, Any, Any, Found], way: Way) -> Found | None:
        stored = self.results.find(self.cell(task, way))
        found: Found | None = None if stored is None else from_json(RESULTS[task.name], stored)
        return found

    def _measure(
        self, task: Task[Any, Any, Any, Found], way: Way, earlier: dict[Way, Found], advance: Callable[[], None]
    ) -> Found:
        started = time.monotonic()
        items = task.items(self.session, self.chat)
        way.start(self.session)
        measured = []
        for item in items:
            measured.append(task.measure(self.session, way, item))
            advance()
        computed = task.summarise(Run(way, items, measured, earlier))
        info = {**self.info, "pyridgefill": __version__, "seconds": round(time.monotonic() - started, 1)}
        self.results.add(self.cell(task, way), to_json(computed), info)
        found = self._find(task, way)
        assert found is not None
        return found
