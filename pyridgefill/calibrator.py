"""The main job: from a model and text to a maps file whose default settings were measured."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pyridgefill import defaults
from pyridgefill.calibration.builtin_corpora import DEFAULT_CORPORA
from pyridgefill.calibration.collect import CollectOptions, collect
from pyridgefill.calibration.collect_run import OnStep, Step
from pyridgefill.calibration.corpus import Corpus
from pyridgefill.calibration.fit import FitOptions, check_rank, fit_maps, warn_unmeasured
from pyridgefill.config import RidgeFillConfig
from pyridgefill.engine import Engine
from pyridgefill.errors import Interrupted, UsageError
from pyridgefill.files import check_output, temporary_folder
from pyridgefill.maps import MapSet, Recommended, RetrievalHead, read_base_model, write_maps
from pyridgefill.maps.base import candidate_splits
from pyridgefill.maps.model import Target
from pyridgefill.maps.write import check_weight_type
from pyridgefill.selection.finding import find_heads
from pyridgefill.selection.propose import Proposal, propose
from pyridgefill.selection.recommend import Trial

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Calibrated:
    """What a calibration made.

    Attributes
    ----------
    path, maps
        The maps file and what it holds.
    proposal
        Settings that were tried; None if nothing was measured.
    """

    path: Path
    maps: MapSet
    proposal: Proposal | None = None

    @property
    def accepted(self) -> Trial | None:
        """The setting that was as good as the exact model and is now recommended, if one was."""
        if self.proposal is None or not self.proposal.recommendation.accepted:
            return None
        return self.proposal.recommendation.trial


def calibrate(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    corpora: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = DEFAULT_CORPORA,
    splits: Sequence[int] | None = None,
    target: Target = "proj",
    tokens: int | None = defaults.TOKENS,
    rank: int = 0,
    weight_type: str = "f16",
    sink: int = defaults.SINK,
    tail: int = defaults.TAIL,
    min_prompt: int = defaults.MIN_PROMPT,
    heads: bool = True,
    trials: bool = True,
    statistics: str | os.PathLike[str] | None = None,
    errors: Literal["strict", "replace"] = "strict",
    resume: bool = False,
    n_ctx: int = defaults.CTX,
    n_ubatch: int = defaults.UBATCH,
    n_threads: int = 0,
    n_gpu_layers: int = 0,
    on_step: OnStep = lambda _step: None,
) -> Calibrated:
    """Make the maps file of a model: collect sums over text, fit maps, find retrieval heads, measure settings.

    The settings with the least work that are as good as the exact model become the file's recommended ones. Where none
    was, or none was tried, the file recommends no split, see docs/map-format.md; a warning is logged.

    Parameters
    ----------
    model
        The model's GGUF.
    output
        The maps file.
    corpora
        Text files, chat `.jsonl` files, names of built-in corpora; one or several.
    splits
        Candidates; None: from a third to two thirds of the layers.
    target
        What the maps predict: `proj` or `input`.
    tokens
        Of the text, at most; None: all of it.
    rank
        Of the maps; 0: full.
    weight_type
        Of the maps file.
    sink, tail, min_prompt
        To measure with and to recommend.
    heads
        Find retrieval heads, which selection needs. Models whose rows cannot run again get none, with a warning.
    trials
        Measure settings.
    statistics
        Keep the sums in this file; None: beside the output until the maps are written.
    errors
        Bytes that are not UTF-8: `strict` ends the run, `replace` puts U+FFFD in their place.
    resume
        Go on from the sums of an interrupted run.
    n_ctx, n_ubatch, n_threads, n_gpu_layers
        Tokens per chunk of text and per decode; as in llama.cpp. 0 threads: the CPUs that this process may use.
    on_step
        Called as the work goes on.

    Raises
    ------
    Interrupted
        After Ctrl-C while text is read; `resume` goes on.
    RidgeFillError
        With a hint, for a bad model, corpus, option or output.
    """
    output = Path(output)
    sources = [corpora] if isinstance(corpora, (str, os.PathLike)) else list(corpora)
    sums = output.with_name(output.name + ".statistics.npz") if statistics is None else Path(statistics)
    check_output(output, sums, inputs=[model, *sources])
    base = read_base_model(model)
    check_weight_type(weight_type, base.embedding_length, rank)
    least = base.embedding_length // 4
    if tokens is not None and tokens < least:
        raise UsageError(f"{tokens} tokens: maps of this model need {least} rows", "ask for more tokens")
    options = CollectOptions(
        tuple(candidate_splits(base.block_count) if splits is None else splits),
        (target,),
        tokens=tokens,
        n_ctx=n_ctx,
        n_ubatch=n_ubatch,
        n_threads=n_threads,
        n_gpu_layers=n_gpu_layers,
    )
    # a document is about one chunk: English and code have 3 to 4 characters per token
    texts = [Corpus(os.fspath(source), errors, 3 * n_ctx) for source in sources]
    selects = heads

    def begin(engine: Engine) -> None:
        nonlocal selects
        selects = heads and _selects(engine)
        for site in engine.sites:
            if (site.name == "input") == (target == "input") and site.layer > min(options.splits):
                check_rank(rank, min(options.splits), site, base.embedding_length)

    collected, complete = collect(model, texts, sums, options, resume=resume, on_start=begin, on_step=on_step)
    if not complete:
        raise Interrupted(f"interrupted, the sums so far are in {sums}", "run the same command with --resume")
    maps = fit_maps(
        collected,
        FitOptions(target, rank),
        recommended=Recommended(sink=sink, tail=tail, min_prompt=min_prompt),
        progress=lambda done, total: on_step(Step("fit", done, total)),
    )
    # a folder of its own: another run may write to the same output
    with temporary_folder(output) as folder:
        path = folder / "maps.gguf"
        if selects or trials:
            write_maps(path, maps, weight_type=weight_type)
        maps, proposal = measure(
            model,
            maps,
            path,
            heads=selects,
            trials=trials,
            prompts=defaults.HEAD_PROMPTS_CALIBRATE,
            n_threads=n_threads,
            n_gpu_layers=n_gpu_layers,
            on_step=on_step,
        )
    write_maps(output, maps, weight_type=weight_type)
    if not trials:
        warn_unmeasured(maps, output, model)
    if statistics is None:
        sums.unlink(missing_ok=True)
    return Calibrated(output, maps, proposal)


def measure(
    model: str | os.PathLike[str],
    maps: MapSet,
    path: Path,
    *,
    heads: bool | None = None,
    trials: bool = True,
    pool: tuple[int, int] = defaults.POOL,
    queries: int = defaults.QUERIES,
    count: int = defaults.HEADS,
    prompts: int = defaults.HEAD_PROMPTS,
    lengths: Sequence[int] = defaults.HEAD_LENGTHS,
    n_threads: int = 0,
    n_gpu_layers: int = 0,
    on_step: OnStep = lambda _step: None,
) -> tuple[MapSet, Proposal | None]:
    """Find retrieval heads for maps, and the setting of the least work that is as good as the exact model.

    Parameters
    ----------
    model, maps, path
        The model's GGUF, and the maps as they are in a file; sink and tail are those of the file.
    heads
        Whether to find heads; None: if the model's rows can run again, else a warning is logged.
    trials
        Whether to try settings.
    pool, queries
        To find heads and select rows with, and to recommend.
    count, prompts, lengths
        For `find_heads`.
    n_threads, n_gpu_layers, on_step
        As for `calibrate`.

    Returns
    -------
    maps, proposal
        What the file recommended before is gone but for sink, tail and shortest prompt.
    """
    options = {"n_threads": n_threads, "n_gpu_layers": n_gpu_layers}
    if heads is None:
        with Engine(model, n_ctx=64, **options) as engine:
            heads = _selects(engine)
    best = maps.defaults()
    config = RidgeFillConfig(path, sink=best.sink, tail=best.tail, pool=pool, queries=queries)
    kept = Recommended(sink=best.sink, tail=best.tail, min_prompt=best.min_prompt)
    found: list[RetrievalHead] = []
    # a split at layer 0 has no layers below
    if heads and (splits := [split.layer for split in maps.splits if split.layer > 0]):
        kept = replace(kept, pool=pool, queries=queries)
        found = find_heads(
            model,
            config,
            splits=splits,
            count=count,
            prompts=prompts,
            lengths=lengths,
            on_progress=lambda done, total: on_step(Step("heads", done, total)),
            **options,
        )
    maps = replace(maps, heads=tuple(found), recommended=kept)
    return _with_recommendation(model, maps, config, on_step, **options) if trials else (maps, None)


def _selects(engine: Engine) -> bool:
    if conflict := engine.selection_conflict():
        _log.warning("no retrieval heads, and no selection: %s", conflict)
    return not conflict


def _with_recommendation(
    model: str | os.PathLike[str], maps: MapSet, config: RidgeFillConfig, on_step: OnStep, **options: Any
) -> tuple[MapSet, Proposal]:
    splits = [split.layer for split in maps.splits]
    heads = {split: [(item.layer, item.head) for item in maps.heads if item.split == split] for split in splits}
    total = 2 + len(defaults.BUDGETS) * sum(map(bool, heads.values()))  # the exact model, the highest split, and these
    steps = (Step("settings", done, total) for done in range(total + 1))
    on_step(next(steps))
    proposal = propose(model, config, heads, splits=splits, on_trial=lambda _trial: on_step(next(steps)), **options)
    if not proposal.recommendation.accepted:
        reason = proposal.recommendation.reason
        _log.warning("%s The default is split %d, without selection.", reason, maps.defaults().split)
        return maps, proposal
    point = proposal.recommendation.trial.point
    best = replace(maps.recommended, split=point.split, select=point.select, budget=point.budget or None)
    return replace(maps, recommended=best.complete()), proposal
