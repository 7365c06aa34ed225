"""Neutral filler: which rows it takes."""

from __future__ import annotations

import pytest

from pyridgefill.evaluation.run.neutral import neutral_prompt


@pytest.mark.parametrize(
    ("ranges", "want"),
    [
        ([], [0, 1, 2, 3, 4, 5, 6, 7]),
        ([(2, 7)], [0, 1, 91, 92, 93, 91, 92, 7]),
        ([(0, 2), (4, 6)], [91, 92, 2, 3, 93, 91, 6, 7]),
    ],
)
def test_rows(ranges: list[tuple[int, int]], want: list[int]) -> None:
    assert neutral_prompt(range(8), ranges, [91, 92, 93]) == tuple(want)
