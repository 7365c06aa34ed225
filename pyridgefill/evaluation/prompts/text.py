"""Held-out text as token streams, for haystacks and losses."""

from __future__ import annotations

from collections.abc import Iterator

from pyridgefill.calibration.builtin_corpora import BUILTIN, builtin_documents
from pyridgefill.calibration.chunks import Tokenizer
from pyridgefill.calibration.corpus import Corpus
from pyridgefill.errors import CorpusError

# shares no file with the default calibration corpora
EVALUATION_CORPUS = "stdlib-packages"


def token_windows(
    tokenizer: Tokenizer, length: int, *, skip: int = 0, corpus: str = EVALUATION_CORPUS
) -> Iterator[list[int]]:
    """Windows of `length` tokens of a corpus, without BOS, each from documents of its own.

    Parameters
    ----------
    tokenizer
        The model's.
    length
        Tokens per window.
    skip
        Windows to leave out at the start.
    corpus
        A built-in corpus, or the path of a text file; a file is cut into documents at its paragraphs.

    Raises
    ------
    CorpusError
        When the corpus is used up, does not exist, or holds conversations.
    """
    window: list[int] = []
    for text in _documents(corpus):
        window.extend(tokenizer.tokenize(text, parse_special=False))
        if len(window) < length:
            continue
        if skip > 0:
            skip -= 1
        else:
            yield window[:length]
        window = []
    raise CorpusError(f"the corpus {corpus} is used up", "ask for fewer or shorter windows, or give a longer text")


def text_windows(
    tokenizer: Tokenizer, length: int, *, skip: int = 0, corpus: str = EVALUATION_CORPUS
) -> Iterator[list[int]]:
    """Windows of `length` tokens that start with BOS where the model wants one; else like `token_windows`."""
    bos = [] if tokenizer.bos is None else [tokenizer.bos]
    for window in token_windows(tokenizer, length - len(bos), skip=skip, corpus=corpus):
        yield bos + window


def _documents(corpus: str) -> Iterator[str]:
    if corpus in BUILTIN:
        for _, text in builtin_documents(corpus):
            yield text
        return
    for document in Corpus(corpus).documents():
        if document.messages:
            raise CorpusError(f"{document.source}: a conversation is no running text", "give a text file")
        yield document.text
