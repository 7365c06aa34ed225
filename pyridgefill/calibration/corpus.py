"""Calibration text as a stream of documents: text files, chat JSONL, and text that every Python brings.

No more than one document is in memory. Long text files are cut into documents at paragraph borders.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pyridgefill.calibration.builtin_corpora import BUILTIN, builtin_documents
from pyridgefill.errors import CorpusError, EncodingError

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Document:
    """A piece of running text, or a conversation (`messages`), with where it came from."""

    source: str
    text: str = ""
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()

    def digest(self) -> int:
        """64 bits over the content."""
        content = json.dumps([self.text, self.messages, self.tools], ensure_ascii=False, sort_keys=True)
        return int.from_bytes(hashlib.blake2b(content.encode(errors="surrogatepass"), digest_size=8).digest(), "big")

    def is_held_out(self, share: float) -> bool:
        """Whether the document belongs to the held-out set: the same content always does, wherever it is read."""
        return self.digest() < share * 2**64


@dataclass(frozen=True)
class Corpus:
    """A named source of documents: one of `BUILTIN`, or a file (`.jsonl`: chat records, else text).

    Attributes
    ----------
    source
        A key of `BUILTIN`, or a path.
    errors
        What to do with bytes that are not UTF-8: `strict` raises, `replace` puts U+FFFD in their place.
    document_chars
        Longer texts are cut into documents of at most that many characters; about one chunk each is best,
        since the held-out set is drawn from whole documents.
    """

    source: str
    errors: Literal["strict", "replace"] = "strict"
    document_chars: int = 6144

    @property
    def name(self) -> str:
        """What maps files store: no path; bytes that are not UTF-8 are U+FFFD."""
        return os.fsencode(Path(self.source).name).decode(errors="replace")

    def check(self) -> None:
        """Raise a CorpusError if the source does not exist, before anything costly is done."""
        if self.source not in BUILTIN and not Path(self.source).is_file():
            names = ", ".join(BUILTIN)
            raise CorpusError(f"{self.source}: no such file", f"give a text file, a .jsonl file, or one of {names}")

    def documents(self) -> Iterator[Document]:
        """Stream the documents.

        Raises
        ------
        CorpusError
            If the file is missing, empty or not UTF-8, or a record is not a conversation; names file and place.
        """
        if self.source in BUILTIN:
            for source, text in builtin_documents(self.source):
                for piece in _pieces([_normalise(text)], self.document_chars):
                    yield Document(source, piece)
            return
        self.check()
        path = Path(self.source)
        stream = _chats(path, self.errors) if path.suffix.lower() == ".jsonl" else self._texts(path)
        empty = True
        for document in stream:
            empty = False
            yield document
        if empty:
            raise CorpusError(f"{path}: the file has no text", "give a file with text")

    def _texts(self, path: Path) -> Iterator[Document]:
        for piece in _pieces(_decoded(path, self.errors), self.document_chars):
            yield Document(path.name, piece)


def interleave(corpora: Sequence[Corpus]) -> Iterator[Document]:
    """One document of each corpus in turn, so that a limit on tokens takes from all of them."""
    streams = [corpus.documents() for corpus in corpora]
    while streams:
        remaining = []
        for stream in streams:
            document = next(stream, None)
            if document is not None:
                yield document
                remaining.append(stream)
        streams = remaining


def _normalise(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _decoded(path: Path, errors: str) -> Iterator[str]:
    """Blocks of decoded text with line feeds as line ends and without byte order mark."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    lines = io.IncrementalNewlineDecoder(None, translate=True)
    offset = 0
    with path.open("rb") as file:
        while True:
            block = file.read(_READ_BYTES)
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                at = offset - pending + error.start
                raise EncodingError(
                    f"{path}: byte {at} is not UTF-8 text: {error.reason}", "convert the file"
                ) from error
            if offset == 0:
                text = text.removeprefix("\ufeff")
            offset += len(block)
            yield lines.decode(text, final=not block)
            if not block:
                return


def _pieces(blocks: Iterable[str], limit: int) -> Iterator[str]:
    """Cut text into pieces of at most `limit` characters, at a paragraph border, else at a line end."""
    rest = ""
    for block in blocks:
        rest += block
        start = 0
        while len(rest) - start > limit:
            end = start + limit
            for border in ("\n\n", "\n", " "):
                found = rest.rfind(border, start + limit // 2, end)
                if found >= 0:
                    end = found + len(border)
                    break
            if not rest[start:end].isspace():
                yield rest[start:end]
            start = end
        rest = rest[start:]
    if rest and not rest.isspace():
        yield rest


def _chats(path: Path, errors: str) -> Iterator[Document]:
    tail = ""
    number = 0
    for block in _decoded(path, errors):
        lines = (tail + block).split("\n")
        tail = lines.pop()
        for line in lines:
            number += 1
            if line.strip():
                yield _chat(path, number, line)
    if tail.strip():
        yield _chat(path, number + 1, tail)


def _chat(path: Path, number: int, line: str) -> Document:
    hint = 'a record is {"messages": [{"role": "...", "content": "..."}, ...]}'
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise CorpusError(f"{path}: line {number}: not JSON: {error}", hint) from error
    except RecursionError as error:
        raise CorpusError(f"{path}: line {number}: brackets in too many brackets", hint) from error
    messages = record.get("messages") if isinstance(record, dict) else None
    if not isinstance(messages, list) or not messages:
        raise CorpusError(f"{path}: line {number}: expected a non-empty list 'messages'", hint)
    if not all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages):
        raise CorpusError(f"{path}: line {number}: expected messages with a 'role'", hint)
    tools = record.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise CorpusError(
            f"{path}: line {number}: expected 'tools' to be a list of objects", 'like {"type": "function", ...}'
        )
    document = Document(f"{path.name}:{number}", messages=tuple(messages), tools=tuple(tools or ()))
    try:
        document.digest()
    except RecursionError as error:
        raise CorpusError(f"{path}: line {number}: brackets in too many brackets", hint) from error
    return document
