"""Output files that carry their final name only when they are complete, and what tells files apart."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyridgefill.errors import CorpusError, RidgeFillError, UsageError

# files and folders that are deleted when the work is done, or ends early
_unfinished: set[Path] = set()

# how the name of a file of a sharded model ends
SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")

# the output of `--json -`
STDOUT = Path("-")


def check_output(
    *paths: Path | None, inputs: Iterable[str | os.PathLike[str] | None] = (), appends: bool = False
) -> None:
    """Raise if a command must not or cannot write its outputs; called before the work whose result they take.

    Parameters
    ----------
    *paths
        The outputs; None and `STDOUT` are none. A link is followed, the file that it points to is replaced.
    inputs
        Files that must stay as they are; None and names of anything else, like built-in corpora, do no harm.
    appends
        Lines are added to the files, so that they must be writable themselves, not only their folders.

    Raises
    ------
    UsageError
        If one is a folder, a device or anything else that is no file, one of the inputs, or given twice.
    RidgeFillError
        If its folder does not exist, or it cannot be written.
    """
    named = [Path(other) for other in inputs if other is not None]
    taken = [(file, "read and written") for other in named for file in (other, *_other_shards(other))]
    for path in paths:
        if path is not None and path != STDOUT:
            _check_output(path, taken, appends=appends)
            taken.append((path, "written twice"))


def _check_output(path: Path, taken: list[tuple[Path, str]], *, appends: bool) -> None:
    try:
        target = _target(path)
        for other, what in taken:
            if _same(target, other):
                also = "" if other == path else f", as {other}"
                raise UsageError(f"{path}: would be {what}{also}", "give the output another name")
        if appends and target.exists():
            with target.open("r+b"):
                return
        temporary = _temporary(target)
        temporary.touch(exist_ok=False)
        temporary.unlink()
    except OSError as error:
        raise _cannot_write(path, error) from error


def _other_shards(path: Path) -> Iterator[Path]:
    """The files that belong to one of a sharded model."""
    if match := SHARD.search(path.name):
        yield from path.parent.glob(f"{glob.escape(path.name[: match.start()])}-*-of-{match.group(2)}.gguf")


def _target(path: Path) -> Path:
    """The file that an output replaces: the end of a chain of links."""
    target = Path(os.path.realpath(path))
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise RidgeFillError(f"{path}: the folder {target.parent} does not exist", "create it first") from None
        return target
    if stat.S_ISDIR(mode):
        raise UsageError(f"{path}: is a folder", "give the name of a file")
    if not stat.S_ISREG(mode):
        raise UsageError(f"{path}: is a device, a pipe or a socket, not a file", "give the name of a file")
    return target


def _same(target: Path, other: Path) -> bool:
    try:
        return target.samefile(other)
    except OSError:
        return os.path.realpath(other) == str(target)


def _temporary(target: Path) -> Path:
    return target.parent / f".{secrets.token_hex(8)}.partial"


def _cannot_write(path: Path, error: OSError) -> RidgeFillError:
    reason = error.strerror or str(error)
    return RidgeFillError(f"{path}: cannot write: {reason}", "check space and permissions of the folder")


def digest(path: str | os.PathLike[str]) -> str:
    """A hash of a file's content, 16 hex digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:16]


def file_name(path: Path) -> str:
    """A file's name and a hash of its content, which tell it from others in results.

    Raises
    ------
    CorpusError
        If there is no such file.
    """
    if not path.is_file():
        raise CorpusError(f"{path}: no such file", "give the path of a file")
    return f"{path.name} ({digest(path)})"


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a new file's name beside `path`; rename it to `path` if the block succeeds, else delete it.

    A link is followed: the file that it points to is replaced.

    Raises
    ------
    UsageError
        If `path` is a folder, a device or anything else that is no file.
    RidgeFillError
        If the folder does not exist, or the file cannot be written (no space, no permission).
    """
    try:
        target = _target(Path(path))
        temporary = _temporary(target)
        _unfinished.add(temporary)
        try:
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            # where nothing can be written, nothing is there to delete
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            _unfinished.discard(temporary)
    except OSError as error:
        raise _cannot_write(Path(path), error) from error


@contextmanager
def temporary_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Make a folder of a name of its own beside `path`, and delete it with what is in it."""
    folder = Path(path).resolve().parent / f".ridgefill-{secrets.token_hex(8)}"
    _unfinished.add(folder)
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _unfinished.discard(folder)


def remove_unfinished() -> None:
    """Delete what `replacing` and `temporary_folder` have not deleted yet; for a process that must end now."""
    for path in list(_unfinished):
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            path.unlink(missing_ok=True)
