"""Scorers on answers written by hand."""

from __future__ import annotations

import pytest

from pyridgefill.evaluation.prompts.score import gives_value, is_degenerate, value_score


@pytest.mark.parametrize(
    ("answer", "value", "hit"),
    [
        (" 1234567.", "1234567", True),
        (" 1,234,567", "1234567", True),
        ("It is 1 234 567!", "1234567", True),
        ("1.234.567", "1234567", True),
        (" 1234568", "1234567", False),
        (" 91234567", "1234567", False),
        (" 12345678", "1234567", False),
        ("3, 1234567 and 12, 34", "1234567", True),
        ("特别号码是1234567。", "1234567", True),
        ("密码为１２３４５６７", "1234567", True),
        ("비밀번호는 1234567입니다", "1234567", True),
        ("é1234567", "1234567", False),
        ("是91234567。", "1234567", False),
        ("：1234567。", "1234567", True),
        ("", "1234567", False),
        (" Amber-basket-copper\n", "amber-basket-copper", True),
        (" amber basket copper", "amber-basket-copper", False),
        ("`amber_basket_42`", "amber_basket_42", True),
        ("amber_basket_421", "amber_basket_42", False),
        ("in  the\nBlack Forest.", "the black forest", True),
        ("0a5d2f34-6baa-4455-a3e7-0682c2094cac", "0a5d2f34-6baa-4455-a3e7-0682c2094cac", True),
        ("1234567 " * 9, "1234567", False),
        ("1234567 " * 3, "1234567", True),
        ("1234567\n\n----------------------------", "1234567", True),
    ],
)
def test_one_value(answer: str, value: str, hit: bool) -> None:
    assert value_score(answer, [value]) == hit


def test_several_values() -> None:
    assert value_score("Oslo, Rome and Kyoto", ["Rome", "Oslo"]) == 1
    assert value_score("Oslo and Kyoto", ["Rome", "Oslo"]) == 0.5
    assert value_score("Oslo and Kyoto", ["Rome", "Oslo"], any_of=True) == 1
    assert value_score("Kyoto", ["Rome", "Oslo"], any_of=True) == 0
    assert value_score("Romeo", ["Rome"]) == 0


@pytest.mark.parametrize(
    "answer", ["", " \n", "...", "\ufffd\ufffd", "the the the the the the the the", "ab" * 20, "数数" * 8]
)
def test_degenerate(answer: str) -> None:
    assert is_degenerate(answer)


@pytest.mark.parametrize("answer", ["no", "1111111", "the cat and the dog", "a = b\n=============", "数据"])
def test_not_degenerate(answer: str) -> None:
    assert not is_degenerate(answer)


@pytest.mark.parametrize(
    ("answer", "given"),
    [
        (" 7654321.", True),
        ("It may be 7,654,321", True),
        ("There is none.", False),
        (" 12345678", False),
        ("765 4321", False),
        ("7654321 " * 9, False),
        ("", False),
    ],
)
def test_any_value_of_a_form(answer: str, given: bool) -> None:
    assert gives_value(answer, r"\d{7}") == given
