"""Where the maps of a model are found, and that looking for them reads headers only."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from test_base_model import write_model

from pyridgefill import config, find_maps
from pyridgefill.cli.main import run
from pyridgefill.errors import MapsError
from pyridgefill.maps import identity_maps, read, read_base_model, write_maps


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, and an empty folder of maps for all models."""
    (tmp_path / "all").mkdir()
    monkeypatch.setattr(config, "_maps_folders", lambda: iter([tmp_path / "all"]))
    return write_model(tmp_path / "model.gguf", tokens=["a", "b"], layers=6)


def write(path: Path, model: Path) -> Path:
    write_maps(path, identity_maps(read_base_model(model), [2]))
    return path


@pytest.mark.parametrize("name", ["model.gguf", "model.GGUF", "model.Gguf", "model"])
def test_beside_the_model(model: Path, name: str) -> None:
    maps = write(model.with_name("model.ridgefill.gguf"), model)
    assert find_maps(model.rename(model.with_name(name))) == maps


def test_beside_the_target_of_a_link(model: Path, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "short.gguf"
    link.symlink_to(model)
    with pytest.raises(MapsError, match=r"looked for .*links/short\.ridgefill\.gguf, .*/model\.ridgefill\.gguf"):
        find_maps(link)
    maps = write(model.with_name("model.ridgefill.gguf"), model)
    assert find_maps(link) == maps
    own = write(link.with_name("short.ridgefill.gguf"), model)
    assert find_maps(link) == own, "the name that was given comes first"


def test_a_damaged_file_does_not_end_the_search(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    maps = write(tmp_path / "all" / "b.ridgefill.gguf", model)
    (tmp_path / "all" / "a.ridgefill.gguf").write_bytes(maps.read_bytes()[:-100])
    assert find_maps(model) == maps
    assert re.search(r"left out while looking for maps: .*a\.ridgefill\.gguf: tensor .* data ends", caplog.text)


def test_looking_for_maps_decodes_no_weights(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    maps = write(tmp_path / "all" / "a.ridgefill.gguf", model)

    def decode(*_: object) -> None:
        raise AssertionError("a weight was read")

    monkeypatch.setattr(read.StoredTensor, "__getitem__", decode)
    program = tmp_path / "llama-server"
    program.write_text("")
    monkeypatch.setenv("RIDGEFILL_BIN_PATH", str(tmp_path))
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, arguments: started.append(arguments))
    assert find_maps(model) == maps
    assert run(["inspect", str(maps)]) == 0
    capsys.readouterr()
    assert run(["serve", str(model), "-c", "99"]) == 0
    assert "no setting was measured" in capsys.readouterr().err, "the file recommends none"
    assert started == [[str(program), "-m", str(model), "--ridgefill-maps", str(maps), "-c", "99"]]
    with pytest.raises(AssertionError, match="a weight was read"):
        run(["--debug", "inspect", str(maps), "--values"])


def test_the_fingerprint_is_computed_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_base_model(model)
    monkeypatch.setattr("pyridgefill.maps.base.fnv1a", lambda _: "0" * 16)
    assert read_base_model(str(model)) == first
    write_model(model, tokens=["a", "c"], layers=6)
    assert read_base_model(model).vocab_hash == "0" * 16, "another file"
