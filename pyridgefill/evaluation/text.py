"""Held-out text as token streams, for haystacks and losses."""

from __future__ import annotations

from collections.abc import Iterator

from pyridgefill.builtin_corpora import builtin_documents
from pyridgefill.chunks import Tokenizer
from pyridgefill.errors import CorpusError

# shares no file with the default calibration corpora
EVALUATION_CORPUS = "stdlib-packages"


def token_windows(tokenizer: Tokenizer, length: int, *, skip: int = 0) -> Iterator[list[int]]:
    """Windows of `length` tokens of the evaluation corpus, without BOS, each from documents of its own.

    Parameters
    ----------
    tokenizer
        The model's.
    length
        Tokens per window.
    skip
        Windows to leave out at the start.

    Raises
    ------
    CorpusError
        When the corpus is used up.
    """
    window: list[int] = []
    for _, text in builtin_documents(EVALUATION_CORPUS):
        window.extend(tokenizer.tokenize(text, parse_special=False))
        if len(window) < length:
            continue
        if skip > 0:
            skip -= 1
        else:
            yield window[:length]
        window = []
    raise CorpusError(f"the corpus {EVALUATION_CORPUS} is used up", "ask for fewer or shorter windows")
