"""Task families of the RULER benchmark (Hsieh et al. 2024), written anew for prompts whose middle is filled.

Whatever an answer needs lies in the rows between sink and tail, the question in the tail, lengths are exact numbers of
tokens, and answers are scored by the values in them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from pyridgefill.calibration.chunks import ChatFormatter, Tokenizer
from pyridgefill.errors import ModelError
from pyridgefill.evaluation.prompts.haystacks import haystacks, numbered_key
from pyridgefill.evaluation.prompts.kinds import KINDS
from pyridgefill.evaluation.prompts.layout import Region, assemble, make_frame, spread
from pyridgefill.evaluation.prompts.text import EVALUATION_CORPUS
from pyridgefill.evaluation.tasks.prompts import Prompt

_SPARE_TOKENS = 24


@dataclass(frozen=True)
class Shape:
    """What all tasks need to know: the model's tokenizer and template, and where rows are."""

    tokenizer: Tokenizer
    chat: ChatFormatter | None
    n_prompt: int
    sink: int
    tail: int
    seed: int = 0
    corpus: str = EVALUATION_CORPUS

    def tokens(self, text: str) -> list[int]:
        """Tokens of a text."""
        return self.tokenizer.tokenize(text, parse_special=False)

    def answer_tokens(self, values: Sequence[str]) -> int:
        """Room for an answer with these values."""
        return sum(len(self.tokens(f" {value},")) for value in values) + _SPARE_TOKENS


Task = Callable[[Shape, int], Iterator[Prompt]]


def lay_out(
    shape: Shape,
    *,
    request: str,
    question: str,
    answer: str,
    pieces: Sequence[Sequence[int]],
    depths: Sequence[float],
    needed: Sequence[int],
    hay: Sequence[int],
    values: Sequence[str],
    any_of: bool = False,
) -> Prompt:
    """Put pieces at depths into hay, between a request and a question.

    Parameters
    ----------
    shape
        Rows and tokenizer.
    request, question, answer
        Before and after the text, and the start of the answer.
    pieces, depths
        Token sequences in ascending order of depth.
    needed
        Indices of the pieces that the answer needs.
    hay
        At least `n_prompt` tokens.
    values, any_of
        What the answer must contain.
    """
    frame = make_frame(shape.tokenizer, shape.chat, request=request, question=question, answer=answer, label="Answer: ")
    frame.check(shape.tail)
    region = Region(max(shape.sink, len(frame.head)), shape.n_prompt - shape.tail - 1)
    starts = spread(region, [*map(len, pieces)], depths)
    return Prompt(
        tokens=assemble(frame, list(zip(starts, pieces, strict=True)), hay, shape.n_prompt),
        values=tuple(values),
        rows=tuple((starts[i], starts[i] + len(pieces[i])) for i in needed),
        depth=sum(depths[i] for i in needed) / len(needed),
        answer_tokens=shape.answer_tokens(values),
        any_of=any_of,
    )


def even_depths(count: int, shift: float) -> list[float]:
    """`count` depths from 5 to 95 % at equal distances, `shift` (0 to 1) of a distance from the first one on."""
    return [0.05 + 0.9 * (index + shift) / count for index in range(count)]


def retrieval(
    shape: Shape,
    count: int,
    *,
    kind: str = "digits",
    hay: str = "prose",
    keys: int = 1,
    values: int = 1,
    asked: int = 1,
) -> Iterator[Prompt]:
    """Needles: `keys` keys with `values` values each, `asked` of the keys are asked for."""
    made = KINDS[kind]
    draw = random.Random(f"{shape.seed} {kind} {hay} {keys} {values} {asked}")
    streams = haystacks(shape.tokenizer, hay, shape.n_prompt, made, seed=shape.seed, corpus=shape.corpus)
    plural = "s" if values > 1 or asked > 1 else ""
    for index in range(count):
        names: dict[str, None] = {}
        while len(names) < keys:
            name = numbered_key(draw, made, asked=True) if hay == "needles" else draw.choice(made.wording.keys)
            names[name] = None
        drawn: dict[str, str] = {}
        for name in names:
            for _ in range(values):
                while (value := made.draw(draw)) in drawn:
                    pass
                drawn[value] = name
        order = draw.sample(list(drawn), len(drawn))
        wanted = draw.sample(list(names), asked)
        lead, stop = made.wording.lead, made.wording.stop
        pieces = [
            shape.tokens(f"\n\n{lead.format(key=drawn[value], noun=made.noun)} {value}{stop}\n\n") for value in order
        ]
        needed = [i for i, value in enumerate(order) if drawn[value] in wanted]
        listed = " and ".join([", ".join(wanted[:-1]), wanted[-1]] if asked > 1 else wanted)
        what = f"the special magic {made.noun}{plural} for {listed}"
        yield lay_out(
            shape,
            request=f"Read the text and remember each special magic {made.noun} in it.",
            question=f"What {'are all' if plural else 'is'} {what} that the text above mentions?",
            answer=f"{what[0].upper()}{what[1:]} {'are' if plural else 'is'}:",
            pieces=pieces,
            depths=even_depths(len(pieces), (index + 0.5) / count),
            needed=needed,
            hay=next(streams),
            values=[order[i] for i in needed],
        )


def variable_tracking(shape: Shape, count: int, *, hops: int = 4) -> Iterator[Prompt]:
    """A value goes from variable to variable; all variables that hold it are asked for."""
    draw = random.Random(f"{shape.seed} variables")
    streams = haystacks(shape.tokenizer, "noise", shape.n_prompt, KINDS["digits"], seed=shape.seed)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for index in range(count):
        names: dict[str, None] = {}
        while len(names) <= hops:
            names["".join(draw.choices(letters, k=5))] = None
        chain, value = list(names), str(draw.randrange(10**4, 10**5))
        sources = [value, *(f"the value of {name}" for name in chain[:-1])]
        pieces = [
            shape.tokens(f"\n\n{name} is set to {source}.\n\n") for name, source in zip(chain, sources, strict=True)
        ]
        yield lay_out(
            shape,
            request="Read the text and keep track of the variables that are set in it.",
            question=f"Name all {len(chain)} variables that hold the value {value}, directly or through others.",
            answer=f"The variables that hold the value {value} are:",
            pieces=pieces,
            depths=even_depths(len(pieces), (index + 0.5) / count),
            needed=range(len(pieces)),
            hay=next(streams),
            values=chain,
        )


def tasks() -> dict[str, Task]:
    """All tasks that need no data of the user, by name."""
    from pyridgefill.evaluation.prompts.ruler_words import common_words, frequent_words

    return {
        "single-noise": partial(retrieval, hay="noise"),
        "single-prose": partial(retrieval, hay="prose"),
        "single-words": partial(retrieval, kind="words"),
        "single-uuids": partial(retrieval, kind="uuids"),
        "multi-key": partial(retrieval, keys=4),
        "multi-key-needles": partial(retrieval, hay="needles"),
        "multi-value": partial(retrieval, values=4),
        "multi-query": partial(retrieval, keys=4, asked=4),
        "variable-tracking": variable_tracking,
        "common-words": common_words,
        "frequent-words": frequent_words,
    }


def check_tasks(names: Sequence[str], extra: dict[str, Task]) -> None:
    """Raise a ModelError if a task is not known; `extra` has tasks that need the user's data."""
    known = [*tasks(), *extra]
    for name in names:
        if name not in known:
            hint = "give --squad" if name == "qa" else f"choose among {', '.join(known)}"
            raise ModelError(f"task {name!r} is not known", hint)


def make_prompts(shape: Shape, task: str, count: int, extra: dict[str, Task] | None = None) -> list[Prompt]:
    """Prompts of one task; the same arguments give the same prompts.

    Raises
    ------
    ModelError
        If the task is not known, or does not fit the rows.
    """
    check_tasks([task], extra or {})
    return list((tasks() | (extra or {}))[task](shape, count))
