"""Runs a sweep: every family of settings from its highest split down, then maps and baselines at the best setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pyridgefill.config import RidgeFillConfig
from pyridgefill.evaluation.run.exact import EXACT
from pyridgefill.evaluation.run.found import Divergence, FarLosses, Scores, Speed
from pyridgefill.evaluation.run.lab import Lab
from pyridgefill.evaluation.run.settings import resolve
from pyridgefill.evaluation.run.task import Found, Params, Task
from pyridgefill.evaluation.run.way import Recipe, Way
from pyridgefill.evaluation.run.ways import make_ways
from pyridgefill.evaluation.tasks.far_loss import FarLoss, FarLossParams
from pyridgefill.evaluation.tasks.kld import Kld, KldParams
from pyridgefill.evaluation.tasks.needle import Needles, needle_tasks
from pyridgefill.evaluation.tasks.speed import SpeedParams, SpeedTask, Timed
from pyridgefill.maps import RetrievalHead, read_maps
from pyridgefill.selection.point import Point
from pyridgefill.selection.recommend import Effort, Outcome, Recommendation, Trial, recommend, walk_down
from pyridgefill.tuning.grid import Grid
from pyridgefill.tuning.maps import MapStore, to_heads


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
    effort
        On how much.
    baselines
        At the best setting.
    max_loss_increase
        That is as good as none.
    """

    grid: Grid
    effort: Effort
    baselines: tuple[str, ...]
    max_loss_increase: float


@dataclass
class Numbers:
    """What was measured in one way at one length: needles of each kind, losses, divergence, and time if it was."""

    needles: list[Scores] = field(default_factory=list)
    far: FarLosses = field(default_factory=FarLosses)
    kld: Divergence | None = None
    speed: Speed | None = None


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
        By length.
    maps
        What `MapStore.get` returned; None for exact and baselines.
    heads
        The retrieval heads that select.
    """

    role: str
    name: str
    point: Point | None
    tail: int
    results: dict[int, Numbers]
    maps: dict[str, Any] | None = None
    heads: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Diagnostics:
    """What each setting is measured on."""

    needles: list[Needles]
    far: list[FarLoss]
    kld: list[Kld]

    @property
    def size(self) -> int:
        """Prompts and texts."""
        tasks: list[Task[Any, Any, Any, Any]] = [*self.needles, *self.far, *self.kld]
        return sum(task.size for task in tasks)


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
    plan, lab, shape
        What to try; the session and where results go; sink, seed and corpus (length and tail are replaced).
    store, statistics
        The maps, and the sums they come from.
    folder
        For baselines; deleted by the caller.
    progress
        Told about each prompt.
    """

    plan: Plan
    lab: Lab
    shape: Params
    store: MapStore
    statistics: Path
    folder: Path
    progress: Progress
    measured: list[Measured] = field(default_factory=list)
    stopped: list[Stop] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    recommendation: Recommendation | None = None
    parts: dict[int, Speed] = field(default_factory=dict)

    def run(self) -> None:
        """Everything; what the results hold is not run again."""
        grid = self.plan.grid
        for tail in grid.tails:
            # what cannot be asked for is refused before anything is computed
            self._diagnostics(tail)
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
        variants: dict[Point, Way] = {point: Way("fill", config) for point, config in configs.items()}
        tasks = self._diagnostics(tail)
        sizes = tasks.size
        per_point = sizes + self.plan.effort.repeats * len(self.plan.effort.lengths)
        self.progress.total(sizes + per_point * len(points))
        exact = self._measure(tasks, EXACT)
        self.measured.append(Measured("exact", "exact", None, tail, exact))

        def measure(point: Point) -> Trial:
            found = self._measure(tasks, variants[point], configs[point])
            return self._add("sweep", point, found, exact, maps, configs[point])

        for family in families:
            trials, left, reason = walk_down(family, measure)
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
        variants: list[Way] = [Way("fill", config) for *_, config in others]
        config = self._config(point, maps)
        # rows of a neutral text cannot run again: that baseline goes without selection
        plain = [name for name in self.plan.baselines if name == "neutral-filler"]
        selecting = [name for name in self.plan.baselines if name != "neutral-filler"]
        baselines = [
            *make_ways(selecting, Recipe(self.lab.model, config, self.folder, self.statistics))[2:],
            *make_ways(plain, Recipe(self.lab.model, replace(config, select="none", heads=()), self.folder))[2:],
        ]
        tasks = self._diagnostics(point.tail)
        sizes = tasks.size
        timing = self.plan.effort.repeats * len(self.plan.effort.lengths)
        self.progress.total(sizes * (len(variants) + len(baselines)) + timing * len(variants))
        exact = next(item for item in self.measured if item.point is None and item.tail == point.tail).results
        for (role, other, made, config), variant in zip(others, variants, strict=True):
            self._add(role, other, self._measure(tasks, variant, config), exact, made, config)
        for variant in baselines:
            found = self._measure(tasks, variant)
            self.measured.append(Measured("baseline", variant.name, point, point.tail, found))

    def _config(self, point: Point, maps: dict[str, Any]) -> RidgeFillConfig:
        path = self.store.path(maps)
        wanted = RidgeFillConfig(
            path,
            split=point.split,
            sink=self.shape.sink,
            tail=point.tail,
            select="attention" if point.budget else "none",
            budget=point.budget or None,
        )
        return resolve(wanted, read_maps(path))

    def _diagnostics(self, tail: int) -> Diagnostics:
        """The tasks of each length, for one tail; made again they are the same, but without what was prepared."""
        plan = self.plan
        shapes = [replace(self.shape, ctx=ctx, tail=tail) for ctx in plan.effort.lengths]
        return Diagnostics(
            needle_tasks(shapes, kinds=plan.effort.kinds, needles=plan.effort.needles, keys=plan.effort.keys),
            [FarLoss(FarLossParams.of(shape, plan.effort.texts)) for shape in shapes],
            [Kld(KldParams.at(shape, texts=plan.effort.texts, generated=0)) for shape in shapes],
        )

    def _measure(self, tasks: Diagnostics, way: Way, config: RidgeFillConfig | None = None) -> dict[int, Numbers]:
        """The results of one way, and with a configuration its time to first token."""
        ways = [EXACT] if way is EXACT else [EXACT, way]
        found = {ctx: Numbers() for ctx in self.plan.effort.lengths}
        for ctx, scores in self._run(tasks.needles, ways):
            found[ctx].needles.append(scores)
        for ctx, losses in self._run(tasks.far, ways):
            found[ctx].far = losses
        for ctx, divergence in self._run(tasks.kld, ways):
            found[ctx].kld = divergence
        if config is not None:
            for ctx, speed in self._time(config, parts=False).items():
                found[ctx].speed = speed
        return found

    def _time(self, config: RidgeFillConfig, *, parts: bool) -> dict[int, Speed]:
        assert config.tail is not None
        shapes = [replace(self.shape, ctx=ctx, tail=config.tail) for ctx in self.plan.effort.lengths]
        params = [
            SpeedParams.at(shape, repeats=self.plan.effort.repeats, parts=None if parts else False) for shape in shapes
        ]
        tasks = [SpeedTask(item) for item in params]
        if parts:
            self.progress.total(sum(task.size for task in tasks))
        return dict(self._run(tasks, [Timed(config)]))

    def _run(self, tasks: Sequence[Task[Any, Any, Any, Found]], ways: Sequence[Way]) -> list[tuple[int, Found]]:
        """Results of the last way by length; prompts that were planned and need not be run are off the total."""
        planned = sum(task.size for task in tasks)
        rows = self.lab.run(
            tasks,
            ways,
            on_start=lambda left: self.progress.total(left - planned),
            advance=self.progress.advance,
        )
        return [(row.task.params.ctx, row.found) for row in rows if row.way is ways[-1]]

    def _add(
        self,
        role: str,
        point: Point,
        found: dict[int, Numbers],
        exact: dict[int, Numbers],
        maps: dict[str, Any],
        config: RidgeFillConfig,
    ) -> Trial:
        self.measured.append(Measured(role, "fill", point, point.tail, found, maps, config.heads))
        trial = Trial(point, tuple(_outcome(ctx, found[ctx], exact[ctx]) for ctx in self.plan.effort.lengths))
        self.trials.append(trial)
        return trial


def _outcome(ctx: int, found: Numbers, exact: Numbers) -> Outcome:
    groups = found.far.groups
    assert groups is not None
    assert found.speed is not None
    return Outcome(
        ctx=ctx,
        hits=sum(item.hits for item in found.needles),
        prompts=sum(item.prompts for item in found.needles),
        exact_hits=sum(item.hits for item in exact.needles),
        loss_increase=groups["all"].relative.value,
        far_increase=groups["far"].relative.value if "far" in groups else None,
        ratio=found.speed.ratio,
    )
