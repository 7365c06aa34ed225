"""Spans: rows of a prompt that the caller names, by tokens or by characters of its text."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from pyridgefill.errors import RidgeFillError

# (start, end) token positions, {"tokens": (start, end)}, or {"chars": (start, end)} in the prompt's text
Span = tuple[int, int] | Mapping[str, tuple[int, int]]

_SPACE = b" \t\r\n"


def parse_span(span: Span) -> tuple[str, int, int]:
    """What a span counts, `tokens` or `chars`, its start and its end.

    Raises
    ------
    ValueError
        If it has another form.
    """
    kind, pair = "tokens", span
    if isinstance(span, Mapping):
        (kind, pair), *rest = span.items() or [("", ())]
        if rest:
            kind = ""
    numbers = isinstance(pair, (tuple, list)) and len(pair) == 2 and all(type(value) is int for value in pair)
    if kind not in ("tokens", "chars") or not numbers or not 0 <= pair[0] <= pair[1]:  # type: ignore[index]
        raise ValueError(
            f"expected (start, end), {{'tokens': (start, end)}} or {{'chars': (start, end)}} "
            f"with 0 <= start <= end, found {span!r}"
        )
    return kind, pair[0], pair[1]  # type: ignore[index]


def token_places(pieces: Sequence[bytes], text: bytes) -> list[tuple[int, int]]:
    """Which bytes of a text each of its tokens stands for.

    Parameters
    ----------
    pieces
        The text of each token. A tokenizer may put a space before a text, drop white space beside special tokens,
        and add tokens at the start and at the end that are not in the text.
    text
        What was tokenized, UTF-8.

    Returns
    -------
    list
        `[start, end)` for each token, ascending.

    Raises
    ------
    RidgeFillError
        If the tokens do not spell the text.
    """
    places, position = [], 0
    for i, piece in enumerate(pieces):
        start = position
        if text.startswith(piece, position):
            position += len(piece)
        elif piece[:1] == b" " and text.startswith(piece[1:], position):
            position += len(piece) - 1
        else:
            after = len(text) - len(text[position:].lstrip(_SPACE))
            if text.startswith(piece, after):
                start, position = after, after + len(piece)
            elif 0 < i < len(pieces) - 1:
                break
        places.append((start, position))
    if len(places) < len(pieces) or text[position:].strip(_SPACE):
        raise RidgeFillError("spans of chars need tokens that spell the text of the prompt", "use tokens")
    return places


def span_rows(spans: Sequence[Span], pieces: Sequence[bytes], text: str | None) -> list[tuple[int, int]]:
    """The rows of spans as ranges of token positions; what lies beyond the prompt is left out.

    Parameters
    ----------
    spans
        In any order; they may overlap.
    pieces, text
        As for `token_places`; a text of None stands for a prompt that was given as tokens.

    Raises
    ------
    RidgeFillError
        If characters cannot be found in the tokens.
    """
    parsed = [parse_span(span) for span in spans]
    rows = [(start, min(end, len(pieces))) for kind, start, end in parsed if kind == "tokens" and start < len(pieces)]
    chars = [(start, end) for kind, start, end in parsed if kind == "chars"]
    if not chars:
        return rows
    if text is None:
        raise RidgeFillError("spans of chars need a prompt that is a text", "use tokens")
    places = token_places(pieces, text.encode())
    starts, ends = [start for start, _ in places], [end for _, end in places]
    for start, end in chars:
        first = len(text[:start].encode())
        second = first + len(text[start:end].encode())
        found = bisect_right(ends, first), bisect_left(starts, second)
        if first < second and found[0] < found[1]:
            rows.append(found)
    return rows
