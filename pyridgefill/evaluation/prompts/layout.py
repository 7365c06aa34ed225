"""Lays out prompts by rows: what the answer needs stands before the tail, the question in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyridgefill.calibration.chunks import ChatFormatter, Tokenizer
from pyridgefill.errors import ModelError, UsageError
from pyridgefill.evaluation.prompts.prompt import Prompt
from pyridgefill.evaluation.prompts.text import EVALUATION_CORPUS

GROUPS = ("filled", "tail", "sink")

_MARK = "\x1fHAYSTACK\x1f"

# tokens of an answer beside its values
_SPARE_TOKENS = 24


def check_rows(n_prompt: int, sink: int, tail: int) -> None:
    """Raise a UsageError if nothing lies between both ends of a prompt, so that nothing would be filled."""
    if n_prompt <= sink + tail:
        raise UsageError(
            f"prompts of {n_prompt} tokens have no rows to fill", f"ask for more than sink + tail = {sink + tail}"
        )


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


@dataclass(frozen=True)
class Frame:
    """A prompt's tokens before and after its text."""

    head: tuple[int, ...]
    foot: tuple[int, ...]


def make_frame(shape: Shape, *, request: str, question: str, answer: str, label: str) -> Frame:
    """Render a request around a text; without a chat template the prompt is plain text.

    Parameters
    ----------
    shape
        Of the prompt.
    request, question
        Stand before and after the text.
    answer
        The start of the answer, the end of the prompt.
    label
        Stands before `answer` where there is no chat template.

    Raises
    ------
    ModelError
        If what follows the text does not fit the tail.
    """
    tokenizer, chat = shape.tokenizer, shape.chat
    content = f"{request}\n\n{_MARK}\n\n{question}"
    rendered = f"{content}\n\n{label}" if chat is None else chat([{"role": "user", "content": content}], [])
    head, foot = (rendered + answer).split(_MARK)
    bos = [] if tokenizer.bos is None else [tokenizer.bos]
    tokens = tokenizer.tokenize(head, parse_special=True)
    # templates may write the BOS that each prompt gets anyway
    head_tokens = bos + tokens[len(bos) if bos and tokens[:1] == bos else 0 :]
    frame = Frame(tuple(head_tokens), tuple(tokenizer.tokenize(foot, parse_special=True)))
    if len(frame.foot) > shape.tail:
        raise ModelError(f"the question has {len(frame.foot)} tokens, the tail {shape.tail}", "ask for a longer tail")
    return frame


@dataclass(frozen=True)
class Region:
    """Rows `[first, end)` of a prompt; `where` and `hint` are for those who put too much there."""

    first: int
    end: int
    where: str = ""
    hint: str = "ask for longer prompts or fewer of them"


def find_region(group: str, frame: Frame, shape: Shape) -> Region:
    """The rows between the frame's ends that may be filled, that the tail has, or that the sink has.

    Parameters
    ----------
    group
        One of `GROUPS`.
    frame
        Stands around the text.
    shape
        Of the prompt.

    Raises
    ------
    ModelError
        If the group is not known.
    """
    n_prompt, sink, tail = shape.n_prompt, shape.sink, shape.tail
    head, foot = len(frame.head), n_prompt - len(frame.foot)
    if group == "filled":
        return Region(max(sink, head), n_prompt - tail)
    if group == "tail":
        return Region(n_prompt - tail, foot, " of the tail before the question", "ask for a longer tail")
    if group == "sink":
        end = min(sink, n_prompt - tail)
        return Region(head, end, f" of the sink after the request, which takes {head}", "ask for a longer sink")
    raise ModelError(f"needles of group {group!r} are not known", f"choose among {', '.join(GROUPS)}")


def spread(region: Region, sizes: Sequence[int], depths: Sequence[float]) -> list[int]:
    """Rows at which pieces start, so that each lies in the region at its depth.

    Parameters
    ----------
    region
        The rows.
    sizes, depths
        Of the pieces in ascending order of depth; a depth of 0 starts at its first row, one of 1 stops at its end.

    Raises
    ------
    ModelError
        If pieces would overlap or leave the rows.
    """
    first, end = region.first, region.end
    starts = [first + round(depth * (end - size - first)) for depth, size in zip(depths, sizes, strict=True)]
    stops = [start + size for start, size in zip(starts, sizes, strict=True)]
    if any(after < before for after, before in zip([*starts, end], [first, *stops], strict=True)):
        rows = max(0, end - first)
        raise ModelError(
            f"{len(sizes)} needles do not fit {rows} rows{region.where}: they have {sum(sizes)} tokens", region.hint
        )
    return starts


def assemble(
    frame: Frame, pieces: Sequence[tuple[int, Sequence[int]]], hay: Sequence[int], n_prompt: int
) -> tuple[int, ...]:
    """A prompt of `n_prompt` tokens whose pieces start at the given rows; hay fills what is left.

    Parameters
    ----------
    frame
        Stands around everything.
    pieces
        `(start, tokens)` in the order of their rows.
    hay
        At least `n_prompt` tokens.
    n_prompt
        Tokens of the prompt.
    """
    tokens, used = list(frame.head), 0
    for start, piece in [*pieces, (n_prompt - len(frame.foot), frame.foot)]:
        gap = start - len(tokens)
        tokens += hay[used : used + gap]
        tokens += piece
        used += gap
    return tuple(tokens)


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
    frame = make_frame(shape, request=request, question=question, answer=answer, label="Answer: ")
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
