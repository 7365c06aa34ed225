"""The whole job on one model: calibrate, start the server, measure; `make demo` runs it.

Needs no network and no other files than the model.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from pyridgefill import defaults
from pyridgefill.calibration.builtin_corpora import DEFAULT_CORPORA
from pyridgefill.calibration.collect import CollectOptions, collect
from pyridgefill.calibration.corpus import Corpus
from pyridgefill.calibration.fit import FitOptions, fit_maps
from pyridgefill.chat import chat_formatter
from pyridgefill.config import RidgeFillConfig
from pyridgefill.cost import cost_model
from pyridgefill.errors import RidgeFillError
from pyridgefill.evaluation.prompts.layout import Shape
from pyridgefill.evaluation.prompts.needle import make_needles
from pyridgefill.evaluation.prompts.text import text_windows, token_windows
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.tasks.loss import tail_losses
from pyridgefill.evaluation.tasks.scored import count_hits
from pyridgefill.machine import describe_machine
from pyridgefill.maps import identity_maps, read_base_model, read_maps, write_maps
from pyridgefill.maps.model import Recommended, Target
from pyridgefill.server import Server, program_path

console = Console()


@dataclass(frozen=True)
class Settings:
    """What is measured; token counts and repeats."""

    model: Path
    folder: Path
    split: int
    target: Target = "proj"
    tokens: int = 48_000
    prompt: int = 4096
    quality_prompt: int = defaults.CTX
    tail: int = defaults.TAIL
    sink: int = defaults.SINK
    repeats: int = 5
    needles: int = 10
    texts: int = 8
    threads: int = 0

    @property
    def maps(self) -> Path:
        """The ridge maps."""
        return self.folder / f"{self.model.stem}.ridgefill.gguf"

    @property
    def identity(self) -> Path:
        """The identity maps, the baseline."""
        return self.folder / f"{self.model.stem}.identity.gguf"

    @property
    def n_threads(self) -> int:
        """Threads that the engine uses."""
        return self.threads or len(os.sched_getaffinity(0))

    def server_arguments(self) -> list[str]:
        """Of llama-server."""
        context = str(self.prompt + 64)
        threads = str(self.n_threads)
        return [
            *("-m", str(self.model), "--ridgefill-maps", str(self.maps), "--ridgefill-tail", str(self.tail)),
            *("-c", context, "-np", "1", "-t", threads, "-tb", threads),
        ]


def calibrate(settings: Settings, progress: Progress) -> None:
    """Fit maps on the built-in corpora and write them, and the identity maps."""
    task = progress.add_task("calibrate", total=settings.tokens)
    options = CollectOptions(
        splits=(settings.split,), targets=(settings.target,), tokens=settings.tokens, n_threads=settings.n_threads
    )
    sums, complete = collect(
        settings.model,
        [Corpus(name) for name in DEFAULT_CORPORA],
        settings.folder / "statistics.npz",
        options,
        on_step=lambda step: progress.update(task, completed=step.done),
    )
    if not complete:
        raise KeyboardInterrupt
    recommended = Recommended(
        split=settings.split, sink=settings.sink, tail=settings.tail, min_prompt=defaults.MIN_PROMPT
    )
    task = progress.add_task("fit", total=None)
    maps = fit_maps(
        sums,
        FitOptions(target=settings.target),
        recommended=recommended,
        progress=lambda done, total: progress.update(task, completed=done, total=total),
    )
    write_maps(settings.maps, maps)
    base = read_base_model(settings.model)
    write_maps(settings.identity, identity_maps(base, [settings.split], recommended=recommended), weight_type="f32")


def measure_ttft(settings: Settings, progress: Progress) -> dict[str, Any]:
    """Time to the first token over HTTP, exact and filled in turn, on prompts of which nothing is cached."""
    task = progress.add_task("time to first token", total=2 * (settings.repeats + 1))
    with Session(settings.model, n_ctx=512) as session:
        windows = token_windows(session, settings.prompt)
        prompts = [next(windows) for _ in range(settings.repeats + 1)]
    times: dict[bool, list[float]] = {False: [], True: []}
    n_filled = 0
    with Server(settings.server_arguments()) as server:
        for index, prompt in enumerate(prompts):
            # the first pair warms up; the order alternates, so that a drift of the machine hits both alike
            for fill in (True, False) if index % 2 else (False, True):
                answer = server.completion(
                    prompt=prompt, n_predict=1, cache_prompt=False, ridgefill=fill, temperature=0, ignore_eos=True
                )
                timings = answer["timings"]
                rows = timings["ridgefill"]
                if timings["cache_n"] != 0 or bool(rows["filled"]) != fill:
                    raise RidgeFillError(f"a timing run cached or filled other rows than asked: {timings}")
                if index:
                    times[fill].append((timings["prompt_ms"] + timings["predicted_ms"]) / 1000)
                n_filled = max(n_filled, rows["filled"])
                progress.advance(task)
    ratios = [exact / fill for exact, fill in zip(times[False], times[True], strict=True)]
    return {
        "n_filled": n_filled,
        "ttft_exact_s": round(statistics.median(times[False]), 4),
        "ttft_fill_s": round(statistics.median(times[True]), 4),
        "ttft_ratio": round(statistics.median(ratios), 4),
        "ttft_ratios": [round(ratio, 4) for ratio in ratios],
    }


def bound_ratio(settings: Settings) -> float:
    """Multiply-adds of the exact prefill over those with fill."""
    costs = cost_model(settings.model)
    filled = costs.filled(
        settings.prompt, read_maps(settings.maps), settings.split, [(settings.sink, settings.prompt - settings.tail)]
    )
    return costs.exact(settings.prompt).total / filled.total


def measure_quality(settings: Settings, progress: Progress) -> dict[str, Any]:
    """Needles in the filled region and loss on the tail, for exact, ridge maps and identity maps."""
    variants = {"exact": None, "fill": settings.maps, "identity": settings.identity}
    hits: dict[str, list[int]] = {}
    losses: dict[str, float] = {}
    with Session(settings.model, n_ctx=settings.quality_prompt + 64, n_threads=settings.n_threads) as session:
        chat = chat_formatter(session, add_generation_prompt=True)
        shape = Shape(session, chat, settings.quality_prompt, settings.sink, settings.tail)
        needles = list(make_needles(shape, count=settings.needles))
        windows = text_windows(session, settings.quality_prompt, skip=settings.needles)
        texts = [next(windows) for _ in range(settings.texts)]
        task = progress.add_task("quality", total=len(variants) * (len(needles) + len(texts)))
        for name, maps in variants.items():
            config = RidgeFillConfig(maps=maps, sink=settings.sink, tail=settings.tail, min_prompt=0)
            session.set_maps(config if maps else None)
            hits[name] = [sum(count_hits(session, needles, lambda: progress.advance(task))), len(needles)]
            total = 0.0
            for text in texts:
                total += sum(tail_losses(session, [text], settings.tail))
                progress.advance(task)
            losses[name] = round(total / len(texts), 4)
    return {"needle": hits, "tail_loss": losses}


def run(settings: Settings) -> dict[str, Any]:
    """Everything in turn; returns the report."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    columns = (TextColumn("{task.description:20}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        calibrate(settings, progress)
        ttft = measure_ttft(settings, progress)
        quality = measure_quality(settings, progress)
    return {
        "model": settings.model.name,
        "n_layer": read_base_model(settings.model).block_count,
        "split": settings.split,
        "target": settings.target,
        "prompt_tokens": settings.prompt,
        "tail": settings.tail,
        **ttft,
        "bound_ratio": round(bound_ratio(settings), 4),
        **quality,
        "quality_prompt_tokens": settings.quality_prompt,
        "calibration_tokens": settings.tokens,
        "repeats": settings.repeats,
        "texts": settings.texts,
        "machine": describe_machine(settings.n_threads),
        "kv_type": "f16",
        "flash_attention": "auto",
        "n_ubatch": defaults.UBATCH,
    }


def _show(report: dict[str, Any]) -> None:
    table = Table(title=f"{report['model']}, split {report['split']} of {report['n_layer']}")
    for column in ("", "exact", "fill", "identity"):
        table.add_column(column, justify="left" if not column else "right")
    ttft = f"{report['ttft_exact_s']:.2f} s", f"{report['ttft_fill_s']:.2f} s"
    table.add_row(f"first token, {report['prompt_tokens']} tokens", *ttft, "")
    table.add_row("  times faster (bound)", "1", f"{report['ttft_ratio']:.2f} ({report['bound_ratio']:.2f})", "")
    length = report["quality_prompt_tokens"]
    table.add_row(f"needles, {length} tokens", *("{} of {}".format(*pair) for pair in report["needle"].values()))
    table.add_row("tail loss, nats", *(f"{loss:.3f}" for loss in report["tail_loss"].values()))
    console.print(table)


def _serve(settings: Settings) -> list[str]:
    return [str(program_path("llama-server")), *settings.server_arguments()]


def main(
    model: Annotated[Path, typer.Option(help="The model's GGUF.")] = Path("build/models/smollm2.gguf"),
    folder: Annotated[Path, typer.Option(help="Where maps and report go.")] = Path("build/demo"),
    split: Annotated[int, typer.Option(help="The split.")] = 20,
    target: Annotated[str, typer.Option(help="proj or input.")] = "proj",
    tokens: Annotated[int, typer.Option(help="Calibration tokens.")] = Settings.tokens,
    repeats: Annotated[int, typer.Option(help="Pairs of timing runs.")] = Settings.repeats,
    needles: Annotated[int, typer.Option(help="Needle prompts.")] = Settings.needles,
    texts: Annotated[int, typer.Option(help="Texts for the tail loss.")] = Settings.texts,
    threads: Annotated[int, typer.Option(help="Threads, 0: one per CPU.")] = 0,
    append: Annotated[Path | None, typer.Option(help="Also append the report to this JSON lines file.")] = None,
    serve: Annotated[bool, typer.Option(help="Only start the server, with the maps of an earlier run.")] = False,
) -> None:
    """Calibrate a model, measure what RidgeFill does for it, and say how to serve it."""
    if target not in ("proj", "input"):
        raise typer.BadParameter("expected proj or input", param_hint="--target")
    settings = Settings(
        model, folder, split, "proj" if target == "proj" else "input", tokens, repeats=repeats, needles=needles,
        texts=texts, threads=threads,
    )  # fmt: skip
    try:
        command = _serve(settings)
        if serve:
            if not settings.maps.is_file():
                calibrate_only(settings)
            os.execv(command[0], command)
        report = run(settings)
    except RidgeFillError as error:
        console.print(f"[red]error:[/red] {error}", soft_wrap=True)
        raise typer.Exit(1) from error
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if append is not None:
        command_line = shlex.join(["python", "-m", "pyridgefill.demo", *sys.argv[1:]])
        with append.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"command": command_line, **report}) + "\n")
    _show(report)
    console.print(f"report: {folder / 'report.json'}\nstart the server:\n  {shlex.join(command)}", soft_wrap=True)


def calibrate_only(settings: Settings) -> None:
    """Make the maps without measuring."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    with Progress(console=console) as progress:
        calibrate(settings, progress)


if __name__ == "__main__":
    typer.run(main)
