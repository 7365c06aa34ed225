"""What a module imports stands below it: no import runs up, and so there are no circles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyridgefill

PACKAGE = Path(pyridgefill.__file__).parent

# rooms and modules at the top, low to high
ORDER = [
    *("errors", "files", "words", "machine", "defaults", "maps"),
    *("_library", "_native", "engine", "spans", "config", "fill", "llama", "server", "chat", "models", "cost"),
    *("calibration", "evaluation.intervals", "evaluation.prompts", "evaluation.run", "evaluation.tasks"),
    *("selection", "calibrator", "tuning", "report", "card", "cli", "__main__"),
]


def height(module: str) -> int:
    """Where a module stands; the package itself has no place, and a submodule that of its room."""
    name = module.removeprefix("pyridgefill").removeprefix(".")
    rooms = [room for room in ORDER if name == room or name.startswith(f"{room}.")]
    return ORDER.index(max(rooms, key=len)) if rooms else -1


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyridgefill"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("pyridgefill"))


MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__init__.py"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_import_runs_up(path: Path) -> None:
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    assert height(name) >= 0, "a new room: give it a place in ORDER"
    assert [found for found in imports(path) if height(found) > height(name)] == []
