"""The `eval splice` command: which parts of a fill carry the error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from pyridgefill.cli import common
from pyridgefill.cli.eval_options import (
    EvalOptions,
    NearOption,
    TextsOption,
    ThresholdOption,
    lab,
    run_jobs,
    with_options,
)
from pyridgefill.errors import UsageError

if TYPE_CHECKING:
    from pyridgefill.evaluation.run.lab import Lab
    from pyridgefill.evaluation.run.session import Session
    from pyridgefill.evaluation.run.spliced import Splice
    from pyridgefill.evaluation.run.way import Way
    from pyridgefill.evaluation.tasks.jobs import Setting


@with_options
def splice(
    options: EvalOptions,
    texts: TextsOption = 8,
    needles: Annotated[int, typer.Option("--needles", min=0, help="Needles of digits of each length.")] = 8,
    groups: Annotated[
        int, typer.Option("--groups", min=0, help="Groups of layers above the split; 0: each layer on its own.")
    ] = 4,
    into: Annotated[
        list[str] | None,
        typer.Option("--into", help="fill: what exact parts recover; exact: what filled ones harm; repeatable [both]."),
    ] = None,
    near: NearOption = -1,
    threshold: ThresholdOption = 0.6931,
) -> None:
    """Exact K, V, states or layers in the filled memory, and the reverse: what do loss and retrieval recover?"""
    from pyridgefill.evaluation.run.spliced import DIRECTIONS, Spliced
    from pyridgefill.evaluation.run.ways import WAYS
    from pyridgefill.evaluation.tasks.far_loss import default_near

    if options.select not in ("", "none"):
        raise UsageError(
            f"--select {options.select}: splice tests change filled rows, and selected rows are not filled",
            "leave out --select",
        )
    for name in options.baseline or []:
        if name in WAYS and (reason := WAYS[name].way.no_splice):
            raise UsageError(f"--baseline {name}", reason)
    directions = [common.choice("--into", name, tuple(DIRECTIONS)) for name in dict.fromkeys(into or DIRECTIONS)]
    with lab(replace(options, select="none"), spliced=True) as (bench, setting, _):
        skipped = default_near(setting.tail) if near < 0 else near
        shape = {"lengths": options.lengths, "texts": texts, "near": skipped, "threshold": threshold}
        exact, *variants = setting.variants
        plain = _measure(bench, setting, shape, needles)
        table = Table("tokens", "memory", "loss", "share, %", "far", "share, %", "found")
        for variant in variants:
            filled = {row.ctx: row for row in plain if row.variant is variant}
            assert isinstance(variant, Spliced)
            made = [variant.of(item) for item in _splices(bench.session, variant, groups, directions)]
            losses = {ctx: row.loss for ctx, row in filled.items()}
            spliced = _measure(bench, replace(setting, variants=[exact, *made]), shape, needles, losses)
            for ctx, row in filled.items():
                _add_exact(table, next(one for one in plain if one.ctx == ctx), row)
                _add(table, row)
                for one in spliced:
                    if one.ctx == ctx and one.variant is not exact:
                        _add(table, one)
        common.stdout.print(table)


@dataclass(frozen=True)
class _Row:
    """Results of one variant at one length."""

    ctx: int
    variant: Way
    loss: dict[str, Any]
    needles: dict[str, Any] | None

    @property
    def found(self) -> str:
        return "" if self.needles is None else f"{self.needles['hits']} of {self.needles['prompts']}"


def _splices(session: Session, variant: Way, groups: int, directions: list[str]) -> list[Splice]:
    from pyridgefill.evaluation.run.spliced import make_splices

    assert variant.config is not None
    assert variant.config.split is not None
    return make_splices(session.components(), variant.config.split, groups, directions)


def _measure(
    bench: Lab,
    setting: Setting,
    shape: dict[str, Any],
    needles: int,
    filled: dict[int, dict[str, Any]] | None = None,
) -> list[_Row]:
    from pyridgefill.evaluation.tasks.jobs import needle_jobs
    from pyridgefill.evaluation.tasks.splice_jobs import NEEDLE_TASK, loss_jobs

    losses = loss_jobs(setting, **shape, filled=filled)
    hidden = []
    if needles:
        lengths = shape["lengths"]
        hidden = needle_jobs(setting, lengths=lengths, kinds=["digits"], needles=needles, task=NEEDLE_TASK)
    results = [result for _, result in run_jobs(bench, losses + hidden)]
    answers: list[dict[str, Any] | None] = [*results[len(losses) :]] or [None] * len(losses)
    return [
        _Row(job.params["ctx"], job.variant, loss, answer)
        for job, loss, answer in zip(losses, results[: len(losses)], answers, strict=True)
    ]


def _add_exact(table: Table, exact: _Row, filled: _Row) -> None:
    groups = filled.loss["groups"]
    numbers = [f"{groups[name]['exact']:.3f}" if name in groups else "" for name in ("all", "far")]
    table.add_row(str(exact.ctx), "exact", numbers[0], "", numbers[1], "", exact.found)


def _add(table: Table, row: _Row) -> None:
    """A row of a filled variant, with or without a splice."""
    splice: Splice | None = getattr(row.variant, "splice", None)
    memory = row.variant.name
    if splice is not None:
        names = [memory, "exact"] if splice.into == "fill" else ["exact", memory]
        memory = f"{' + '.join(names)} {splice.part} {splice.layers}"
    cells = []
    for name in ("all", "far"):
        group, part = row.loss["groups"].get(name), row.loss.get("share", {}).get(name)
        cells += [
            "" if group is None else f"{group['fill']:.3f}",
            "" if part is None or part["value"] is None else common.percent(part),
        ]
    table.add_row(str(row.ctx), memory, *cells, row.found)
