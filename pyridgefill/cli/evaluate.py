"""The `eval` commands: what fill costs in quality, beside baselines, on the same prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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

app = typer.Typer(
    name="eval",
    help="Measure what fill costs in quality: exact, filled and baseline runs of the same prompts.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

KindsOption = Annotated[
    list[str] | None,
    typer.Option("--kinds", help="digits, words, identifiers, german, chinese, uuids, multi-key; repeatable [digits]."),
]


@app.command("needle")
@with_options
def needle(
    options: EvalOptions,
    needles: Annotated[int, typer.Option("--needles", min=1, help="Needles of each kind and length.")] = 20,
    kinds: KindsOption = None,
    keys: Annotated[int, typer.Option("--keys", min=2, help="Needles in one text of kind multi-key.")] = 4,
    groups: Annotated[
        list[str] | None,
        typer.Option("--groups", help="Where needles are: filled, tail, sink or absent; repeatable [filled]."),
    ] = None,
) -> None:
    """Values hidden in the filled rows: does the answer contain the right one?"""
    from pyridgefill.evaluation.tasks.jobs import needle_jobs

    with lab(options) as (bench, setting, _):
        jobs = needle_jobs(
            setting,
            lengths=options.lengths,
            kinds=kinds or ["digits"],
            needles=needles,
            keys=keys,
            groups=groups or ["filled"],
        )
        _show_scores("needles", run_jobs(bench, jobs))


@app.command("ruler")
@with_options
def ruler(
    options: EvalOptions,
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="Prompts of each task and length.")] = 20,
    task: Annotated[list[str] | None, typer.Option("--task", help="A task; repeatable [all].")] = None,
    squad: Annotated[Path | None, typer.Option("--squad", help="Questions in SQuAD's format, for the task qa.")] = None,
) -> None:
    """The task families of RULER: retrieval, variable tracking, word counts, question answering."""
    from pyridgefill.evaluation.prompts.ruler import tasks
    from pyridgefill.evaluation.tasks.jobs import ruler_jobs

    chosen = task or [*tasks(), *(["qa"] if squad is not None else [])]
    with lab(options) as (bench, setting, _):
        jobs = ruler_jobs(setting, lengths=options.lengths, tasks=chosen, prompts=prompts, squad=squad)
        _show_scores("ruler", run_jobs(bench, jobs))


@app.command("far-loss")
@with_options
def far_loss(
    options: EvalOptions,
    texts: TextsOption = 8,
    near: NearOption = -1,
    threshold: ThresholdOption = 0.6931,
) -> None:
    """Loss on the tokens of the tail that depend on distant context."""
    from pyridgefill.evaluation.tasks.far_loss import default_near
    from pyridgefill.evaluation.tasks.jobs import far_loss_jobs

    with lab(options) as (bench, setting, _):
        skipped = default_near(setting.tail) if near < 0 else near
        jobs = far_loss_jobs(setting, lengths=options.lengths, texts=texts, near=skipped, threshold=threshold)
        table = Table("tokens", "variant", "group", "n", "exact", "loss", "removed", "loss, %", "perplexity, %")
        for job, result in run_jobs(bench, jobs):
            for name, group in result.get("groups", {}).items():
                numbers = [f"{group[key]:.3f}" for key in ("exact", "fill", "removed")]
                changes = [common.percent(group[key], "+.1f") for key in ("relative", "perplexity")]
                table.add_row(str(job.params["ctx"]), job.variant.name, name, str(group["tokens"]), *numbers, *changes)
        common.stdout.print(table)


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
    from pyridgefill.evaluation.tasks.jobs import kld_jobs

    with lab(options) as (bench, setting, folder):
        jobs = kld_jobs(setting, lengths=options.lengths, texts=texts, generated=generated, folder=folder)
        table = Table("tokens", "variant", "loss", "perplexity", "rows", "n", "KL", "KL, 99 %", "top-1, %")
        for job, result in run_jobs(bench, jobs):
            head = [str(job.params["ctx"]), job.variant.name, f"{result['loss']:.4f}", f"{result['perplexity']:.3f}"]
            if job.variant.name == "exact":
                table.add_row(*head)
            for part in ("tail", "generated"):
                if part in result:
                    row = result[part]
                    table.add_row(
                        *head, part, str(row["rows"]), common.interval(row["kl"], ".4f"), f"{row['kl_99']:.3f}",
                        common.percent(row["top1"], ".1f"),
                    )  # fmt: skip
        common.stdout.print(table)


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
    from pyridgefill.evaluation.tasks.perplexity import perplexity_jobs

    with lab(options) as (bench, setting, _):
        jobs = perplexity_jobs(setting, lengths=options.lengths, texts=texts, score=score)
        table = Table("tokens", "variant", "scored", "loss", "perplexity", "difference, nats", "perplexity, %")
        for job, result in run_jobs(bench, jobs):
            changes = (
                [common.interval(result["difference"], "+.4f"), common.percent(result["relative"], "+.2f")]
                if "difference" in result
                else []
            )
            numbers = [str(result["tokens"]), f"{result['loss']:.4f}", common.interval(result["perplexity"], ".3f")]
            table.add_row(str(job.params["ctx"]), job.variant.name, *numbers, *changes)
        common.stdout.print(table)


@app.command("longbench")
@with_options
def longbench(
    options: EvalOptions,
    data: Annotated[Path, typer.Option("--data", help="LongBench v2's JSON file.")],
    limit: Annotated[int, typer.Option("--limit", min=0, help="The first records only; 0: all.")] = 0,
) -> None:
    """LongBench v2: multiple choice over long texts, by the logits of the letters; long texts lose their middle."""
    from pyridgefill.evaluation.tasks.jobs import longbench_jobs

    with lab(options) as (bench, setting, _):
        jobs = longbench_jobs(setting, lengths=options.lengths, path=data, limit=limit)
        table = Table("tokens", "variant", "right", "%", "difference, points", "p", "same choice, %")
        for job, result in run_jobs(bench, jobs):
            same = common.percent(result["same_choice"]) if "same_choice" in result else ""
            table.add_row(str(job.params["ctx"]), job.variant.name, *_hits(result), same)
        common.stdout.print(table)


def _show_scores(title: str, rows: list[tuple[Any, dict[str, Any]]]) -> None:
    absent = any("false_rate" in result for _, result in rows)
    more = ["false, %"] if absent else []
    table = Table("tokens", "kind", "variant", "found", "%", "difference, points", "p", "score", *more, title=title)
    for job, result in rows:
        kind = ", ".join(str(job.params[name]) for name in ("kind", "group") if name in job.params)
        score = f"{result['score']['value']:.3f}"
        false = [common.percent(result["false_rate"])] if "false_rate" in result else []
        table.add_row(str(job.params["ctx"]), kind, job.variant.name, *_hits(result), score, *false)
    common.stdout.print(table)


def _hits(result: dict[str, Any]) -> list[str]:
    compared = "difference" in result
    return [
        f"{result['hits']} of {result['prompts']}",
        common.percent(result["accuracy"]),
        common.interval(result["difference"], "+.0f") if compared else "",
        f"{result['mcnemar_p']:.3f}" if compared else "",
    ]
