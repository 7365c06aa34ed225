"""The command that starts the bundled llama-server with maps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pyridgefill.cli.common import ModelArgument
from pyridgefill.errors import RidgeFillError
from pyridgefill.maps import read_base_model, read_maps
from pyridgefill.maps.base import difference
from pyridgefill.server import program_path


def serve(
    context: typer.Context,
    model: ModelArgument,
    maps: Annotated[Path, typer.Option("--maps", help="The maps file.")],
    check: Annotated[bool, typer.Option("--check/--no-check", help="Compare the maps with the model first.")] = True,
) -> None:
    """Start llama-server with maps; all further options go to it."""
    program = program_path("llama-server")
    if check:
        expected, found = read_base_model(model), read_maps(maps).base
        if expected != found:
            raise RidgeFillError(
                f"{maps}: made for another model than {model}: {difference(expected, found)}",
                "calibrate this model, or give --no-check",
            )
    arguments = [str(program), "-m", str(model), "--ridgefill-maps", str(maps), *context.args]
    os.execv(program, arguments)
