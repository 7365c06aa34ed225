from __future__ import annotations

import numpy as np

from support.gguf_builder import N_VOCAB


def tokens(n: int, seed: int = 0, n_vocab: int = N_VOCAB) -> list[int]:
    """A random prompt."""
    return [int(t) for t in np.random.default_rng(seed).integers(0, n_vocab, n)]
