"""Streams text through the model and accumulates the statistics; can be interrupted and resumed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pyridgefill.chunks import ChatFormatter, Chunk, Chunker, Digest
from pyridgefill.corpus import Corpus, interleave
from pyridgefill.engine import CaptureEngine
from pyridgefill.errors import CorpusError, StatisticsError
from pyridgefill.files import check_folder
from pyridgefill.maps.base import read_base_model
from pyridgefill.maps.model import TARGETS, Site, Target
from pyridgefill.statistics import Statistics, estimate_bytes
from pyridgefill.statistics_file import read_statistics, write_statistics
from pyridgefill.sums import Settings


@dataclass(frozen=True)
class CollectOptions:
    """What to collect and how.

    Attributes
    ----------
    splits
        Splits, in any order.
    targets
        `proj`, `input` or both.
    tokens
        Stop after that many tokens; None reads the corpora to their end.
    n_ctx, n_ubatch
        Tokens per chunk and per decode.
    n_threads, n_gpu_layers
        As in llama.cpp; 0 threads: the CPUs that this process may use.
    nonfinite
        `skip` counts rows with values that are not finite and leaves them out, `error` stops.
    parse_special
        Whether special tokens in the text become tokens.
    checkpoint_seconds
        Time between checkpoints.
    """

    splits: tuple[int, ...]
    targets: tuple[Target, ...] = TARGETS
    tokens: int | None = None
    n_ctx: int = 2048
    n_ubatch: int = 512
    n_threads: int = 0
    n_gpu_layers: int = 0
    nonfinite: Literal["skip", "error"] = "skip"
    parse_special: bool = True
    checkpoint_seconds: float = 300.0
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True)
class Progress:
    """State of a run, for display: tokens done, tokens wanted (None: unknown), tokens per second of this run."""

    tokens: int
    total: int | None
    rate: float


@dataclass
class _Run:
    """What must be equal for a resumed run, and where it stands."""

    key: dict[str, Any]
    chunks: int = 0
    rows: int = 0
    tokens: int = 0
    document: int = -1
    digest: str = ""
    interrupted: bool = False


def collect(
    model_path: str | os.PathLike[str],
    corpora: Sequence[Corpus],
    output: str | os.PathLike[str],
    options: CollectOptions,
    *,
    resume: bool = False,
    on_start: Callable[[int], None] = lambda _bytes: None,
    on_progress: Callable[[Progress], None] = lambda _progress: None,
) -> tuple[Statistics, bool]:
    """Collect statistics and write them to `output`, also at checkpoints.

    Parameters
    ----------
    model_path
        The model's GGUF.
    corpora
        Read in turn, one document of each.
    output
        The statistics file.
    options
        What to collect.
    resume
        Continue the run whose checkpoint is in `output`.
    on_start
        Called with the bytes that the run will hold, before it holds them.
    on_progress
        Called after each decode.

    Returns
    -------
    statistics, complete
        `complete` is False if the run was interrupted (Ctrl-C) and left a checkpoint.

    Raises
    ------
    RidgeFillError
        With a hint, for a bad model, corpus, option or checkpoint.
    """
    check_folder(Path(output))
    for corpus in corpora:
        corpus.check()
    base = read_base_model(model_path)
    for split in options.splits:
        if not 0 <= split < base.block_count - 1:
            raise StatisticsError(f"split {split}: expected 0 to {base.block_count - 2} for this model")
    if not corpora:
        raise CorpusError("no corpus", "give at least one with --corpus")
    with CaptureEngine(
        model_path,
        n_ctx=options.n_ctx,
        n_ubatch=options.n_ubatch,
        n_threads=options.n_threads,
        n_gpu_layers=options.n_gpu_layers,
        layer_first=min(options.splits),
    ) as engine:
        engine.check_base(base)
        sites = [site for site in engine.sites if ("input" if site.name == "input" else "proj") in options.targets]
        key = _key(corpora, options)
        on_start(estimate_bytes(sites, options.splits, base.embedding_length, engine.n_ubatch))
        if resume:
            statistics, run = _resume(output, key)
        else:
            statistics, run = Statistics.empty(base, options.settings, options.splits, sites), _Run(key)
            statistics.provenance = {"model": Path(model_path).name, "corpora": [corpus.name for corpus in corpora]}
            statistics.provenance |= {"tokens": 0, "documents": 0, "documents_held_out": 0}
        held_out, parse_special = options.settings.held_out, options.parse_special
        chunker = Chunker(engine, chat_formatter(engine), options.n_ctx, held_out, parse_special)
        with _interruptible(run):
            _stream(engine, chunker.chunks(interleave(corpora)), statistics, run, options, output, on_progress)
    if run.tokens == 0:
        raise CorpusError("the corpora have no tokens", "give a corpus with text")
    _checkpoint(output, statistics, run)
    return statistics, not run.interrupted


def chat_formatter(engine: CaptureEngine, *, add_generation_prompt: bool = False) -> ChatFormatter | None:
    """The model's own chat template, None if it has none."""
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    from pyridgefill._native import llama_cpp

    template = llama_cpp.llama_model_chat_template(engine.model, None)
    if not template:
        return None
    vocab = llama_cpp.llama_model_get_vocab(engine.model)
    formatter = Jinja2ChatFormatter(
        template=template.decode(),
        eos_token=engine.text_of(llama_cpp.llama_vocab_eos(vocab)),
        bos_token=engine.text_of(llama_cpp.llama_vocab_bos(vocab)),
        add_generation_prompt=add_generation_prompt,
    )

    def render(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> str:
        # the template's input is what the user's file says
        arguments: dict[str, Any] = {"messages": list(messages), "tools": list(tools) or None}
        return str(formatter(**arguments).prompt)

    return render


def _stream(
    engine: CaptureEngine,
    chunks: Iterator[Chunk],
    statistics: Statistics,
    run: _Run,
    options: CollectOptions,
    output: str | os.PathLike[str],
    on_progress: Callable[[Progress], None],
) -> None:
    digest = Digest()
    started = saved = time.monotonic()
    before = run.tokens
    for chunk in chunks:
        if options.tokens is not None and run.tokens >= options.tokens:
            return
        digest.add(chunk)
        if chunk.index < run.chunks:
            if chunk.index == run.chunks - 1 and not run.rows and digest.hex() != run.digest:
                _changed(output)
            continue
        if run.rows and digest.hex() != run.digest:
            _changed(output)
        run.digest = digest.hex()
        if chunk.document != run.document:
            run.document = chunk.document
            statistics.provenance["documents"] += 1
            statistics.provenance["documents_held_out"] += chunk.held_out
        done = run.rows
        for position, values in engine.run(chunk.tokens):
            n_rows = min(engine.n_ubatch, len(chunk.tokens) - position)
            if position < done:
                continue  # in the sums already, decoded again for the memory
            _add(statistics, values, position, chunk, options)
            run.rows = position + n_rows
            run.tokens += n_rows
            statistics.provenance["tokens"] = run.tokens
            seconds = max(time.monotonic() - started, 1e-9)
            on_progress(Progress(run.tokens, options.tokens, (run.tokens - before) / seconds))
            if run.interrupted and run.rows < len(chunk.tokens):
                return
        run.chunks, run.rows = chunk.index + 1, 0
        if run.interrupted:
            return
        if time.monotonic() - saved > options.checkpoint_seconds:
            _checkpoint(output, statistics, run)
            saved = time.monotonic()
    if run.chunks and digest.hex() != run.digest:
        _changed(output)


def _add(statistics: Statistics, values: dict[Site, Any], position: int, chunk: Chunk, options: CollectOptions) -> None:
    statistics.add_block(
        values, position=position, held_out=chunk.held_out, chunk=chunk.index, nonfinite=options.nonfinite
    )


def _key(corpora: Sequence[Corpus], options: CollectOptions) -> dict[str, Any]:
    return {
        "corpora": [asdict(corpus) for corpus in corpora],
        "n_ctx": options.n_ctx,
        "n_ubatch": options.n_ubatch,
        "splits": sorted(set(options.splits)),
        "targets": sorted(options.targets),
        "parse_special": options.parse_special,
        "settings": asdict(options.settings),
    }


def _resume(output: str | os.PathLike[str], key: dict[str, Any]) -> tuple[Statistics, _Run]:
    statistics = read_statistics(output)
    if statistics.progress is None:
        raise StatisticsError(f"{os.fspath(output)}: a merged file cannot be resumed", "collect to a new file")
    run = _Run(**statistics.progress)
    run.interrupted = False
    for name, value in key.items():
        if run.key[name] != value:
            raise StatisticsError(
                f"{os.fspath(output)}: {name} differs: the checkpoint has {run.key[name]}, this run {value}",
                "resume with the same options",
            )
    return statistics, run


def _changed(output: str | os.PathLike[str]) -> None:
    raise StatisticsError(f"{os.fspath(output)}: the corpora differ from the checkpoint's", "collect from the start")


def _checkpoint(output: str | os.PathLike[str], statistics: Statistics, run: _Run) -> None:
    statistics.progress = asdict(run)
    write_statistics(output, statistics)


@contextmanager
def _interruptible(run: _Run) -> Iterator[None]:
    """Let Ctrl-C end the run after the current decode; a second one ends the process at once."""

    def stop(_number: int, _frame: Any) -> None:
        run.interrupted = True
        signal.signal(signal.SIGINT, previous)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can have a handler
        return
    previous = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
