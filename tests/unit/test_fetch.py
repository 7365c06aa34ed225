"""The source step of the build, on a tiny archive: what it makes, what it leaves alone, what it refuses."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "cmake" / "prepare-source.cmake"

UPSTREAM = {
    "CMakeLists.txt": "project(fake)\n",
    "include/fake.h": "int fake(void);\n",
    "src/fake.cpp": "one\ntwo\nthree\nfour\n",
    "src/other.cpp": "untouched\n",
}

PATCH = """\
diff --git a/src/fake.cpp b/src/fake.cpp
--- a/src/fake.cpp
+++ b/src/fake.cpp
@@ -2,2 +2,3 @@
 two
+{line}
 three
"""


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Fork:
    """A fork of a tiny upstream: pin, one patch, one overlay file, and the archive."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "fork"
        self.out = folder / "engine"
        self.archive = folder / "fake-1.0.tar.gz"
        self.upstream = folder / "upstream" / "fake-1.0" / "vendor" / "fake"
        for path, text in UPSTREAM.items():
            self.write(self.upstream / path, text)
        with tarfile.open(self.archive, "w:gz") as tar:
            tar.add(folder / "upstream" / "fake-1.0", "fake-1.0")
        self.pin(_sha256(self.archive.read_bytes()))
        self.patch("hook")
        self.write(self.root / "overlay/src/ridgefill.cpp", "ours\n")

    @staticmethod
    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def pin(self, sha256: str) -> None:
        lines = [
            "# a comment with = in it",
            "commit = abc123",
            "package = fake",
            "package_version = 1.0",
            "archive = fake-1.0.tar.gz",
            f"sha256 = {sha256}",
            "subdir = fake-1.0/vendor/fake",
            f"file src/fake.cpp = {_sha256(UPSTREAM['src/fake.cpp'].encode())}",
        ]
        self.write(self.root / "PIN", "\n".join(lines) + "\n")

    def patch(self, line: str) -> None:
        self.write(self.root / "patches/0001-hook.patch", PATCH.format(line=line))

    def run(self, **variables: str | Path) -> subprocess.CompletedProcess[str]:
        values: Mapping[str, str | Path] = {
            "ROOT": self.root,
            "DIR": self.out,
            "RIDGEFILL_ARCHIVE": self.archive,
        } | variables
        defines = [f"-D{name}={value}" for name, value in values.items()]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RIDGEFILL_")}
        return subprocess.run(
            ["cmake", *defines, "-P", SCRIPT], capture_output=True, text=True, check=False, env=environment
        )

    def make(self, **variables: str | Path) -> None:
        result = self.run(**variables)
        assert result.returncode == 0, result.stderr

    def refused(self, **variables: str | Path) -> str:
        result = self.run(**variables)
        assert result.returncode != 0
        return " ".join(result.stderr.split())

    def source(self, path: str) -> str:
        return (self.out / "src" / path).read_text()

    def times(self) -> dict[str, int]:
        source = self.out / "src"
        return {str(p.relative_to(source)): p.stat().st_mtime_ns for p in source.rglob("*") if p.is_file()}


@pytest.fixture
def fork(tmp_path: Path) -> Fork:
    return Fork(tmp_path)


def _changed(before: dict[str, int], after: dict[str, int]) -> set[str]:
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


@pytest.mark.parametrize("tool", ["git", "patch"])
def test_source_is_patched_and_overlaid(fork: Fork, tool: str) -> None:
    fork.make(**({} if tool == "git" else {"RIDGEFILL_GIT": ""}))
    assert fork.source("src/fake.cpp") == "one\ntwo\nhook\nthree\nfour\n"
    assert fork.source("src/other.cpp") == "untouched\n"
    assert fork.source("src/ridgefill.cpp") == "ours\n"
    assert (fork.out / "stock/src/fake.cpp").read_text() == UPSTREAM["src/fake.cpp"]
    assert not (fork.out / "stock/src/ridgefill.cpp").exists()


def test_patches_apply_inside_of_a_repository(fork: Fork) -> None:
    subprocess.run(["git", "init", "--quiet", fork.out.parent], check=True)
    fork.make()
    assert "hook" in fork.source("src/fake.cpp")


def test_second_run_writes_nothing(fork: Fork) -> None:
    fork.make()
    before = fork.times()
    fork.make()
    assert _changed(before, fork.times()) == set()


def test_only_changed_files_are_written(fork: Fork) -> None:
    fork.make()
    before = fork.times()
    fork.patch("another hook")
    fork.make()
    after = fork.times()
    assert _changed(before, after) == {"src/fake.cpp"}
    assert "another hook" in fork.source("src/fake.cpp")

    fork.write(fork.root / "overlay/src/ridgefill.cpp", "ours, changed\n")
    fork.write(fork.root / "overlay/src/ridgefill-new.cpp", "new\n")
    fork.make()
    assert _changed(after, fork.times()) == {"src/ridgefill.cpp", "src/ridgefill-new.cpp"}


def test_files_that_left_the_fork_leave_the_source(fork: Fork) -> None:
    fork.make()
    (fork.root / "overlay/src/ridgefill.cpp").unlink()
    (fork.root / "patches/0001-hook.patch").unlink()
    fork.make()
    assert not (fork.out / "src/src/ridgefill.cpp").exists()
    assert fork.source("src/fake.cpp") == UPSTREAM["src/fake.cpp"]


def test_patch_that_does_not_apply_is_refused(fork: Fork) -> None:
    fork.make()
    good = fork.source("src/fake.cpp")
    patch = fork.root / "patches/0001-hook.patch"
    patch.write_text(PATCH.format(line="hook").replace(" two", " 2"))
    message = fork.refused()
    assert "patch 0001-hook.patch does not apply to llama.cpp abc123" in message
    assert "How to add a patch" in message
    assert fork.source("src/fake.cpp") == good

    fork.patch("repaired")
    fork.make()
    assert "repaired" in fork.source("src/fake.cpp")


def test_wrong_checksum_is_refused(fork: Fork) -> None:
    found = _sha256(fork.archive.read_bytes())
    fork.pin("0" * 64)
    message = fork.refused()
    assert f"wrong checksum of {fork.archive}: expected {'0' * 64}, found {found}" in message
    assert "Delete the file and run again" in message
    assert not (fork.out / "src").exists()


def test_missing_archive_is_refused(fork: Fork) -> None:
    message = fork.refused(RIDGEFILL_ARCHIVE=fork.archive.with_name("absent.tar.gz"))
    assert "absent.tar.gz does not exist" in message
    assert "unset RIDGEFILL_ARCHIVE" in message


def test_checkout_of_the_pin_is_copied(fork: Fork) -> None:
    fork.make(RIDGEFILL_LLAMA_CPP_DIR=fork.upstream, RIDGEFILL_ARCHIVE="")
    assert "hook" in fork.source("src/fake.cpp")
    assert {path: (fork.upstream / path).read_text() for path in UPSTREAM} == UPSTREAM
    assert sorted(p for p in fork.upstream.rglob("*") if p.is_file()) == sorted(
        fork.upstream / path for path in UPSTREAM
    )

    before = fork.times()
    fork.write(fork.upstream / "src/other.cpp", "edited\n")
    fork.make(RIDGEFILL_LLAMA_CPP_DIR=fork.upstream, RIDGEFILL_ARCHIVE="")
    assert _changed(before, fork.times()) == {"src/other.cpp"}


def test_missing_checkout_is_refused(fork: Fork) -> None:
    message = fork.refused(RIDGEFILL_LLAMA_CPP_DIR=fork.upstream / "absent")
    assert "there is no llama.cpp checkout in RIDGEFILL_LLAMA_CPP_DIR=" in message
    assert "unset RIDGEFILL_LLAMA_CPP_DIR" in message


def test_checkout_of_an_unknown_pin_is_refused(fork: Fork) -> None:
    fork.write(fork.upstream / "src/fake.cpp", "zero\n" + UPSTREAM["src/fake.cpp"])
    message = fork.refused(RIDGEFILL_LLAMA_CPP_DIR=fork.upstream)
    assert f"unknown pin: {fork.upstream} is not an unpatched llama.cpp abc123, src/fake.cpp differs" in message
    assert "RIDGEFILL_ALLOW_UNKNOWN_PIN=ON" in message

    fork.make(RIDGEFILL_LLAMA_CPP_DIR=fork.upstream, RIDGEFILL_ALLOW_UNKNOWN_PIN="ON")
    assert fork.source("src/fake.cpp") == "zero\none\ntwo\nhook\nthree\nfour\n"


def test_overlay_cannot_replace_an_upstream_file(fork: Fork) -> None:
    fork.write(fork.root / "overlay/src/other.cpp", "ours\n")
    message = fork.refused()
    assert "overlay/src/other.cpp would replace an upstream file" in message


def test_wrong_subdir_is_refused(fork: Fork) -> None:
    pin = fork.root / "PIN"
    pin.write_text(pin.read_text().replace("vendor/fake", "vendor/other"))
    assert "Correct 'subdir' in" in fork.refused()


def test_incomplete_pin_is_refused(fork: Fork) -> None:
    pin = fork.root / "PIN"
    pin.write_text(pin.read_text().replace("subdir = fake-1.0/vendor/fake\n", ""))
    assert "has no line 'subdir = ...'" in fork.refused()
