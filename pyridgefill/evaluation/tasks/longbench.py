"""LongBench v2 (Bai et al. 2024): multiple choice over long texts, by the logits of the letters in the tail."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pyridgefill.calibration.chunks import ChatFormatter
from pyridgefill.errors import CorpusError, ModelError
from pyridgefill.evaluation.intervals import mcnemar, mean_difference, paired_bootstrap, wilson
from pyridgefill.evaluation.prompts.layout import Shape, make_frame
from pyridgefill.evaluation.run.found import Choices, Share
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.task import Params, Run, Task
from pyridgefill.evaluation.run.way import Way
from pyridgefill.files import file_name

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


def make_choice(shape: Shape, record: dict[str, str]) -> Choice:
    """The prompt of a record, with at most `n_prompt` tokens: the middle of longer texts is cut out.

    Raises
    ------
    ModelError
        If question and choices do not fit the tail.
    """
    choices = "\n".join(f"({letter}) {record[f'choice_{letter}'].strip()}" for letter in LETTERS)
    frame = make_frame(
        shape,
        request="Read the text and answer the question at its end.",
        question=f"What is the correct answer to this question: {record['question'].strip()}\nChoices:\n{choices}",
        answer=_ANSWER,
        label="",
    )
    text, n_prompt = shape.tokens(record["context"].strip()), shape.n_prompt
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


@dataclass(frozen=True, kw_only=True)
class LongBenchParams(Params):
    """The name of the file of records, and how many of them are taken."""

    file: str
    records: int

    # the text is the records' own
    unsaid = ("corpus",)


def longbench_tasks(shapes: Iterable[Params], path: Path, limit: int = 0) -> list[LongBench]:
    """The records of a file, cut to each length; `limit` 0 takes all."""
    records = read_longbench(path)[: limit or None]
    name = file_name(path)
    return [LongBench(LongBenchParams.at(shape, file=name, records=len(records)), records) for shape in shapes]


class LongBench(Task[LongBenchParams, Choice, tuple[str, int], Choices]):
    """Multiple choice over long texts."""

    name = "longbench"

    def __init__(self, params: LongBenchParams, records: Sequence[dict[str, str]]) -> None:
        super().__init__(params)
        self._records = records

    @property
    def size(self) -> int:
        """Records."""
        return self.params.records

    def prepare(self, session: Session, chat: ChatFormatter | None) -> list[Choice]:
        """A prompt for each record."""
        return [make_choice(self.params.shape(session, chat), item) for item in self._records]

    def measure(self, session: Session, way: Way, item: Choice) -> tuple[str, int]:
        """The letter whose token is most probable at the end of a prompt, and the rows that were filled."""
        tokens = [session.tokenize(letter, parse_special=False)[0] for letter in LETTERS]
        logits = way.prefill(session, item.tokens)[-1]
        return LETTERS[int(np.argmax(logits[tokens]))], sum(end - start for start, end in session.ranges)

    def summarise(self, run: Run[Choice, tuple[str, int], Choices]) -> Choices:
        """Accuracy in all and by group, and differences from exact."""
        chosen, filled = zip(*run.measured, strict=True)
        return summarise_choices(run.items, chosen, filled, run.exact, self.params.seed)


def summarise_choices(
    choices: Sequence[Choice], chosen: Sequence[str], filled: Sequence[int], exact: Choices | None, seed: int
) -> Choices:
    """Accuracy with Wilson intervals, in all and by group, and the difference from exact in points."""
    right = [letter == choice.answer for letter, choice in zip(chosen, choices, strict=True)]
    groups: dict[str, dict[str, Share]] = {}
    for name in _GROUPS:
        for value in sorted({choice.groups[name] for choice in choices if name in choice.groups}):
            members = [hit for hit, choice in zip(right, choices, strict=True) if choice.groups.get(name) == value]
            share = wilson(sum(members), len(members))
            groups.setdefault(name, {})[value] = Share(len(members), share.value, share.low, share.high)
    found = Choices(
        ids=tuple(choice.identifier for choice in choices),
        chosen=tuple(chosen),
        right=tuple(right),
        dropped=tuple(choice.dropped for choice in choices),
        filled=tuple(filled),
        prompts=len(right),
        hits=sum(right),
        accuracy=wilson(sum(right), len(right)),
        groups=groups,
    )
    if exact is None:
        return found
    others, scores = np.asarray(exact.right, dtype=np.float64), np.asarray(right, dtype=np.float64)
    same = [a == b for a, b in zip(exact.chosen, chosen, strict=True)]
    return replace(
        found,
        difference=paired_bootstrap(mean_difference, (100 * others, 100 * scores), seed=seed),
        mcnemar_p=mcnemar(exact.right, right),
        same_choice=wilson(sum(same), len(same)),
    )
