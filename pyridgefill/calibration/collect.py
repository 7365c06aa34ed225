"""Streams text through the model and accumulates the statistics; can be interrupted and resumed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pyridgefill import defaults
from pyridgefill.calibration.chunks import Chunker
from pyridgefill.calibration.collect_run import CollectRun, OnStep, Position
from pyridgefill.calibration.corpus import Corpus, interleave
from pyridgefill.calibration.statistics import Statistics, estimate_bytes
from pyridgefill.calibration.sums import Settings
from pyridgefill.chat import chat_formatter
from pyridgefill.engine import Engine
from pyridgefill.errors import CorpusError, EncodingError, StatisticsError
from pyridgefill.files import check_output
from pyridgefill.maps.base import read_base_model
from pyridgefill.maps.model import TARGETS, Target

_log = logging.getLogger(__name__)


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
    n_ctx: int = defaults.CTX
    n_ubatch: int = defaults.UBATCH
    n_threads: int = 0
    n_gpu_layers: int = 0
    nonfinite: Literal["skip", "error"] = "skip"
    parse_special: bool = True
    checkpoint_seconds: float = defaults.CHECKPOINT_SECONDS
    settings: Settings = field(default_factory=Settings)


def collect(
    model_path: str | os.PathLike[str],
    corpora: Sequence[Corpus],
    output: str | os.PathLike[str],
    options: CollectOptions,
    *,
    resume: bool = False,
    on_start: Callable[[Engine], None] = lambda _engine: None,
    on_step: OnStep = lambda _step: None,
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
        Called with the loaded model before any text is read; may raise.
    on_step
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
    check_output(Path(output))
    for corpus in corpora:
        corpus.check()
    base = read_base_model(model_path)
    for split in options.splits:
        if not 0 <= split < base.block_count - 1:
            raise StatisticsError(f"split {split}: expected 0 to {base.block_count - 2} for this model")
    if not corpora:
        raise CorpusError("no corpus", "give at least one with --corpus")
    with Engine(
        model_path,
        n_ctx=options.n_ctx,
        n_ubatch=options.n_ubatch,
        n_threads=options.n_threads,
        n_gpu_layers=options.n_gpu_layers,
    ) as engine:
        engine.capture(min(options.splits))
        engine.check_base(base)
        on_start(engine)
        sites = [site for site in engine.sites if ("input" if site.name == "input" else "proj") in options.targets]
        key = _key(corpora, options)
        if resume:
            run = CollectRun.resume(output, base, key)
        else:
            statistics = Statistics.empty(base, options.settings, options.splits, sites)
            statistics.provenance = {
                "model": os.fsencode(Path(model_path).name).decode(errors="replace"),
                "corpora": [corpus.name for corpus in corpora],
            }
            statistics.provenance |= {"tokens": 0, "documents": 0, "documents_held_out": 0}
            run = CollectRun(statistics, Position(key), output)
        held_out, parse_special = options.settings.held_out, options.parse_special
        chunker = Chunker(
            engine, chat_formatter(engine), options.n_ctx, held_out, parse_special, options.settings.skip_first
        )
        with run.interruptible():
            # the sums take memory when they are first written to
            size = estimate_bytes(sites, options.splits, base.embedding_length, engine.n_ubatch)
            _log.info("memory for sums and buffers: %.0f MB beside the model", size / 1e6)
            try:
                run.stream(
                    engine,
                    chunker.chunks(interleave(corpora), options.tokens),
                    tokens=options.tokens,
                    nonfinite=options.nonfinite,
                    checkpoint_seconds=options.checkpoint_seconds,
                    on_step=on_step,
                )
            except CorpusError as error:
                raise _with_sums_kept(error, run) from error
    complete = not run.interrupted.is_set()
    if complete and run.position.tokens == 0:
        raise CorpusError("the corpora have no tokens", "give a corpus with text")
    run.save()
    return run.statistics, complete


def _with_sums_kept(error: CorpusError, run: CollectRun) -> CorpusError:
    """Save what was summed up before a text that cannot be used, and say how to go on."""
    hint = f"{error.hint}, or use --errors replace" if isinstance(error, EncodingError) else error.hint
    if not run.position.tokens:
        return type(error)(error.message, hint)
    run.save()
    return type(error)(f"{error.message}; the sums so far are in {run.output}", f"{hint}; then go on with --resume")


def _key(corpora: Sequence[Corpus], options: CollectOptions) -> dict[str, Any]:
    return {
        # how bytes that are not UTF-8 are read may change: the digest tells whether the text so far is the same
        "corpora": [{"source": corpus.source, "document_chars": corpus.document_chars} for corpus in corpora],
        "n_ctx": options.n_ctx,
        "n_ubatch": options.n_ubatch,
        "splits": sorted(set(options.splits)),
        "targets": sorted(options.targets),
        "parse_special": options.parse_special,
        "settings": asdict(options.settings),
    }
