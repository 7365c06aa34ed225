"""The documentation agrees with the tree: tables with the lines of benchmarks, the picture with its script, links."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from pyridgefill.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path for folder in (".", "docs", "benchmarks", "gguf_maps", "llama.cpp") for path in (ROOT / folder).glob("*.md")
)
LINK = re.compile(r'\]\(([^)\s]+)\)|(?:src|srcset)="([^"]+)"')


def script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, ROOT / "scripts" / name, *arguments], capture_output=True, text=True)


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_tables_are_those_of_the_lines() -> None:
    found = script("results_tables.py", "--check")
    assert found.returncode == 0, found.stdout + found.stderr


def test_every_line_names_its_command() -> None:
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            assert '"command": "' in line, f"{path.name}:{number}"


def test_the_picture_is_what_its_script_draws(tmp_path: Path) -> None:
    assert script("draw_prompt.py", str(tmp_path)).returncode == 0
    for path in tmp_path.iterdir():
        assert (ROOT / "docs" / "images" / path.name).read_text(encoding="utf-8") == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in (a or b for a, b in LINK.findall(text)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


def commands(page: Path) -> list[list[str]]:
    """Words of the lines of code blocks that run `pyridgefill`."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("pyridgefill ")]


def command_of(words: list[str]) -> tuple[typer.core.TyperCommand | None, list[str]]:
    """The command that words ask for, and the words behind it."""
    found = typer.main.get_command(app)
    while words and hasattr(found, "commands"):
        assert words[0] in found.commands, words
        found, words = found.commands[words[0]], words[1:]
    return (None if found.context_settings.get("ignore_unknown_options") else found), words


def option_names(command: typer.core.TyperCommand) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_have_the_options_that_pages_give_them(page: Path) -> None:
    for words in commands(page):
        if words[:1] == ["--help"] or (page.parent.name == "gguf_maps" and page.name != "README.md"):
            continue
        command, rest = command_of(words)
        if command is not None:
            assert {word for word in rest if re.match(r"--?[a-z]", word)} <= option_names(command), words


@pytest.mark.parametrize("name", ["calibrate", "collect", "fit", "heads", "repack"])
def test_the_page_on_calibration_has_every_option(name: str) -> None:
    text = (ROOT / "docs" / "calibrate.md").read_text(encoding="utf-8")
    command, _ = command_of([name])
    assert command is not None
    for parameter in command.params:
        names = [*parameter.opts, *parameter.secondary_opts]
        if parameter.param_type_name == "option" and names != ["--help"]:
            assert any(f"`{item}" in text for item in names), f"{name} {names}"
