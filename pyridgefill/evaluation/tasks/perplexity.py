"""Perplexity of rows that run exact, behind rows that may be filled; filled rows predict nothing and are refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pyridgefill.errors import UsageError
from pyridgefill.evaluation.intervals import Interval, mean_difference, paired_bootstrap
from pyridgefill.evaluation.run.found import Perplexity
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.task import Run, TextParams, TextTask
from pyridgefill.evaluation.run.way import Way
from pyridgefill.evaluation.tasks.loss import token_losses


def check_score(score: int, tail: int) -> None:
    """Raise a UsageError if the last `score` rows of a prompt have no loss, or are not all in the exact tail."""
    if score < 2:
        raise UsageError(f"perplexity of {score} rows: each row but the last is scored", "score at least 2 rows")
    if score > tail:
        raise UsageError(
            f"perplexity of {score} rows, but only the last {tail} run exact: filled rows have no logits",
            f"score at most {tail} rows, or ask for a longer tail",
        )


@dataclass(frozen=True, kw_only=True)
class PerplexityParams(TextParams):
    """Rows at the ends of texts whose predictions are scored, `score - 1` tokens each.

    Raises
    ------
    UsageError
        If a row that is scored would be filled.
    """

    score: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_score(self.score, self.tail)


class PerplexityTask(TextTask[PerplexityParams, float, Perplexity]):
    """Perplexity on the last rows of texts."""

    name = "perplexity"

    def measure(self, session: Session, way: Way, item: list[int]) -> float:
        """Mean loss of a text's scored tokens, nats."""
        return float(token_losses(session, item, self.params.score, way).mean())

    def summarise(self, run: Run[list[int], float, Perplexity]) -> Perplexity:
        """Perplexity of all texts together, and its change against exact."""
        tokens = len(run.items) * (self.params.score - 1)
        return summarise_losses(run.measured, None if run.exact is None else run.exact.losses, tokens, self.params.seed)


def summarise_losses(losses: Sequence[float], exact: Sequence[float] | None, tokens: int, seed: int) -> Perplexity:
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
    """
    values = np.asarray(losses, dtype=np.float64)
    mean = paired_bootstrap(mean_difference, (np.zeros_like(values), values), seed=seed)
    found = Perplexity(tuple(losses), tokens, mean.value, _mapped(math.exp, mean))
    if exact is None:
        return found
    difference = paired_bootstrap(mean_difference, (np.asarray(exact), values), seed=seed)
    return replace(found, difference=difference, relative=_mapped(math.expm1, difference))


def _mapped(function: Callable[[float], float], interval: Interval) -> Interval:
    """An interval of an increasing function of the value."""
    return Interval(*map(function, (interval.value, interval.low, interval.high)))
