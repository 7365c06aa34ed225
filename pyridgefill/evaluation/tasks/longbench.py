"""LongBench v2 (Bai et al. 2024): multiple choice over long texts, by the logits of the letters in the tail."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyridgefill.calibration.chunks import ChatFormatter, Tokenizer
from pyridgefill.errors import CorpusError, ModelError
from pyridgefill.evaluation.intervals import mcnemar, mean_difference, paired_bootstrap, wilson
from pyridgefill.evaluation.prompts.layout import make_frame
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.way import PLAIN, Way

LETTERS = ("A", "B", "C", "D")
_GROUPS = ("difficulty", "length", "domain")
_ANSWER = "The correct answer is ("


@dataclass(frozen=True)
class Choice:
    """A prompt that ends before the letter, the right letter, and the record's groups.

    `dropped` counts the tokens that were cut out of the middle of the text.
    """

    identifier: str
    tokens: tuple[int, ...]
    answer: str
    groups: dict[str, str]
    dropped: int


def read_longbench(path: Path) -> list[dict[str, str]]:
    """The benchmark's records: a JSON list, or JSON lines.

    Raises
    ------
    CorpusError
        If the file cannot be read or a record lacks a field; names record and field.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith("["):
            records = json.loads(text)
        else:
            records = [json.loads(line) for line in text.splitlines() if line.strip()]
    except OSError as error:
        raise CorpusError(f"{path}: cannot read: {error.strerror or error}", "give LongBench v2's JSON file") from error
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{path}: not JSON: {error}", "give LongBench v2's JSON file") from error
    fields = ("_id", "question", *(f"choice_{letter}" for letter in LETTERS), "answer", "context")
    for number, record in enumerate(records, start=1):
        missing = [name for name in fields if not isinstance(record, dict) or not isinstance(record.get(name), str)]
        if missing:
            raise CorpusError(f"{path}: record {number} has no text {missing[0]!r}", "give LongBench v2's JSON file")
        if record["answer"] not in LETTERS:
            raise CorpusError(f"{path}: record {number}: answer {record['answer']!r}", "expected A, B, C or D")
    if not records:
        raise CorpusError(f"{path}: no records", "give LongBench v2's JSON file")
    return list(records)


def make_choice(
    tokenizer: Tokenizer, chat: ChatFormatter | None, record: dict[str, str], *, n_prompt: int, tail: int
) -> Choice:
    """The prompt of a record, with at most `n_prompt` tokens: the middle of longer texts is cut out.

    Raises
    ------
    ModelError
        If question and choices do not fit the tail.
    """
    choices = "\n".join(f"({letter}) {record[f'choice_{letter}'].strip()}" for letter in LETTERS)
    frame = make_frame(
        tokenizer,
        chat,
        request="Read the text and answer the question at its end.",
        question=f"What is the correct answer to this question: {record['question'].strip()}\nChoices:\n{choices}",
        answer=_ANSWER,
        label="",
    )
    frame.check(tail)
    text = tokenizer.tokenize(record["context"].strip(), parse_special=False)
    room = n_prompt - len(frame.head) - len(frame.foot)
    if room < 1:
        raise ModelError(
            f"question and choices of {record['_id']} need {n_prompt - room} tokens, which leaves none for the text",
            f"ask for prompts of more than {n_prompt} tokens",
        )
    dropped = max(0, len(text) - room)
    if dropped:
        text = [*text[: room // 2], *text[len(text) - (room - room // 2) :]]
    groups = {name: record[name] for name in _GROUPS if isinstance(record.get(name), str)}
    return Choice(record["_id"], (*frame.head, *text, *frame.foot), record["answer"], groups, dropped)


def run_choices(
    session: Session, choices: Sequence[Choice], advance: Callable[[], None], way: Way = PLAIN
) -> dict[str, Any]:
    """Choose the letter whose token is most probable at the end of each prompt.

    Returns
    -------
    dict
        Lists by prompt: `ids`, `chosen`, `right`, `dropped`, `filled`.
    """
    tokens = [session.tokenize(letter, parse_special=False)[0] for letter in LETTERS]
    chosen, filled = [], []
    for choice in choices:
        logits = way.prefill(session, choice.tokens)[-1]
        chosen.append(LETTERS[int(np.argmax(logits[tokens]))])
        filled.append(sum(end - start for start, end in session.ranges))
        advance()
    return {
        "ids": [choice.identifier for choice in choices],
        "chosen": chosen,
        "right": [letter == choice.answer for letter, choice in zip(chosen, choices, strict=True)],
        "dropped": [choice.dropped for choice in choices],
        "filled": filled,
    }


def summarise_choices(
    result: dict[str, Any], exact: dict[str, Any] | None, choices: Sequence[Choice], seed: int
) -> dict[str, Any]:
    """Add accuracy with Wilson intervals, in all and by group, and the difference from exact in points."""
    right = [bool(value) for value in result["right"]]
    groups: dict[str, dict[str, Any]] = {}
    for name in _GROUPS:
        for value in sorted({choice.groups[name] for choice in choices if name in choice.groups}):
            members = [hit for hit, choice in zip(right, choices, strict=True) if choice.groups.get(name) == value]
            groups.setdefault(name, {})[value] = {"prompts": len(members), **asdict(wilson(sum(members), len(members)))}
    summary = {
        **result,
        "prompts": len(right),
        "hits": sum(right),
        "accuracy": asdict(wilson(sum(right), len(right))),
        "groups": groups,
    }
    if exact is not None:
        others = np.asarray(exact["right"], dtype=np.float64)
        scores = np.asarray(right, dtype=np.float64)
        summary["difference"] = asdict(paired_bootstrap(mean_difference, (100 * others, 100 * scores), seed=seed))
        summary["mcnemar_p"] = mcnemar([bool(value) for value in exact["right"]], right)
        same = [a == b for a, b in zip(exact["chosen"], result["chosen"], strict=True)]
        summary["same_choice"] = asdict(wilson(sum(same), len(same)))
    return summary
