"""Scores answers by the values in them, not by wording."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

# what a word goes on with; in Chinese, Japanese and Korean other words stand next to a value without a space
_LETTER = r"[^\W\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"

# a unit with a letter or digit, eight times or more without a break
_LOOP = re.compile(r"(?s)(.{1,24}?)\1{7,}")


def is_degenerate(answer: str) -> bool:
    """Whether an answer is empty, broken, or a loop: no value in it was retrieved on purpose."""
    text = answer.strip()
    if not re.search(r"\w", text):
        return True
    return any(re.search(r"[^\W_]", loop.group(1)) for loop in _LOOP.finditer(text + " "))


def value_score(answer: str, values: Sequence[str], *, any_of: bool = False) -> float:
    """Share of the values that an answer contains, or whether it contains one of them; 0 for a degenerate answer.

    Numbers may be written with separators; case and runs of white space do not count. A value must not be part of a
    longer word or number.

    Parameters
    ----------
    answer
        The model's text.
    values
        What it must contain.
    any_of
        The values are alternatives.
    """
    if is_degenerate(answer):
        return 0.0
    found = [_contains(answer, re.escape(_plain(value))) for value in values]
    return float(any(found)) if any_of else sum(found) / len(found)


def gives_value(answer: str, form: str) -> bool:
    """Whether an answer names any value of a form, read as `value_score` reads it; not if it is degenerate.

    Parameters
    ----------
    answer
        The model's text.
    form
        A regular expression in lower case.
    """
    return not is_degenerate(answer) and _contains(answer, form)


def _contains(answer: str, pattern: str) -> bool:
    text = _plain(re.sub(r"(?<=\d)[,. ](?=\d{3}(?!\d))", "", answer)) + "\n" + _plain(answer)
    return re.search(rf"(?<!{_LETTER})(?:{pattern})(?!{_LETTER})", text) is not None


def _plain(text: str) -> str:
    # full-width letters and digits are those of ASCII
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
