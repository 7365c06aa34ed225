"""Entry point: commands, errors in one line, exit codes.

0: done; 1: a file, the model or the machine would not; 2: wrong usage, also a value that an option cannot have;
130: interrupted.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from pyridgefill import __version__
from pyridgefill.cli import (
    bench,
    calibration,
    card,
    eval_splice,
    evaluate,
    fetch,
    harness,
    heads,
    map_files,
    serve,
    tune,
)
from pyridgefill.errors import Interrupted, RidgeFillError, UsageError

app = typer.Typer(
    name="pyridgefill",
    help="Cut the time to first token of long prompts: make maps for a model, measure them, and serve with them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # brackets in help texts are meant
    pretty_exceptions_enable=False,
)

app.command("calibrate")(calibration.calibrate)
app.command("collect")(calibration.collect)
app.command("merge")(calibration.merge)
app.command("fit")(calibration.fit)
app.command("pack")(map_files.pack)
app.command("repack")(map_files.repack)
app.command("heads")(heads.heads)
app.command("bench")(bench.bench)
app.command("tune")(tune.tune)
app.command("inspect")(map_files.inspect)
app.command("card")(card.card)
evaluate.app.command("splice")(eval_splice.splice)
app.add_typer(evaluate.app, name="eval")
app.command("fetch-model")(fetch.fetch)
app.command("lm-eval", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(harness.lm_eval)
app.command("serve", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(serve.serve)

_CODES = {UsageError: 2, Interrupted: 130}


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback with each error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Predict what a model's upper layers write into the KV cache, so that long prompts start sooner."""


def run(arguments: Sequence[str], *, interrupted: Callable[[], bool] = lambda: False) -> int:
    """Run one command and return its exit code; errors go to stderr in one line.

    Parameters
    ----------
    arguments
        Without the program's name.
    interrupted
        Whether Ctrl-C was pressed, which may come back as another error.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a console that lacks a character must not end a command that has written its file
            stream.reconfigure(errors="backslashreplace")
    debug = "--debug" in arguments[:1]
    try:
        result = typer.main.get_command(app)(args=list(arguments), prog_name="pyridgefill", standalone_mode=False)
    except typer.TyperException as error:
        message = error.format_message()
        if type(error).__name__ == "NoArgsIsHelpError":
            print(message, file=sys.stderr)  # the help of a group of commands
            message = "a command is missing"
        return _fail(message or "a command is missing", error.exit_code, hint="see --help")
    except RidgeFillError as error:
        if interrupted() and not isinstance(error, Interrupted):
            return _fail("interrupted", 130)
        if debug:
            raise
        return _fail(str(error), next((code for kind, code in _CODES.items() if isinstance(error, kind)), 1))
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:
        return 1
    except (OSError, MemoryError) as error:
        if debug:
            raise
        return _fail(f"{type(error).__name__}: {error}", 1)
    except Exception as error:
        if interrupted():
            return _fail("interrupted", 130)
        if debug:
            raise
        return _fail(f"unexpected {type(error).__name__}: {error}", 1, hint="run pyridgefill --debug ... and report it")
    if result == 130:
        return _fail("interrupted", 130)  # typer's own handling of Ctrl-C says nothing
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int, hint: str = "") -> int:
    text = f"{message} (hint: {hint})" if hint else message
    print("error:", " ".join(text.split()), file=sys.stderr)
    return code
