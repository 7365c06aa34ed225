"""Output files that carry their final name only when they are complete, and what tells files apart."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyridgefill.errors import CorpusError, RidgeFillError


def check_folder(path: Path) -> None:
    """Raise if the folder of an output file does not exist, before anything costly is done."""
    if not path.parent.is_dir():
        raise RidgeFillError(f"{path}: the folder {path.parent} does not exist", "create it first")


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

    Raises
    ------
    RidgeFillError
        If the folder does not exist, or the file cannot be written (no space, no permission).
    """
    target = Path(path)
    check_folder(target)
    temporary = target.parent / f".{secrets.token_hex(8)}.partial"
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        reason = error.strerror or str(error)
        hint = "check space and permissions of the folder"
        raise RidgeFillError(f"{target}: cannot write: {reason}", hint) from error
    finally:
        temporary.unlink(missing_ok=True)
