"""Options and output that several commands share."""

from __future__ import annotations

import json
import logging
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pyridgefill.errors import UsageError
from pyridgefill.evaluation.run.results import plain
from pyridgefill.files import STDOUT, check_output, replacing
from pyridgefill.machine import describe_machine
from pyridgefill.maps import WEIGHT_TYPES
from pyridgefill.maps.base import candidate_splits

# numbers go to stdout, what happens meanwhile to stderr
stdout = Console(soft_wrap=True)
stderr = Console(stderr=True, soft_wrap=True)


class _Notes(logging.Handler):
    """What the package has to say, on stderr; warnings are marked."""

    def emit(self, record: logging.LogRecord) -> None:
        mark = "warning: " if record.levelno >= logging.WARNING else ""
        stderr.print(mark + record.getMessage(), markup=False, highlight=False)


logging.getLogger("pyridgefill").addHandler(_Notes())
logging.getLogger("pyridgefill").setLevel(logging.INFO)

_Item = TypeVar("_Item")


def choice(option: str, value: str, allowed: Iterable[str]) -> Any:
    """Check an option's value against its choices."""
    if value not in (allowed := tuple(allowed)):
        raise UsageError(f"{option} {value!r}: expected one of {', '.join(allowed)}")
    return value


def parse_list(option: str, text: str, item: Callable[[str], _Item], expected: str) -> tuple[_Item, ...]:
    """The items of a comma-separated list, each once, in the order given.

    Parameters
    ----------
    option, expected
        For the error: `--splits 'a': expected EXPECTED`.
    text
        At least one item; spaces around items do no harm.
    item
        Makes an item of its text; a ValueError says that it is none.

    Raises
    ------
    UsageError
        If the text is no such list.
    """
    try:
        return tuple(dict.fromkeys(item(part.strip()) for part in text.split(",")))
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: expected {expected}") from error


def parse_ints(option: str, text: str, *, least: int = 0, most: int = 2**31 - 1) -> tuple[int, ...]:
    """A list of whole numbers, like 2048,4096."""

    def number(part: str) -> int:
        return int(_within(int(part), least, most))

    return parse_list(option, text, number, f"numbers from {least} on, like 12,16")


def parse_floats(option: str, text: str, *, least: float = 0, most: float = math.inf) -> tuple[float, ...]:
    """A list of numbers, like 0.05,0.1."""
    return parse_list(
        option,
        text,
        lambda part: _within(float(part), least, most),
        f"numbers from {least:g} to {most:g}",
    )


def parse_names(option: str, text: str, allowed: Iterable[str]) -> tuple[Any, ...]:
    """A list of some of the allowed names."""
    allowed = tuple(allowed)
    return parse_list(option, text, lambda part: choice(option, part, allowed), f"some of {', '.join(allowed)}")


def parse_heads(option: str, text: str) -> tuple[tuple[int, int], ...]:
    """A list of heads as layer.head, like 9.6,11.1; an empty one names none."""

    def head(part: str) -> tuple[int, int]:
        layer, number = part.split(".")
        return int(_within(int(layer), 0)), int(_within(int(number), 0))

    return parse_list(option, text, head, "layer.head, like 9.6,11.1") if text else ()


def parse_pool(option: str, text: str) -> tuple[int, int]:
    """Rows before and after a row, like 5,5."""
    try:
        before, after = (int(_within(int(part), 0)) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: expected rows before and after, like 5,5") from error
    return before, after


def _within(number: float, least: float, most: float = 2**31 - 1) -> float:
    if not least <= number <= most:  # not NaN, either
        raise ValueError(number)
    return number


def parse_splits(text: str, block_count: int) -> tuple[int, ...]:
    """`auto` (candidates from a third to two thirds of the layers) or a comma-separated list."""
    if text == "auto":
        return candidate_splits(block_count)
    return tuple(sorted(parse_list("--splits", text, int, "auto or a list like 12,16")))


def _check_output(path: Path | None) -> Path | None:
    check_output(path)
    return path


def _check_lines(path: Path | None) -> Path | None:
    check_output(path, appends=True)
    return path


def _check_budget(budget: float | None) -> float | None:
    if budget is not None and not 0 < budget <= 1:
        raise UsageError(f"--budget {budget:g}: expected a share above 0 and up to 1")
    return budget


def _check_type(weight_type: str | None) -> str | None:
    return None if weight_type is None else choice("--type", weight_type, WEIGHT_TYPES)


ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="The model's GGUF.")]
MapsArgument = Annotated[Path, typer.Argument(metavar="MAPS", help="A maps file.")]
OutputOption = Annotated[
    Path, typer.Option("--output", "-o", callback=_check_output, help="File to write; replaced when complete.")
]
# for commands that make one document, see `report`
JsonOption = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", callback=_check_output, help="Write the numbers as JSON; - for stdout."),
]
# for commands that append lines and go on from them
LinesOption = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        callback=_check_lines,
        help="Append results to this JSON lines file; what it has is not run again. - for stdout.",
    ),
]
WeightTypeOption = Annotated[
    str, typer.Option("--type", callback=_check_type, help=f"Weight type: {', '.join(WEIGHT_TYPES)}.")
]
SameTypeOption = Annotated[
    str | None,
    typer.Option("--type", callback=_check_type, help=f"Weight type: {', '.join(WEIGHT_TYPES)} [as in the file]."),
]
BudgetOption = Annotated[
    float | None,
    typer.Option("--budget", callback=_check_budget, help="Share of the filled rows that is selected, up to 1."),
]
TargetOption = Annotated[str, typer.Option("--target", help="What the maps predict: proj or input.")]
ThreadsOption = Annotated[int, typer.Option("--threads", min=0, help="0: the CPUs that this process may use.")]
UbatchOption = Annotated[int, typer.Option("--ubatch-size", min=1, help="Tokens per decode.")]
GpuOption = Annotated[int, typer.Option("--n-gpu-layers", help="Layers on the GPU.")]


def command_line() -> str:
    """The command that is running, as it can be typed again."""
    return shlex.join(["pyridgefill", *sys.argv[1:]])


def run_info(threads: int) -> dict[str, Any]:
    """What every line of results says of its run: command and machine; `threads` 0: all CPUs of the process."""
    return {"command": command_line(), "machine": describe_machine(threads or len(os.sched_getaffinity(0)))}


def format_recall(recall: tuple[float, ...]) -> str:
    """A head's recall at each budget."""
    return " / ".join(f"{value:.2f}" for value in recall)


def report(json_file: Path | None, document: Any, show: Callable[[], None]) -> None:
    """Write a document where `--json` says, and show the table unless the document took its place.

    Parameters
    ----------
    json_file
        Of `JsonOption`.
    document
        What JSON can say; numbers that were not measured are null.
    show
        Prints the table.
    """
    if json_file == STDOUT:
        print_json(document)
        return
    if json_file is not None:
        with replacing(json_file) as path:
            # half of a pair of code units, which a file name can have, is written as its escape
            path.write_text(_json(document, ascii_only=False), encoding="utf-8", errors="backslashreplace")
    show()


def print_json(value: Any) -> None:
    """Print JSON; numbers that were not measured are null."""
    typer.echo(_json(value, ascii_only=(sys.stdout.encoding or "ascii").lower() != "utf-8"), nl=False)


def _json(value: Any, *, ascii_only: bool) -> str:
    return json.dumps(plain(value), ensure_ascii=ascii_only, indent=2) + "\n"


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
