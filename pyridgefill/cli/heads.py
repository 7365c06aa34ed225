"""The command that finds retrieval heads and stores them in a maps file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from pyridgefill import defaults
from pyridgefill.cli import common
from pyridgefill.cli.common import JsonOption, ModelArgument, OutputOption, SameTypeOption
from pyridgefill.cli.selection import with_heads
from pyridgefill.config import RidgeFillConfig
from pyridgefill.files import check_output
from pyridgefill.maps import read_maps, write_maps


def heads(
    model: ModelArgument,
    maps: Annotated[Path, typer.Argument(metavar="MAPS", help="The maps file; it stays as it is.")],
    output: OutputOption,
    count: Annotated[int, typer.Option("--count", min=1, help="Heads for each split, at most.")] = defaults.HEADS,
    prompts: Annotated[
        int, typer.Option("--prompts", min=1, help="Needles of each kind and length.")
    ] = defaults.HEAD_PROMPTS,
    length: Annotated[list[int] | None, typer.Option("--length", help="Tokens of the prompts; repeatable.")] = None,
    tail: Annotated[
        int, typer.Option("--tail", min=64, help="Exact rows at the end; the question is there.")
    ] = defaults.TAIL,
    before: Annotated[
        int, typer.Option("--before", min=0, help="A row's score counts half with every so many rows before it.")
    ] = defaults.POOL[0],
    after: Annotated[
        int, typer.Option("--after", min=0, help="A row's score counts half with every so many rows after it.")
    ] = defaults.POOL[1],
    queries: Annotated[
        int, typer.Option("--queries", min=1, help="Last rows of a prompt that ask.")
    ] = defaults.QUERIES,
    threads: Annotated[int, typer.Option("--threads", help="0: the CPUs that this process may use.")] = 0,
    weight_type: SameTypeOption = None,
    json_file: JsonOption = None,
) -> None:
    """Find the attention heads that point at what a question asks for, and store them with the maps."""
    check_output(output, json_file, inputs=[model, maps])
    stored = read_maps(maps)
    found = with_heads(
        model,
        maps,
        stored,
        RidgeFillConfig(sink=defaults.SINK, tail=tail, pool=(before, after), queries=queries),
        count=count,
        prompts=prompts,
        n_threads=threads,
        **({"lengths": length} if length else {}),
    )
    write_maps(output, found, weight_type=weight_type)
    table = Table("split", "layer.head", "recall at 2, 5 and 10 %")
    for item in found.heads:
        table.add_row(str(item.split), f"{item.layer}.{item.head}", common.format_recall(item.recall))
    document = {"path": str(output), "heads": [asdict(item) for item in found.heads]}
    common.report(json_file, document, lambda: common.stdout.print(table))
