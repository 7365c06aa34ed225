"""Questions whose answer is not in the text: whatever value is given is made up, or that of another key."""

from __future__ import annotations

import random
from collections.abc import Iterator

from pyridgefill.calibration.chunks import ChatFormatter, Tokenizer
from pyridgefill.evaluation.prompts.layout import assemble, find_region, spread
from pyridgefill.evaluation.prompts.needle import answer_room, find_kind, needle_frame, needle_tokens
from pyridgefill.evaluation.prompts.prompt import Prompt
from pyridgefill.evaluation.prompts.text import EVALUATION_CORPUS, token_windows

ABSENT = "absent"


def make_absent(
    tokenizer: Tokenizer,
    chat: ChatFormatter | None,
    *,
    count: int,
    others: int,
    n_prompt: int,
    sink: int,
    tail: int,
    kind: str = "digits",
    seed: int = 0,
    corpus: str = EVALUATION_CORPUS,
) -> Iterator[Prompt]:
    """Prompts that ask for the value of a key that is not in the text.

    Parameters
    ----------
    others
        Needles of other keys in each text, evenly in the rows that may be filled.
    tokenizer, chat, count, n_prompt, sink, tail, kind, seed, corpus
        As for `make_needles`.

    Raises
    ------
    ModelError
        As for `make_keyed_texts`.
    """
    made = find_kind(kind, others + 1)
    draw = random.Random(f"{ABSENT} {seed}")
    windows = token_windows(tokenizer, n_prompt, corpus=corpus)
    for _ in range(count):
        asked, *names = draw.sample(made.wording.keys, others + 1)
        _, value = needle_tokens(tokenizer, made, asked, made.draw(draw))
        needles = [needle_tokens(tokenizer, made, name, made.draw(draw))[0] for name in names]
        frame = needle_frame(tokenizer, chat, made, asked)
        region = find_region("filled", frame, n_prompt=n_prompt, sink=sink, tail=tail)
        depths = [0.05 + 0.9 * (j + 0.5) / others for j in range(others)]
        starts = spread(region, [*map(len, needles)], depths)
        yield Prompt(
            tokens=assemble(frame, list(zip(starts, needles, strict=True)), next(windows), n_prompt),
            values=(),
            rows=(),
            depth=None,
            answer_tokens=answer_room(len(value)),
            any_of=True,
            group=ABSENT,
            form=made.form,
        )
