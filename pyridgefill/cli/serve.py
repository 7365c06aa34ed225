"""The command that starts the bundled llama-server with maps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pyridgefill.cli.common import ModelArgument
from pyridgefill.config import find_maps
from pyridgefill.errors import RidgeFillError
from pyridgefill.maps import read_base_model, read_maps
from pyridgefill.maps.base import difference
from pyridgefill.server import program_path


def serve(
    context: typer.Context,
    model: ModelArgument,
    maps: Annotated[
        Path | None, typer.Option("--maps", help="The maps file [found as by Llama(ridgefill=True)].")
    ] = None,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Compare the maps with the model first.")] = True,
) -> None:
    """Start llama-server with maps; all further options go to it."""
    program = program_path("llama-server")
    found = maps or find_maps(model)
    stored = read_maps(found)
    if check and (expected := read_base_model(model)) != stored.base:
        raise RidgeFillError(
            f"{found}: made for another model than {model}: {difference(expected, stored.base)}",
            "calibrate this model, or give --no-check",
        )
    if stored.recommended.split is None:
        from pyridgefill.calibration.fit import warn_unmeasured  # scipy, for few

        warn_unmeasured(stored, found, model)
    os.execv(program, [str(program), "-m", str(model), "--ridgefill-maps", str(found), *context.args])
