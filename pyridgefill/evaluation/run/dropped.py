"""Dropping: filled rows that are not selected are taken out of the memory, and the tail runs without them."""

from __future__ import annotations

from collections.abc import Sequence

from pyridgefill.evaluation.run.session import Logits, Session
from pyridgefill.evaluation.run.way import Way


class Dropped(Way):
    """The tail runs at the positions that it has in the prompt, behind the rows that are left.

    The row before the tail runs exact and stays, since llama.cpp wants positions to go on from the last one.
    """

    no_splice = "rows that are dropped leave nothing to change"

    def prefill(self, session: Session, tokens: Sequence[int], n_logits: int = 1, *, reuse: bool = False) -> Logits:
        """Run all rows, then what follows the dropped ones again."""
        ranges = session.plan(len(tokens))
        if ranges:
            first, end = ranges.pop()
            ranges += [(first, end - 1)] if end - first > 1 else []
        session.clear()
        session.n_reused = 0
        logits = session.run_prompt(tokens, ranges, n_logits)
        if not ranges:
            return logits
        session.mark(len(tokens), [])
        start = ranges[-1][1] + 1
        for first, last in [*_runs(_filled(ranges) - set(session.selected)), (start, -1)]:
            session.remove(first, last)
        return session.decode(tokens[start:], start, len(tokens) - n_logits)


def _filled(ranges: Sequence[tuple[int, int]]) -> set[int]:
    return {row for start, end in ranges for row in range(start, end)}


def _runs(rows: set[int]) -> list[tuple[int, int]]:
    """Ranges of consecutive rows."""
    runs: list[tuple[int, int]] = []
    for row in sorted(rows):
        if runs and runs[-1][1] == row:
            runs[-1] = runs[-1][0], row + 1
        else:
            runs.append((row, row + 1))
    return runs
