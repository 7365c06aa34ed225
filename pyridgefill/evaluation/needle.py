"""Needle retrieval in the filled region: a value is hidden in a long text, the question comes in the exact tail."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from pyridgefill.chunks import ChatFormatter, Tokenizer
from pyridgefill.errors import ModelError
from pyridgefill.evaluation.layout import Frame, assemble, make_frame, spread
from pyridgefill.evaluation.needle_kinds import KINDS, Kind
from pyridgefill.evaluation.text import EVALUATION_CORPUS, token_windows

__all__ = ["KINDS", "KeyedText", "Needle", "make_keyed_texts", "make_needles"]

# beyond the value: a model may start with a space, a quote or a word
_SPARE_TOKENS = 16


@dataclass(frozen=True)
class Needle:
    """One prompt and the value that the answer must contain.

    `start`, `end` are the needle's rows, `value_start`, `value_end` those of its value; `key` is what the value
    belongs to, `depth` the place of the needle in the rows that may be filled, from 0 to 1.
    """

    tokens: tuple[int, ...]
    value: str
    depth: float
    start: int
    end: int
    value_start: int
    value_end: int
    key: str = ""
    kind: str = "digits"

    @property
    def answer_tokens(self) -> int:
        """How many tokens an answer with this value may take."""
        return self.value_end - self.value_start + _SPARE_TOKENS


@dataclass(frozen=True)
class KeyedText:
    """A text with several needles, and one prompt for each: the same rows before the tail, the question in it.

    Attributes
    ----------
    needles
        In the order of their rows; `needle.tokens[:n_shared]` is the same in all.
    n_shared
        Rows before the tail.
    """

    needles: tuple[Needle, ...]
    n_shared: int

    @property
    def shared(self) -> tuple[int, ...]:
        """The rows before the tail."""
        return self.needles[0].tokens[: self.n_shared]

    @property
    def tails(self) -> list[tuple[int, ...]]:
        """The tail of each needle's prompt."""
        return [needle.tokens[self.n_shared :] for needle in self.needles]


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
    corpus: str = EVALUATION_CORPUS,
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
        What the values are and which language asks: one of `KINDS`.
    seed
        Of the values and keys.
    corpus
        The text around the needles, see `token_windows`.

    Raises
    ------
    ModelError
        If the question does not fit the tail, or the needles do not fit the rows before it.
    """
    shape = {"n_prompt": n_prompt, "sink": sink, "tail": tail}
    for text in make_keyed_texts(tokenizer, chat, count=count, keys=1, kind=kind, seed=seed, corpus=corpus, **shape):
        yield text.needles[0]


def make_keyed_texts(
    tokenizer: Tokenizer,
    chat: ChatFormatter | None,
    *,
    count: int,
    keys: int,
    n_prompt: int,
    sink: int,
    tail: int,
    kind: str = "digits",
    seed: int = 0,
    corpus: str = EVALUATION_CORPUS,
) -> Iterator[KeyedText]:
    """Texts with `keys` needles each (multi-key): every needle distracts from the others.

    The depths of all needles together go evenly from 5 to 95 % of the rows `[sink, n_prompt - tail)`.
    One prefill of `KeyedText.shared` serves all questions of a text.

    Parameters
    ----------
    count
        Number of texts.
    keys
        Needles, and prompts, of each.
    tokenizer, chat, n_prompt, sink, tail, kind, seed, corpus
        As for `make_needles`.

    Raises
    ------
    ModelError
        As for `make_needles`, and if the language has fewer keys.
    """
    if kind not in KINDS:
        raise ModelError(f"needles of kind {kind!r} are not known", f"choose among {', '.join(KINDS)}")
    made = KINDS[kind]
    if keys > len(made.wording.keys):
        raise ModelError(f"{keys} keys in one text", f"needles of kind {kind} have {len(made.wording.keys)}")
    draw = random.Random(seed)
    windows = token_windows(tokenizer, n_prompt, corpus=corpus)
    for index in range(count):
        names = draw.sample(made.wording.keys, keys)
        values = _distinct_values(draw, made, keys)
        needles = [_needle(tokenizer, made, name, value) for name, value in zip(names, values, strict=True)]
        frames = [_frame(tokenizer, chat, made, name) for name in names]
        for frame in frames:
            frame.check(tail)
        first, end = max(sink, len(frames[0].head)), n_prompt - tail
        depths = [0.05 + 0.9 * (j + (index + 0.5) / count) / keys for j in range(keys)]
        starts = spread(first, end, [len(piece) for piece, _ in needles], depths)
        pieces = [(start, piece) for start, (piece, _) in zip(starts, needles, strict=True)]
        hay = next(windows)
        yield KeyedText(
            tuple(
                Needle(
                    tokens=assemble(frames[j], pieces, hay, n_prompt),
                    value=values[j],
                    depth=depths[j],
                    start=starts[j],
                    end=starts[j] + len(needles[j][0]),
                    value_start=starts[j] + needles[j][1].start,
                    value_end=starts[j] + needles[j][1].stop,
                    key=names[j],
                    kind=kind,
                )
                for j in range(keys)
            ),
            end,
        )


def _distinct_values(draw: random.Random, kind: Kind, count: int) -> list[str]:
    values: dict[str, None] = {}
    while len(values) < count:
        values[kind.draw(draw)] = None
    return list(values)


def _needle(tokenizer: Tokenizer, kind: Kind, key: str, value: str) -> tuple[list[int], range]:
    """The needle's tokens, and which of them are its value."""
    wording = kind.wording
    lead = tokenizer.tokenize("\n\n" + wording.lead.format(key=key, noun=kind.noun), parse_special=False)
    body = tokenizer.tokenize(wording.gap + value, parse_special=False)
    stop = tokenizer.tokenize(wording.stop + "\n\n", parse_special=False)
    return [*lead, *body, *stop], range(len(lead), len(lead) + len(body))


def _frame(tokenizer: Tokenizer, chat: ChatFormatter | None, kind: Kind, key: str) -> Frame:
    wording = kind.wording
    request, question, answer = (
        part.format(key=key, noun=kind.noun) for part in (wording.request, wording.question, wording.answer)
    )
    return make_frame(tokenizer, chat, request=request, question=question, answer=answer, label=wording.label)
