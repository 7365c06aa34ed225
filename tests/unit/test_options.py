"""The one form of lists and choices on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from pyridgefill.cli import common
from pyridgefill.errors import UsageError


def test_lists() -> None:
    assert common.parse_ints("--ctx", "4096, 2048,4096") == (4096, 2048)
    assert common.parse_floats("--budgets", "0,.05,1", most=1) == (0, 0.05, 1)
    assert common.parse_names("--kinds", "b,a", ("a", "b", "c")) == ("b", "a")
    assert common.parse_heads("--heads", "9.6,11.1") == ((9, 6), (11, 1))
    assert common.parse_heads("--heads", "") == ()
    assert common.parse_pool("--pool", "5, 0") == (5, 0)
    assert common.parse_splits("12,10", 30) == (10, 12)
    assert common.parse_splits("auto", 30) == (10, 12, 15, 20)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "empty": (lambda: common.parse_ints("--ctx", ""), "--ctx '': expected numbers from 0 on, like 12,16"),
    "gap": (lambda: common.parse_ints("--ctx", "1,,2"), "--ctx '1,,2'"),
    "word": (lambda: common.parse_ints("--ctx", "many"), "--ctx 'many'"),
    "too small": (lambda: common.parse_ints("--ctx", "8", least=16), "numbers from 16 on"),
    "too large": (lambda: common.parse_ints("--ctx", str(1 << 31)), "--ctx"),
    "share": (lambda: common.parse_floats("--budgets", "0.1,2", most=1), "expected numbers from 0 to 1"),
    "not a number": (lambda: common.parse_floats("--budgets", "nan"), "--budgets 'nan'"),
    "name": (lambda: common.parse_names("--kinds", "a,z", ("a", "b")), "--kinds 'z': expected one of a, b"),
    "head": (lambda: common.parse_heads("--heads", "9,6"), "--heads '9,6': expected layer.head, like 9.6,11.1"),
    "negative head": (lambda: common.parse_heads("--heads", "9.-1"), "--heads '9.-1'"),
    "pool": (lambda: common.parse_pool("--pool", "5"), "--pool '5': expected rows before and after, like 5,5"),
    "splits": (lambda: common.parse_splits("a", 30), "--splits 'a': expected auto or a list like 12,16"),
    "choice": (lambda: common.choice("--type", "q2", ("f16",)), "--type 'q2': expected one of f16"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_lists_are_usage_errors(case: str) -> None:
    parse, message = WRONG[case]
    with pytest.raises(UsageError, match=re.escape(message)):
        parse()
