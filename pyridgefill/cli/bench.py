"""The command that measures time to first token."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from pyridgefill import defaults
from pyridgefill.cli import common
from pyridgefill.cli.eval_options import EvalOptions, Evaluation, run_tasks, with_options
from pyridgefill.cost import bound_ratio, quantization
from pyridgefill.errors import ModelError
from pyridgefill.evaluation.intervals import Interval
from pyridgefill.maps import read_base_model

if TYPE_CHECKING:
    from pyridgefill.config import RidgeFillConfig


@partial(with_options, unused=("baselines", "statistics", "seed"))
def bench(
    options: EvalOptions,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Pairs of runs for each length.")] = 5,
    through_server: Annotated[
        bool, typer.Option("--server", help="Ask the bundled llama-server over HTTP, not a model in this process.")
    ] = False,
) -> None:
    """Time to first token, exact and with maps in turns, with an empty cache."""
    # these load the native library
    from pyridgefill.evaluation.tasks.speed import ServedSpeedTask, SpeedParams, SpeedTask, Timed
    from pyridgefill.server import Server, fill_options

    model, threads, gpu_layers = options.model, options.threads or len(os.sched_getaffinity(0)), options.n_gpu_layers
    room = max(options.lengths) + defaults.UBATCH

    def bound(config: RidgeFillConfig, ctx: int, n_selected: int) -> float | None:
        try:
            return bound_ratio(model, config, ctx, n_selected)
        except ModelError:  # of recurrent layers nothing is counted
            return None

    evaluation = Evaluation(
        options,
        n_layer=read_base_model(model).block_count,
        quantization=quantization(model),
        kv_type="f16",
        flash_attention="auto",
        n_ubatch=defaults.UBATCH,
        n_batch=room if through_server else max(options.lengths),
        device="CPU" if not gpu_layers else f"{gpu_layers} layers on the GPU",
    )
    config = evaluation.config
    params = [SpeedParams.at(shape, repeats=repeats) for shape in evaluation.shapes]
    with ExitStack() as stack:
        lab, _, _ = stack.enter_context(evaluation.lab())
        tasks = [SpeedTask(item, bound) for item in params]
        if through_server:
            server = Server([
                *("-m", str(model), *fill_options(config), "-c", str(room), "-np", "1", "-b", str(room)),
                *("-t", str(threads), "-tb", str(threads), "-ngl", str(gpu_layers)),
            ])  # fmt: skip
            stack.enter_context(server)
            tasks = [ServedSpeedTask(item, server, bound) for item in params]
        found = run_tasks(lab, tasks, [Timed(config)])
    table = Table("tokens", "split", "filled + selected", "seconds", "times faster", "bound")
    for row in found:
        result = row.found
        before, after = (f"{median(result.seconds[name]):.2f}" for name in ("exact", "fill"))
        table.add_row(
            str(row.task.params.ctx),
            str(config.split),
            f"{result.n_filled} + {result.n_selected}",
            f"{before} → {after}",
            Interval(result.ratio, min(result.ratios), max(result.ratios)).show(".2f"),
            "" if result.bound is None else f"{result.bound:.2f}",
        )
    evaluation.report(table)
    for row in found:
        if row.found.selection_overhead is not None:
            share = f"{row.found.selection_overhead:.1%}"
            common.stderr.print(f"{row.task.params.ctx} tokens: selection without its rows takes {share} of the time")
