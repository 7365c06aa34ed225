"""The command that sweeps settings and writes a report."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.progress import Progress as Bar
from rich.progress import TaskID

from pyridgefill import defaults
from pyridgefill.calibration.statistics_file import Summary, read_summary
from pyridgefill.cli import common
from pyridgefill.cli.common import ModelArgument
from pyridgefill.cli.eval_options import ANSWER_ROOM
from pyridgefill.errors import Interrupted, RidgeFillError
from pyridgefill.files import check_output, replacing
from pyridgefill.maps import WEIGHT_TYPES, Recommended, read_base_model
from pyridgefill.maps.model import TARGETS
from pyridgefill.report import require_plotly, write_page
from pyridgefill.tuning.grid import Grid

_Number = TypeVar("_Number", int, float)


def tune(
    model: ModelArgument,
    statistics: Annotated[Path, typer.Argument(metavar="STATS", help="Sums made by pyridgefill collect.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The report, an HTML file that needs no other.")],
    json_file: Annotated[
        Path | None, typer.Option("--json", help="The numbers behind it; by default the report's name with .json.")
    ] = None,
    splits: Annotated[str, typer.Option("--splits", help="all that the sums have, or a list like 12,16.")] = "all",
    budgets: Annotated[
        str, typer.Option("--budgets", help="Shares of the filled rows that are selected; 0: none.")
    ] = "0,0.05,0.1",
    tails: Annotated[str, typer.Option("--tails", help="Exact rows at the end, like 256,512.")] = "256",
    targets: Annotated[
        str, typer.Option("--targets", help="proj, input, or both; the first is swept, the other tried at the end.")
    ] = "proj",
    ranks: Annotated[str, typer.Option("--ranks", help="Of the maps, like 0,64; 0: full. As for targets.")] = "0",
    types: Annotated[
        str, typer.Option("--types", help=f"Weight types among {', '.join(WEIGHT_TYPES)}. As for targets.")
    ] = "f16,q8_0",
    ctx: Annotated[list[int] | None, typer.Option("--ctx", help="Tokens of the prompts; repeatable [2048].")] = None,
    needles: Annotated[int, typer.Option("--needles", min=1, help="Needles of each kind and length.")] = 20,
    kinds: Annotated[
        list[str] | None, typer.Option("--kinds", help="As for eval needle; repeatable; by default multi-key.")
    ] = None,
    keys: Annotated[int, typer.Option("--keys", min=2, help="Needles in one text of kind multi-key.")] = 4,
    texts: Annotated[int, typer.Option("--texts", min=1, help="Texts of each length, for losses and divergence.")] = 8,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Pairs of timing runs for each setting.")] = 3,
    baseline: Annotated[
        list[str] | None,
        typer.Option("--baseline", help="Run at the best setting; repeatable; by default all; none: none."),
    ] = None,
    splice: Annotated[
        Path | None, typer.Option("--splice", help="Results of pyridgefill eval splice to show, a JSON lines file.")
    ] = None,
    head_prompts: Annotated[
        int, typer.Option("--head-prompts", min=1, help="Needles of each kind and length to find retrieval heads.")
    ] = defaults.HEAD_PROMPTS_CALIBRATE,
    max_loss_increase: Annotated[
        float, typer.Option("--max-loss-increase", min=0, help="Of the loss on the tail, that is as good as none.")
    ] = defaults.MAX_LOSS_INCREASE,
    sink: Annotated[int, typer.Option("--sink", min=0, help="Exact rows at the start.")] = defaults.SINK,
    corpus: Annotated[str, typer.Option("--corpus", help="Text file or built-in corpus.")] = "stdlib-packages",
    seed: Annotated[int, typer.Option("--seed", help="Of prompts and intervals.")] = 0,
    threads: Annotated[int, typer.Option("--threads", min=0, help="0: the CPUs that this process may use.")] = 0,
    n_gpu_layers: Annotated[int, typer.Option("--n-gpu-layers", help="Layers on the GPU.")] = 0,
) -> None:
    """Find the best setting for a model: a sweep over splits, budgets, tails and maps, and a report of what each costs.

    Each setting is timed, and measured on needles, far-token loss and KL divergence, beside exact and baselines.
    Results and maps are kept beside the report as they come: the same command, run again, goes on from there.
    """
    require_plotly()
    check_output(output)
    if splice is not None and not splice.is_file():
        raise RidgeFillError(f"{splice}: no such file", "pyridgefill eval splice --json makes it")
    numbers = json_file or output.with_suffix(".json")
    check_output(numbers)
    _check_names(model, statistics, output, numbers, splice)
    base = read_base_model(model)
    summary = read_summary(statistics)
    if summary.base != base:
        raise RidgeFillError(f"{statistics}: collected from another model than {model}", "collect from this model")
    grid = _grid(summary, splits, budgets, tails, targets, ranks, types)
    threads = threads or len(os.sched_getaffinity(0))

    # these load the native library
    from pyridgefill.evaluation.run.lab import Lab
    from pyridgefill.evaluation.run.results import ResultFile
    from pyridgefill.evaluation.run.session import Session
    from pyridgefill.evaluation.run.task import Params
    from pyridgefill.evaluation.run.ways import baselines, n_sequences
    from pyridgefill.tuning.document import make_document
    from pyridgefill.tuning.maps import MapStore
    from pyridgefill.tuning.sweep import Plan, Sweep

    lengths = tuple(sorted(set(ctx or [defaults.CTX])))
    chosen = tuple(baselines()) if baseline is None else tuple(name for name in baseline if name != "none")
    for name in chosen:
        common.choice("--baseline", name, tuple(baselines()))
    plan = Plan(grid, lengths, tuple(kinds or ["multi-key"]), needles, keys, texts, repeats, chosen, max_loss_increase)
    results, splices = ResultFile(output.with_suffix(".jsonl")), ResultFile(splice)
    folder = output.with_suffix(".maps")
    folder.mkdir(exist_ok=True)
    engine = {"n_threads": threads, "n_gpu_layers": n_gpu_layers}
    recommended = Recommended(sink=sink, tail=grid.tails[0], min_prompt=defaults.MIN_PROMPT)
    with (
        tempfile.TemporaryDirectory(prefix="ridgefill-") as temporary,
        common.progress_bar() as bar,
        Session(model, n_ctx=max(lengths) + ANSWER_ROOM, n_sequences=n_sequences(chosen), **engine) as session,
    ):
        store = MapStore(
            model, statistics, folder, results, recommended=recommended, prompts=head_prompts,
            on_step=_Steps(bar).show, **engine,
        )  # fmt: skip
        shape = Params(ctx=max(lengths), sink=sink, tail=grid.tails[0], seed=seed, corpus=corpus)
        info = common.run_info(threads)
        lab = Lab(model, session, results, info)
        sweep = Sweep(plan, lab, shape, store, statistics, Path(temporary), _Prompts(bar))
        try:
            sweep.run()
        except KeyboardInterrupt:
            raise Interrupted("interrupted", "finished results are kept, run the same command again") from None
        document = make_document(
            sweep,
            base,
            machine=info["machine"],
            provenance=summary.provenance,
            command=["pyridgefill", *sys.argv[1:]],
            seeds={"prompts": seed, "intervals": seed, "retrieval heads": 0},
            splices=splices,
        )
    with replacing(numbers) as path:
        path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    write_page(output, document)
    best = document["recommended"]
    common.stdout.print(best["reason"], highlight=False)
    common.stdout.print(best["command"], highlight=False)
    common.stdout.print(f"report: {output}, numbers: {numbers}", highlight=False)


def _check_names(model: Path, statistics: Path, output: Path, numbers: Path, splice: Path | None) -> None:
    """Raise if a file that is written would take the place of another one."""
    names = {
        "the report": output,
        "its numbers": numbers,
        "its results": output.with_suffix(".jsonl"),
        "the folder of its maps": output.with_suffix(".maps"),
        "the model": model,
        "the sums": statistics,
        **({} if splice is None else {"the splice results": splice}),
    }
    seen: dict[Path, str] = {}
    for what, path in names.items():
        if other := seen.get(path.resolve()):
            raise RidgeFillError(f"{path}: {other} and {what} in one place", "give the report a name like report.html")
        seen[path.resolve()] = what


def _grid(summary: Summary, splits: str, budgets: str, tails: str, targets: str, ranks: str, types: str) -> Grid:
    found = summary.splits if splits == "all" else common.parse_splits(splits, summary.base.block_count)
    for split in found:
        if split not in summary.splits:
            raise RidgeFillError(f"--splits: split {split} was not collected", f"choose among {list(summary.splits)}")
    for target in targets.split(","):
        if common.choice("--targets", target, TARGETS) not in summary.targets:
            raise RidgeFillError(f"--targets: {target} was not collected", "collect with --target both")
    return Grid(
        found,
        _numbers("--budgets", budgets, float),
        _numbers("--tails", tails, int),
        tuple(targets.split(",")),  # type: ignore[arg-type]  # checked by choice
        _numbers("--ranks", ranks, int),
        tuple(common.choice("--types", part, tuple(WEIGHT_TYPES)) for part in types.split(",")),
    )


def _numbers(option: str, text: str, kind: Callable[[str], _Number]) -> tuple[_Number, ...]:
    try:
        return tuple(dict.fromkeys(kind(part) for part in text.split(",")))
    except ValueError as error:
        raise RidgeFillError(f"{option} {text!r}: expected a list like 1,2") from error


class _Steps:
    """Shows the making of maps: one task for each kind of step."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._tasks: dict[str, TaskID] = {}

    def show(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what)
        self._bar.update(self._tasks[what], completed=done, total=total)


class _Prompts:
    """Shows the sweep: prompts done and left."""

    def __init__(self, bar: Bar) -> None:
        self._bar, self._total = bar, 0
        self._task: TaskID | None = None

    def total(self, units: int) -> None:
        self._total += units
        if self._task is None:
            self._task = self._bar.add_task("sweep")
        self._bar.update(self._task, total=self._total)

    def advance(self) -> None:
        assert self._task is not None
        self._bar.advance(self._task)
