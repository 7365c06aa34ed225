"""Needle retrieval: a value is hidden in a long text, in rows that are filled or not; the question is in the tail."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from pyridgefill.calibration.chunks import Tokenizer
from pyridgefill.errors import ModelError
from pyridgefill.evaluation.prompts.kinds import KINDS, Kind
from pyridgefill.evaluation.prompts.layout import Frame, Shape, assemble, even_depths, find_region, make_frame, spread
from pyridgefill.evaluation.prompts.prompt import Prompt
from pyridgefill.evaluation.prompts.text import token_windows

__all__ = ["KINDS", "KeyedText", "Needle", "make_keyed_texts", "make_needles"]

# beyond the value: a model may start with a space, a quote or a word
_SPARE_TOKENS = 16


@dataclass(frozen=True)
class Needle:
    """One prompt and the value that the answer must contain.

    `start`, `end` are the needle's rows, `value_start`, `value_end` those of its value; `key` is what the value
    belongs to, `depth` the place of the needle in the rows of its group, from 0 to 1.
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
    group: str = "filled"

    @property
    def answer_tokens(self) -> int:
        """How many tokens an answer with this value may take."""
        return answer_room(self.value_end - self.value_start)

    def prompt(self) -> Prompt:
        """The prompt, with its needle's value to find."""
        rows = ((self.start, self.end),)
        return Prompt(self.tokens, (self.value,), rows, self.depth, self.answer_tokens, group=self.group)


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


def make_needles(shape: Shape, *, count: int, kind: str = "digits", group: str = "filled") -> Iterator[Needle]:
    """Needles at depths from 5 to 95 % of their group's rows, in texts of their own.

    Parameters
    ----------
    shape
        Of the prompts; the question and the answer's start lie in the tail.
    count
        Number of prompts.
    kind
        What the values are and which language asks: one of `KINDS`.
    group
        Where the needles are: in the rows `[sink, n_prompt - tail)` that may be `filled`, or as a control in the
        `tail` before the question or in the `sink` after the request.

    Raises
    ------
    ModelError
        If the question does not fit the tail, or the needles do not fit the group's rows.
    """
    for text in make_keyed_texts(shape, count=count, keys=1, kind=kind, group=group):
        yield text.needles[0]


def make_keyed_texts(
    shape: Shape, *, count: int, keys: int, kind: str = "digits", group: str = "filled"
) -> Iterator[KeyedText]:
    """Texts with `keys` needles each (multi-key): every needle distracts from the others.

    The depths of all needles together go evenly from 5 to 95 % of their group's rows. One prefill of
    `KeyedText.shared` serves all questions of a text. Parameters and errors are those of `make_needles`, and it is an
    error if the language has fewer keys.
    """
    tokenizer, n_prompt = shape.tokenizer, shape.n_prompt
    made = find_kind(kind, keys)
    draw = random.Random(shape.seed)
    windows = token_windows(tokenizer, n_prompt, corpus=shape.corpus)
    for index in range(count):
        names = draw.sample(made.wording.keys, keys)
        values = _distinct_values(draw, made, keys)
        needles = [needle_tokens(tokenizer, made, name, value) for name, value in zip(names, values, strict=True)]
        frames = [needle_frame(shape, made, name) for name in names]
        longest = max(frames, key=lambda frame: len(frame.foot))
        region = find_region(group, longest, shape)
        depths = even_depths(keys, (index + 0.5) / count)
        starts = spread(region, [len(piece) for piece, _ in needles], depths)
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
                    group=group,
                )
                for j in range(keys)
            ),
            n_prompt - shape.tail,
        )


def answer_room(n_value: int) -> int:
    """How many tokens an answer with a value of `n_value` tokens may take."""
    return n_value + _SPARE_TOKENS


def find_kind(name: str, keys: int) -> Kind:
    """A kind of needles whose language has names for `keys` of them.

    Raises
    ------
    ModelError
        If there is none.
    """
    if name not in KINDS:
        raise ModelError(f"needles of kind {name!r} are not known", f"choose among {', '.join(KINDS)}")
    kind = KINDS[name]
    if keys > len(kind.wording.keys):
        raise ModelError(f"{keys} keys in one text", f"needles of kind {name} have {len(kind.wording.keys)}")
    return kind


def _distinct_values(draw: random.Random, kind: Kind, count: int) -> list[str]:
    values: dict[str, None] = {}
    while len(values) < count:
        values[kind.draw(draw)] = None
    return list(values)


def needle_tokens(tokenizer: Tokenizer, kind: Kind, key: str, value: str) -> tuple[list[int], range]:
    """The needle's tokens, and which of them are its value."""
    wording = kind.wording
    lead = tokenizer.tokenize("\n\n" + wording.lead.format(key=key, noun=kind.noun), parse_special=False)
    body = tokenizer.tokenize(wording.gap + value, parse_special=False)
    stop = tokenizer.tokenize(wording.stop + "\n\n", parse_special=False)
    return [*lead, *body, *stop], range(len(lead), len(lead) + len(body))


def needle_frame(shape: Shape, kind: Kind, key: str) -> Frame:
    """What stands around a text, with the question for a key."""
    wording = kind.wording
    request, question, answer = (
        part.format(key=key, noun=kind.noun) for part in (wording.request, wording.question, wording.answer)
    )
    return make_frame(shape, request=request, question=question, answer=answer, label=wording.label)
