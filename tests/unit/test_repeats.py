"""Finding the rows that a text's end repeats."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from pyridgefill.selection.repeats import repeated_rows


def test_rows_that_hold_what_comes_next() -> None:
    passage = list(range(100, 112))
    text = [1, 2, 3, *passage, *range(200, 230)]
    tail = [7, 8, *passage, 9]
    # four tokens must go before: the first four of the passage announce nothing
    assert repeated_rows([*text, *tail], 0, len(tail)) == list(range(3 + 4, 3 + 12))
    assert repeated_rows([*text, *tail], 6, len(tail)) == list(range(6 + 4, 3 + 12)), "rows from 6 on count"


def test_a_tail_of_its_own_repeats_nothing() -> None:
    assert repeated_rows([*range(100), *range(200, 240)], 0, 40) == []
    same = [5, 6, 7, 8, 9, 10]
    assert repeated_rows([*range(100, 160), *same, 1, 2, *same], 0, 14) == [], "both places are in the tail"


def test_the_longest_common_past_wins() -> None:
    long, short = [1, 2, 3, 4, 5, 6, 7, 8], [90, 91, 92, 93, 5, 6, 7, 8]
    tail = [40, *long, 41]
    tokens = [*long, *range(300, 310), *short, *range(400, 410), *tail]
    rows = repeated_rows(tokens, 0, len(tail))
    assert rows == [4, 5, 6, 7], "not the later place, whose past differs"


@given(st.lists(st.integers(0, 3), min_size=30, max_size=80), st.integers(0, 5), st.integers(6, 20))
def test_every_row_really_is_repeated(tokens: list[int], start: int, tail: int) -> None:
    border = len(tokens) - tail
    ends = {tuple(tokens[row - 4 : row + 1]) for row in range(border + 4, len(tokens))}
    rows = repeated_rows(tokens, start, tail)
    assert rows == sorted(set(rows))
    for row in rows:
        assert start + 4 <= row < border
        assert tuple(tokens[row - 4 : row + 1]) in ends


def test_long_texts_take_no_long_time() -> None:
    draw = random.Random(0)
    assert repeated_rows([draw.randrange(2) for _ in range(20_000)], 0, 500)
    assert repeated_rows([7] * 20_000, 0, 500) == [19_499]
