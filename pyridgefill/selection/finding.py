"""Finds retrieval heads: attention heads below a split that point at the rows which a question asks for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyridgefill import defaults
from pyridgefill._native import LLAMA_RIDGEFILL_MAX_HEADS as MAX_HEADS
from pyridgefill.chat import chat_formatter
from pyridgefill.config import RidgeFillConfig
from pyridgefill.errors import ModelError
from pyridgefill.evaluation.prompts.layout import Shape
from pyridgefill.evaluation.prompts.needle import KINDS, make_needles
from pyridgefill.evaluation.prompts.text import text_windows
from pyridgefill.evaluation.run.session import Session
from pyridgefill.maps.gguf_file import GGUFFile
from pyridgefill.maps.model import RetrievalHead
from pyridgefill.selection.ranking import ScoredPrompt, choose_heads, recall
from pyridgefill.selection.repeats import repeated_rows

# needles of these kinds check the heads that the other kinds have chosen
CHECK_KINDS = ("uuids", "chinese")

# not the text that evaluations use
RANKING_CORPUS = "stdlib-code"


def find_heads(
    model_path: str | os.PathLike[str],
    config: RidgeFillConfig,
    *,
    splits: Sequence[int],
    count: int = defaults.HEADS,
    prompts: int = defaults.HEAD_PROMPTS,
    lengths: Sequence[int] = defaults.HEAD_LENGTHS,
    seed: int = 0,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
    **options: Any,
) -> list[RetrievalHead]:
    """Rank the heads below each split by how well they find needles.

    One prefill of each prompt lets all heads of 32 layers score: what a head sees does not depend on the split above
    it. Needles of most kinds choose the heads, and texts whose end repeats rows before it, see `repeated_rows`; recall
    is told on needles of `CHECK_KINDS`.

    Parameters
    ----------
    model_path
        The model's GGUF.
    config
        Maps (any quality) that have the highest split, sink, tail, pool and queries; its selection is replaced.
    splits
        The heads are in the layers below.
    count
        Heads for each split at most.
    prompts
        Needles per kind and length, and texts per length.
    lengths
        Tokens of the prompts.
    seed
        Of the needles.
    on_progress
        Called with the number of finished prompts and of all.
    **options
        For `Engine`.

    Returns
    -------
    list of RetrievalHead
        By split, the best first.
    """
    highest = max(splits)
    counts = head_counts(model_path)[:highest]
    everyone = [(layer, head) for layer, n_head in enumerate(counts) for head in range(n_head)]
    with Session(model_path, n_ctx=max(lengths) + 64, **options) as session:
        pool = config.pool or defaults.POOL
        prompts_made = [*_needles(session, config, lengths, prompts, seed), *_texts(session, config, lengths, prompts)]
        # no row is selected: the heads score all the same
        config = replace(config, split=highest, select="attention", budget=0, min_prompt=0, pool=pool)
        layers = [(layer, -1) for layer, n_head in enumerate(counts) if n_head > 0]
        groups = [tuple(layers[i : i + MAX_HEADS]) for i in range(0, len(layers), MAX_HEADS)]
        parts: list[list[ScoredPrompt]] = [[] for _ in prompts_made]
        for group in groups:
            session.set_maps(replace(config, heads=group))
            for index, (_, tokens, rows) in enumerate(prompts_made):
                parts[index].append(_score(session, tokens, rows))
                on_progress(sum(map(len, parts)), len(groups) * len(prompts_made))
    scored = [ScoredPrompt(np.concatenate([part.scores for part in found]), found[0].wanted) for found in parts]
    kinds = [kind for kind, _, _ in prompts_made]
    ranking = [prompt for kind, prompt in zip(kinds, scored, strict=True) if kind not in CHECK_KINDS]
    check = [prompt for kind, prompt in zip(kinds, scored, strict=True) if kind in CHECK_KINDS]
    return [head for split in splits for head in _choose(split, everyone, ranking, check, count)]


# kind, tokens, and the rows that must be found
_Prompt = tuple[str, Sequence[int], Sequence[int]]


def _needles(
    session: Session, config: RidgeFillConfig, lengths: Sequence[int], prompts: int, seed: int
) -> Iterator[_Prompt]:
    chat = chat_formatter(session, add_generation_prompt=True)
    for length in lengths:
        rows = length, config.sink or 0, config.tail or defaults.TAIL
        for index, kind in enumerate(KINDS):
            shape = Shape(session, chat, *rows, seed + index, RANKING_CORPUS)
            for needle in make_needles(shape, count=prompts, kind=kind):
                yield kind, needle.tokens, range(needle.value_start, needle.value_end)


def _texts(session: Session, config: RidgeFillConfig, lengths: Sequence[int], prompts: int) -> Iterator[_Prompt]:
    for length in lengths:
        made = 0
        # the windows behind those that hide the needles
        for tokens in text_windows(session, length, skip=prompts, corpus=RANKING_CORPUS):
            rows = repeated_rows(tokens, config.sink or 0, config.tail or defaults.TAIL)
            if rows:
                yield "repeats", tokens, rows
                made += 1
            if made == prompts:
                break


def _score(session: Session, tokens: Sequence[int], rows: Sequence[int]) -> ScoredPrompt:
    session.prefill(tokens)
    candidates = [row for start, end in session.ranges for row in range(start, end)]
    return ScoredPrompt(session.head_scores(len(tokens))[:, candidates], np.isin(candidates, list(rows)))


def _choose(
    split: int,
    everyone: Sequence[tuple[int, int]],
    ranking: Sequence[ScoredPrompt],
    check: Sequence[ScoredPrompt],
    count: int,
) -> list[RetrievalHead]:
    below = sum(layer < split for layer, _ in everyone)

    def cut(prompts: Sequence[ScoredPrompt]) -> list[ScoredPrompt]:
        return [ScoredPrompt(prompt.scores[:below], prompt.wanted) for prompt in prompts]

    recalls: npt.NDArray[np.float64] = np.mean([recall(prompt) for prompt in cut(check)], axis=0)
    return [
        RetrievalHead(split, *everyone[index], recall=tuple(recalls[index].tolist()))
        for index in choose_heads(cut(ranking), count)
    ]


def head_counts(model_path: str | os.PathLike[str]) -> list[int]:
    """Attention heads of each layer, from the model's GGUF."""
    file = GGUFFile(Path(model_path), ModelError)
    arch = file.text("general.architecture")
    counts = [int(count) for count in file.numbers(f"{arch}.attention.head_count")]
    return counts if len(counts) > 1 else counts * file.whole(f"{arch}.block_count")
