"""Spans: rows of a prompt that the caller names, by tokens or by characters of its text."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from pyridgefill.errors import RidgeFillError, UsageError

# (start, end) token positions, {"tokens": (start, end)}, or {"chars": (start, end)} in the prompt's text
Span = tuple[int, int] | Mapping[str, tuple[int, int]]

_SPACES = (b" ", b"\t", b"\r", b"\n")


def parse_span(span: Span) -> tuple[str, int, int]:
    """What a span counts, `tokens` or `chars`, its start and its end.

    Raises
    ------
    UsageError
        If it has another form.
    """
    entries = list(span.items()) if isinstance(span, Mapping) else [("tokens", span)]
    match entries:
        case [("tokens" | "chars" as kind, (int(start), int(end)))] if 0 <= start <= end:
            return kind, start, end
    raise UsageError(
        f"expected (start, end), {{'tokens': (start, end)}} or {{'chars': (start, end)}} "
        f"with 0 <= start <= end, found {span!r}"
    )


def check_ends(spans: Sequence[Span], n_prompt: int, text: str | None) -> None:
    """Check that spans end within a prompt of so many tokens, which is `text` if it was given as one.

    Raises
    ------
    UsageError
        If one does not.
    """
    lengths = {"tokens": (n_prompt, "tokens"), "chars": (None if text is None else len(text), "characters")}
    for span in spans:
        kind, _, end = parse_span(span)
        length, unit = lengths[kind]
        if length is not None and end > length:
            raise UsageError(f"span {span!r} ends after the prompt of {length} {unit}")


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
        after = position
        while text[after : after + 1] in _SPACES:
            after += 1
        # as it is; with a space that the tokenizer put before it; behind white space that a special token took away
        for start, part in ((position, piece), (position, piece[1:]), (after, piece), (after, piece[1:])):
            if text.startswith(part, start) and (part is piece or piece[:1] == b" "):
                position = start + len(part)
                break
        else:
            start = position
            if 0 < i < len(pieces) - 1:
                break
        places.append((start, position))
    if len(places) < len(pieces) or text[position:].strip():
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
