"""Where the engine under test, the unpatched twin and the real model are; a missing one is an error, never a skip."""

from __future__ import annotations

import os
from pathlib import Path

from pyridgefill._library import installed_folder, library_folder

REPOSITORY = Path(__file__).resolve().parents[2]
_BUILD = REPOSITORY / "build" / "engine" / "build"


class MissingPart(RuntimeError):
    """A part that the tests need is not there."""


def _find(variable: str, marker: str, candidates: list[Path], what: str) -> Path:
    if value := os.environ.get(variable):
        candidates = [Path(value)]
    for path in candidates:
        if (path / marker).exists():
            return path.resolve()
    tried = ", ".join(str(path / marker) for path in candidates)
    raise MissingPart(f"{what} not found (tried {tried}); run `make test`, or set {variable}")


def engine_library() -> Path:
    """Folder of the patched libllama."""
    return _find("RIDGEFILL_LIB_PATH", "libllama.so", [library_folder(), _BUILD / "bin"], "the engine's library")


def stock_library() -> Path:
    """Folder of a libllama of the same pin without the patches."""
    return _find("RIDGEFILL_STOCK_LIB_PATH", "libllama.so", [_BUILD / "stock"], "the unpatched library")


def programs() -> Path:
    """Folder of llama-server and the other programs."""
    return _find("RIDGEFILL_BIN_PATH", "llama-server", [installed_folder("bin"), _BUILD / "bin"], "llama-server")


def stock_programs() -> Path:
    """Folder of a llama-server of the same pin without the patches."""
    return _find("RIDGEFILL_STOCK_BIN_PATH", "llama-server", [_BUILD / "stock"], "the unpatched llama-server")


def sanitized_loader() -> Path:
    """The program that loads maps files under AddressSanitizer."""
    return _test_program("test-ridgefill-load")


def reserve_checker() -> Path:
    """The program that tells the size of the compute buffers before and after prompts."""
    return _test_program("test-ridgefill-reserve")


def delayed_device() -> Path:
    """The device that computes late."""
    return _test_program("libggml-ridgefill-delayed.so")


def model_maker() -> Path:
    """Upstream's maker of tiny random models."""
    return _test_program("test-llama-archs")


def _test_program(name: str) -> Path:
    return _find("RIDGEFILL_TESTS_BIN_PATH", name, [_BUILD / "bin"], f"the program {name}") / name


def smollm2() -> Path:
    """The SmolLM2-135M-Instruct model, as `make models` puts it."""
    path = Path(os.environ.get("RIDGEFILL_SMOLLM2", REPOSITORY / "build" / "models" / "smollm2.gguf"))
    if not path.is_file():
        raise MissingPart(f"{path} not found; run `make models`, or set RIDGEFILL_SMOLLM2")
    return path
