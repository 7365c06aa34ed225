"""Needle retrieval in the filled region: a value is hidden in a long text, the question comes in the exact tail."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyridgefill.chunks import ChatFormatter, Tokenizer
from pyridgefill.errors import ModelError
from pyridgefill.evaluation.session import Session
from pyridgefill.evaluation.text import token_windows

_PLACES = ["Amsterdam", "Bergen", "Cairo", "Dublin", "Florence", "Geneva", "Istanbul", "Kyoto", "Lisbon", "Nairobi"]
_WORDS = ["amber", "basket", "copper", "dragon", "ember", "falcon", "garnet", "harbor", "island", "jasmine", "kettle"]

# what a needle's value can be
KINDS: dict[str, Callable[[random.Random], str]] = {
    "digits": lambda draw: str(draw.randrange(10**6, 10**7)),
    "words": lambda draw: "-".join(draw.sample(_WORDS, 3)),
    "identifiers": lambda draw: "_".join([*draw.sample(_WORDS, 2), str(draw.randrange(10, 99))]),
    "uuids": lambda draw: str(uuid.UUID(int=draw.getrandbits(128))),
}

_MARK = "\x1fHAYSTACK\x1f"
_ANSWER_TOKENS = 24


@dataclass(frozen=True)
class Needle:
    """One prompt and the value that the answer must contain.

    `start`, `end` are the needle's rows, `value_start`, `value_end` those of its value.
    """

    tokens: tuple[int, ...]
    value: str
    depth: float
    start: int
    end: int
    value_start: int
    value_end: int


def make_needles(
    tokenizer: Tokenizer,
    chat: ChatFormatter | None,
    *,
    count: int,
    n_prompt: int,
    sink: int,
    tail: int,
    kind: str = "digits",
    seed: int = 0,
) -> Iterator[Needle]:
    """Needles at depths from 5 to 95 % of the rows `[sink, n_prompt - tail)`, in texts of their own.

    Parameters
    ----------
    tokenizer, chat
        The model's; without a chat template the prompt is plain text.
    count
        Number of prompts.
    n_prompt
        Tokens of each.
    sink, tail
        Exact rows at both ends; the question and the answer's start lie in the tail.
    kind
        What the values are: one of `KINDS`.
    seed
        Of the values and places.

    Raises
    ------
    ModelError
        If the question does not fit the tail.
    """
    draw = random.Random(seed)
    windows = token_windows(tokenizer, n_prompt)
    for index in range(count):
        place, value = draw.choice(_PLACES), KINDS[kind](draw)
        head, foot = _frame(tokenizer, chat, place)
        lead = tokenizer.tokenize(f"\n\nThe special magic number for {place} is:", parse_special=False)
        body = tokenizer.tokenize(f" {value}", parse_special=False)
        needle = [*lead, *body, *tokenizer.tokenize(".\n\n", parse_special=False)]
        if len(foot) > tail:
            raise ModelError(f"the question has {len(foot)} tokens, the tail {tail}", "ask for a longer tail")
        depth = 0.05 + 0.9 * (index + 0.5) / count
        first, last = max(sink, len(head)), n_prompt - tail - len(needle)
        start = first + round(depth * (last - first))
        hay = next(windows)
        before = start - len(head)
        after = n_prompt - start - len(needle) - len(foot)
        tokens = (*head, *hay[:before], *needle, *hay[before : before + after], *foot)
        value_start = start + len(lead)
        yield Needle(tokens, value, depth, start, start + len(needle), value_start, value_start + len(body))


def _frame(tokenizer: Tokenizer, chat: ChatFormatter | None, place: str) -> tuple[list[int], list[int]]:
    question = f"\n\nWhat is the special magic number for {place} that the text above mentions?"
    start_of_answer = f"The special magic number for {place} is:"
    request = f"Read the text and remember its special magic number.\n\n{_MARK}{question}"
    if chat is None:
        rendered = f"{request}\n\nAnswer: {start_of_answer}"
    else:
        rendered = chat([{"role": "user", "content": request}], []) + start_of_answer
    head, foot = rendered.split(_MARK)
    bos = [] if tokenizer.bos is None else [tokenizer.bos]
    tokens = tokenizer.tokenize(head, parse_special=True)
    return bos + tokens[len(bos) if bos and tokens[:1] == bos else 0 :], tokenizer.tokenize(foot, parse_special=True)


def count_hits(session: Session, needles: Sequence[Needle]) -> list[bool]:
    """Whether the greedy answer to each prompt contains the value, with the maps that are set."""
    hits = []
    for needle in needles:
        logits = session.prefill(needle.tokens)[-1]
        for start, end in session.ranges:
            if start < needle.end and needle.start < end and not start <= needle.start < needle.end <= end:
                raise ModelError("a needle lies across the border of the filled region", "choose another sink or tail")
        answer = session.text(session.generate(logits, _ANSWER_TOKENS))
        hits.append(needle.value in re.sub(r"(?<=\d)[,. ](?=\d)", "", answer))
    return hits
