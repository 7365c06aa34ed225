"""A prompt whose answer is scored by the values in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyridgefill.errors import ModelError


@dataclass(frozen=True)
class Prompt:
    """A prompt and what its answer must contain.

    Attributes
    ----------
    tokens
        The whole prompt; the question is at its end.
    values, any_of
        What is wanted, all of it or one of it.
    rows
        Ranges of rows that hold what the answer needs.
    depth
        Where these are, from 0 to 1; the mean if they are many; None if there are none.
    answer_tokens
        Tokens that the answer may take.
    group
        Where `rows` are: `filled`, `tail`, `sink`, or `absent` if what is asked for is not in the prompt.
    form
        Of a value, a regular expression; where it is given, answers that name any value are counted as false answers.
    """

    tokens: tuple[int, ...]
    values: tuple[str, ...]
    rows: tuple[tuple[int, int], ...]
    depth: float | None
    answer_tokens: int
    any_of: bool = False
    group: str = "filled"
    form: str = ""

    def check(self, filled: Sequence[tuple[int, int]]) -> None:
        """Raise a ModelError if the rows are not where the group says, in a run that filled these ranges."""
        if not filled:
            return
        for start, end in self.rows:
            inside = {
                "filled": any(first <= start and end <= last for first, last in filled),
                "tail": filled[-1][1] <= start and end <= len(self.tokens),
                "sink": end <= filled[0][0],
            }
            if not inside[self.group]:
                where = "filled" if self.group == "filled" else f"in the {self.group}"
                raise ModelError(
                    f"rows {start} to {end} hold an answer and are not {where}", "choose another sink or tail"
                )
