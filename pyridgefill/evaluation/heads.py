"""Finds retrieval heads: attention heads below a split that point at the rows which a question asks for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader

from pyridgefill._native import LLAMA_RIDGEFILL_MAX_HEADS
from pyridgefill.chat import chat_formatter
from pyridgefill.config import RidgeFillConfig
from pyridgefill.evaluation.needle import KINDS, Needle, make_needles
from pyridgefill.evaluation.session import Session
from pyridgefill.heads import BUDGETS, choose_heads, recall_at
from pyridgefill.maps.model import RetrievalHead


def find_heads(
    model_path: str | os.PathLike[str],
    config: RidgeFillConfig,
    *,
    split: int,
    count: int = 3,
    prompts: int = 4,
    lengths: Sequence[int] = (1024, 2048),
    n_threads: int = 0,
    seed: int = 0,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[RetrievalHead]:
    """Rank the heads below a split by how well they find needles.

    Needles of each kind but the last choose the heads; recall is reported on needles of the last kind.

    Parameters
    ----------
    model_path
        The model's GGUF.
    config
        Maps (any quality), sink, tail, pool and queries; its selection is replaced.
    split
        The heads are in the layers below.
    count
        Heads at most.
    prompts
        Needles per kind and length.
    lengths
        Tokens of the prompts.
    n_threads
        0: the CPUs that this process may use.
    seed
        Of the needles.
    on_progress
        Called with the number of finished prompts and of all.

    Returns
    -------
    list of RetrievalHead
        The best first.
    """
    everyone = [(layer, head) for layer, n_head in enumerate(head_counts(model_path)[:split]) for head in range(n_head)]
    groups = [everyone[i : i + LLAMA_RIDGEFILL_MAX_HEADS] for i in range(0, len(everyone), LLAMA_RIDGEFILL_MAX_HEADS)]
    config = replace(config, split=split, select="attention", budget=0, min_prompt=0)
    with Session(model_path, n_ctx=max(lengths) + 64, n_threads=n_threads) as session:
        chat = chat_formatter(session, add_generation_prompt=True)
        needles: list[tuple[str, Needle]] = []
        for length in lengths:
            shape: dict[str, Any] = {"n_prompt": length, "sink": config.sink or 0, "tail": config.tail or 256}
            for index, kind in enumerate(KINDS):
                made = make_needles(session, chat, count=prompts, kind=kind, seed=seed + index, **shape)
                needles += [(kind, needle) for needle in made]
        done, total = 0, len(needles) * len(groups)
        found: list[list[npt.NDArray[np.float64]]] = [[] for _ in needles]
        for group in groups:
            session.set_maps(replace(config, heads=tuple(group)))
            for index, (_, needle) in enumerate(needles):
                found[index].append(_recall(session, needle, config.pool))
                done += 1
                on_progress(done, total)
    recalls: dict[str, list[npt.NDArray[np.float64]]] = {kind: [] for kind in KINDS}
    for (kind, _), rows in zip(needles, found, strict=True):
        recalls[kind].append(np.concatenate(rows))
    *ranking, check = KINDS
    chosen = choose_heads(np.stack([row for kind in ranking for row in recalls[kind]]), count)
    held_out = np.stack(recalls[check]).mean(axis=0)
    return [RetrievalHead(split, *everyone[index], recall=float(held_out[index])) for index in chosen]


def _recall(session: Session, needle: Needle, pool: tuple[int, int]) -> npt.NDArray[np.float64]:
    session.prefill(needle.tokens)
    scores = session.head_scores(len(needle.tokens))
    candidates = [row for start, end in session.ranges for row in range(start, end)]
    rows = range(needle.value_start, needle.value_end)
    recalls = [recall_at(scores, rows, candidates, share, pool) for share in BUDGETS]
    return np.asarray(np.mean(recalls, axis=0))


def head_counts(model_path: str | os.PathLike[str]) -> list[int]:
    """Attention heads of each layer, from the model's GGUF."""
    reader = GGUFReader(str(model_path))
    arch = str(reader.fields["general.architecture"].contents())
    n_layer = int(reader.fields[f"{arch}.block_count"].contents())
    found = reader.fields[f"{arch}.attention.head_count"].contents()
    return [int(n) for n in found] if isinstance(found, list) else [int(found)] * n_layer
