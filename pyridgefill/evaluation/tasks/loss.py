"""Loss on the exact tail of running text whose earlier part may be filled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from pyridgefill.errors import ModelError
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.way import PLAIN, Way


def next_token_losses(logits: npt.NDArray[np.float32], tokens: Sequence[int]) -> npt.NDArray[np.float64]:
    """Negative log likelihood of each token after the first, predicted by the row before it.

    Parameters
    ----------
    logits
        `[n, n_vocab]`.
    tokens
        The rows' tokens, n.

    Returns
    -------
    ndarray
        `[n - 1]`, in nats.
    """
    rows = zip(logits[:-1], tokens[1:], strict=True)
    # row by row: no copy of all logits in float64
    return np.asarray([logsumexp(row.astype(np.float64)) - float(row[token]) for row, token in rows])


def token_losses(session: Session, tokens: Sequence[int], tail: int, way: Way = PLAIN) -> npt.NDArray[np.float64]:
    """Negative log likelihood of each token of the tail after the first.

    Parameters
    ----------
    session
        With or without maps; its plan must keep the last `tail` rows exact.
    tokens
        The text.
    tail
        Rows at the end that are scored.
    way
        How the text runs; the session is started for it.

    Returns
    -------
    ndarray
        `[tail - 1]`, in nats.

    Raises
    ------
    ModelError
        If the plan fills rows of the tail: what they would predict was never computed.
    """
    n_exact = session.exact_tail(len(tokens))
    if n_exact < tail:
        raise ModelError(f"loss on {tail} rows, but only the last {n_exact} run exact", "ask for a longer tail")
    return next_token_losses(way.prefill(session, tokens, tail), tokens[-tail:])
