"""The command that measures time to first token."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer
from rich.table import Table

from pyridgefill.cli.eval_options import EvalOptions, Evaluation, run_tasks, with_options
from pyridgefill.evaluation.intervals import Interval
from pyridgefill.maps import read_base_model


@partial(with_options, unused=("baselines", "statistics", "seed"))
def bench(
    options: EvalOptions,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Pairs of runs for each length.")] = 5,
) -> None:
    """Time to first token, exact and with maps in turns, with an empty cache."""
    # these load the native library
    from pyridgefill.evaluation.tasks.speed import SpeedParams, SpeedTask, Timed

    evaluation = Evaluation(options, n_layer=read_base_model(options.model).block_count)
    tasks = [SpeedTask(SpeedParams.at(shape, repeats=repeats)) for shape in evaluation.shapes]
    with evaluation.lab() as (lab, _, _):
        found = run_tasks(lab, tasks, [Timed(evaluation.config)])
    table = Table("tokens", "split", "select", "filled", "selected", "times sooner", "selection's share of it")
    for row in found:
        config, result = evaluation.config, row.found
        table.add_row(
            str(row.task.params.ctx),
            str(config.split),
            "none" if config.select == "none" else f"{config.select} {config.budget}",
            str(result.n_filled),
            str(result.n_selected),
            Interval(result.ratio, min(result.ratios), max(result.ratios)).show(".2f"),
            "" if result.selection_overhead is None else f"{result.selection_overhead:.1%}",
        )
    evaluation.report(table)
