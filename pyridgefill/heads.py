"""Ranks attention heads by how well they point at the rows which a question asks for; numpy in, numpy out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.ndimage import maximum_filter1d

BUDGETS = (0.02, 0.05, 0.10)


def recall_at(
    scores: npt.NDArray[np.float32], rows: Sequence[int], candidates: Sequence[int], share: float, pool: tuple[int, int]
) -> npt.NDArray[np.float64]:
    """Share of the wanted rows among each head's best candidates.

    Parameters
    ----------
    scores
        `[n_heads, n_prompt]`.
    rows
        The rows that must be found.
    candidates
        The rows that may be selected.
    share
        Budget as a share of the candidates.
    pool
        Rows before and after a row that its score counts for, too.

    Returns
    -------
    ndarray
        `[n_heads]`, from 0 to 1.
    """
    before, after = pool
    # the window of a row reaches from `after` rows before it to `before` rows behind it
    pooled = maximum_filter1d(scores, before + 1 + after, axis=1, mode="constant", origin=(after - before) // 2)
    pooled = pooled[:, list(candidates)]
    count = max(1, round(share * len(candidates)))
    best = np.argpartition(-pooled, count - 1, axis=1)[:, :count]
    wanted = np.isin(np.asarray(candidates), list(rows))
    found = np.take_along_axis(np.broadcast_to(wanted, pooled.shape), best, axis=1).sum(axis=1)
    return np.asarray(found / max(1, wanted.sum()), dtype=np.float64)


def choose_heads(recalls: npt.NDArray[np.float64], count: int) -> list[int]:
    """Pick heads one by one, each the one that helps most beside those that are chosen.

    Parameters
    ----------
    recalls
        `[n_prompts, n_heads]`.
    count
        Heads at most; fewer when another one helps no prompt.

    Returns
    -------
    list of int
        Indices of heads, the best first.
    """
    chosen: list[int] = []
    covered = np.zeros(recalls.shape[0])
    while len(chosen) < count:
        gain = np.maximum(covered[:, None], recalls).mean(axis=0) - covered.mean()
        # among heads that help equally the one with the best recall of its own
        best = int(np.lexsort((recalls.mean(axis=0), gain))[-1])
        if gain[best] <= 0 or best in chosen:
            break
        chosen.append(best)
        covered = np.maximum(covered, recalls[:, best])
    return chosen
