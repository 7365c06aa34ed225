"""Prompts whose answers are scored by values: what they have in common, and how they are compared with exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pyridgefill.evaluation.intervals import Interval, mcnemar, mean_difference, paired_bootstrap, wilson
from pyridgefill.evaluation.prompts.needle import Needle
from pyridgefill.evaluation.prompts.prompt import Prompt
from pyridgefill.evaluation.prompts.score import gives_value, value_score
from pyridgefill.evaluation.run.found import DepthShare, Scores
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.task import P, Run, Task
from pyridgefill.evaluation.run.way import PLAIN, Way

_DEPTH_BINS = 5


@dataclass(frozen=True)
class Answer:
    """An answer, its score from 0 to 1, whether it names a value where none can be found, and its prompt's rows."""

    text: str
    score: float
    depth: float | None = None
    false: bool | None = None
    filled: int = 0
    selected: int = 0


def answer(session: Session, prompt: Prompt, way: Way = PLAIN) -> Answer:
    """Answer a prompt greedily, run in a way that the session is started for; prompts of one text share a prefill.

    Raises
    ------
    ModelError
        If rows are filled, but those that hold what the answer needs are not where the prompt's group says.
    """
    logits = way.prefill(session, prompt.tokens, reuse=True)[-1]
    prompt.check(session.ranges)
    filled, selected = sum(end - start for start, end in session.ranges), len(session.selected)
    text = session.text(session.generate(logits, prompt.answer_tokens))
    return Answer(
        text,
        value_score(text, prompt.values, any_of=prompt.any_of),
        prompt.depth,
        gives_value(text, prompt.form) if prompt.form else None,
        filled,
        selected,
    )


def count_hits(session: Session, needles: Sequence[Needle], advance: Callable[[], None] = lambda: None) -> list[bool]:
    """Whether the greedy answer to each prompt contains the value, with what is set on the session."""
    hits = []
    for needle in needles:
        hits.append(answer(session, needle.prompt()).score == 1)
        advance()
    return hits


class ScoredTask(Task[P, Prompt, Answer, Scores]):
    """Base of tasks that make prompts with values to find."""

    def measure(self, session: Session, way: Way, item: Prompt) -> Answer:
        """Answer one."""
        return answer(session, item, way)

    def summarise(self, run: Run[Prompt, Answer, Scores]) -> Scores:
        """Hits and scores, with their differences from exact."""
        return summarise(run.measured, run.exact, self.params.seed)


def summarise(answers: Sequence[Answer], exact: Scores | None, seed: int) -> Scores:
    """Hits (all values found), scores and false answers, with intervals.

    Parameters
    ----------
    answers
        By prompt.
    exact
        The exact model's result on the same prompts; None for its own.
    seed
        Of the bootstrap.
    """
    scores = np.asarray([item.score for item in answers], dtype=np.float64)
    hits = scores == 1
    # prompts without a needle have no depth, and are in no bin
    depths = np.asarray([-1.0 if item.depth is None else item.depth for item in answers])
    bins = np.minimum(np.floor(depths * _DEPTH_BINS).astype(int), _DEPTH_BINS - 1)
    found = Scores(
        scores=tuple(scores.tolist()),
        depths=tuple(item.depth for item in answers),
        answers=tuple(item.text for item in answers),
        filled=float(np.mean([item.filled for item in answers])),
        selected=float(np.mean([item.selected for item in answers])),
        prompts=len(scores),
        hits=int(hits.sum()),
        accuracy=wilson(int(hits.sum()), len(hits)),
        score=paired_bootstrap(mean_difference, (np.zeros_like(scores), scores), seed=seed),
        by_depth=tuple(
            _depth_share(index, hits[bins == index]) for index in range(_DEPTH_BINS) if (bins == index).any()
        ),
    )
    if exact is not None:
        difference, p = _against(exact.scores, scores, seed)
        found = replace(found, difference=difference, mcnemar_p=p)
    false = np.asarray([item.false for item in answers if item.false is not None], dtype=np.float64)
    if len(false):
        found = replace(
            found,
            false_answers=tuple(bool(value) for value in false),
            false_rate=wilson(int(false.sum()), len(false)),
        )
        if exact is not None and exact.false_answers is not None:
            difference, p = _against(exact.false_answers, false, seed)
            found = replace(found, false_difference=difference, false_mcnemar_p=p)
    return found


def _depth_share(index: int, hits: npt.NDArray[np.bool_]) -> DepthShare:
    share = wilson(int(hits.sum()), len(hits))
    return DepthShare((index + 0.5) / _DEPTH_BINS, len(hits), share.value, share.low, share.high)


def _against(exact: Sequence[float], scores: npt.NDArray[np.float64], seed: int) -> tuple[Interval, float]:
    """The difference from exact scores in points, and the p value for scores of 1."""
    others = np.asarray(exact, dtype=np.float64)
    return (
        paired_bootstrap(mean_difference, (100 * others, 100 * scores), seed=seed),
        mcnemar((others == 1).tolist(), (scores == 1).tolist()),
    )
