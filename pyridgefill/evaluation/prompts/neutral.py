"""Neutral filler: a meaningless text that stands where rows are filled.

A published result found that the upper layers' memory of such a text alone nearly restores average task accuracy, so
only what beats it on retrieval and on far context counts.
"""

from __future__ import annotations

from collections.abc import Sequence

SENTENCE = " Nothing in particular happened on that day, and nobody gave it much thought."


def neutral_prompt(
    tokens: Sequence[int], ranges: Sequence[tuple[int, int]], sentence: Sequence[int]
) -> tuple[int, ...]:
    """A prompt with a sentence again and again in some of its rows.

    Parameters
    ----------
    tokens
        The prompt.
    ranges
        Rows `[start, end)` to replace, in ascending order; the sentence goes on from one range to the next.
    sentence
        Tokens.

    Returns
    -------
    tuple
        As long as `tokens`.
    """
    result, used = list(tokens), 0
    for start, end in ranges:
        for row in range(start, end):
            result[row] = sentence[used % len(sentence)]
            used += 1
    return tuple(result)
