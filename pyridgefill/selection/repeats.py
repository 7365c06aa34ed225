"""Rows that a text's end repeats: the model copies from them, so a selection should find them."""

from __future__ import annotations

from collections.abc import Sequence

# tokens in a row that must be the same; shorter matches are mostly chance
_LEAST = 4
_LONGEST = 32
# the last places of a frequent sequence
_PLACES = 64


def repeated_rows(tokens: Sequence[int], start: int, tail: int) -> list[int]:
    """Rows of the text before the tail that hold what comes next in the tail.

    For each tail token whose `_LEAST` tokens before it, and itself, occur in the rows `[start, n - tail)`: the row of
    the occurrence with the longest common past, the latest one among equals.

    Parameters
    ----------
    tokens
        The prompt.
    start
        First row that counts.
    tail
        Rows at the end.

    Returns
    -------
    list of int
        Ascending.
    """
    border = len(tokens) - tail
    places: dict[tuple[int, ...], list[int]] = {}
    for row in range(start + _LEAST, border):
        places.setdefault(tuple(tokens[row - _LEAST : row + 1]), []).append(row)
    found = set()
    for row in range(border + _LEAST, len(tokens)):
        candidates = places.get(tuple(tokens[row - _LEAST : row + 1]), [])[-_PLACES:]
        if candidates:
            found.add(max(candidates, key=lambda place: (_common_past(tokens, place, row, start, border), place)))
    return sorted(found)


def _common_past(tokens: Sequence[int], place: int, row: int, start: int, border: int) -> int:
    most = min(_LONGEST, place - start, row - border)
    return next((n for n in range(most) if tokens[place - 1 - n] != tokens[row - 1 - n]), most)
