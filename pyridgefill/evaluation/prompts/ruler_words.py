"""Aggregation over all filled rows: the most common words of a list, the most frequent words of a coded text."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

from pyridgefill.calibration.builtin_corpora import builtin_documents
from pyridgefill.errors import ModelError
from pyridgefill.evaluation.prompts.haystacks import NOISE, haystacks
from pyridgefill.evaluation.prompts.kinds import KINDS
from pyridgefill.evaluation.prompts.layout import Shape, lay_out, make_frame
from pyridgefill.evaluation.prompts.prompt import Prompt

_COMMON = 10
_FREQUENT = 3
_ZETA = 2.0


def english_words() -> list[str]:
    """Words of 4 to 9 letters from the text that every Python brings, sorted."""
    found = (re.findall(r"(?<![\w.])[a-z]{4,9}(?![\w.])", text) for _, text in builtin_documents("pydoc-topics"))
    return sorted({word for words in found for word in words})


def common_words(shape: Shape, count: int) -> Iterator[Prompt]:
    """A list in which ten words stand at least five times as often as the others: which ten?"""
    draw = random.Random(f"{shape.seed} common")
    request = "Remember how often each word stands in the list."
    question = f"Which {_COMMON} words are the most common ones in the list above?"
    answer = f"The {_COMMON} most common words in the list are:"
    around = f"{request}{question}{answer}{NOISE}".lower()
    vocabulary = [word for word in english_words() if word not in around]
    for _ in range(count):
        words = draw.sample(vocabulary, len(vocabulary))
        common, others = words[:_COMMON], iter(words[_COMMON:])
        rows = _rows(shape, request, question, answer)
        often = max(5, rows // 150)
        listed = [word for word in common for _ in range(often)]
        left = rows - sum(len(_item(shape, word)) for word in listed)
        if left < rows // 4:
            raise ModelError(f"{rows} rows are too few to count words in", "ask for longer prompts")
        listed += _fill(shape, left, others, often // 5)
        yield _prompt(shape, draw, listed, request, question, answer, common)


def frequent_words(shape: Shape, count: int) -> Iterator[Prompt]:
    """A text of coded words whose frequencies fall with the square of their rank: which three are the most frequent?"""
    draw = random.Random(f"{shape.seed} frequent")
    request = "Remember how often each coded word stands in the text."
    question = f"Which {_FREQUENT} coded words are the most frequent ones in the text above?"
    answer = f"The {_FREQUENT} most frequent coded words in the text are:"
    for _ in range(count):
        rows = _rows(shape, request, question, answer)
        words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(200)]
        sizes = [len(_item(shape, word)) for word in words]
        share = [(rank + 1) ** -_ZETA for rank in range(len(words))]
        scale = rows / sum(size * part for size, part in zip(sizes, share, strict=True))
        counts = [int(scale * part) for part in share]
        if not counts[_FREQUENT - 1] > counts[_FREQUENT]:
            raise ModelError(f"{rows} rows are too few to count words in", "ask for longer prompts")
        listed = [word for word, n in zip(words, counts, strict=True) for _ in range(n)]
        yield _prompt(shape, draw, listed, request, question, answer, words[:_FREQUENT])


def _item(shape: Shape, word: str) -> list[int]:
    return shape.tokens(f" {word}")


def _rows(shape: Shape, request: str, question: str, answer: str) -> int:
    """Rows that words may take: from the request to the tail."""
    frame = make_frame(shape, request=request, question=question, answer=answer, label="Answer: ")
    rows = shape.n_prompt - shape.tail - 1 - max(shape.sink, len(frame.head))
    if rows < 100:
        raise ModelError(f"{rows} rows are too few to count words in", "ask for longer prompts")
    return rows


def _fill(shape: Shape, rows: int, words: Iterator[str], times: int) -> list[str]:
    """Words, each that many times, that take at most these rows."""
    filling: list[str] = []
    for word in words:
        rows -= times * len(_item(shape, word))
        if rows < 0:
            break
        filling += [word] * times
    return filling


def _prompt(
    shape: Shape,
    draw: random.Random,
    listed: Sequence[str],
    request: str,
    question: str,
    answer: str,
    values: Sequence[str],
) -> Prompt:
    text = [token for word in draw.sample(listed, len(listed)) for token in _item(shape, word)]
    hay = next(haystacks(shape.tokenizer, "noise", shape.n_prompt, KINDS["digits"]))
    return lay_out(
        shape, request=request, question=question, answer=answer,
        pieces=[text], depths=[0.5], needed=[0], hay=hay, values=values,
    )  # fmt: skip
