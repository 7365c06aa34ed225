"""Runs evaluation jobs on one model: what is finished is skipped, results are written as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pyridgefill import __version__
from pyridgefill.evaluation.run.results import ResultFile
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.way import Way
from pyridgefill.files import digest
from pyridgefill.maps.base import model_shards

Result = dict[str, Any]
Advance = Callable[[], None]
# session, way that it is started for, called after each prompt, the exact model's result in the same place
Compute = Callable[[Session, Way, Advance, Result | None], Result]


@dataclass(frozen=True)
class Job:
    """One cell of a table: a task with its parameters, run in one way.

    Attributes
    ----------
    task, params
        What is measured; `params` holds everything that the result depends on beside model and variant.
    variant
        How prompts run; the exact one comes before the others of the same task and parameters.
    size
        Number of prompts, for progress.
    compute
        Measures it, with the variant set on the session.
    """

    task: str
    params: dict[str, Any]
    variant: Way
    size: int
    compute: Compute

    @property
    def place(self) -> str:
        """The same for all variants."""
        return f"{self.task} {sorted(self.params.items())}"


@cache
def model_cell(path: Path) -> dict[str, Any]:
    """What tells a model from others in results: name, size and a hash of its content."""
    files = model_shards(path)
    content = "-".join(map(digest, files))
    return {"model": path.name, "model_bytes": sum(file.stat().st_size for file in files), "model_digest": content}


@dataclass
class Lab:
    """A session with its model's name and the file that results go to."""

    model: Path
    session: Session
    results: ResultFile
    info: dict[str, Any] = field(default_factory=dict)

    def cell(self, job: Job) -> dict[str, Any]:
        """What a job's result depends on."""
        return {"task": job.task, **model_cell(self.model), **job.params, **job.variant.cell}

    def run(
        self, jobs: Sequence[Job], *, on_start: Callable[[int], None] = lambda _total: None, advance: Advance
    ) -> list[tuple[Job, Result]]:
        """Run what is not finished, in order.

        Parameters
        ----------
        jobs
            For each task and parameters the exact one first.
        on_start
            Called with the number of prompts that are left.
        advance
            Called after each prompt.
        """
        done = [self.results.find(self.cell(job)) for job in jobs]
        on_start(sum(job.size for job, found in zip(jobs, done, strict=True) if found is None))
        exact: dict[str, Result] = {}
        rows: list[tuple[Job, Result]] = []
        for job, finished in zip(jobs, done, strict=True):
            result = finished
            if result is None:
                started = time.monotonic()
                job.variant.start(self.session)
                computed = job.compute(self.session, job.variant, advance, exact.get(job.place))
                info = {**self.info, "pyridgefill": __version__, "seconds": round(time.monotonic() - started, 1)}
                self.results.add(self.cell(job), computed, info)
                result = self.results.find(self.cell(job))
                assert result is not None
            if job.variant.name == "exact":
                exact[job.place] = result
            rows.append((job, result))
        return rows
