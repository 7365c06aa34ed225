"""Neutral filler: the upper layers hold a meaningless text of the same length where rows are filled.

A published result found that the upper layers' memory of such a text alone nearly restores average task accuracy, so
only what beats it on retrieval and on far context counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from pyridgefill.config import RidgeFillConfig
from pyridgefill.errors import ModelError, UsageError
from pyridgefill.evaluation.run.session import Logits, Session
from pyridgefill.evaluation.run.way import Recipe, Way

SENTENCE = " Nothing in particular happened on that day, and nobody gave it much thought."

_DONOR = 1  # sequence


class Neutral(Way):
    """The layers above the split hold of filled rows what an exact run of a neutral text in their place leaves there.

    The layers up to the split hold the prompt, exact, and so do all layers in rows that are not filled. The maps only
    say which rows and layers are filled. No rows can be selected: those of another text cannot run again.
    """

    n_sequences = 2
    no_splice = "its rows are spliced already"

    def __init__(self, name: str, config: RidgeFillConfig | None, **cell: Any) -> None:
        super().__init__(name, config, **cell)
        self._prefix: tuple[list[int], Any] = ([], None)
        self._filler: tuple[tuple[int, ...], Any] = ((), None)

    @classmethod
    def make(cls, name: str, recipe: Recipe) -> Self:
        """Refused with a selection."""
        if recipe.config.select != "none":
            raise UsageError(
                f"the baseline {name} with selected rows: rows of another text cannot run again", "add --select none"
            )
        return super().make(name, recipe)

    def start(self, session: Session) -> None:
        """Set the maps; the session must have a sequence for the neutral text."""
        super().start(session)
        self._prefix, self._filler = ([], None), ((), None)
        if session.selects:
            raise ModelError("rows of a neutral text cannot run again", "use neutral filler without selection")
        if session.n_sequences < self.n_sequences:
            raise ModelError("a neutral text needs a sequence of its own", "make the session with n_sequences=2")

    def prefill(self, session: Session, tokens: Sequence[int], n_logits: int = 1, *, reuse: bool = False) -> Logits:
        """Run the tail behind rows whose upper layers were put in place; `reuse` keeps these for the next prompt."""
        ranges = session.plan(len(tokens))
        if not ranges:
            return session.prefill(tokens, n_logits)
        prefix = list(tokens[: ranges[-1][1]])
        session.clear()
        reused = reuse and self._prefix[0] == prefix
        if reused:
            session.restore(self._prefix[1])
        else:
            self._put(session, prefix, ranges)
            if reuse:
                self._prefix = prefix, session.save()
        logits = session.run_prompt(tokens, [], n_logits, start=len(prefix))
        session.ranges, session.n_reused = ranges, len(prefix) if reused else 0
        return logits

    def _put(self, session: Session, prefix: list[int], ranges: list[tuple[int, int]]) -> None:
        """Put the rows before the tail into the empty memory, with a neutral text above the split of filled ones."""
        end = len(prefix)
        session.mark(end, [])
        filler = neutral_prompt(prefix, ranges, session.tokenize(SENTENCE, parse_special=False))
        if self._filler[0] != filler:
            session.decode(filler, 0, end)
            self._filler = filler, session.save()
            session.clear()
        session.decode(prefix, 0, end)
        session.restore(self._filler[1], _DONOR)
        components = session.components()
        layers = session.split + 1, len(components) - 1
        kept = {name for found in components[layers[0] :] for name in found}
        if kept - {"state"}:
            for rows in ranges:
                session.splice(_DONOR, layers, sorted(kept - {"state"}), rows)
        if "state" in kept:
            # one for all rows
            session.splice(_DONOR, layers, ["state"])


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
