"""Loss on the exact tail of running text whose earlier part may be filled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import logsumexp

from pyridgefill.evaluation.session import Session


def tail_losses(session: Session, prompts: Sequence[Sequence[int]], tail: int) -> list[float]:
    """Mean negative log likelihood of the tail's tokens after the first, in nats, for each prompt.

    Parameters
    ----------
    session
        With or without maps; its plan must keep the last `tail` rows exact.
    prompts
        Token sequences.
    tail
        Rows at the end that are scored.
    """
    losses = []
    for tokens in prompts:
        logits = session.prefill(tokens, tail)[:-1].astype(np.float64)
        targets = np.asarray(tokens[-tail + 1 :])
        losses.append(float(np.mean(logsumexp(logits, axis=1) - logits[np.arange(tail - 1), targets])))
    return losses
