"""Prompts whose answers are scored by values: run them, and compare them with the exact model's scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pyridgefill.errors import ModelError
from pyridgefill.evaluation.intervals import mcnemar, mean_difference, paired_bootstrap, wilson
from pyridgefill.evaluation.prompts.needle import Needle
from pyridgefill.evaluation.prompts.score import gives_value, value_score
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.way import PLAIN, Way

_DEPTH_BINS = 5


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

    @classmethod
    def of(cls, needle: Needle) -> Prompt:
        """The prompt of a needle."""
        rows = ((needle.start, needle.end),)
        return cls(needle.tokens, (needle.value,), rows, needle.depth, needle.answer_tokens, group=needle.group)

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


def run_prompts(
    session: Session, prompts: Sequence[Prompt], advance: Callable[[], None], way: Way = PLAIN
) -> dict[str, Any]:
    """Answer each prompt greedily, run in a way that the session is started for.

    Returns
    -------
    dict
        Lists by prompt: `scores` from 0 to 1, `depths`, `answers`, and `false_answers` where nothing can be found; and
        the mean numbers of rows `filled`, `selected`.

    Raises
    ------
    ModelError
        If rows are filled, but those that hold what an answer needs are not where the prompt's group says.
    """
    scores, answers, filled, selected, false_answers = [], [], [], [], []
    for prompt in prompts:
        logits = way.prefill(session, prompt.tokens, reuse=True)[-1]
        prompt.check(session.ranges)
        answer = session.text(session.generate(logits, prompt.answer_tokens))
        scores.append(value_score(answer, prompt.values, any_of=prompt.any_of))
        answers.append(answer)
        if prompt.form:
            false_answers.append(gives_value(answer, prompt.form))
        filled.append(sum(end - start for start, end in session.ranges))
        selected.append(len(session.selected))
        advance()
    return {
        **({"false_answers": false_answers} if false_answers else {}),
        "scores": scores,
        "depths": [prompt.depth for prompt in prompts],
        "answers": answers,
        "filled": float(np.mean(filled)),
        "selected": float(np.mean(selected)),
    }


def count_hits(session: Session, needles: Sequence[Needle], advance: Callable[[], None] = lambda: None) -> list[bool]:
    """Whether the greedy answer to each prompt contains the value; see `run_prompts`.

    Prompts of one `KeyedText` share a prefill.
    """
    scores = run_prompts(session, [Prompt.of(needle) for needle in needles], advance)["scores"]
    return [score == 1 for score in scores]


def summarise(result: dict[str, Any], exact: dict[str, Any] | None, seed: int) -> dict[str, Any]:
    """Add the statistics to a result.

    Parameters
    ----------
    result
        From `run_prompts`.
    exact
        The exact model's result on the same prompts; None for its own.
    seed
        Of the bootstrap.

    Returns
    -------
    dict
        `result` with `hits` (all values found) and their Wilson interval `accuracy`, `by_depth`, the mean `score` with
        its bootstrap interval; against exact `difference` of scores in points, and `mcnemar_p` for the hits. Where
        nothing can be found, `false_rate` with its Wilson interval is the share of false answers, and against exact
        there are `false_difference` in points and `false_mcnemar_p`.
    """
    scores = np.asarray(result["scores"], dtype=np.float64)
    hits = scores == 1
    # prompts without a needle have no depth, and are in no bin
    depths = np.asarray([-1.0 if depth is None else depth for depth in result["depths"]])
    bins = np.minimum(np.floor(depths * _DEPTH_BINS).astype(int), _DEPTH_BINS - 1)
    summary = {
        **result,
        "prompts": len(scores),
        "hits": int(hits.sum()),
        "accuracy": asdict(wilson(int(hits.sum()), len(hits))),
        "score": asdict(paired_bootstrap(mean_difference, (np.zeros_like(scores), scores), seed=seed)),
        "by_depth": [
            {
                "depth": (index + 0.5) / _DEPTH_BINS,
                "prompts": int((bins == index).sum()),
                **asdict(wilson(int(hits[bins == index].sum()), int((bins == index).sum()))),
            }
            for index in range(_DEPTH_BINS)
            if (bins == index).any()
        ],
    }
    if exact is not None:
        summary |= _against(np.asarray(exact["scores"]), scores, seed)
    if "false_answers" in result:
        false = np.asarray(result["false_answers"], dtype=np.float64)
        summary["false_rate"] = asdict(wilson(int(false.sum()), len(false)))
        if exact is not None:
            found = _against(np.asarray(exact["false_answers"]), false, seed)
            summary |= {f"false_{name}": value for name, value in found.items()}
    return summary


def _against(exact: npt.NDArray[Any], scores: npt.NDArray[np.float64], seed: int) -> dict[str, Any]:
    """The difference from exact scores in points, and the p value for scores of 1."""
    others = exact.astype(np.float64)
    return {
        "difference": asdict(paired_bootstrap(mean_difference, (100 * others, 100 * scores), seed=seed)),
        "mcnemar_p": mcnemar((others == 1).tolist(), (scores == 1).tolist()),
    }
