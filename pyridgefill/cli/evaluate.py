"""The `eval` commands: what fill costs in quality, beside baselines, on the same prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from pyridgefill.cli import common
from pyridgefill.cli.eval_options import (
    EvalOptions,
    Evaluation,
    NearOption,
    TextsOption,
    ThresholdOption,
    with_options,
)

if TYPE_CHECKING:
    from pyridgefill.evaluation.run.found import Choices, Scores
    from pyridgefill.evaluation.run.lab import Outcome

app = typer.Typer(
    name="eval",
    help="Measure what fill costs in quality: exact, filled and baseline runs of the same prompts.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("needle")
@with_options
def needle(
    options: EvalOptions,
    needles: Annotated[int, typer.Option("--needles", min=1, help="Needles of each kind and length.")] = 20,
    kinds: Annotated[
        str, typer.Option("--kinds", help="Some of digits,words,identifiers,german,chinese,uuids,multi-key.")
    ] = "digits",
    keys: Annotated[int, typer.Option("--keys", min=2, help="Needles in one text of kind multi-key.")] = 4,
    places: Annotated[
        str, typer.Option("--places", help="Where needles are: some of filled,tail,sink,absent.")
    ] = "filled",
) -> None:
    """Values hidden in the filled rows: does the answer contain the right one?"""
    from pyridgefill.evaluation.tasks.needle import ALL_KINDS, PLACES, needle_tasks

    chosen = common.parse_names("--kinds", kinds, ALL_KINDS), common.parse_names("--places", places, PLACES)
    evaluation = Evaluation(options)
    tasks = needle_tasks(evaluation.shapes, kinds=chosen[0], places=chosen[1], needles=needles, keys=keys)
    evaluation.report(_scores("needles", evaluation.run(tasks)))


@app.command("ruler")
@with_options
def ruler(
    options: EvalOptions,
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="Prompts of each task and length.")] = 20,
    tasks: Annotated[str, typer.Option("--tasks", help="Like single-noise,multi-key [all].")] = "",
    squad: Annotated[Path | None, typer.Option("--squad", help="Questions in SQuAD's format, for the task qa.")] = None,
) -> None:
    """The task families of RULER: retrieval, variable tracking, word counts, question answering."""
    from pyridgefill.evaluation.tasks.ruler import find_families, ruler_tasks

    families = find_families([name.strip() for name in tasks.split(",")] if tasks else [], squad)
    evaluation = Evaluation(options)
    made = ruler_tasks(evaluation.shapes, families, prompts=prompts, squad=squad)
    evaluation.report(_scores("ruler", evaluation.run(made)))


@app.command("far-loss")
@with_options
def far_loss(
    options: EvalOptions, texts: TextsOption = 8, near: NearOption = None, threshold: ThresholdOption = 0.6931
) -> None:
    """Loss on the tokens of the tail that depend on distant context."""
    from pyridgefill.evaluation.tasks.far_loss import FarLoss, FarLossParams

    evaluation = Evaluation(options)
    tasks = [FarLoss(FarLossParams.of(shape, texts, near, threshold)) for shape in evaluation.shapes]
    table = Table("tokens", "way", "group", "n", "exact", "loss", "removed", "loss, %", "perplexity, %")
    for row in evaluation.run(tasks):
        for name, group in (row.found.groups or {}).items():
            numbers = [f"{loss:.3f}" for loss in (group.exact, group.fill, group.removed)]
            changes = [change.percent("+.1f") for change in (group.relative, group.perplexity)]
            table.add_row(*_head(row), name, str(group.tokens), *numbers, *changes)
    evaluation.report(table)


@app.command("kld")
@with_options
def kld(
    options: EvalOptions,
    texts: TextsOption = 8,
    generated: Annotated[
        int, typer.Option("--generated", min=0, max=256, help="Tokens of the exact model's continuation.")
    ] = 32,
) -> None:
    """KL divergence from the exact model and top-1 agreement, on the tail and on what the exact model says next."""
    from pyridgefill.evaluation.tasks.kld import Kld, KldParams

    evaluation = Evaluation(options)
    tasks = [Kld(KldParams.at(shape, texts=texts, generated=generated)) for shape in evaluation.shapes]
    table = Table("tokens", "way", "loss", "perplexity", "rows", "n", "KL", "KL, 99 %", "top-1, %")
    for row in evaluation.run(tasks):
        found = row.found
        head = [*_head(row), f"{found.loss:.4f}", f"{found.perplexity:.3f}"]
        parts = {"tail": found.tail, "generated": found.generated}
        if not any(parts.values()):
            table.add_row(*head)
        for name, part in parts.items():
            if part is not None:
                numbers = part.kl.show(".4f"), f"{part.kl_99:.3f}", part.top1.percent(".1f")
                table.add_row(*head, name, str(part.rows), *numbers)
    evaluation.report(table)


@app.command("perplexity")
@with_options
def perplexity(
    options: EvalOptions,
    texts: TextsOption = 8,
    score: Annotated[
        int | None, typer.Option("--score", help="Rows at the end that are scored; filled ones are refused [the tail].")
    ] = None,
) -> None:
    """Perplexity of rows at the end of texts, which run exact behind the filled ones."""
    from pyridgefill.evaluation.tasks.perplexity import PerplexityParams, PerplexityTask

    evaluation = Evaluation(options)
    tasks = [
        PerplexityTask(PerplexityParams.at(shape, texts=texts, score=shape.tail if score is None else score))
        for shape in evaluation.shapes
    ]
    table = Table("tokens", "way", "scored", "loss", "perplexity", "difference, nats", "perplexity, %")
    for row in evaluation.run(tasks):
        found = row.found
        numbers = [str(found.tokens), f"{found.loss:.4f}", found.perplexity.show(".3f")]
        if found.difference is not None and found.relative is not None:
            numbers += [found.difference.show("+.4f"), found.relative.percent("+.2f")]
        table.add_row(*_head(row), *numbers)
    evaluation.report(table)


@app.command("longbench")
@with_options
def longbench(
    options: EvalOptions,
    data: Annotated[Path, typer.Option("--data", help="LongBench v2's JSON file.")],
    limit: Annotated[int, typer.Option("--limit", min=0, help="The first records only; 0: all.")] = 0,
) -> None:
    """LongBench v2: multiple choice over long texts, by the logits of the letters; long texts lose their middle."""
    from pyridgefill.evaluation.tasks.longbench import longbench_tasks

    evaluation = Evaluation(options)
    tasks = longbench_tasks(evaluation.shapes, data, limit)
    table = Table("tokens", "way", "right", "%", "difference, points", "p", "same choice, %")
    for row in evaluation.run(tasks):
        same = row.found.same_choice
        table.add_row(*_head(row), *_hits(row.found), "" if same is None else same.percent())
    evaluation.report(table)


def _head(row: Outcome[Any]) -> tuple[str, str]:
    return str(row.task.params.ctx), row.way.name


def _scores(title: str, rows: Sequence[Outcome[Scores]]) -> Table:
    absent = any(row.found.false_rate is not None for row in rows)
    more = ["false, %"] if absent else []
    table = Table("tokens", "way", "kind", "found", "%", "difference, points", "p", "score", *more, title=title)
    for row in rows:
        cell, false = row.task.cell(), row.found.false_rate
        kind = ", ".join(str(cell[name]) for name in ("kind", "group") if name in cell)
        shown = [] if false is None else [false.percent()]
        table.add_row(*_head(row), kind, *_hits(row.found), f"{row.found.score.value:.3f}", *shown)
    return table


def _hits(found: Scores | Choices) -> list[str]:
    return [
        f"{found.hits} of {found.prompts}",
        found.accuracy.percent(),
        "" if found.difference is None else found.difference.show("+.0f"),
        "" if found.mcnemar_p is None else f"{found.mcnemar_p:.3f}",
    ]
