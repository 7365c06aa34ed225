"""The command that writes the card of a maps file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pyridgefill.card import make_card, measured
from pyridgefill.cli.common import MapsArgument, OutputOption
from pyridgefill.errors import RidgeFillError
from pyridgefill.evaluation.run.results import ResultFile
from pyridgefill.files import check_output, digest, replacing


def card(
    maps: MapsArgument,
    output: OutputOption,
    results: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RESULTS", help="JSON lines that eval and bench wrote with these maps."),
    ] = None,
    title: Annotated[str, typer.Option("--title", help="The model's name [the file's name].")] = "",
) -> None:
    """Describe a maps file in markdown: its content, recommended settings, and what was measured with it."""
    check_output(output, inputs=[maps, *(results or [])])
    records = []
    for path in results or []:
        if not path.is_file():
            raise RidgeFillError(f"{path}: no such file", "give what eval or bench wrote with --json")
        records += list(ResultFile(path).records())
    if results and not measured(records, digest(maps)):
        raise RidgeFillError(
            f"{', '.join(map(str, results))}: no result is of {maps}", "a file that was written again has other results"
        )
    text = make_card(maps, records, title or maps.stem)
    with replacing(output) as path:
        path.write_text(text, encoding="utf-8")
