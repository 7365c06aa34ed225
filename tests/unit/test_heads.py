"""Choosing retrieval heads, on scores whose right answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from pyridgefill.errors import MapsError
from pyridgefill.maps import MapSet, RetrievalHead, identity_maps, read_maps, write_maps
from pyridgefill.maps.base import BaseModel
from pyridgefill.selection.ranking import ScoredPrompt, choose_heads, recall

BASE = BaseModel("llama", 6, 8, 10, "0" * 16, "1" * 16)


def prompt(scores: np.ndarray, rows: range, candidates: range) -> ScoredPrompt:
    return ScoredPrompt(scores[:, candidates], np.isin(candidates, rows))


def test_recall_counts_wanted_rows_among_the_best() -> None:
    scores = np.zeros((3, 100))
    scores[0, 40:44] = 1  # finds all
    scores[1, 40:42] = 1
    scores[1, 80:82] = 2  # finds half: two others come first
    scores[2, 0:4] = 1  # looks at rows that are no candidates
    scores[2, 99] = 1
    scores[2, 10:14] = 0.1
    found = recall(prompt(scores, range(40, 44), range(10, 90)), (0.05, 0.025))
    assert found.tolist() == [[1.0, 0.5], [0.5, 0.0], [0.0, 0.0]]


def test_heads_that_help_different_prompts_are_chosen_together() -> None:
    prompts = []
    for finds, value in ((0, 1.0), (1, 0.5)):
        scores = np.zeros((3, 100))
        scores[2, 10] = 0.9  # never finds
        scores[2, 40:43] = 0.8  # finds a part of both
        scores[finds, 40:44] = value
        prompts.append(prompt(scores, range(40, 44), range(100)))
    assert choose_heads(prompts, 1) == [2]
    assert choose_heads(prompts, 2) == [2, 0], "each of the others adds as much to its prompt"
    assert choose_heads(prompts, 3) == [2, 0, 1]


def test_heads_that_find_nothing_more_are_left_out() -> None:
    scores = np.zeros((2, 100))
    scores[:, 40:44] = 1
    prompts = [prompt(scores, range(40, 44), range(100))]
    assert choose_heads(prompts, 2) == [0]
    scores[:, 40:44] = 0
    scores[:, 80:100] = 1
    assert choose_heads([prompt(scores, range(40, 44), range(100))], 2) == []


def maps(*heads: RetrievalHead) -> MapSet:
    base = identity_maps(BASE, [2])
    return MapSet(base.base, base.splits, base.maps, recommended=base.recommended, heads=heads)


def test_heads_are_stored(tmp_path) -> None:
    heads = (RetrievalHead(2, 1, 3, (0.25, 0.5, 1.0)), RetrievalHead(2, 0, 1, (0.0, 0.125, 0.5)))
    write_maps(tmp_path / "maps.gguf", maps(*heads))
    assert read_maps(tmp_path / "maps.gguf").heads == heads


@pytest.mark.parametrize("head", [RetrievalHead(2, 2, 0), RetrievalHead(1, 0, 0), RetrievalHead(2, -1, 0)])
def test_heads_must_be_below_a_split_of_the_file(tmp_path, head: RetrievalHead) -> None:
    with pytest.raises(MapsError, match=r"ridgefill\.heads"):
        write_maps(tmp_path / "maps.gguf", maps(head))
