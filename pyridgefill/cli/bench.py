"""The command that measures time to first token."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer
from rich.table import Table

from pyridgefill.cli import common
from pyridgefill.cli.eval_options import EvalOptions, run_jobs, with_options
from pyridgefill.maps import read_base_model, read_maps


@partial(with_options, unused=("baseline", "statistics", "seed"))
def bench(
    options: EvalOptions,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Pairs of runs for each length.")] = 5,
) -> None:
    """Time to first token, exact and with maps in turns, with an empty cache."""
    # these load the native library
    from pyridgefill.evaluation.run.lab import Lab
    from pyridgefill.evaluation.run.results import ResultFile
    from pyridgefill.evaluation.run.session import Session
    from pyridgefill.evaluation.run.settings import resolve
    from pyridgefill.evaluation.tasks.speed import speed_jobs

    results = ResultFile(options.json)
    config = resolve(options.config(), read_maps(options.maps))
    jobs = speed_jobs(config, lengths=options.lengths, repeats=repeats, corpus=options.corpus)
    info = {**common.run_info(options.threads), "n_layer": read_base_model(options.model).block_count}
    n_ctx = max(options.lengths) + 8
    with Session(options.model, n_ctx=n_ctx, n_threads=options.threads, n_gpu_layers=options.n_gpu_layers) as session:
        lab = Lab(options.model, session, results, info)
        found = [(lab.cell(job), result) for job, result in run_jobs(lab, jobs)]
    table = Table("tokens", "split", "select", "filled", "selected", "times sooner", "selection's share of it")
    for cell, result in found:
        overhead = result["selection_overhead"]
        times = {"value": result["ratio"], "low": min(result["ratios"]), "high": max(result["ratios"])}
        table.add_row(
            str(cell["ctx"]),
            str(cell["split"]),
            f"{cell['select']} {cell.get('budget', '')}".strip(),
            str(result["n_filled"]),
            str(result["n_selected"]),
            common.interval(times, ".2f"),
            "" if overhead is None else f"{overhead:.1%}",
        )
    common.stdout.print(table)
