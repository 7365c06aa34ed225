"""The command that measures time to first token."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.table import Table

from pyridgefill.cli import common
from pyridgefill.cli.eval_options import EvalOptions, with_options
from pyridgefill.maps import read_base_model, read_maps


@with_options
def bench(
    options: EvalOptions,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Pairs of runs for each length.")] = 5,
) -> None:
    """Time to first token, exact and with maps in turns, with an empty cache."""
    # these load the native library
    from pyridgefill.evaluation.results import ResultFile
    from pyridgefill.evaluation.session import Session
    from pyridgefill.evaluation.speed import measure_ttft
    from pyridgefill.evaluation.text import text_windows
    from pyridgefill.evaluation.variants import make_cell, resolve
    from pyridgefill.machine import describe_machine

    results = ResultFile(options.json)
    config = resolve(options.config(), read_maps(options.maps))
    threads = options.threads or len(os.sched_getaffinity(0))
    found = []
    with (
        Session(
            options.model, n_ctx=max(options.lengths) + 8, n_threads=threads, n_gpu_layers=options.n_gpu_layers
        ) as session,
        common.progress_bar("runs") as bar,
    ):
        ways = 2 if config.select == "none" else 4
        task = bar.add_task("bench", total=ways * repeats * len(options.lengths))
        for length in options.lengths:
            cell = {
                "task": "ttft",
                "model": options.model.name,
                "model_bytes": options.model.stat().st_size,
                "ctx": length,
                "sink": config.sink,
                "tail": config.tail,
                "repeats": repeats,
                **make_cell(config),
            }
            result = results.find(cell)
            if result is None:
                tokens = next(text_windows(session, length, corpus=options.corpus))
                timing = measure_ttft(session, config, tokens, repeats=repeats, on_progress=lambda: bar.advance(task))
                result = timing.to_dict()
                results.add(
                    cell,
                    result,
                    {"machine": describe_machine(threads), "n_layer": read_base_model(options.model).block_count},
                )
            found.append((cell, result))
    if options.json is None:
        common.print_json([{"cell": cell, "result": result} for cell, result in found])
        return
    table = Table("tokens", "split", "select", "times sooner", "of the filled time for selection")
    for cell, result in found:
        overhead = result["selection_overhead"]
        table.add_row(
            str(cell["ctx"]),
            str(cell["split"]),
            f"{cell['select']} {cell.get('budget', '')}",
            f"{result['ratio']:.2f}",
            "" if overhead is None else f"{overhead:.1%}",
        )
    common.stdout.print(table)
