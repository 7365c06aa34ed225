"""Where the engine under test, the unpatched twin and the real model are; a missing one is an error, never a skip."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_BUILD = REPOSITORY / "build" / "engine" / "build"


class MissingPart(RuntimeError):
    """A part that the tests need is not there."""


def _package_dirs(name: str) -> list[Path]:
    """Folders of a package; an editable install has one with the sources and one with what was built."""
    spec = importlib.util.find_spec(name)
    return [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []


def _find(variable: str, marker: str, candidates: list[Path], what: str) -> Path:
    if value := os.environ.get(variable):
        candidates = [Path(value)]
    for path in candidates:
        if (path / marker).exists():
            return path.resolve()
    tried = ", ".join(str(path / marker) for path in candidates)
    raise MissingPart(f"{what} not found (tried {tried}); run `make test`, or set {variable}")


def _in_package(*parts: str) -> list[Path]:
    return [folder.joinpath(*parts) for folder in _package_dirs("pyridgefill")]


def engine_library() -> Path:
    """Folder of the patched libllama."""
    return _find("RIDGEFILL_LIB_PATH", "libllama.so", [*_in_package("lib"), _BUILD / "bin"], "the engine's library")


def stock_library() -> Path:
    """Folder of a libllama of the same pin without the patches."""
    return _find("RIDGEFILL_STOCK_LIB_PATH", "libllama.so", [_BUILD / "stock"], "the unpatched library")


def programs() -> Path:
    """Folder of llama-server and the other programs."""
    return _find("RIDGEFILL_BIN_PATH", "llama-server", [*_in_package("bin"), _BUILD / "bin"], "llama-server")


def smollm2() -> Path:
    """The SmolLM2-135M-Instruct model out of its package."""
    path = Path(os.environ.get("RIDGEFILL_SMOLLM2") or REPOSITORY / "build" / "models" / "smollm2.gguf")
    if not path.is_file():
        raise MissingPart(f"{path} not found; run `make models`, or set RIDGEFILL_SMOLLM2")
    return path
