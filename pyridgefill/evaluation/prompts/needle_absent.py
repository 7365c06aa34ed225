"""Questions whose answer is not in the text: whatever value is given is made up, or that of another key."""

from __future__ import annotations

import random
from collections.abc import Iterator

from pyridgefill.evaluation.prompts.layout import Shape, assemble, even_depths, find_region, spread
from pyridgefill.evaluation.prompts.needle import answer_room, find_kind, needle_frame, needle_tokens
from pyridgefill.evaluation.prompts.prompt import Prompt
from pyridgefill.evaluation.prompts.text import token_windows

ABSENT = "absent"


def make_absent(shape: Shape, *, count: int, others: int, kind: str = "digits") -> Iterator[Prompt]:
    """Prompts that ask for the value of a key that is not in the text.

    Each text has `others` needles of other keys, evenly in the rows that may be filled. Parameters and errors are
    otherwise those of `make_keyed_texts`.
    """
    tokenizer = shape.tokenizer
    made = find_kind(kind, others + 1)
    draw = random.Random(f"{ABSENT} {shape.seed}")
    windows = token_windows(tokenizer, shape.n_prompt, corpus=shape.corpus)
    for _ in range(count):
        asked, *names = draw.sample(made.wording.keys, others + 1)
        _, value = needle_tokens(tokenizer, made, asked, made.draw(draw))
        needles = [needle_tokens(tokenizer, made, name, made.draw(draw))[0] for name in names]
        frame = needle_frame(shape, made, asked)
        region = find_region("filled", frame, shape)
        depths = even_depths(others, 0.5)
        starts = spread(region, [*map(len, needles)], depths)
        yield Prompt(
            tokens=assemble(frame, list(zip(starts, needles, strict=True)), next(windows), shape.n_prompt),
            values=(),
            rows=(),
            depth=None,
            answer_tokens=answer_room(len(value)),
            any_of=True,
            group=ABSENT,
            form=made.form,
        )
