"""Text that is on every machine with Python, so that calibration needs no download."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# `stdlib-packages` shares no file with the other two, so that it can measure what was fitted on them
BUILTIN = {
    "pydoc-topics": "English prose: the language reference that Python's help() shows",
    "stdlib-code": "code and docstrings: the top-level modules of the standard library",
    "stdlib-packages": "code and docstrings: the standard library's packages (asyncio, email, ...)",
}

DEFAULT_CORPORA = ("pydoc-topics", "stdlib-code")

_NOT_TEXT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "pydoc_data", "__pycache__"}


def builtin_documents(name: str) -> Iterator[tuple[str, str]]:
    """Documents of a built-in corpus as (source, text), in an order that mixes subjects and is always the same."""
    if name == "pydoc-topics":
        from pydoc_data.topics import topics

        for topic in sorted(topics, key=_mixed):
            yield f"{name}:{topic}", topics[topic]
        return
    library = Path(sysconfig.get_path("stdlib"))
    files = library.glob("*.py") if name == "stdlib-code" else library.glob("*/**/*.py")
    names = [str(path) for path in (file.relative_to(library) for file in files) if not _NOT_TEXT & set(path.parts)]
    for path in sorted(names, key=_mixed):
        text = (library / path).read_text(encoding="utf-8", errors="replace")
        if text.strip():
            yield f"{name}:{path}", text


def _mixed(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=8).digest()
