"""Options that all evaluations share, and the run that they describe."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from pyridgefill import defaults
from pyridgefill.cli import common
from pyridgefill.config import RidgeFillConfig
from pyridgefill.errors import RidgeFillError
from pyridgefill.maps import read_base_model, read_maps
from pyridgefill.maps.base import difference

if TYPE_CHECKING:
    from pyridgefill.evaluation.run.lab import Job, Lab
    from pyridgefill.evaluation.tasks.jobs import Setting

# tokens behind a prompt: an answer, a continuation
ANSWER_ROOM = 256

TextsOption = Annotated[int, typer.Option("--texts", min=1, help="Texts of each length.")]
NearOption = Annotated[
    int, typer.Option("--near", help="First tokens of the tail that are not scored; -1: 128, or half of the tail.")
]
ThresholdOption = Annotated[
    float, typer.Option("--threshold", min=0, help="What far context is worth to a far token: nats.")
]


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Fields are command line parameters, see `with_options`."""

    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The model's GGUF.")]
    maps: Annotated[Path, typer.Argument(metavar="MAPS", help="A maps file.")]
    ctx: Annotated[list[int] | None, typer.Option("--ctx", help="Tokens of the prompts; repeatable [2048].")] = None
    split: Annotated[int, typer.Option("--split", help="-1: the one that the maps file recommends.")] = -1
    tail: Annotated[int, typer.Option("--tail", help="Exact rows at the end; -1: as recommended.")] = -1
    sink: Annotated[int, typer.Option("--sink", help="Exact rows at the start; -1: as recommended.")] = -1
    select: Annotated[str, typer.Option("--select", help="none, stride or attention [as recommended].")] = ""
    budget: common.BudgetOption = None
    heads: Annotated[str, typer.Option("--heads", help="Retrieval heads like 9.6,11.1; else the maps file's.")] = ""
    pool: Annotated[
        str, typer.Option("--pool", help="Rows before and after a row over which its score halves: like 5,5.")
    ] = ""
    queries: Annotated[int | None, typer.Option("--queries", min=1, help="Last rows whose queries score.")] = None
    baseline: Annotated[
        list[str] | None, typer.Option("--baseline", help="identity, mean, zero, drop or neutral-filler; repeatable.")
    ] = None
    statistics: Annotated[
        Path | None, typer.Option("--statistics", help="Sums for the baseline mean [collected from built-in text].")
    ] = None
    corpus: Annotated[str, typer.Option("--corpus", help="Text file or built-in corpus.")] = "stdlib-packages"
    seed: Annotated[int, typer.Option("--seed", help="Of prompts and intervals.")] = 0
    threads: Annotated[int, typer.Option("--threads", min=0, help="0: the CPUs that this process may use.")] = 0
    n_gpu_layers: Annotated[int, typer.Option("--n-gpu-layers", help="Layers on the GPU.")] = 0
    json: Annotated[
        Path | None,
        typer.Option("--json", help="Append results to this JSON lines file; what it has is not run again."),
    ] = None

    @property
    def lengths(self) -> list[int]:
        """Tokens of the prompts, each number once."""
        return list(dict.fromkeys(self.ctx or [defaults.CTX]))

    def config(self) -> RidgeFillConfig:
        """The fill that is measured."""
        return RidgeFillConfig(
            self.maps,
            split=None if self.split < 0 else self.split,
            sink=None if self.sink < 0 else self.sink,
            tail=None if self.tail < 0 else self.tail,
            select=common.choice("--select", self.select, ("none", "stride", "attention")) if self.select else None,
            budget=self.budget,
            heads=_heads(self.heads),
            pool=_pair(self.pool) if self.pool else None,
            queries=self.queries,
        )


def with_options(command: Callable[..., None], unused: tuple[str, ...] = ()) -> Callable[..., None]:
    """Replace a command's first parameter, an EvalOptions, by one parameter for each of its fields but the unused."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    hints = get_type_hints(EvalOptions, include_extras=True)
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=inspect.Parameter.empty if field.name in ("model", "maps") else field.default,
        )
        for field in fields(EvalOptions)
        if field.name not in unused
    ]
    names = {parameter.name for parameter in shared}

    def run(**values: Any) -> None:
        options = EvalOptions(**{name: value for name, value in values.items() if name in names})
        command(options, **{name: value for name, value in values.items() if name not in names})

    parameters = [*shared, *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


@contextmanager
def lab(options: EvalOptions, *, spliced: bool = False) -> Iterator[tuple[Lab, Setting, Path]]:
    """Load the model, make the baselines, and open the results; the folder is deleted afterwards.

    With `spliced` the ways run in two parts.
    """
    # these load the native library
    from pyridgefill.chat import chat_formatter
    from pyridgefill.evaluation.run.lab import Lab
    from pyridgefill.evaluation.run.results import ResultFile
    from pyridgefill.evaluation.run.session import Session
    from pyridgefill.evaluation.run.settings import resolve
    from pyridgefill.evaluation.run.spliced import Spliced, States
    from pyridgefill.evaluation.run.way import Recipe
    from pyridgefill.evaluation.run.ways import make_ways, n_sequences
    from pyridgefill.evaluation.tasks.jobs import Setting

    results = ResultFile(options.json)
    stored = read_maps(options.maps)
    base = read_base_model(options.model)
    if stored.base != base:
        raise RidgeFillError(
            f"{options.maps}: made for another model than {options.model}: {difference(base, stored.base)}",
            "give this model's maps",
        )
    config = resolve(options.config(), stored)
    with tempfile.TemporaryDirectory(prefix="ridgefill-") as name:
        folder = Path(name)
        with common.progress_bar() as bar:

            def show(done: int, total: int) -> None:
                task = bar.task_ids[0] if bar.task_ids else bar.add_task("collect means", total=total)
                bar.update(task, completed=min(done, total))

            recipe = Recipe(options.model, config, folder, options.statistics, options.threads, show)
            ways = make_ways(options.baseline or [], recipe)
        n_ctx = max(options.lengths) + ANSWER_ROOM
        assert config.sink is not None
        assert config.tail is not None
        sequences = n_sequences(["splice" if spliced else "fill", *(options.baseline or [])])
        engine = {"n_threads": options.threads, "n_gpu_layers": options.n_gpu_layers, "n_sequences": sequences}
        if spliced:
            states = States(folder, sink=config.sink, tail=config.tail)
            ways = [Spliced(way, None, states) for way in ways]
        with Session(options.model, n_ctx=n_ctx, **engine) as session:
            chat = chat_formatter(session, add_generation_prompt=True)
            setting = Setting(session, chat, ways, config.sink, config.tail, options.seed, options.corpus)
            info = {**common.run_info(options.threads), "maps": options.maps.name}
            yield Lab(options.model, session, results, info), setting, folder


def run_jobs(lab: Lab, jobs: list[Job]) -> list[tuple[Job, dict[str, Any]]]:
    """Run jobs with a bar that shows the time left."""
    with common.progress_bar() as bar:
        task = bar.add_task("prompts", total=None)
        return lab.run(
            jobs, on_start=lambda total: bar.update(task, total=total), advance=lambda: bar.update(task, advance=1)
        )


def _pair(text: str) -> tuple[int, int]:
    try:
        before, after = map(int, text.split(","))
    except ValueError as error:
        raise RidgeFillError(f"--pool {text!r}: expected rows before and after, like 5,5") from error
    return before, after


def _heads(text: str) -> tuple[tuple[int, int], ...]:
    if not text:
        return ()
    try:
        pairs = [part.split(".") for part in text.split(",")]
        return tuple((int(layer), int(head)) for layer, head in pairs)
    except ValueError as error:
        raise RidgeFillError(f"--heads {text!r}: expected layer.head, like 9.6,11.1") from error
