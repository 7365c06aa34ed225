"""The patch series stays small: hooks only, counted per upstream file against the table in llama.cpp/README.md."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

FORK = Path(__file__).parents[2] / "llama.cpp"
PATCHES = sorted((FORK / "patches").glob("*"))

ENGINE_LIMIT = 150  # patches 0001 to 0009
TOTAL_LIMIT = 250

_HUNK = re.compile(r"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_ROW = re.compile(r"^\| `([^`]+)` \| (\d+) \|")


@dataclass(frozen=True)
class Hunk:
    """One hunk: the upstream file, and the first character of each of its lines."""

    path: str
    marks: str

    @property
    def changed(self) -> int:
        return self.marks.count("+") + self.marks.count("-")


def read_hunks(text: str) -> list[Hunk]:
    """Split a patch into hunks; raise ValueError where it adds, deletes or renames a file."""
    hunks: list[Hunk] = []
    old = new = ""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("--- "):
            old = line[4:].split("\t")[0].removeprefix("a/")
        elif line.startswith("+++ "):
            new = line[4:].split("\t")[0].removeprefix("b/")
            if old != new:
                raise ValueError(f"{old} becomes {new}: new files belong into the overlay")
        elif match := _HUNK.match(line):
            n_old, n_new = (int(count) if count is not None else 1 for count in match.groups())
            marks = ""
            while marks.count(" ") + marks.count("-") < n_old or marks.count(" ") + marks.count("+") < n_new:
                marks += (next(lines) or " ")[0]
            hunks.append(Hunk(new, marks.replace("\\", "")))
    return hunks


def table() -> dict[str, int]:
    """The core-touch table: upstream file -> changed lines."""
    rows = [match.groups() for line in (FORK / "README.md").read_text().splitlines() if (match := _ROW.match(line))]
    assert len({path for path, _ in rows}) == len(rows), "a file has two rows"
    return {path: int(count) for path, count in rows}


def changed(patches: list[Path]) -> Counter[str]:
    count: Counter[str] = Counter()
    for patch in patches:
        for hunk in read_hunks(patch.read_text()):
            count[hunk.path] += hunk.changed
    return count


def test_reader_counts_a_known_patch() -> None:
    text = "--- a/x.cpp\n+++ b/x.cpp\n@@ -1,3 +1,4 @@ void f() {\n a\n-b\n+c\n+--- d\n \n@@ -9 +10 @@\n-e\n+f\n"
    assert read_hunks(text) == [Hunk("x.cpp", " -++ "), Hunk("x.cpp", "-+")]
    assert sum(hunk.changed for hunk in read_hunks(text)) == 5


def test_reader_refuses_new_files() -> None:
    with pytest.raises(ValueError, match="belong into the overlay"):
        read_hunks("--- /dev/null\n+++ b/x.cpp\n@@ -0,0 +1 @@\n+a\n")


def test_names_are_numbered() -> None:
    for patch in PATCHES:
        assert re.fullmatch(r"\d{4}-[a-z0-9-]+\.patch", patch.name), patch.name
    numbers = [patch.name[:4] for patch in PATCHES]
    assert len(set(numbers)) == len(numbers)


def has_one_line_of_context(hunk: Hunk) -> bool:
    first, *between, last = (len(run) for run in re.split("[+-]+", hunk.marks))
    return first <= 1 and last <= 1 and all(n <= 2 for n in between)


@pytest.mark.parametrize(("marks", "good"), [(" -+ ", True), ("+  -", True), ("  + ", False), ("+   +", False)])
def test_context_is_measured(marks: str, good: bool) -> None:
    assert has_one_line_of_context(Hunk("x.cpp", marks)) == good


def test_context_is_one_line() -> None:
    for patch in PATCHES:
        hunks = read_hunks(patch.read_text())
        assert hunks, patch.name
        assert [hunk for hunk in hunks if not has_one_line_of_context(hunk)] == [], patch.name


def test_table_counts_every_changed_line() -> None:
    rows, counted = table(), changed(PATCHES)
    wrong = [f"{path} {counted[path]}" for path in sorted({*rows, *counted}) if rows.get(path, 0) != counted[path]]
    assert wrong == [], "what the table in llama.cpp/README.md must say"


def test_pin_lists_the_patched_files() -> None:
    pinned = re.findall(r"^file (\S+) +=", (FORK / "PIN").read_text(), re.MULTILINE)
    assert sorted(pinned) == sorted(changed(PATCHES))


def test_series_is_small() -> None:
    engine = changed([patch for patch in PATCHES if patch.name < "0010"])
    assert engine.total() <= ENGINE_LIMIT
    assert changed(PATCHES).total() <= TOTAL_LIMIT


def test_overlay_holds_only_our_files() -> None:
    names = [path.relative_to(FORK / "overlay") for path in (FORK / "overlay").rglob("*") if path.is_file()]
    assert names
    assert [name for name in names if "ridgefill" not in name.name] == []
