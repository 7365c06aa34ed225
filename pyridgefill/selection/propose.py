"""Proposes settings: those with the least work that still find needles as the exact model does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pyridgefill import defaults
from pyridgefill.chat import chat_formatter
from pyridgefill.config import RidgeFillConfig
from pyridgefill.evaluation.intervals import least_hits
from pyridgefill.evaluation.prompts.layout import Shape
from pyridgefill.evaluation.prompts.needle import KINDS, KeyedText, make_keyed_texts
from pyridgefill.evaluation.prompts.text import text_windows
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.tasks.loss import tail_losses
from pyridgefill.evaluation.tasks.scored import count_hits
from pyridgefill.maps import read_base_model

# keys and values that no head was chosen by
_SEED_OFFSET = 1000


@dataclass(frozen=True)
class Trial:
    """One setting on the needles and texts; `split` None is the exact model.

    Attributes
    ----------
    split, select, budget
        The setting.
    hits, n
        Needles found, and asked for before the outcome was clear.
    loss
        Mean over the texts' exact tails in nats; None where the needles already decided.
    accepted
        Whether needles and loss are as good as exact.
    """

    split: int | None
    select: str
    budget: float
    hits: int
    n: int
    loss: float | None
    accepted: bool


@dataclass(frozen=True)
class Workload:
    """What settings are tried on.

    Attributes
    ----------
    length
        Tokens of each prompt.
    keys
        Needles per text; each kind of needle has one text.
    texts
        Running texts for the loss.
    max_loss_increase
        Largest relative increase of the loss on the exact tail.
    seed
        Of the needles.
    """

    length: int = defaults.CTX
    keys: int = 4
    texts: int = 4
    max_loss_increase: float = defaults.MAX_LOSS_INCREASE
    seed: int = 0


def propose(
    model_path: str | os.PathLike[str],
    config: RidgeFillConfig,
    heads: Mapping[int, Sequence[tuple[int, int]]],
    *,
    splits: Sequence[int],
    budgets: Sequence[float] = defaults.BUDGETS,
    workload: Workload | None = None,
    on_trial: Callable[[Trial], None] = lambda _trial: None,
    **options: Any,
) -> tuple[Trial | None, list[Trial]]:
    """Try splits and budgets, those with the least work first, until one is as good as exact.

    The work is that of the filled rows: layers below the split for all of them, all layers for the selected ones.

    As good means: as many needles found as the lower end of the exact model's 95 % Wilson interval, and a loss on the
    exact tail of running text that is at most `max_loss_increase` higher.

    Parameters
    ----------
    model_path
        The model's GGUF.
    config
        Maps, sink, tail, pool and queries.
    heads
        Retrieval heads of each split; the highest split is tried without selection too.
    splits
        Candidates.
    budgets
        Shares of the filled rows.
    workload
        What settings are tried on.
    on_trial
        Called after each trial, the exact model's first.
    **options
        For `Engine`.

    Returns
    -------
    accepted, trials
        The first setting that was as good, None if none was; all trials, the exact model's first.
    """
    work = workload or Workload()
    with Session(model_path, n_ctx=work.length + 64, **options) as session:
        needles = list(_needles(session, config, work))
        windows = text_windows(session, work.length, skip=len(needles))
        texts = [next(windows) for _ in range(work.texts)]
        tail = config.tail or defaults.TAIL
        hits = [hit for text in needles for hit in count_hits(session, text.needles)]
        exact_loss = float(np.mean(tail_losses(session, texts, tail)))
        trials = [Trial(None, "none", 0.0, sum(hits), len(hits), exact_loss, True)]
        on_trial(trials[0])
        least = least_hits(sum(hits), len(hits))
        for setting in _settings(config, heads, splits, budgets, read_base_model(model_path).block_count):
            session.set_maps(setting)
            found, asked = _find(session, needles, least, len(hits))
            loss = float(np.mean(tail_losses(session, texts, tail))) if found >= least else None
            good = loss is not None and loss <= exact_loss * (1 + work.max_loss_increase)
            trials.append(Trial(setting.split, setting.select or "none", setting.budget or 0, found, asked, loss, good))
            on_trial(trials[-1])
            if good:
                return trials[-1], trials
    return None, trials


def _needles(session: Session, config: RidgeFillConfig, work: Workload) -> Iterator[KeyedText]:
    chat = chat_formatter(session, add_generation_prompt=True)
    for index, kind in enumerate(KINDS):
        rows = work.length, config.sink or 0, config.tail or defaults.TAIL
        shape = Shape(session, chat, *rows, _SEED_OFFSET + work.seed + index)
        yield from make_keyed_texts(shape, count=1, keys=work.keys, kind=kind)


def _settings(
    config: RidgeFillConfig,
    heads: Mapping[int, Sequence[tuple[int, int]]],
    splits: Sequence[int],
    budgets: Sequence[float],
    n_layer: int,
) -> list[RidgeFillConfig]:
    found = [replace(config, split=max(splits), min_prompt=0, select="none", budget=0.0)]
    for split in splits:
        if heads.get(split):
            base = replace(config, split=split, min_prompt=0, select="attention", heads=tuple(heads[split]))
            found += [replace(base, budget=budget) for budget in budgets]

    def work(setting: RidgeFillConfig) -> float:
        assert setting.split is not None
        assert setting.budget is not None
        return setting.split + setting.budget * (n_layer - setting.split)

    return sorted(found, key=work)


def _find(session: Session, needles: Sequence[KeyedText], least: int, total: int) -> tuple[int, int]:
    """Hits, and needles asked for: no more than it takes to see that too few are found."""
    found = asked = 0
    for text in needles:
        found += sum(count_hits(session, text.needles))
        asked += len(text.needles)
        if found + total - asked < least:
            break
    return found, asked
