"""Ranks attention heads by how well they point at the rows which a question asks for; numpy in, numpy out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyridgefill.maps.model import HEAD_SHARES

# the heads' recall is told at these shares of the rows that may be selected
BUDGETS = tuple(percent / 100 for percent in HEAD_SHARES)

# a further head must find that much more
_LEAST_GAIN = 0.01


@dataclass(frozen=True)
class ScoredPrompt:
    """What every head says about the rows of one prompt that may be selected.

    Attributes
    ----------
    scores
        `[n_heads, n_rows]`, pooled over neighbouring rows, as the engine selects by them.
    wanted
        `[n_rows]`, the rows that must be found.
    """

    scores: npt.NDArray[np.floating]
    wanted: npt.NDArray[np.bool_]


def recall(prompt: ScoredPrompt, shares: Sequence[float] = BUDGETS) -> npt.NDArray[np.float64]:
    """Share of the wanted rows among each head's best ones, `[n_heads, n_shares]`, from 0 to 1."""
    n_rows = prompt.wanted.size
    counts = [max(1, round(share * n_rows)) for share in shares]
    most = min(n_rows, max(counts))
    best = np.argpartition(-prompt.scores, most - 1, axis=1)[:, :most]
    order = np.argsort(-np.take_along_axis(prompt.scores, best, axis=1), axis=1, kind="stable")
    found = prompt.wanted[np.take_along_axis(best, order, axis=1)].cumsum(axis=1)
    return np.asarray(np.stack([found[:, count - 1] for count in counts], axis=1) / max(1, prompt.wanted.sum()))


def choose_heads(prompts: Sequence[ScoredPrompt], count: int) -> list[int]:
    """Pick heads one by one, each the one that helps most beside those that are chosen.

    Heads share the budget, as in the engine: a row counts with the best score that any chosen head gives it.

    Parameters
    ----------
    prompts
        With the same heads.
    count
        Heads at most; fewer when another one finds less than 1 % more.

    Returns
    -------
    list of int
        Indices of heads, the best first.
    """
    chosen: list[int] = []
    so_far = [np.zeros(prompt.wanted.size, prompt.scores.dtype) for prompt in prompts]
    reached = 0.0
    while len(chosen) < count:
        together = [ScoredPrompt(np.maximum(p.scores, s), p.wanted) for p, s in zip(prompts, so_far, strict=True)]
        means = np.mean([recall(prompt).mean(axis=1) for prompt in together], axis=0)
        best = int(np.argmax(means))
        if best in chosen or means[best] < reached + _LEAST_GAIN:
            break
        chosen.append(best)
        reached = float(means[best])
        so_far = [prompt.scores[best] for prompt in together]
    return chosen
