"""What a command must not or cannot write is refused before the work: the file that is there stays as it is."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from synthetic import Relation, activations, collected
from test_base_model import write_model

from pyridgefill.calibration.statistics_file import write_statistics
from pyridgefill.cli.main import run
from pyridgefill.errors import RidgeFillError, UsageError
from pyridgefill.files import STDOUT, check_output, replacing


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, sums, maps and odd things, where the commands run."""
    relation = Relation.random()
    statistics = collected(activations(300, 1, relation), activations(60, 2, relation))
    statistics.provenance = {"corpora": ["a.txt"], "tokens": 360, "documents": 2, "documents_held_out": 1}
    write_statistics(tmp_path / "sums.npz", statistics)
    write_model(tmp_path / "model.gguf", tokens=["a", "b"], layers=6)
    monkeypatch.chdir(tmp_path)
    assert run(["fit", "sums.npz", "-o", "maps.gguf", "--damping", "0.1"]) == 0
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.npz").symlink_to("sums.npz")
    os.link(tmp_path / "sums.npz", tmp_path / "hard.npz")
    return tmp_path


REFUSED = {
    "the sums": ("fit sums.npz -o sums.npz", 2, "sums.npz: would be read and written (hint:"),
    "the sums by another path": ("fit sums.npz -o folder/../sums.npz", 2, "would be read and written, as sums.npz"),
    "the sums by a link": ("fit sums.npz -o link.npz", 2, "link.npz: would be read and written, as sums.npz"),
    "the sums by their other name": ("fit sums.npz -o hard.npz", 2, "hard.npz: would be read and written"),
    "numbers on the sums": ("fit sums.npz -o m.gguf --json sums.npz", 2, "sums.npz: would be read and written"),
    "numbers on the maps": ("fit sums.npz -o m.gguf --json m.gguf", 2, "m.gguf: would be written twice"),
    "merged on a part": ("merge sums.npz hard.npz -o hard.npz", 2, "hard.npz: would be read and written"),
    "the packed model": ("pack identity --model model.gguf -o model.gguf", 2, "model.gguf: would be read and written"),
    "the packed arrays": ("pack sums.npz --model model.gguf -o sums.npz", 2, "sums.npz: would be read and written"),
    "the baseline's sums": ("pack zero --statistics sums.npz -o sums.npz", 2, "sums.npz: would be read and written"),
    "the maps": ("repack maps.gguf -o maps.gguf", 2, "maps.gguf: would be read and written"),
    "the maps of a card": ("card maps.gguf -o maps.gguf", 2, "maps.gguf: would be read and written"),
    "inspected maps": ("inspect maps.gguf --json maps.gguf", 2, "maps.gguf: would be read and written"),
    "maps with heads": ("heads model.gguf maps.gguf -o maps.gguf", 2, "maps.gguf: would be read and written"),
    "the model": ("calibrate model.gguf -o model.gguf --no-heads", 2, "model.gguf: would be read and written"),
    "the corpus": ("collect model.gguf -o text --corpus text", 2, "text: would be read and written"),
    "the model as sums": (
        "calibrate model.gguf -o m.gguf --statistics model.gguf", 2, "model.gguf: would be read and written"
    ),
    "sums and maps": ("calibrate model.gguf -o m.gguf --statistics m.gguf", 2, "m.gguf: would be written twice"),
    "a folder": ("fit sums.npz -o folder", 2, "folder: is a folder"),
    "here": ("fit sums.npz -o .", 2, ".: is a folder"),
    "nothing": ("fit sums.npz -o ''", 2, ".: is a folder"),
    "a pipe": ("fit sums.npz -o pipe", 2, "pipe: is a device, a pipe or a socket, not a file"),
    "results in a pipe": ("bench model.gguf maps.gguf --json pipe", 2, "pipe: is a device, a pipe or a socket"),
    "results in a folder": ("eval needle model.gguf maps.gguf --json folder", 2, "folder: is a folder"),
    "a model in a folder": ("fetch-model smollm2 -o folder", 2, "folder: is a folder"),
    "no folder": ("merge sums.npz -o none/sums.npz", 1, "none/sums.npz: the folder"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_outputs_that_would_do_harm(folder: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "text").write_text("words " * 1000)
    before = {path.name: path.stat() for path in folder.iterdir()}
    line, code, message = REFUSED[case]
    capsys.readouterr()
    assert run(["" if word == "''" else word for word in line.split()]) == code
    out, err = capsys.readouterr()
    assert message in err
    assert len(err.splitlines()) == 1
    assert not out
    after = {path.name: path.stat() for path in folder.iterdir()}
    assert {name: (now.st_ino, now.st_mtime_ns) for name, now in after.items()} == {
        name: (then.st_ino, then.st_mtime_ns) for name, then in before.items()
    }


def test_all_files_of_a_sharded_model_stay(folder: Path) -> None:
    for number in (1, 2):
        (folder / f"m-0000{number}-of-00002.gguf").write_text("shard")
    with pytest.raises(UsageError, match=r"m-00002-of-00002\.gguf: would be read and written"):
        check_output(folder / "m-00002-of-00002.gguf", inputs=[folder / "m-00001-of-00002.gguf"])


def test_a_link_is_followed(folder: Path) -> None:
    (folder / "best.gguf").symlink_to("folder/target.gguf")
    for _ in range(2):  # the target is made, then replaced
        assert run(["fit", "sums.npz", "-o", "best.gguf", "--damping", "0.1"]) == 0
        assert (folder / "best.gguf").is_symlink()
        assert (folder / "folder" / "target.gguf").read_bytes() == (folder / "maps.gguf").read_bytes()
    (folder / "loop").symlink_to("loop")
    with pytest.raises(RidgeFillError, match="loop: cannot write: Too many levels of symbolic links"):
        check_output(folder / "loop")


def test_a_place_that_takes_no_file_is_found_before_the_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system", ".partial")

    monkeypatch.setattr(Path, "touch", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    capsys.readouterr()
    assert run(["fit", "sums.npz", "-o", "m.gguf"]) == 1
    assert "error: m.gguf: cannot write: Read-only file system (hint: check space" in capsys.readouterr().err
    with pytest.raises(RidgeFillError, match=r"m\.gguf: cannot write: No such file"), replacing(folder / "m.gguf"):
        pass  # what is not there cannot be deleted, either


def test_lines_need_a_file_that_can_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_output(folder / "sums.npz", None, STDOUT, appends=True)
    seen: list[str] = []
    opened = Path.open

    def only_read(path: Path, mode: str = "r", *rest: object, **options: object) -> object:
        seen.append(mode)
        if "+" in mode:
            raise PermissionError(13, "Permission denied")
        return opened(path, mode, *rest, **options)  # type: ignore[arg-type, call-overload]

    monkeypatch.setattr(Path, "open", only_read)
    with pytest.raises(RidgeFillError, match=r"sums\.npz: cannot write: Permission denied"):
        check_output(folder / "sums.npz", appends=True)
    assert seen == ["r+b"]


def test_devices_stay(tmp_path: Path) -> None:
    node = tmp_path / "node"
    try:
        os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        os.mkfifo(node)
    with pytest.raises(UsageError, match="not a file"), replacing(node):
        pass
    assert not node.is_file()


def test_json_is_a_file_or_standard_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "maps.gguf", "--json", "out.json"]) == 0
    assert "split 2" in capsys.readouterr().out, "the table is printed beside the file"
    assert run(["inspect", "maps.gguf", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((folder / "out.json").read_text())
    assert not (folder / "-").exists()
