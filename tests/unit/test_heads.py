"""Choosing retrieval heads, on scores whose right answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from pyridgefill.errors import MapsError
from pyridgefill.heads import choose_heads, recall_at
from pyridgefill.maps import MapSet, RetrievalHead, identity_maps, read_maps, write_maps
from pyridgefill.maps.base import BaseModel

BASE = BaseModel("llama", 6, 8, 10, "0" * 16, "1" * 16)


def test_recall_counts_wanted_rows_among_the_best() -> None:
    scores = np.zeros((3, 100), np.float32)
    scores[0, 40:44] = 1  # finds all
    scores[1, 40:42] = 1
    scores[1, 80:82] = 2  # finds half: two others come first
    scores[2, 0:4] = 1  # looks at rows that are no candidates
    scores[2, 99] = 1
    recall = recall_at(scores, range(40, 44), range(10, 90), 0.05, (0, 0))
    assert recall[:2].tolist() == [1.0, 0.5]
    assert recall[2] == pytest.approx(0, abs=1)


def test_neighbours_share_the_best_score() -> None:
    scores = np.zeros((1, 100), np.float32)
    scores[0, 42] = 1
    rows = range(40, 45)
    assert recall_at(scores, rows, range(100), 0.05, (0, 0))[0] < 1
    assert recall_at(scores, rows, range(100), 0.05, (2, 2))[0] == 1


def test_heads_that_help_different_prompts_are_chosen_together() -> None:
    recalls = np.array([[0.6, 1.0, 0.0, 0.9], [0.6, 0.0, 1.0, 0.1], [0.6, 1.0, 0.0, 0.9]])
    assert choose_heads(recalls, 1) == [1]
    assert choose_heads(recalls, 2) == [1, 2]
    assert choose_heads(recalls, 4) == [1, 2], "more heads would not help"
    assert choose_heads(np.zeros((2, 3)), 2) == []


def maps(*heads: RetrievalHead) -> MapSet:
    base = identity_maps(BASE, [2])
    return MapSet(base.base, base.splits, base.maps, recommended=base.recommended, heads=heads)


def test_heads_are_stored(tmp_path) -> None:
    heads = (RetrievalHead(2, 1, 3, 0.75), RetrievalHead(2, 0, 1, 0.5))
    write_maps(tmp_path / "maps.gguf", maps(*heads))
    assert read_maps(tmp_path / "maps.gguf").heads == heads


@pytest.mark.parametrize("head", [RetrievalHead(2, 2, 0), RetrievalHead(1, 0, 0), RetrievalHead(2, -1, 0)])
def test_heads_must_be_below_a_split_of_the_file(tmp_path, head: RetrievalHead) -> None:
    with pytest.raises(MapsError, match=r"ridgefill\.heads"):
        write_maps(tmp_path / "maps.gguf", maps(head))
