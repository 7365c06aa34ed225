"""From documents to the token chunks that the model sees, as serving would build them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from pyridgefill.calibration.corpus import Document
from pyridgefill.chat import ChatFormatter as ChatFormatter  # modules that tokenize find it here
from pyridgefill.errors import CorpusError


class Tokenizer(Protocol):
    """What `Engine` offers for text."""

    @property
    def bos(self) -> int | None: ...

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]: ...


@dataclass(frozen=True)
class Chunk:
    """Tokens of one prompt, from position 0, with exactly one BOS where the model wants one."""

    index: int
    tokens: tuple[int, ...]
    document: int
    held_out: bool


@dataclass(frozen=True)
class Chunker:
    """Cuts documents into chunks.

    Attributes
    ----------
    tokenizer
        The model's.
    chat
        Renders conversations; None if the model has no template.
    n_ctx
        Tokens of a chunk at most.
    held_out
        Share of documents in the held-out set.
    parse_special
        Whether special tokens in the text become tokens, as llama-server does with prompts.
    skip_first
        Rows at the start of each chunk that are in no sums.
    """

    tokenizer: Tokenizer
    chat: ChatFormatter | None
    n_ctx: int
    held_out: float
    parse_special: bool = True
    skip_first: int = 0

    def chunks(self, documents: Iterable[Document], limit: int | None = None) -> Iterator[Chunk]:
        """Stream the chunks of all documents; a rest of one token makes no chunk of its own.

        The second document is held out if the first is not, so that every text has held-out rows: nothing is yielded
        before one of the chunks is known to have them.

        Parameters
        ----------
        documents
            The text.
        limit
            Tokens after which the caller stops; None: never.

        Raises
        ------
        CorpusError
            If a conversation cannot be rendered with the model's template, or no document would be held out.
        """
        waiting: list[Chunk] | None = [] if self.held_out > 0 else None
        for chunk in self._chunks(documents):
            if waiting is None:
                yield chunk
                continue
            waiting.append(chunk)
            if chunk.held_out and len(chunk.tokens) > self.skip_first:
                yield from waiting
                waiting = None
            elif limit is not None and sum(len(item.tokens) for item in waiting) >= limit:
                raise CorpusError(
                    f"no held-out rows: the first {limit} tokens are one document", "raise --tokens or lower --ctx"
                )
        if waiting:
            raise CorpusError("no held-out rows: the text is one document", "give more text or lower --ctx")

    def _chunks(self, documents: Iterable[Document]) -> Iterator[Chunk]:
        bos = self.tokenizer.bos
        start = [] if bos is None else [bos]
        step = self.n_ctx - len(start)
        index = 0
        any_held_out = False
        for number, document in enumerate(documents):
            tokens = self._tokens(document)
            usable = len(tokens) > self.skip_first
            held_out = document.is_held_out(self.held_out)
            if self.held_out > 0 and number > 0 and usable and not any_held_out:
                held_out = True
            any_held_out |= held_out and usable
            for offset in range(0, len(tokens), step):
                part = tokens[offset : offset + step]
                if offset == 0 or len(part) > 1:
                    yield Chunk(index, (*start, *part), number, held_out)
                    index += 1

    def _tokens(self, document: Document) -> list[int]:
        if not document.messages:
            tokens = self.tokenizer.tokenize(document.text, parse_special=self.parse_special)
        else:
            if self.chat is None:
                raise CorpusError(
                    f"{document.source}: the model has no chat template", "calibrate on text, or choose a chat model"
                )
            try:
                text = self.chat(document.messages, document.tools)
            except Exception as error:  # templates raise what they like
                raise CorpusError(
                    f"{document.source}: the model's chat template refuses the conversation: {error}",
                    "check the roles and their order",
                ) from error
            tokens = self.tokenizer.tokenize(text, parse_special=self.parse_special)
        # templates and texts may write the BOS that each chunk gets anyway
        return tokens[1:] if tokens and tokens[0] == self.tokenizer.bos else tokens


class Digest:
    """Running hash over the chunks' tokens: a resumed run must see the same text again."""

    def __init__(self) -> None:
        self._value = b""
        self.before = ""

    def add(self, chunk: Chunk) -> None:
        """Add a chunk; `before` is then the hash without it."""
        self.before = self.hex()
        tokens = b"".join(token.to_bytes(4, "little", signed=True) for token in chunk.tokens)
        self._value = hashlib.blake2b(self._value + bytes([chunk.held_out]) + tokens, digest_size=16).digest()

    def hex(self) -> str:
        return self._value.hex()
