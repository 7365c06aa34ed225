"""The JSON behind a report: everything that was measured and decided, as `report.schema.json` describes it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from pyridgefill import __version__
from pyridgefill.config import RidgeFillConfig
from pyridgefill.evaluation.intervals import wilson
from pyridgefill.evaluation.run.found import FarLosses, Scores, Speed
from pyridgefill.evaluation.run.lab import model_cell
from pyridgefill.evaluation.run.results import ResultFile, plain
from pyridgefill.evaluation.run.typed import to_json
from pyridgefill.evaluation.run.ways import baselines
from pyridgefill.evaluation.tasks.far_loss import DEFAULT_THRESHOLD, default_near
from pyridgefill.maps import BaseModel
from pyridgefill.selection.point import Point
from pyridgefill.selection.recommend import SAME_SPEED
from pyridgefill.server import fill_options
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
) -> dict[str, Any]:
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
    document = {
        "format": FORMAT,
        "pyridgefill": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(command),
        "model": {
            "file": sweep.lab.model.name,
            "bytes": sweep.lab.model.stat().st_size,
            "architecture": base.architecture,
            "layers": base.block_count,
            "embedding": base.embedding_length,
            "vocabulary": base.vocab_size,
        },
        "machine": machine,
        "statistics": {
            "file": sweep.statistics.name,
            "tokens": provenance.get("tokens", 0),
            "corpora": provenance.get("corpora", []),
        },
        "settings": {
            **{key: list(value) for key, value in asdict(plan.grid).items()},
            "ctx": list(effort.lengths),
            "kinds": list(effort.kinds),
            "needles": effort.needles,
            "keys": effort.keys,
            "texts": effort.texts,
            "repeats": effort.repeats,
            "sink": sink,
            "near": {str(tail): default_near(tail) for tail in plan.grid.tails},
            "threshold": DEFAULT_THRESHOLD,
            "corpus": sweep.shape.corpus,
            "max_loss_increase": plan.max_loss_increase,
            "same_speed": SAME_SPEED,
        },
        "seeds": seeds,
        "baselines": {name: baselines()[name] for name in plan.baselines},
        "maps": _maps(sweep.measured),
        "points": [_point(item, sweep) for item in sweep.measured],
        "stopped": [
            {"tail": stop.tail, "budget": stop.budget, "splits": list(stop.splits), "reason": stop.reason}
            for stop in sweep.stopped
        ],
        "breakdown": [{"ctx": ctx, **_breakdown(timing)} for ctx, timing in sorted(sweep.parts.items())],
        "splices": list(_splices(splices, sweep.lab.model)),
        "recommended": {
            "point": sweep.measured.index(best),
            "accepted": sweep.recommendation.accepted,
            "reason": sweep.recommendation.reason,
            "command": shlex.join(server_command(sweep, best)),
        },
    }
    return dict(plain(document))


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


def _maps(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Each maps file once."""
    files: dict[str, dict[str, Any]] = {}
    for item in measured:
        if item.maps is not None and item.point is not None and item.maps["file"] not in files:
            point = item.point
            kind = {"target": point.target, "rank": point.rank, "type": point.weight_type}
            files[item.maps["file"]] = {**item.maps, **kind}
    return list(files.values())


def _point(item: Measured, sweep: Sweep) -> dict[str, Any]:
    point: dict[str, Any] = {"role": item.role, "variant": item.name, "tail": item.tail}
    if item.point is not None:
        settings = item.point
        point |= {"split": settings.split, "budget": settings.budget, "select": settings.select}
        if item.maps is not None:
            point |= {"target": settings.target, "rank": settings.rank, "type": settings.weight_type}
            point |= {"maps": item.maps["file"], "heads": [f"{layer}.{head}" for layer, head in item.heads]}
            trial = next(trial for trial in sweep.trials if trial.point == settings)
            point["faults"] = trial.faults(sweep.plan.max_loss_increase)
    point["lengths"] = [{"ctx": ctx, **_numbers(found)} for ctx, found in sorted(item.results.items())]
    return point


def _numbers(found: Numbers) -> dict[str, Any]:
    """What a report shows of one way at one length."""
    needles, kld, losses = found.needles, found.kld, found.far
    hits, prompts = sum(item.hits for item in needles), sum(item.prompts for item in needles)
    assert kld is not None
    numbers: dict[str, Any] = {
        "needles": {"hits": hits, "prompts": prompts, **asdict(wilson(hits, prompts))},
        "depths": _by_depth(needles),
        "loss": kld.loss,
    }
    if kld.tail is not None:
        numbers |= {"kl": asdict(kld.tail.kl), "kl_99": kld.tail.kl_99, "top1": asdict(kld.tail.top1)}
    if losses.groups is not None:
        numbers["losses"] = to_json(losses.groups)
    if len(needles) == 1 and needles[0].mcnemar_p is not None:
        numbers["needles"]["mcnemar_p"] = needles[0].mcnemar_p
    if found.speed is not None:
        timing = found.speed
        numbers["ttft"] = {
            "ratio": timing.ratio,
            "low": min(timing.ratios),
            "high": max(timing.ratios),
            "pairs": len(timing.ratios),
            "filled_rows": timing.n_filled,
            "selected_rows": timing.n_selected,
            "exact_seconds": list(timing.seconds["exact"]),
            "fill_seconds": list(timing.seconds["fill"]),
        }
    return numbers


def _by_depth(needles: Sequence[Scores]) -> list[dict[str, Any]]:
    """Hits by depth, kinds together."""
    counts: dict[float, tuple[int, int]] = {}
    for result in needles:
        for item in result.by_depth:
            hits, prompts = counts.get(item.depth, (0, 0))
            counts[item.depth] = hits + round(item.value * item.prompts), prompts + item.prompts
    return [
        {"depth": depth, "hits": hits, "prompts": prompts, **asdict(wilson(hits, prompts))}
        for depth, (hits, prompts) in sorted(counts.items())
    ]


def _breakdown(timing: Speed) -> dict[str, Any]:
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
    return {"exact": median(seconds["exact"]), "fill": median(seconds["fill"]), "parts": parts}


def _splices(results: ResultFile, model: Path) -> Iterator[dict[str, Any]]:
    """What exact parts recover and filled ones cause, of this model's own maps."""
    digest = model_cell(model)["model_digest"]
    for record in results.records():
        if record.cell.get("task") != "splice" or record.cell.get("model_digest") != digest:
            continue
        cell, share = record.about, record.found(FarLosses).share
        if cell.splice is not None and cell.variant == "fill":
            place = {"ctx": cell.ctx, "tail": cell.tail, "split": cell.split}
            yield {**place, **to_json(cell.splice), "share": to_json(share)}
