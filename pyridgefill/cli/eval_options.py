"""Options that all evaluations share, and the run that they describe."""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.table import Table

from pyridgefill import defaults
from pyridgefill.cli import common
from pyridgefill.cli.common import GpuOption, LinesOption, MapsArgument, ModelArgument, ThreadsOption
from pyridgefill.config import RidgeFillConfig
from pyridgefill.errors import RidgeFillError, UsageError
from pyridgefill.files import STDOUT
from pyridgefill.maps import read_base_model, read_maps
from pyridgefill.maps.base import difference, trained_ctx

if TYPE_CHECKING:
    from pyridgefill.evaluation.run.lab import Lab, Outcome
    from pyridgefill.evaluation.run.task import Found, Task
    from pyridgefill.evaluation.run.way import Way

# tokens behind a prompt: an answer, a continuation
ANSWER_ROOM = 256

TextsOption = Annotated[int, typer.Option("--texts", min=1, help="Texts of each length.")]
NearOption = Annotated[
    int | None, typer.Option("--near", help="First tokens of the tail that are not scored [128, or half of the tail].")
]
ThresholdOption = Annotated[
    float, typer.Option("--threshold", min=0, help="What far context is worth to a far token: nats.")
]


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Fields are command line parameters, see `with_options`."""

    model: ModelArgument
    maps: MapsArgument
    ctx: Annotated[str, typer.Option("--ctx", help="Tokens of the prompts, like 2048,4096.")] = str(defaults.CTX)
    beyond_training: Annotated[
        bool, typer.Option("--beyond-training", help="Allow prompts longer than the model was trained for.")
    ] = False
    split: Annotated[int | None, typer.Option("--split", min=0, help="[as the maps file recommends].")] = None
    tail: Annotated[int | None, typer.Option("--tail", min=1, help="Exact rows at the end [as recommended].")] = None
    sink: Annotated[int | None, typer.Option("--sink", min=0, help="Exact rows at the start [as recommended].")] = None
    select: Annotated[str, typer.Option("--select", help="none, stride or attention [as recommended].")] = ""
    budget: common.BudgetOption = None
    heads: Annotated[str, typer.Option("--heads", help="Retrieval heads like 9.6,11.1 [the maps file's].")] = ""
    pool: Annotated[
        str, typer.Option("--pool", help="Rows before and after a row over which its score halves, like 5,5.")
    ] = ""
    queries: Annotated[int | None, typer.Option("--queries", min=1, help="Last rows whose queries score.")] = None
    baselines: Annotated[
        str, typer.Option("--baselines", help="Some of identity,mean,zero,drop,neutral-filler.")
    ] = ""  # fmt: skip
    statistics: Annotated[
        Path | None, typer.Option("--statistics", help="Sums for the baseline mean [collected from built-in text].")
    ] = None
    corpus: Annotated[str, typer.Option("--corpus", help="Text file or built-in corpus.")] = "stdlib-packages"
    seed: Annotated[int, typer.Option("--seed", help="Of prompts and intervals.")] = 0
    threads: ThreadsOption = 0
    n_gpu_layers: GpuOption = 0
    json: LinesOption = None

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of the prompts, each number once."""
        return common.parse_ints("--ctx", self.ctx, least=1)

    def config(self) -> RidgeFillConfig:
        """The fill that is measured."""
        return RidgeFillConfig(
            self.maps,
            split=self.split,
            sink=self.sink,
            tail=self.tail,
            select=common.choice("--select", self.select, ("none", "stride", "attention")) if self.select else None,
            budget=self.budget,
            heads=common.parse_heads("--heads", self.heads),
            pool=common.parse_pool("--pool", self.pool) if self.pool else None,
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


class Evaluation:
    """The run that options describe. Everything is checked before the model is loaded.

    Parameters
    ----------
    options
        From the command line.
    selects
        Whether rows may be selected.
    info
        What lines say beside command and machine.

    Attributes
    ----------
    config
        The fill that is measured; nothing in it is None.
    shapes
        What tasks of each length share.

    Raises
    ------
    RidgeFillError
        If the maps are of another model, an option has no meaning, or prompts are too short or too long.
    """

    def __init__(self, options: EvalOptions, *, selects: bool = True, **info: Any) -> None:
        # these load the native library
        from pyridgefill.evaluation.run.results import ResultFile
        from pyridgefill.evaluation.run.settings import resolve
        from pyridgefill.evaluation.run.task import Params
        from pyridgefill.evaluation.run.ways import baselines

        self._options = options
        self._baselines = (
            common.parse_names("--baselines", options.baselines, baselines()) if options.baselines else ()
        )  # fmt: skip
        lengths, config = options.lengths, options.config()
        self._results = ResultFile(None if options.json == STDOUT else options.json)
        stored, base = read_maps(options.maps), read_base_model(options.model)
        if stored.base != base:
            raise RidgeFillError(
                f"{options.maps}: made for another model than {options.model}: {difference(base, stored.base)}",
                "give this model's maps",
            )
        most = trained_ctx(options.model)
        if most is not None and max(lengths) > most and not options.beyond_training:
            raise UsageError(
                f"--ctx {max(lengths)}: {options.model} was trained for prompts of up to {most} tokens",
                "--beyond-training measures it all the same",
            )
        self.config = resolve(config, stored)
        if not selects and self.config.select != "none":
            raise UsageError(f"--select {self.config.select}: all rows must be filled here", "add --select none")
        assert self.config.sink is not None
        assert self.config.tail is not None
        self.shapes = [
            Params(ctx=ctx, sink=self.config.sink, tail=self.config.tail, seed=options.seed, corpus=options.corpus)
            for ctx in lengths
        ]
        self._info = {**common.run_info(options.threads), "maps": options.maps.name, **info}

    @contextmanager
    def lab(self, *, n_sequences: int = 1) -> Iterator[tuple[Lab, list[Way], Path]]:
        """Load the model, and make the ways; the folder is deleted afterwards."""
        from pyridgefill.evaluation.run import ways
        from pyridgefill.evaluation.run.lab import Lab
        from pyridgefill.evaluation.run.session import Session
        from pyridgefill.evaluation.run.way import Recipe

        options = self._options
        with tempfile.TemporaryDirectory(prefix="ridgefill-") as name:
            folder = Path(name)
            with common.progress_bar() as bar:

                def show(done: int, total: int) -> None:
                    task = bar.task_ids[0] if bar.task_ids else bar.add_task("collect means", total=total)
                    bar.update(task, completed=min(done, total))

                recipe = Recipe(options.model, self.config, folder, options.statistics, options.threads, show)
                made = ways.make_ways(self._baselines, recipe)
            with Session(
                options.model,
                n_ctx=max(options.lengths) + ANSWER_ROOM,
                n_threads=options.threads,
                n_gpu_layers=options.n_gpu_layers,
                n_sequences=max(n_sequences, ways.n_sequences(self._baselines)),
            ) as session:
                yield Lab(options.model, session, self._results, self._info), made, folder

    def run(self, tasks: Sequence[Task[Any, Any, Any, Found]]) -> list[Outcome[Found]]:
        """Run tasks in all ways."""
        with self.lab() as (lab, ways, _):
            return run_tasks(lab, tasks, ways)

    def report(self, table: Table) -> None:
        """Show a table, or with `--json -` the lines of results in its place."""
        if self._options.json != STDOUT:
            common.stdout.print(table)
            return
        for record in self._results.records():
            typer.echo(json.dumps(record._asdict()))


def run_tasks(
    lab: Lab, tasks: Iterable[Task[Any, Any, Any, Found]], ways: Sequence[Way]
) -> list[Outcome[Found]]:  # fmt: skip
    """Run tasks with a bar that shows the time left."""
    with common.progress_bar() as bar:
        task = bar.add_task("prompts", total=None)
        return lab.run(
            tasks,
            ways,
            on_start=lambda total: bar.update(task, total=total),
            advance=lambda: bar.update(task, advance=1),
        )
