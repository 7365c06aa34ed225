"""Perplexity of rows that run exact, behind rows that may be filled; filled rows predict nothing and are refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, partial

import numpy as np

from pyridgefill.errors import ModelError
from pyridgefill.evaluation.intervals import Interval, mean_difference, paired_bootstrap
from pyridgefill.evaluation.run.lab import Advance, Compute, Job, Result
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.way import Way
from pyridgefill.evaluation.tasks.jobs import Setting, text_list
from pyridgefill.evaluation.tasks.loss import tail_losses


def check_score(score: int, tail: int) -> None:
    """Raise a ModelError if the last `score` rows of a prompt have no loss, or are not all in the exact tail."""
    if score < 2:
        raise ModelError(f"perplexity of {score} rows: each row but the last is scored", "score at least 2 rows")
    if score > tail:
        raise ModelError(
            f"perplexity of {score} rows, but only the last {tail} run exact: filled rows have no logits",
            f"score at most {tail} rows, or ask for a longer tail",
        )


def summarise_losses(losses: Sequence[float], exact: Sequence[float] | None, tokens: int, seed: int) -> Result:
    """Perplexity of texts, and how it changes against exact; intervals resample texts.

    Parameters
    ----------
    losses
        Mean loss of each text, nats; all texts have as many scored tokens.
    exact
        The exact model's; None for its own.
    tokens
        Scored tokens of all texts together.
    seed
        Of the bootstrap.

    Returns
    -------
    dict
        `losses`, `tokens`, `loss`, `perplexity` with its interval; against exact `difference` in nats and `relative`,
        the relative change of perplexity, exp(difference) - 1.
    """
    values = np.asarray(losses, dtype=np.float64)
    mean = paired_bootstrap(mean_difference, (np.zeros_like(values), values), seed=seed)
    result = {
        "losses": list(losses),
        "tokens": tokens,
        "loss": mean.value,
        "perplexity": asdict(_mapped(math.exp, mean)),
    }
    if exact is not None:
        difference = paired_bootstrap(mean_difference, (np.asarray(exact), values), seed=seed)
        result |= {"difference": asdict(difference), "relative": asdict(_mapped(math.expm1, difference))}
    return result


def _mapped(function: Callable[[float], float], interval: Interval) -> Interval:
    """An interval of an increasing function of the value."""
    return Interval(*map(function, (interval.value, interval.low, interval.high)))


def perplexity_jobs(setting: Setting, *, lengths: Sequence[int], texts: int, score: int | None = None) -> list[Job]:
    """Perplexity on the last rows of texts of each length.

    Parameters
    ----------
    setting
        The model and its variants.
    lengths, texts
        Tokens of the texts, and how many of each length.
    score
        Rows at the end whose predictions are scored, `score - 1` tokens; None: the tail.

    Raises
    ------
    ModelError
        If a row that is scored would be filled.
    """
    rows = setting.tail if score is None else score
    check_score(rows, setting.tail)

    def compute(
        windows: Callable[[], list[list[int]]], session: Session, way: Way, advance: Advance, exact: Result | None
    ) -> Result:
        losses = []
        for text in windows():
            losses += tail_losses(session, [text], rows, way)
            advance()
        return summarise_losses(losses, None if exact is None else exact["losses"], texts * (rows - 1), setting.seed)

    jobs = []
    for ctx in lengths:
        run: Compute = partial(compute, cache(partial(text_list, setting, ctx, texts)))
        params = setting.params(ctx, texts=texts, score=rows)
        jobs += setting.jobs("perplexity", params, texts, lambda _variant, run=run: run)  # type: ignore[misc]
    return jobs
