"""Texts that hide needles: prose, the same few sentences again and again, and sentences that look like needles."""

from __future__ import annotations

import random
from collections.abc import Iterator

from pyridgefill.calibration.chunks import Tokenizer
from pyridgefill.errors import ModelError
from pyridgefill.evaluation.prompts.kinds import Kind
from pyridgefill.evaluation.prompts.text import EVALUATION_CORPUS, token_windows

HAYSTACKS = ("prose", "noise", "needles")

NOISE = (
    "Rain fell on the roof. The kettle was warm. A clock ticked in the hall. Somebody walked by, and the street was "
    "quiet again. "
)


def haystacks(
    tokenizer: Tokenizer, name: str, length: int, kind: Kind, *, seed: int = 0, corpus: str = EVALUATION_CORPUS
) -> Iterator[list[int]]:
    """Endless or at least long streams of hay, `length` tokens each.

    Parameters
    ----------
    tokenizer
        The model's.
    name
        One of `HAYSTACKS`.
    length
        Tokens of each.
    kind
        What needles look like.
    seed
        Of needles in the hay.
    corpus
        For prose, see `token_windows`.
    """
    if name == "prose":
        yield from token_windows(tokenizer, length, corpus=corpus)
    elif name == "noise":
        unit = tokenizer.tokenize(NOISE, parse_special=False)
        while True:
            yield (unit * (length // len(unit) + 1))[:length]
    elif name == "needles":
        draw = random.Random(f"hay {seed}")
        while True:
            yield _needles(tokenizer, length, kind, draw)
    else:
        raise ModelError(f"haystack {name!r} is not known", f"choose among {', '.join(HAYSTACKS)}")


def numbered_key(draw: random.Random, kind: Kind, *, asked: bool) -> str:
    """A key with a number: of needles that are asked for an even one, of needles in the hay an odd one."""
    return f"{draw.choice(kind.wording.keys)}-{2 * draw.randrange(5, 50) + (not asked)}"


def _needles(tokenizer: Tokenizer, length: int, kind: Kind, draw: random.Random) -> list[int]:
    wording, tokens = kind.wording, list[int]()
    while len(tokens) < length:
        lead = wording.lead.format(key=numbered_key(draw, kind, asked=False), noun=kind.noun)
        sentence = f"{lead}{wording.gap}{kind.draw(draw)}{wording.stop}\n\n"
        tokens += tokenizer.tokenize(sentence, parse_special=False)
    return tokens[:length]
