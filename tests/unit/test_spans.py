"""Spans: characters of a text and the tokens that spell it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyridgefill.config import RidgeFillConfig
from pyridgefill.errors import RidgeFillError
from pyridgefill.spans import span_rows, token_places

texts = st.text(alphabet="ab é日🙂 \n", max_size=40)


def cut(text: bytes, borders: list[int]) -> list[bytes]:
    edges = sorted({0, len(text), *(border for border in borders if border < len(text))})
    return [text[a:b] for a, b in pairwise(edges)]


@given(
    text=texts,
    borders=st.lists(st.integers(0, 100)),
    first=st.integers(0, 45),
    length=st.integers(0, 45),
    data=st.data(),
)
def test_each_byte_belongs_to_its_token(text: str, borders: list[int], first: int, length: int, data: Any) -> None:
    """Tokens may end inside of a character; a token that is partly inside is inside."""
    pieces = cut(text.encode(), borders)
    owner = [i for i, piece in enumerate(pieces) for _ in piece]
    start, end = (len(text[:at].encode()) for at in (first, first + length))
    expected = sorted(set(owner[start:end]))
    added = data.draw(st.booleans())
    if added:
        pieces = [b"<s>", *pieces]
        expected = [i + 1 for i in expected]
    rows = span_rows([{"chars": (first, first + length)}], pieces, text)
    assert [i for a, b in rows for i in range(a, b)] == expected


def test_what_tokenizers_add_and_drop() -> None:
    text = b"<s>Hi  there</s>\n\nYou"
    places = [(0, 3), (3, 5), (5, 6), (6, 12), (12, 16), (18, 21)]
    assert token_places([b"<s>", b" Hi", b" ", b" there", b"</s>", b" You"], text) == places
    assert token_places([b"<bos>", b"a", b"b", b"<eos>"], b"ab") == [(0, 0), (0, 1), (1, 2), (2, 2)]


@pytest.mark.parametrize("pieces", [[b"a"], [b"a", b"x", b"b"], [b"a", b"b", b"c", b"d"], []])
def test_tokens_of_another_text(pieces: list[bytes]) -> None:
    with pytest.raises(RidgeFillError, match="need tokens that spell the text"):
        token_places(pieces, b"ab")


def test_tokens_are_clipped_to_the_prompt() -> None:
    assert span_rows([(1, 9), {"tokens": (0, 2)}, (4, 5)], [b"a"] * 3, None) == [(1, 3), (0, 2)]


@pytest.mark.parametrize(
    "span",
    [
        (1,),
        (1, 2, 3),
        (2, 1),
        (-1, 2),
        ("a", 2),
        {"chars": 3},
        {"char": (0, 1)},
        {},
        {"tokens": (0, 1), "chars": (0, 1)},
        None,
    ],
)
def test_bad_spans(span: Any) -> None:
    with pytest.raises(ValueError, match=r"RidgeFillConfig.spans: expected \(start, end\)"):
        RidgeFillConfig(spans=(span,))
