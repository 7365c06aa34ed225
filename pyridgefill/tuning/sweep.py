"""Runs a sweep: every family of settings from its highest split down, then maps and baselines at the best setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pyridgefill.config import RidgeFillConfig
from pyridgefill.evaluation.run.exact import EXACT
from pyridgefill.evaluation.run.filled import Filled
from pyridgefill.evaluation.run.lab import Job, Lab, Result
from pyridgefill.evaluation.run.settings import resolve
from pyridgefill.evaluation.run.way import Recipe, Way
from pyridgefill.evaluation.run.ways import make_ways
from pyridgefill.evaluation.tasks.far_loss import DEFAULT_THRESHOLD, default_near
from pyridgefill.evaluation.tasks.jobs import Setting, far_loss_jobs, kld_jobs, needle_jobs
from pyridgefill.evaluation.tasks.speed import speed_jobs
from pyridgefill.maps import RetrievalHead, read_maps
from pyridgefill.tuning.grid import Grid, Point
from pyridgefill.tuning.maps import MapStore, to_heads
from pyridgefill.tuning.rules import Outcome, Recommendation, Trial, recommend, walk


class Progress(Protocol):
    """Shows how far a sweep is; a unit is one prompt."""

    def total(self, units: int) -> None:
        """Change the number of units by so many."""

    def advance(self) -> None:
        """One unit is done."""


@dataclass(frozen=True)
class Plan:
    """What is tried, and on what.

    Attributes
    ----------
    grid
        The settings.
    lengths
        Tokens of the prompts.
    kinds, needles, keys
        Of needles; `needles` for each kind and length.
    texts
        For the losses, of each length.
    repeats
        Pairs of timing runs.
    baselines
        At the best setting.
    max_loss_increase
        That is as good as none.
    """

    grid: Grid
    lengths: tuple[int, ...]
    kinds: tuple[str, ...]
    needles: int
    keys: int
    texts: int
    repeats: int
    baselines: tuple[str, ...]
    max_loss_increase: float


@dataclass(frozen=True)
class Measured:
    """One way to run prompts and its results.

    Attributes
    ----------
    role
        `exact`, `sweep`, the dimension in which its maps differ (`target`, `rank`, `type`), or `baseline`.
    name
        Of the variant.
    point
        None: exact.
    results
        `{ctx: {task: [result, ...]}}`, several for tasks of several kinds.
    maps
        What `MapStore.get` returned; None for exact and baselines.
    heads
        The retrieval heads that select.
    """

    role: str
    name: str
    point: Point | None
    tail: int
    results: dict[int, dict[str, list[Result]]]
    maps: dict[str, Any] | None = None
    heads: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Stop:
    """Lower splits that were not tried."""

    tail: int
    budget: float
    splits: tuple[int, ...]
    reason: str


@dataclass
class Sweep:
    """A sweep on one model.

    Attributes
    ----------
    plan, lab, setting
        What to try; the session and where results go; prompts, seed and corpus (its variants and tail are replaced).
    store, statistics
        The maps, and the sums they come from.
    folder
        For logits and baselines; deleted by the caller.
    progress
        Told about each prompt.
    """

    plan: Plan
    lab: Lab
    setting: Setting
    store: MapStore
    statistics: Path
    folder: Path
    progress: Progress
    measured: list[Measured] = field(default_factory=list)
    stopped: list[Stop] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    recommendation: Recommendation | None = None
    parts: dict[int, Result] = field(default_factory=dict)

    def run(self) -> None:
        """Everything; what the results hold is not run again."""
        grid = self.plan.grid
        for tail in grid.tails:
            # what cannot be asked for is refused before anything is computed
            self._needle_jobs(replace(self.setting, variants=(), tail=tail))
        heads: list[RetrievalHead] | None = None if any(grid.budgets) else []
        maps = self.store.get(tuple(sorted(grid.splits)), grid.targets[0], grid.ranks[0], grid.types[0], heads)
        for tail in sorted(grid.tails):
            self._sweep(tail, [family for family in grid.families() if family[0].tail == tail], maps)
        self.recommendation = recommend(self.trials, self.plan.max_loss_increase)
        self._neighbours(self.recommendation.trial.point, maps)
        self.recommendation = recommend(self.trials, self.plan.max_loss_increase)
        best = next(item for item in self.measured if item.point == self.recommendation.trial.point)
        assert best.maps is not None
        self.parts = self._time(self._config(self.recommendation.trial.point, best.maps), parts=True)

    def _sweep(self, tail: int, families: list[list[Point]], maps: dict[str, Any]) -> None:
        points = [point for family in families for point in family]
        configs = {point: self._config(point, maps) for point in points}
        variants: dict[Point, Way] = {point: Filled("fill", config) for point, config in configs.items()}
        bench = self._bench(tail, [EXACT, *variants.values()], "sweep")
        sizes = sum(job.size for job in bench if job.variant is EXACT)
        per_point = sizes + 2 * self.plan.repeats * len(self.plan.lengths)
        self.progress.total(sizes + per_point * len(points))
        exact = self._measure(bench, EXACT)
        self.measured.append(Measured("exact", "exact", None, tail, exact))

        def measure(point: Point) -> Trial:
            found = self._measure(bench, variants[point], configs[point])
            return self._add("sweep", point, found, exact, maps, configs[point])

        for family in families:
            trials, left, reason = walk(family, measure)
            if left:
                self.stopped.append(Stop(tail, trials[0].point.budget, tuple(point.split for point in left), reason))
                self.progress.total(-per_point * len(left))

    def _neighbours(self, point: Point, maps: dict[str, Any]) -> None:
        """Other maps, and baselines, at one setting."""
        heads = [head for head in to_heads(maps["heads"]) if head.split == point.split]
        others: list[tuple[str, Point, dict[str, Any], RidgeFillConfig]] = []
        for role, other in self.plan.grid.neighbours(point):
            made = self.store.get((point.split,), other.target, other.rank, other.weight_type, heads)
            others.append((role, other, made, self._config(other, made)))
        variants: list[Way] = [Filled("fill", config) for *_, config in others]
        config = self._config(point, maps)
        # rows of a neutral text cannot run again: that baseline goes without selection
        plain = [name for name in self.plan.baselines if name == "neutral-filler"]
        selecting = [name for name in self.plan.baselines if name != "neutral-filler"]
        baselines = [
            *make_ways(selecting, Recipe(self.lab.model, config, self.folder, self.statistics))[2:],
            *make_ways(plain, Recipe(self.lab.model, replace(config, select="none", heads=()), self.folder))[2:],
        ]
        bench = self._bench(point.tail, [EXACT, *variants, *baselines], "neighbours")
        sizes = sum(job.size for job in bench if job.variant is EXACT)
        timing = 2 * self.plan.repeats * len(self.plan.lengths)
        self.progress.total(sizes * (len(variants) + len(baselines)) + timing * len(variants))
        exact = next(item for item in self.measured if item.point is None and item.tail == point.tail).results
        for (role, other, made, config), variant in zip(others, variants, strict=True):
            self._add(role, other, self._measure(bench, variant, config), exact, made, config)
        for variant in baselines:
            found = self._measure(bench, variant)
            self.measured.append(Measured("baseline", variant.name, point, point.tail, found))

    def _config(self, point: Point, maps: dict[str, Any]) -> RidgeFillConfig:
        path = self.store.path(maps)
        wanted = RidgeFillConfig(
            path,
            split=point.split,
            sink=self.setting.sink,
            tail=point.tail,
            select="attention" if point.budget else "none",
            budget=point.budget or None,
        )
        return resolve(wanted, read_maps(path))

    def _bench(self, tail: int, variants: Sequence[Way], name: str) -> list[Job]:
        """The jobs of all diagnostics, in all variants."""
        plan = self.plan
        setting = replace(self.setting, variants=variants, tail=tail)
        place = self.folder / f"{name}-{tail}"
        place.mkdir()
        near = default_near(tail)
        return [
            *self._needle_jobs(setting),
            *far_loss_jobs(setting, lengths=plan.lengths, texts=plan.texts, near=near, threshold=DEFAULT_THRESHOLD),
            *kld_jobs(setting, lengths=plan.lengths, texts=plan.texts, generated=0, folder=place),
        ]

    def _needle_jobs(self, setting: Setting) -> list[Job]:
        plan = self.plan
        return needle_jobs(setting, lengths=plan.lengths, kinds=plan.kinds, needles=plan.needles, keys=plan.keys)

    def _measure(
        self, bench: Sequence[Job], variant: Way, config: RidgeFillConfig | None = None
    ) -> dict[int, dict[str, list[Result]]]:
        """The results of one variant, and with a configuration its time to first token."""
        jobs = [job for job in bench if job.variant is EXACT or job.variant is variant]
        found: dict[int, dict[str, list[Result]]] = {ctx: {} for ctx in self.plan.lengths}
        for job, result in self._run(jobs, sum(job.size for job in jobs if job.variant is variant)):
            if job.variant is variant:
                found[job.params["ctx"]].setdefault(job.task, []).append(result)
        if config is not None:
            for ctx, result in self._time(config, parts=False).items():
                found[ctx]["ttft"] = [result]
        return found

    def _time(self, config: RidgeFillConfig, *, parts: bool) -> dict[int, Result]:
        plan = self.plan
        jobs = speed_jobs(config, lengths=plan.lengths, repeats=plan.repeats, corpus=self.setting.corpus, parts=parts)
        planned = sum(job.size for job in jobs)
        if parts:
            self.progress.total(planned)
        return {job.params["ctx"]: result for job, result in self._run(jobs, planned)}

    def _run(self, jobs: Sequence[Job], planned: int) -> list[tuple[Job, Result]]:
        """Run jobs; units that were planned and need not be run are taken off the total."""
        return self.lab.run(
            jobs, on_start=lambda left: self.progress.total(left - planned), advance=self.progress.advance
        )

    def _add(
        self,
        role: str,
        point: Point,
        found: dict[int, dict[str, list[Result]]],
        exact: dict[int, dict[str, list[Result]]],
        maps: dict[str, Any],
        config: RidgeFillConfig,
    ) -> Trial:
        self.measured.append(Measured(role, "fill", point, point.tail, found, maps, config.heads))
        trial = Trial(point, tuple(_outcome(ctx, found[ctx], exact[ctx]) for ctx in self.plan.lengths))
        self.trials.append(trial)
        return trial


def _outcome(ctx: int, found: dict[str, list[Result]], exact: dict[str, list[Result]]) -> Outcome:
    (losses,) = found["far-loss"]
    groups = losses["groups"]
    return Outcome(
        ctx=ctx,
        hits=sum(item["hits"] for item in found["needle"]),
        prompts=sum(item["prompts"] for item in found["needle"]),
        exact_hits=sum(item["hits"] for item in exact["needle"]),
        loss_increase=groups["all"]["relative"]["value"],
        far_increase=groups["far"]["relative"]["value"] if "far" in groups else None,
        ratio=found["ttft"][0]["ratio"],
    )
