"""The C declarations that `_native.py` has as comments are those of the headers."""

from __future__ import annotations

import re

import pytest
from support.paths import REPOSITORY

HEADERS = sorted((REPOSITORY / "llama.cpp" / "overlay" / "include").glob("llama-ridgefill*.h"))
HEADER = "\n".join(path.read_text() for path in HEADERS)
BINDINGS = (REPOSITORY / "pyridgefill" / "_native.py").read_text()


def packed(text: str) -> str:
    """Without white space and marks of comments: lines may break elsewhere."""
    return re.sub(r"\s|//", "", text)


def declarations() -> list[str]:
    """What Python must declare, each with the comment lines right above it."""
    form = r"(?:^//[^\n]*\n)*^(?:LLAMA_API [^;]*;[^\n]*|struct \w+ \{.*?^\};|#define [^\n]*)"
    return re.findall(form, HEADER, re.MULTILINE | re.DOTALL)


def comments() -> str:
    return packed("\n".join(line[1:] for line in BINDINGS.splitlines() if line.startswith("#")))


@pytest.mark.parametrize("declaration", [pytest.param(d, id=d.splitlines()[-1][:60]) for d in declarations()])
def test_each_declaration_is_there(declaration: str) -> None:
    assert packed(declaration) in comments()


def test_what_is_declared_is_in_the_header() -> None:
    blocks = re.findall(r"(?:^#[^\n]*\n)+", BINDINGS, re.MULTILINE)
    known = packed(HEADER)
    for block in blocks:
        text = "\n".join(line[1:] for line in block.splitlines())
        if "LLAMA_API" in text or "#define" in text or " struct" in text:
            assert packed(text) in known


def test_constants_have_the_values_of_the_header() -> None:
    values = dict(re.findall(r"^\s*(?:#define )?(LLAMA_RIDGEFILL_\w+)\s+=?\s*(\d+)", HEADER, re.MULTILINE))
    assert values
    assert values == dict(re.findall(r"^(LLAMA_RIDGEFILL_\w+) = (\d+)$", BINDINGS, re.MULTILINE))
