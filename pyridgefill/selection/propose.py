"""Tries settings on a model with the effort of a calibration, and proposes one; see `recommend` for the rules."""

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
from pyridgefill.evaluation.prompts.needle import KeyedText, make_keyed_texts
from pyridgefill.evaluation.prompts.text import text_windows
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.tasks.far_loss import default_near
from pyridgefill.evaluation.tasks.loss import token_losses
from pyridgefill.evaluation.tasks.scored import count_hits
from pyridgefill.maps import read_base_model
from pyridgefill.selection.point import Point
from pyridgefill.selection.recommend import QUICK, Effort, Outcome, Recommendation, Trial, recommend, walk_up

# keys and values that no head was chosen by
_SEED = 1000


@dataclass(frozen=True)
class Proposal:
    """What was tried, from the least work on, and what is recommended; `hits` of `prompts` needles, exact."""

    hits: int
    prompts: int
    trials: tuple[Trial, ...]
    recommendation: Recommendation
    max_loss_increase: float = defaults.MAX_LOSS_INCREASE

    def to_list(self) -> list[dict[str, Any]]:
        """JSON-ready: the exact model, then the settings in the order in which they were tried."""
        exact = {"split": None, "select": "none", "budget": 0.0, "hits": self.hits, "prompts": self.prompts}
        return [exact, *(self._trial(trial) for trial in self.trials)]

    def _trial(self, trial: Trial) -> dict[str, Any]:
        (outcome,) = trial.outcomes
        faults = trial.faults(self.max_loss_increase)
        return {
            "split": trial.point.split,
            "select": trial.point.select,
            "budget": trial.point.budget,
            "hits": outcome.hits,
            "prompts": outcome.prompts,
            "loss_increase": outcome.loss_increase,
            "accepted": not faults,
            "faults": faults,
        }


def propose(
    model_path: str | os.PathLike[str],
    config: RidgeFillConfig,
    heads: Mapping[int, Sequence[tuple[int, int]]],
    *,
    splits: Sequence[int],
    budgets: Sequence[float] = defaults.BUDGETS,
    effort: Effort = QUICK,
    max_loss_increase: float = defaults.MAX_LOSS_INCREASE,
    on_trial: Callable[[Trial | None], None] = lambda _trial: None,
    **options: Any,
) -> Proposal:
    """Try splits and budgets, those with the least work first, until one is as good as exact.

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
    effort
        What settings are tried on: its first length; nothing is timed.
    max_loss_increase
        Relative, of the loss on the exact tail.
    on_trial
        Called after the exact model with None, and after each trial; there are `len(candidates(...))` at most.
    **options
        For `Engine`.
    """
    n_layer, length = read_base_model(model_path).block_count, effort.lengths[0]
    tail = defaults.TAIL if config.tail is None else config.tail
    points = candidates(heads, splits, budgets, tail)
    with Session(model_path, n_ctx=length + 64, **options) as session:
        needles = list(_needles(session, config, effort, tail))
        windows = text_windows(session, length, skip=len(needles))
        texts = [next(windows) for _ in range(effort.texts)]
        total = sum(len(text.needles) for text in needles)
        exact_hits = sum(sum(count_hits(session, text.needles)) for text in needles)
        exact_loss = _loss(session, texts, tail)
        on_trial(None)

        def measure(point: Point) -> Trial:
            asking = tuple(heads.get(point.split, ())) if point.budget else ()
            setting = replace(config, split=point.split, min_prompt=0, select=point.select, heads=asking)
            session.set_maps(replace(setting, budget=point.budget))
            hits = _hits(session, needles, least_hits(exact_hits, total), total)
            loss = None if hits < least_hits(exact_hits, total) else _loss(session, texts, tail) / exact_loss - 1
            ratio = 1 / point.work(n_layer, length)
            trial = Trial(point, (Outcome(length, hits, total, exact_hits, loss, None, ratio),))
            on_trial(trial)
            return trial

        trials = walk_up(points, measure, n_layer=n_layer, n_prompt=length, max_loss_increase=max_loss_increase)
    return Proposal(exact_hits, total, tuple(trials), recommend(trials, max_loss_increase), max_loss_increase)


def candidates(
    heads: Mapping[int, Sequence[tuple[int, int]]], splits: Sequence[int], budgets: Sequence[float], tail: int
) -> list[Point]:
    """The highest split without selection, and each split that has heads with each budget."""
    return [
        Point(max(splits), tail, 0.0),
        *(Point(split, tail, budget) for split in splits if heads.get(split) for budget in budgets),
    ]


def _needles(session: Session, config: RidgeFillConfig, effort: Effort, tail: int) -> Iterator[KeyedText]:
    chat = chat_formatter(session, add_generation_prompt=True)
    for index, kind in enumerate(effort.kinds):
        shape = Shape(session, chat, effort.lengths[0], config.sink or 0, tail, _SEED + index)
        yield from make_keyed_texts(shape, count=-(-effort.needles // effort.keys), keys=effort.keys, kind=kind)


def _hits(session: Session, needles: Sequence[KeyedText], least: int, total: int) -> int:
    """Needles found, or those until it is clear that too few are."""
    found = asked = 0
    for text in needles:
        found += sum(count_hits(session, text.needles))
        asked += len(text.needles)
        if found + total - asked < least:
            break
    return found


def _loss(session: Session, texts: Sequence[Sequence[int]], tail: int) -> float:
    """Mean over texts of the loss on the tail's scored tokens, as for the loss on far tokens."""
    return float(np.mean([token_losses(session, text, tail)[default_near(tail) - 1 :].mean() for text in texts]))
