"""The JSON behind a report: everything that was measured and decided, as `report.schema.json` describes it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from pyridgefill import __version__
from pyridgefill.config import RidgeFillConfig
from pyridgefill.evaluation.intervals import wilson
from pyridgefill.evaluation.run.found import FarLosses, Scores, Speed
from pyridgefill.evaluation.run.lab import model_cell
from pyridgefill.evaluation.run.results import ResultFile
from pyridgefill.evaluation.run.typed import from_json
from pyridgefill.evaluation.run.ways import baselines
from pyridgefill.evaluation.tasks.far_loss import DEFAULT_THRESHOLD, default_near
from pyridgefill.maps import BaseModel
from pyridgefill.selection.point import Point
from pyridgefill.selection.recommend import SAME_SPEED
from pyridgefill.server import fill_options
from pyridgefill.tuning.contents import (
    AtLength,
    Breakdown,
    Contents,
    Hits,
    HitsAtDepth,
    MachineFacts,
    MapsFile,
    ModelFacts,
    Recommended,
    Row,
    Spliced,
    Stopped,
    Sums,
    Times,
    Tried,
)
from pyridgefill.tuning.sweep import Measured, Numbers, Sweep

FORMAT = 1


def make_document(
    sweep: Sweep,
    base: BaseModel,
    *,
    machine: dict[str, Any],
    provenance: dict[str, Any],
    command: Sequence[str],
    seeds: dict[str, int],
    splices: ResultFile,
) -> Contents:
    """Put a finished sweep into words and numbers.

    Parameters
    ----------
    sweep
        After `run`.
    base
        Of the model.
    machine
        From `describe_machine`.
    provenance
        Of the sums that maps are fitted from.
    command
        That made the report.
    seeds
        Of every random choice.
    splices
        Results of `pyridgefill eval splice`; those of other models are left out.
    """
    assert sweep.recommendation is not None
    plan, effort, sink = sweep.plan, sweep.plan.effort, sweep.shape.sink
    best = _find(sweep, sweep.recommendation.trial.point)
    grid = plan.grid
    return Contents(
        format=FORMAT,
        pyridgefill=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join(command),
        model=ModelFacts(
            file=sweep.lab.model.name,
            bytes=sweep.lab.model.stat().st_size,
            architecture=base.architecture,
            layers=base.block_count,
            embedding=base.embedding_length,
            vocabulary=base.vocab_size,
        ),
        machine=MachineFacts(machine["cpu"], machine["threads"], machine["system"]),
        statistics=Sums(sweep.statistics.name, provenance.get("tokens", 0), tuple(provenance.get("corpora", ()))),
        settings=Tried(
            grid.splits,
            grid.budgets,
            grid.tails,
            grid.targets,
            grid.ranks,
            grid.types,
            ctx=effort.lengths,
            kinds=effort.kinds,
            needles=effort.needles,
            keys=effort.keys,
            texts=effort.texts,
            repeats=effort.repeats,
            sink=sink,
            near={str(tail): default_near(tail) for tail in grid.tails},
            threshold=DEFAULT_THRESHOLD,
            corpus=sweep.shape.corpus,
            max_loss_increase=plan.max_loss_increase,
            same_speed=SAME_SPEED,
        ),
        seeds=seeds,
        baselines={name: baselines()[name] for name in plan.baselines},
        maps=_maps(sweep.measured),
        points=tuple(_point(item, sweep) for item in sweep.measured),
        stopped=tuple(Stopped(stop.tail, stop.budget, stop.splits, stop.reason) for stop in sweep.stopped),
        breakdown=tuple(_breakdown(ctx, timing) for ctx, timing in sorted(sweep.parts.items())),
        splices=tuple(_splices(splices, sweep.lab.model)),
        recommended=Recommended(
            point=sweep.measured.index(best),
            accepted=sweep.recommendation.accepted,
            reason=sweep.recommendation.reason,
            command=shlex.join(server_command(sweep, best)),
        ),
    )


def server_command(sweep: Sweep, best: Measured) -> list[str]:
    """`llama-server` with the recommended setting; paths as they were given."""
    assert best.point is not None
    assert best.maps is not None
    point = best.point
    config = RidgeFillConfig(
        sweep.store.path(best.maps),
        split=point.split,
        tail=point.tail,
        sink=sweep.shape.sink,
        select=point.select,
        budget=point.budget or None,
        heads=best.heads,
    )
    return ["llama-server", "-m", str(sweep.lab.model), *fill_options(config)]


def _find(sweep: Sweep, point: Point) -> Measured:
    return next(item for item in sweep.measured if item.point == point and item.name == "fill")


def _maps(measured: Sequence[Measured]) -> tuple[MapsFile, ...]:
    """Each maps file once."""
    files: dict[str, MapsFile] = {}
    for item in measured:
        if item.maps is not None and item.point is not None and item.maps["file"] not in files:
            kind = {"target": item.point.target, "rank": item.point.rank, "type": item.point.weight_type}
            files[item.maps["file"]] = from_json(MapsFile, {**item.maps, **kind})
    return tuple(files.values())


def _point(item: Measured, sweep: Sweep) -> Row:
    lengths = tuple(_numbers(ctx, found) for ctx, found in sorted(item.results.items()))
    row = Row(item.role, item.name, item.tail, lengths)
    if item.point is None:
        return row
    point = item.point
    row = replace(row, split=point.split, budget=point.budget, select=point.select)
    if item.maps is None:
        return row
    trial = next(trial for trial in sweep.trials if trial.point == point)
    return replace(
        row,
        target=point.target,
        rank=point.rank,
        type=point.weight_type,
        maps=item.maps["file"],
        heads=tuple(f"{layer}.{head}" for layer, head in item.heads),
        faults=tuple(trial.faults(sweep.plan.max_loss_increase)),
    )


def _numbers(ctx: int, found: Numbers) -> AtLength:
    """What a report shows of one way at one length."""
    needles, kld, timing = found.needles, found.kld, found.speed
    assert kld is not None
    hits, prompts = sum(item.hits for item in needles), sum(item.prompts for item in needles)
    share = Hits(hits, prompts, **asdict(wilson(hits, prompts)))
    return AtLength(
        ctx,
        replace(share, mcnemar_p=needles[0].mcnemar_p) if len(needles) == 1 else share,
        _by_depth(needles),
        kld.loss,
        losses=found.far.groups,
        kl=None if kld.tail is None else kld.tail.kl,
        kl_99=None if kld.tail is None else kld.tail.kl_99,
        top1=None if kld.tail is None else kld.tail.top1,
        ttft=None if timing is None else _times(timing),
    )


def _times(timing: Speed) -> Times:
    return Times(
        timing.ratio,
        min(timing.ratios),
        max(timing.ratios),
        len(timing.ratios),
        timing.n_filled,
        timing.n_selected,
        timing.seconds["exact"],
        timing.seconds["fill"],
    )


def _by_depth(needles: Sequence[Scores]) -> tuple[HitsAtDepth, ...]:
    """Hits by depth, kinds together."""
    counts: dict[float, tuple[int, int]] = {}
    for result in needles:
        for item in result.by_depth:
            hits, prompts = counts.get(item.depth, (0, 0))
            counts[item.depth] = hits + round(item.value * item.prompts), prompts + item.prompts
    return tuple(
        HitsAtDepth(hits=hits, prompts=prompts, depth=depth, **asdict(wilson(hits, prompts)))
        for depth, (hits, prompts) in sorted(counts.items())
    )


def _breakdown(ctx: int, timing: Speed) -> Breakdown:
    """Seconds of one prompt by what they are spent on, medians over repetitions."""
    seconds = timing.seconds
    plain_runs = seconds["plain"] or seconds["fill"]
    if timing.filled_seconds:
        filled = median(timing.filled_seconds)
        parts = {"lower layers and maps": filled, "tail": median(plain_runs) - filled}
    else:
        # a device worked on while the program went on
        parts = {"lower layers, maps and tail": median(plain_runs)}
    if seconds["empty"]:
        parts["scores and states"] = max(0.0, median(seconds["empty"]) - median(seconds["plain"]))
        parts["selected rows"] = max(0.0, median(seconds["fill"]) - median(seconds["empty"]))
    return Breakdown(ctx, median(seconds["exact"]), median(seconds["fill"]), parts)


def _splices(results: ResultFile, model: Path) -> Iterator[Spliced]:
    """What exact parts recover and filled ones cause, of this model's own maps."""
    digest = model_cell(model)["model_digest"]
    for record in results.records():
        if record.cell.get("task") != "splice" or record.cell.get("model_digest") != digest:
            continue
        cell, share = record.about, record.found(FarLosses).share
        if cell.splice is not None and cell.variant == "fill":
            splice = cell.splice
            assert cell.split is not None
            yield Spliced(cell.ctx, cell.tail, cell.split, splice.into, splice.components, splice.layers, share or {})
