"""Options and output that several commands share."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pyridgefill.errors import RidgeFillError
from pyridgefill.files import check_folder
from pyridgefill.machine import describe_machine
from pyridgefill.maps import WEIGHT_TYPES

# numbers go to stdout, what happens meanwhile to stderr
stdout = Console(soft_wrap=True)
stderr = Console(stderr=True, soft_wrap=True)

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="The model's GGUF.")]


def _check_output(path: Path) -> Path:
    check_folder(path)
    return path


def _check_type(weight_type: str | None) -> str | None:
    return None if weight_type is None else choice("--type", weight_type, tuple(WEIGHT_TYPES))


OutputOption = Annotated[
    Path, typer.Option("--output", "-o", callback=_check_output, help="File to write; replaced when complete.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print numbers as JSON.")]
WeightTypeOption = Annotated[
    str, typer.Option("--type", callback=_check_type, help="Weight type: f32, f16, bf16, q8_0 or q4_0.")
]
SameTypeOption = Annotated[
    str | None,
    typer.Option("--type", callback=_check_type, help="Weight type: f32, f16, bf16, q8_0 or q4_0 [as in the file]."),
]
TargetOption = Annotated[str, typer.Option("--target", help="What the maps predict: proj or input.")]


# shares of the layers that run exact
_CANDIDATES = (1 / 3, 5 / 12, 1 / 2, 2 / 3)


def parse_splits(text: str, block_count: int) -> tuple[int, ...]:
    """`auto` (candidates from a third to two thirds of the layers) or a comma-separated list."""
    if text == "auto":
        return tuple(sorted({min(int(block_count * share), block_count - 2) for share in _CANDIDATES}))
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError as error:
        raise RidgeFillError(f"--splits {text!r}: expected auto or a list like 12,16") from error


def command_line() -> str:
    """The command that is running, as it can be typed again."""
    return shlex.join(["pyridgefill", *sys.argv[1:]])


def run_info(threads: int) -> dict[str, Any]:
    """What every line of results says of its run: command and machine; `threads` 0: all CPUs of the process."""
    return {"command": command_line(), "machine": describe_machine(threads or len(os.sched_getaffinity(0)))}


def choice(option: str, value: str, allowed: tuple[str, ...]) -> Any:
    """Check an option's value against its choices."""
    if value not in allowed:
        raise RidgeFillError(f"{option} {value!r}: expected one of {', '.join(allowed)}")
    return value


def format_recall(recall: tuple[float, ...]) -> str:
    """A head's recall at each budget."""
    return " / ".join(f"{value:.2f}" for value in recall)


def interval(value: dict[str, float | None], form: str, scale: float = 1) -> str:
    """A value and its 95 % interval, which one text alone does not have."""
    shown = [format(scale * number, form) for key in ("value", "low", "high") if (number := value[key]) is not None]
    return f"{shown[0]} ({shown[1]} to {shown[2]})" if len(shown) == 3 else shown[0]


def percent(value: dict[str, float | None], form: str = ".0f") -> str:
    """A share and its interval in percent."""
    return interval(value, form, 100)


def print_json(value: Any) -> None:
    """Print JSON; numbers that were not measured are null."""
    typer.echo(json.dumps(_plain(value), ensure_ascii=False, indent=2))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


@contextmanager
def progress_bar(*columns: str) -> Iterator[Progress]:
    """A bar on stderr with time left and the named task fields."""
    shown = [TextColumn(column) for column in columns]
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *shown,
        TimeRemainingColumn(),
        console=stderr,
    ) as progress:
        yield progress
