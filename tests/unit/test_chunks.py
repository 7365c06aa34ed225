from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pyridgefill.calibration.chunks import Chunk, Chunker, Digest
from pyridgefill.calibration.corpus import Document
from pyridgefill.errors import CorpusError


class Letters:
    """One token per character; `<s>` is the BOS where special tokens are parsed."""

    def __init__(self, bos: int | None) -> None:
        self.bos = bos

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        return [ord(letter) for letter in (text.replace("<s>", "\1") if parse_special else text)]


def roles(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> str:
    if messages[0]["role"] != "user":
        raise ValueError("first must be user")
    return "<s>" + "".join(message["content"] for message in messages) + str(len(tools))


def chunks(documents: list[Document], *, bos: int | None = 1, n_ctx: int = 5, **options: Any) -> list[Chunk]:
    return list(Chunker(Letters(bos), options.pop("chat", roles), n_ctx, 0.0, **options).chunks(documents))


def text(chunk: Chunk) -> str:
    return "".join(map(chr, chunk.tokens))


def test_long_documents_are_cut_and_each_chunk_starts_with_one_bos() -> None:
    found = chunks([Document("a", text="abcdefghij"), Document("b", text="xy")])
    assert [text(chunk) for chunk in found] == ["\1abcd", "\1efgh", "\1ij", "\1xy"]
    assert [(chunk.index, chunk.document) for chunk in found] == [(0, 0), (1, 0), (2, 0), (3, 1)]


def test_model_without_bos() -> None:
    assert [text(chunk) for chunk in chunks([Document("a", text="abcdefg")], bos=None)] == ["abcde", "fg"]


def test_rest_of_one_token_is_dropped_but_a_single_word_is_not() -> None:
    assert [text(chunk) for chunk in chunks([Document("a", text="abcde"), Document("b", text="w")])] == [
        "\1abcd",
        "\1w",
    ]


@pytest.mark.parametrize(
    "document", [Document("a", text="<s>ab"), Document("a", messages=({"role": "user", "content": "a"},))]
)
def test_bos_that_the_text_writes_is_not_doubled(document: Document) -> None:
    (chunk,) = chunks([document])
    assert chunk.tokens.count(1) == 1
    assert chunk.tokens[0] == 1


def test_special_tokens_can_be_plain_text() -> None:
    (chunk,) = chunks([Document("a", text="<s>")], parse_special=False)
    assert text(chunk) == "\1<s>"


def test_bos_that_the_template_writes_stays_where_the_model_adds_none() -> None:
    (chunk,) = chunks([Document("a", messages=({"role": "user", "content": "a"},))], bos=None)
    assert text(chunk) == "\1a0"


def test_conversation_that_cannot_be_rendered_is_named() -> None:
    chat = Document("chat.jsonl:7", messages=({"role": "system", "content": "a"},))
    with pytest.raises(CorpusError, match=r"chat\.jsonl:7: the model's chat template refuses.*first must be user"):
        chunks([chat])
    with pytest.raises(CorpusError, match=r"chat\.jsonl:7: the model has no chat template"):
        chunks([chat], chat=None)


def test_digest_depends_on_tokens_order_and_set() -> None:
    def digest(*found: Chunk) -> str:
        value = Digest()
        for chunk in found:
            value.add(chunk)
        return value.hex()

    a, b = Chunk(0, (1, 2), 0, False), Chunk(1, (3,), 0, False)
    values = {digest(a, b), digest(b, a), digest(a), digest(Chunk(0, (1, 2), 0, True), b), digest()}
    assert len(values) == 5


def test_some_document_is_held_out_in_every_text() -> None:
    documents = [Document("a", text=f"document {number}") for number in range(8)]
    for share in (1e-9, 0.1, 0.5):
        for start in range(5):
            found = Chunker(Letters(1), roles, 64, share).chunks(documents[start:])
            held = {chunk.document for chunk in found if chunk.held_out}
            assert held & {0, 1}, "no later than the second"
    assert not any(chunk.held_out for chunk in Chunker(Letters(1), roles, 64, 0.0).chunks(documents))


@pytest.mark.parametrize(
    ("documents", "limit", "message"),
    [
        ([Document("a", text="one document only")], None, "no held-out rows: the text is one document"),
        ([Document("a", text="x" * 40), Document("b", text="y" * 40)], 20, "no held-out rows: the first 20 tokens"),
        # the second document is shorter than what is left out of each chunk
        ([Document("a", text="x" * 40), Document("b", text="y")], None, "no held-out rows"),
    ],
)
def test_text_without_held_out_rows_is_refused_before_it_is_used(
    documents: list[Document], limit: int | None, message: str
) -> None:
    stream = Chunker(Letters(1), roles, 8, 1e-9, skip_first=4).chunks(documents, limit)
    with pytest.raises(CorpusError, match=message):
        next(stream)
