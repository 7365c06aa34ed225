"""Commands that make maps from text: calibrate, and its steps collect, merge and fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import TaskID
from rich.table import Table

from pyridgefill import defaults
from pyridgefill.calibration.builtin_corpora import BUILTIN, DEFAULT_CORPORA
from pyridgefill.calibration.collect import CollectOptions
from pyridgefill.calibration.collect import collect as run_collect
from pyridgefill.calibration.collect_run import OnStep, Step
from pyridgefill.calibration.corpus import Corpus
from pyridgefill.calibration.fit import FitOptions, fit_maps, warn_unmeasured
from pyridgefill.calibration.statistics import Statistics
from pyridgefill.calibration.statistics import merge as merge_statistics
from pyridgefill.calibration.statistics_file import read_statistics, write_statistics
from pyridgefill.calibration.sums import Settings
from pyridgefill.cli import common
from pyridgefill.cli.common import (
    GpuOption,
    JsonOption,
    ModelArgument,
    OutputOption,
    TargetOption,
    ThreadsOption,
    UbatchOption,
    WeightTypeOption,
)
from pyridgefill.errors import Interrupted
from pyridgefill.files import check_output
from pyridgefill.maps import MapSet, Recommended, read_base_model, write_maps
from pyridgefill.maps.model import FEATURE_NORMS, TARGETS
from pyridgefill.maps.write import check_weight_type
from pyridgefill.words import signed_percent

if TYPE_CHECKING:
    from pyridgefill.selection.propose import Proposal

CorpusOption = Annotated[
    list[str] | None,
    typer.Option("--corpus", help=f"Text file, chat .jsonl, or {', '.join(BUILTIN)}; may be repeated."),
]
SplitsOption = Annotated[str, typer.Option("--splits", help="auto, or a list like 12,16.")]
TokensOption = Annotated[int, typer.Option("--tokens", min=0, help="Stop after that many tokens; 0: all.")]
ContextOption = Annotated[int, typer.Option("--ctx", min=16, help="Tokens per chunk of text.")]
NonfiniteOption = Annotated[str, typer.Option("--nonfinite", help="Rows with NaN or infinity: skip or error.")]
ErrorsOption = Annotated[str, typer.Option("--errors", help="Bytes that are not UTF-8: strict or replace.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")]
HeldOutOption = Annotated[float, typer.Option("--held-out", min=0, max=0.9, help="Share of held-out documents.")]
SkipFirstOption = Annotated[int, typer.Option("--skip-first", min=0, help="First rows of a chunk to leave out.")]
MassiveOption = Annotated[
    float, typer.Option("--massive-ratio", min=1, help="Leave rows out whose norm is that many times the median.")
]
NormOption = Annotated[str, typer.Option("--feature-norm", help="Features: rms or none.")]
SpecialOption = Annotated[bool, typer.Option("--parse-special/--no-parse-special", help="Parse special tokens.")]
RankOption = Annotated[int, typer.Option("--rank", min=0, help="Rank of the maps; 0: full.")]
BiasOption = Annotated[bool, typer.Option("--bias/--no-bias", help="Maps with a bias.")]
DampingOption = Annotated[
    float | None, typer.Option("--damping", min=0, help="λ over the mean eigenvalue; default: chosen per map.")
]
SinkOption = Annotated[int, typer.Option("--sink", min=0, help="Recommended number of exact first rows.")]
TailOption = Annotated[int, typer.Option("--tail", min=1, help="Recommended number of exact last rows.")]
MinPromptOption = Annotated[int, typer.Option("--min-prompt", min=0, help="Recommended shortest prompt to fill.")]
TrialsOption = Annotated[
    bool,
    typer.Option("--trials/--no-trials", help="Try settings on the model, and recommend what is as good as exact."),
]


def collect(
    model: ModelArgument,
    output: OutputOption,
    corpus: CorpusOption = None,
    splits: SplitsOption = "auto",
    target: Annotated[str, typer.Option("--target", help="What to collect: proj, input or both.")] = "both",
    tokens: TokensOption = defaults.TOKENS,
    ctx: ContextOption = defaults.CTX,
    ubatch: UbatchOption = defaults.UBATCH,
    threads: ThreadsOption = 0,
    n_gpu_layers: GpuOption = 0,
    feature_norm: NormOption = "rms",
    held_out: HeldOutOption = defaults.HELD_OUT,
    skip_first: SkipFirstOption = defaults.SKIP_FIRST,
    massive_ratio: MassiveOption = defaults.MASSIVE_RATIO,
    nonfinite: NonfiniteOption = "skip",
    errors: ErrorsOption = "strict",
    parse_special: SpecialOption = True,
    resume: ResumeOption = False,
    json_file: JsonOption = None,
) -> None:
    """Stream text through the model and write the sums that maps are fitted from."""
    check_output(output, json_file, inputs=[model, *(corpus or [])])
    targets = TARGETS if common.choice("--target", target, (*TARGETS, "both")) == "both" else (target,)
    options = CollectOptions(
        splits=common.parse_splits(splits, read_base_model(model).block_count),
        targets=targets,  # type: ignore[arg-type]  # checked by choice
        tokens=tokens or None,
        n_ctx=ctx,
        n_ubatch=ubatch,
        n_threads=threads,
        n_gpu_layers=n_gpu_layers,
        nonfinite=common.choice("--nonfinite", nonfinite, ("skip", "error")),
        parse_special=parse_special,
        settings=Settings(
            feature_norm=common.choice("--feature-norm", feature_norm, FEATURE_NORMS),
            held_out=held_out,
            skip_first=skip_first,
            massive_ratio=massive_ratio,
        ),
    )
    common.choice("--errors", errors, ("strict", "replace"))
    # a document is about one chunk: English and code have 3 to 4 characters per token
    corpora = [Corpus(source, errors, 3 * ctx) for source in corpus or DEFAULT_CORPORA]  # type: ignore[arg-type]
    with steps() as show:
        statistics, complete = run_collect(model, corpora, output, options, resume=resume, on_step=show)
    _report_statistics(statistics, json_file=json_file)
    if not complete:
        raise Interrupted(f"interrupted, the sums so far are in {output}", "run the same command with --resume")


def merge(
    inputs: Annotated[list[Path], typer.Argument(metavar="STATISTICS...", help="Files of runs over different text.")],
    output: OutputOption,
    json_file: JsonOption = None,
) -> None:
    """Add up statistics files."""
    check_output(output, json_file, inputs=inputs)
    total = read_statistics(inputs[0])
    for path in inputs[1:]:
        total = merge_statistics([total, read_statistics(path)])
    write_statistics(output, total)
    _report_statistics(total, json_file=json_file)


def fit(
    statistics: Annotated[Path, typer.Argument(metavar="STATISTICS", help="File made by collect or merge.")],
    output: OutputOption,
    target: TargetOption = "proj",
    splits: Annotated[str, typer.Option("--splits", help="all, or a list like 12,16.")] = "all",
    rank: RankOption = 0,
    bias: BiasOption = True,
    damping: DampingOption = None,
    weight_type: WeightTypeOption = "f16",
    sink: SinkOption = defaults.SINK,
    tail: TailOption = defaults.TAIL,
    min_prompt: MinPromptOption = defaults.MIN_PROMPT,
    json_file: JsonOption = None,
) -> None:
    """Fit maps from statistics: λ per map on held-out text, then the maps file."""
    check_output(output, json_file, inputs=[statistics])
    loaded = read_statistics(statistics)
    chosen = None if splits == "all" else common.parse_splits(splits, loaded.base.block_count)
    options = FitOptions(common.choice("--target", target, TARGETS), rank, bias, damping)
    check_weight_type(weight_type, loaded.base.embedding_length, rank)
    with steps() as show:
        maps = fit_maps(
            loaded,
            options,
            splits=chosen,
            recommended=Recommended(sink=sink, tail=tail, min_prompt=min_prompt),
            progress=lambda done, total: show(Step("fit", done, total)),
        )
    write_maps(output, maps, weight_type=weight_type)
    warn_unmeasured(maps, output)
    report_maps(output, maps, json_file=json_file)


def calibrate(
    model: ModelArgument,
    output: OutputOption,
    corpus: CorpusOption = None,
    splits: SplitsOption = "auto",
    target: TargetOption = "proj",
    tokens: TokensOption = defaults.TOKENS,
    ctx: ContextOption = defaults.CTX,
    ubatch: UbatchOption = defaults.UBATCH,
    threads: ThreadsOption = 0,
    n_gpu_layers: GpuOption = 0,
    rank: RankOption = 0,
    weight_type: WeightTypeOption = "f16",
    sink: SinkOption = defaults.SINK,
    tail: TailOption = defaults.TAIL,
    min_prompt: MinPromptOption = defaults.MIN_PROMPT,
    heads: Annotated[
        bool, typer.Option("--heads/--no-heads", help="Find retrieval heads, which selection needs.")
    ] = True,
    trials: TrialsOption = True,
    errors: ErrorsOption = "strict",
    statistics: Annotated[
        Path | None, typer.Option("--statistics", help="Keep the sums in this file [default: deleted when done].")
    ] = None,
    resume: ResumeOption = False,
    json_file: JsonOption = None,
) -> None:
    """Make a maps file: collect, fit, find retrieval heads, and measure which settings to recommend."""
    from pyridgefill.calibrator import calibrate as run_calibrate  # loads the native library

    check_output(output, statistics, json_file, inputs=[model, *(corpus or [])])
    chosen = None if splits == "auto" else common.parse_ints("--splits", splits)
    with steps() as show:
        made = run_calibrate(
            model,
            output,
            corpora=corpus or DEFAULT_CORPORA,
            splits=chosen,
            target=common.choice("--target", target, TARGETS),
            tokens=tokens or None,
            rank=rank,
            weight_type=weight_type,
            sink=sink,
            tail=tail,
            min_prompt=min_prompt,
            heads=heads,
            trials=trials,
            statistics=statistics,
            errors=common.choice("--errors", errors, ("strict", "replace")),
            resume=resume,
            n_ctx=ctx,
            n_ubatch=ubatch,
            n_threads=threads,
            n_gpu_layers=n_gpu_layers,
            on_step=show,
        )
    report_maps(output, made.maps, json_file=json_file, proposal=made.proposal)


@contextmanager
def steps() -> Iterator[OnStep]:
    """A bar for each step of a calibration."""
    with common.progress_bar("{task.fields[note]}") as bar:
        tasks: dict[str, TaskID] = {}

        def show(step: Step) -> None:
            if step.name not in tasks:
                tasks[step.name] = bar.add_task(step.name, note="")
            bar.update(tasks[step.name], completed=step.done, total=step.total, note=step.note)

        yield show


def _report_statistics(statistics: Statistics, *, json_file: Path | None) -> None:
    report: dict[str, Any] = {
        **statistics.provenance,
        "nonfinite": {str(layer): asdict(left_out) for layer, left_out in statistics.nonfinite.items()},
        "splits": [
            {
                "split": item.split,
                "rows_fit": item.fit.rows,
                "rows_held_out": item.held.rows,
                "massive": asdict(item.massive),
                "sites": len(item.sites),
            }
            for item in statistics.splits.values()
        ],
    }

    def show() -> None:
        common.stdout.print(f"{report['tokens']} tokens of {report['documents']} documents")
        for item in statistics.splits.values():
            found = f", first in chunks {item.massive.chunks}" if item.massive.rows else ""
            common.stdout.print(
                f"split {item.split}: {item.fit.rows} rows to fit, {item.held.rows} held out, "
                f"{item.massive.rows} massive rows left out{found}"
            )
        for layer, left_out in sorted(statistics.nonfinite.items()):
            common.stdout.print(f"layer {layer}: {left_out.rows} rows not finite, first in chunks {left_out.chunks}")

    common.report(json_file, report, show)


def report_maps(path: Path, maps: MapSet, *, json_file: Path | None, proposal: Proposal | None = None) -> None:
    """What a maps file holds, and the settings that were tried for it."""
    from pyridgefill.cli.map_files import describe, print_description

    description = describe(maps) | {"path": str(path)}

    def show() -> None:
        print_description(description)
        if tried:
            _print_trials(tried["trials"])

    tried = {} if proposal is None else {"trials": proposal.to_list()}
    common.report(json_file, description | tried, show)


def _print_trials(trials: Sequence[dict[str, Any]]) -> None:
    table = Table("split", "select", "budget", "needles", "loss", "as good as exact")
    for trial in trials:
        exact, loss = trial["split"] is None, trial.get("loss_increase")
        table.add_row(
            "exact" if exact else str(trial["split"]),
            "" if exact else trial["select"],
            f"{trial['budget']:.0%}" if trial["budget"] else "",
            f"{trial['hits']}/{trial['prompts']}",
            "" if loss is None else signed_percent(loss),
            "" if exact else "yes" if trial["accepted"] else "no",
        )
    common.stdout.print(table)
