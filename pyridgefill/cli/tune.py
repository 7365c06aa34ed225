"""The command that sweeps settings and writes a report."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress as Bar
from rich.progress import TaskID

from pyridgefill import defaults
from pyridgefill.calibration.statistics_file import Summary, read_summary
from pyridgefill.cli import common
from pyridgefill.cli.common import GpuOption, ModelArgument, ThreadsOption
from pyridgefill.cli.eval_options import ANSWER_ROOM
from pyridgefill.errors import Interrupted, RidgeFillError
from pyridgefill.evaluation.prompts.kinds import KINDS
from pyridgefill.files import check_output
from pyridgefill.maps import WEIGHT_TYPES, Recommended, read_base_model
from pyridgefill.maps.model import TARGETS
from pyridgefill.report import require_plotly, write_page
from pyridgefill.selection.recommend import THOROUGH, Effort
from pyridgefill.tuning.grid import Grid


def tune(
    model: ModelArgument,
    statistics: Annotated[Path, typer.Argument(metavar="STATS", help="Sums made by pyridgefill collect.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The report, an HTML file that needs no other.")],
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="The numbers [the report's name with .json]; - for stdout."),
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
    ctx: Annotated[str, typer.Option("--ctx", help="Tokens of the prompts, like 2048,4096.")] = str(defaults.CTX),
    needles: Annotated[
        int, typer.Option("--needles", min=1, help="Needles of each kind and length.")
    ] = THOROUGH.needles,
    kinds: Annotated[str, typer.Option("--kinds", help="As for eval needle.")] = ",".join(THOROUGH.kinds),
    keys: Annotated[int, typer.Option("--keys", min=2, help="Needles in one text of kind multi-key.")] = THOROUGH.keys,
    texts: Annotated[
        int, typer.Option("--texts", min=1, help="Texts of each length, for losses and divergence.")
    ] = THOROUGH.texts,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Pairs of timing runs for each setting.")
    ] = THOROUGH.repeats,
    baseline_names: Annotated[
        str, typer.Option("--baselines", help="Run at the best setting: all, none, or some of them.")
    ] = "all",
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
    threads: ThreadsOption = 0,
    n_gpu_layers: GpuOption = 0,
) -> None:
    """Find the best setting for a model: a sweep over splits, budgets, tails and maps, and a report of what each costs.

    Each setting is timed, and measured on needles, far-token loss and KL divergence, beside exact and baselines.
    Results and maps are kept beside the report as they come: the same command, run again, goes on from there.
    """
    require_plotly()
    numbers = json_file or output.with_suffix(".json")
    check_output(output)
    check_output(numbers)
    lengths = tuple(sorted(common.parse_ints("--ctx", ctx, least=1)))
    kind_names = common.parse_names("--kinds", kinds, (*KINDS, *THOROUGH.kinds))
    if splice is not None and not splice.is_file():
        raise RidgeFillError(f"{splice}: no such file", "pyridgefill eval splice --json makes it")
    _check_names(model, statistics, output, numbers, splice)
    base = read_base_model(model)
    summary = read_summary(statistics)
    if summary.base != base:
        raise RidgeFillError(f"{statistics}: collected from another model than {model}", "collect from this model")
    grid = _grid(summary, splits, budgets, tails, targets, ranks, types)
    threads = threads or len(os.sched_getaffinity(0))

    # these load the native library
    from pyridgefill.evaluation.run.lab import Lab
    from pyridgefill.evaluation.run.results import ResultFile, plain
    from pyridgefill.evaluation.run.session import Session
    from pyridgefill.evaluation.run.task import Params
    from pyridgefill.evaluation.run.typed import to_json
    from pyridgefill.evaluation.run.ways import baselines, n_sequences
    from pyridgefill.tuning.document import make_document
    from pyridgefill.tuning.maps import MapStore
    from pyridgefill.tuning.sweep import Plan, Sweep

    chosen = {"all": tuple(baselines()), "none": ()}.get(baseline_names)
    if chosen is None:
        chosen = common.parse_names("--baselines", baseline_names, baselines())
    effort = Effort(lengths, kind_names, needles, keys, texts, repeats)
    plan = Plan(grid, effort, chosen, max_loss_increase)
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
    write_page(output, document)

    def show() -> None:
        common.stdout.print(document.recommended.reason, highlight=False)
        common.stdout.print(document.recommended.command, highlight=False)
        common.stdout.print(f"report: {output}, numbers: {numbers}", highlight=False)

    common.report(numbers, plain(to_json(document)), show)


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
    wanted = common.parse_names("--targets", targets, TARGETS)
    for target in wanted:
        if target not in summary.targets:
            raise RidgeFillError(f"--targets: {target} was not collected", "collect with --target both")
    return Grid(
        found,
        common.parse_floats("--budgets", budgets, most=1),
        common.parse_ints("--tails", tails, least=1),
        wanted,
        common.parse_ints("--ranks", ranks),
        common.parse_names("--types", types, WEIGHT_TYPES),
    )


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
