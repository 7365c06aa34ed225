"""The command that finds retrieval heads for a maps file and measures which settings to recommend."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pyridgefill import defaults
from pyridgefill.calibration.fit import warn_unmeasured
from pyridgefill.cli import common
from pyridgefill.cli.calibration import TrialsOption, report_maps, steps
from pyridgefill.cli.common import GpuOption, JsonOption, ModelArgument, OutputOption, SameTypeOption, ThreadsOption
from pyridgefill.files import check_output
from pyridgefill.maps import read_maps, write_maps


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


def heads(
    model: ModelArgument,
    maps: Annotated[Path, typer.Argument(metavar="MAPS", help="The maps file; it stays as it is.")],
    output: OutputOption,
    count: Annotated[int, typer.Option("--count", min=1, help="Heads for each split, at most.")] = defaults.HEADS,
    prompts: Annotated[
        int, typer.Option("--prompts", min=1, help="Needles of each kind and length.")
    ] = defaults.HEAD_PROMPTS,
    ctx: Annotated[str, typer.Option("--ctx", help="Tokens of the prompts, like 1024,2048.")] = _listed(
        defaults.HEAD_LENGTHS
    ),
    tail: Annotated[
        int | None,
        typer.Option("--tail", min=64, help="Exact rows at the end; the question is there [as in the file]."),
    ] = None,
    pool: Annotated[
        str, typer.Option("--pool", help="Rows before and after a row over which its score halves.")
    ] = _listed(defaults.POOL),
    queries: Annotated[
        int, typer.Option("--queries", min=1, help="Last rows of a prompt that ask.")
    ] = defaults.QUERIES,
    trials: TrialsOption = True,
    threads: ThreadsOption = 0,
    n_gpu_layers: GpuOption = 0,
    weight_type: SameTypeOption = None,
    json_file: JsonOption = None,
) -> None:
    """Find the attention heads that point at what a question asks for, and measure which settings to recommend."""
    from pyridgefill.calibrator import measure  # loads the native library

    check_output(output, json_file, inputs=[model, maps])
    lengths, rows = common.parse_ints("--ctx", ctx, least=256), common.parse_pool("--pool", pool)
    stored = read_maps(maps)
    if tail is not None:
        stored = replace(stored, recommended=replace(stored.recommended, tail=tail))
    with steps() as show:
        found, tried = measure(
            model, stored, maps, trials=trials, count=count, prompts=prompts, lengths=lengths, pool=rows,
            queries=queries, n_threads=threads, n_gpu_layers=n_gpu_layers, on_step=show,
        )  # fmt: skip
    write_maps(output, found, weight_type=weight_type)
    if not trials:
        warn_unmeasured(found, output, model)
    report_maps(output, found, json_file=json_file, proposal=tried)
