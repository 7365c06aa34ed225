"""Options: what they do, what they refuse to be combined with, and how a bad maps file ends the program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from server.conftest import Kit
from support import spelling
from support.server import run
from support.tokens import tokens

CONFLICTS = [
    (["--embeddings"], "--embeddings or --reranking"),
    (["--reranking"], "--embeddings or --reranking"),
    (["--pooling", "mean"], "--pooling"),
    (["--lora", "adapter.gguf"], "--lora"),
    (["--control-vector", "vector.gguf"], "--control-vector"),
    (["--cache-reuse", "64"], "--cache-reuse"),
    (["--spec-type", "draft-eagle3"], "--spec-type draft-eagle3"),
    (["--spec-type", "draft-mtp"], "--spec-type draft-mtp"),
    (["--spec-type", "draft-dflash"], "--spec-type draft-dflash"),
]


@pytest.mark.parametrize(("options", "name"), CONFLICTS, ids=lambda value: value if isinstance(value, str) else "")
def test_conflicts_end_the_start(kit: Kit, options: list[str], name: str) -> None:
    result = run("llama-server", "-m", kit.model(), "--ridgefill-maps", kit.poison(), *options)
    assert result.returncode == 1
    assert re.search(rf"error: --ridgefill-maps cannot be used with {name}: \w+", result.stderr), result.stderr


@pytest.mark.parametrize("option", ["split", "tail", "sink", "min-prompt"])
def test_settings_need_maps(kit: Kit, option: str) -> None:
    result = run("llama-server", "-m", kit.model(), f"--ridgefill-{option}", "3")
    assert result.returncode == 1
    assert "no effect without --ridgefill-maps" in result.stderr


@pytest.mark.parametrize(
    ("option", "value"), [("split", "-2"), ("tail", "0"), ("tail", "x"), ("sink", "-1"), ("min-prompt", "-1")]
)
def test_bad_values(kit: Kit, option: str, value: str) -> None:
    result = run("llama-server", "-m", kit.model(), "--ridgefill-maps", kit.poison(), f"--ridgefill-{option}", value)
    assert result.returncode == 1
    assert f'error while handling argument "--ridgefill-{option}"' in result.stderr


def test_split_that_the_maps_lack(kit: Kit) -> None:
    result = run("llama-server", "-m", kit.model(), "--ridgefill-maps", kit.poison(), "--ridgefill-split", "5")
    assert result.returncode == 1
    assert "split 5 is not in the maps file (hint: it has 3)" in result.stderr + result.stdout


def test_missing_file(kit: Kit) -> None:
    result = run("llama-server", "-m", kit.model(), "--ridgefill-maps", kit.folder / "missing.gguf")
    assert result.returncode == 1
    assert re.search(r"--ridgefill-maps: cannot read '.*missing.gguf': No such file", result.stderr)


@pytest.mark.parametrize("name", ["llama-server", "llama-completion"])
def test_maps_of_another_model(kit: Kit, name: str) -> None:
    result = run(name, "-m", kit.model("llama", 1), "--ridgefill-maps", kit.poison())
    assert result.returncode == 1
    assert "failed to load RidgeFill maps" in result.stdout + result.stderr


def test_a_model_without_a_vocabulary(kit: Kit, tmp_path: Path) -> None:
    bare = spelling.without_vocabulary(kit.model(), tmp_path / "bare.gguf")
    result = run("llama-server", "-m", bare, "--ridgefill-maps", kit.poison())
    assert result.returncode == 1
    assert re.search(r"failed to load RidgeFill maps: .*the model has no vocabulary", result.stdout + result.stderr)


@pytest.mark.parametrize("name", ["llama-server", "llama-completion"])
def test_truncated_maps(kit: Kit, tmp_path: Path, name: str) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(kit.poison().read_bytes()[:-100])
    result = run(name, "-m", kit.model(), "--ridgefill-maps", cut)
    assert result.returncode == 1
    assert "failed to load RidgeFill maps" in result.stdout + result.stderr


def test_environment(kit: Kit) -> None:
    env = {
        "LLAMA_ARG_RIDGEFILL_MAPS": str(kit.poison()),
        "LLAMA_ARG_RIDGEFILL_SPLIT": "3",
        "LLAMA_ARG_RIDGEFILL_TAIL": "20",
        "LLAMA_ARG_RIDGEFILL_SINK": "10",
        "LLAMA_ARG_RIDGEFILL_MIN_PROMPT": "100",
    }
    with kit.serve("llama", "-np", "1", "-c", "1024", env=env) as server:
        defaults = server.get("/ridgefill").json()["defaults"]
        assert (defaults["tail"], defaults["sink"], defaults["min_prompt"]) == (20, 10, 100)
        assert server.complete(tokens(100)).rows["filled"] == 70
        assert server.complete(tokens(99)).rows["filled"] == 0


def test_settings_of_the_maps_are_the_default(kit: Kit) -> None:
    options = ("--ridgefill-maps", kit.poison())
    with kit.serve("llama", "-np", "1", "-c", "1024", *options) as server:
        defaults = server.get("/ridgefill").json()["defaults"]
        assert defaults["tail"] >= 1
        assert defaults["sink"] >= 0
        assert defaults["min_prompt"] >= 0


def test_awkward_path(kit: Kit, tmp_path: Path) -> None:
    folder = tmp_path / "карты 地図 🙂"
    folder.mkdir()
    maps = folder / "my maps.gguf"
    maps.write_bytes(kit.poison().read_bytes())
    with kit.serve("llama", "-np", "1", "-c", "1024", maps=maps) as server:
        assert server.get("/ridgefill").json()["file"] == "my maps.gguf"
        assert server.complete(tokens(300)).rows["filled"] > 0


def test_help_lists_the_options() -> None:
    text = run("llama-server", "--help").stdout
    names = (
        "maps",
        "split",
        "tail",
        "sink",
        "min-prompt",
        "select",
        "budget",
        "heads",
        "pool",
        "queries",
        "heal",
        "exact-roles",
    )
    for option in names:
        assert f"--ridgefill-{option}" in text
        assert f"LLAMA_ARG_RIDGEFILL_{option.replace('-', '_').upper()}" in text


#
# llama-completion, llama-perplexity
#


def complete(kit: Kit, *options: str | Path) -> str:
    result = run("llama-completion", "-m", kit.model(), "-p", "word " * 250, "-n", "8", "-b", "64", "-ub", "32",
                 "-t", "1", "--temp", "0", "-no-cnv", "--no-warmup", *options)  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


def test_completion_fills_its_prompt(kit: Kit) -> None:
    settings = ("--ridgefill-sink", "4", "--ridgefill-min-prompt", "0")
    log = complete(kit, "--ridgefill-maps", kit.poison(), *settings, "--ridgefill-tail", "64")
    filled, total = map(int, re.search(r"filling (\d+) of (\d+) prompt rows", log).groups())  # type: ignore[union-attr]
    assert filled == total - 68 - 2  # the last row of each batch of 64, two of them in the filled region
    assert "filling 0 of" in complete(kit, "--ridgefill-maps", kit.poison(), *settings, "--ridgefill-tail", "9999")


@pytest.mark.parametrize(
    ("options", "name"), [(["--prompt-cache", "file"], "--prompt-cache"), (["--context-shift"], "--context-shift")]
)
def test_completion_conflicts(kit: Kit, options: list[str], name: str) -> None:
    result = run("llama-completion", "-m", kit.model(), "-p", "a", "--ridgefill-maps", kit.poison(), *options)
    assert result.returncode == 1
    assert f"error: --ridgefill-maps cannot be used with {name}: " in result.stderr


def test_perplexity_refuses_maps(kit: Kit) -> None:
    result = run("llama-perplexity", "-m", kit.model(), "--ridgefill-maps", kit.poison())
    assert result.returncode == 1
    assert "cannot be used with llama-perplexity: it needs the logits of every row" in result.stderr
