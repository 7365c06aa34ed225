"""Makes `llama_cpp` (its bindings) load the library that this package brings instead of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

from pyridgefill.errors import NativeError

# the release whose bindings fit the pinned llama.cpp
LLAMA_CPP_PYTHON_VERSION = "0.3.36"

_VARIABLE = "LLAMA_CPP_LIB_PATH"


def installed_folder(name: str) -> Path:
    """A folder that the build installs into the package: `lib`, `bin`, `include` or `gguf_maps`.

    An editable install has two package folders, one with the sources and one with what was built.
    """
    folders = [Path(folder).resolve() / name for folder in sys.modules["pyridgefill"].__path__]
    return next((folder for folder in folders if folder.is_dir()), folders[-1])


def library_folder() -> Path:
    """The folder with libllama: `RIDGEFILL_LIB_PATH` if set (for development), else the package's `lib`."""
    override = os.environ.get("RIDGEFILL_LIB_PATH")
    return Path(override) if override else installed_folder("lib")


def import_llama_cpp() -> ModuleType:
    """Import `llama_cpp.llama_cpp` on top of our library.

    Raises
    ------
    NativeError
        If the library is missing or cannot be loaded, if `llama_cpp` was already imported with another library,
        or if its release is not the pinned one.
    """
    folder = library_folder()
    if "llama_cpp" not in sys.modules:
        _import(folder)
    import llama_cpp

    loaded = Path(llama_cpp.llama_cpp._lib._name).resolve().parent
    if loaded != folder.resolve():
        raise NativeError(
            f"llama_cpp was already imported with the library in {loaded}, expected {folder}",
            "import pyridgefill.Llama (or call pyridgefill) before llama_cpp",
        )
    if llama_cpp.__version__ != LLAMA_CPP_PYTHON_VERSION:
        raise NativeError(
            f"llama-cpp-python {llama_cpp.__version__} is installed, expected {LLAMA_CPP_PYTHON_VERSION}",
            f"pip install llama-cpp-python=={LLAMA_CPP_PYTHON_VERSION}",
        )
    bindings: ModuleType = llama_cpp.llama_cpp
    return bindings


def _import(folder: Path) -> None:
    previous = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = str(folder)
    try:
        import llama_cpp  # noqa: F401
    except FileNotFoundError as error:
        raise NativeError(
            f"no libllama in {folder}",
            "install the package with pip, or set RIDGEFILL_LIB_PATH to a build's bin folder",
        ) from error
    except (RuntimeError, AttributeError, OSError) as error:
        raise NativeError(f"cannot load libllama from {folder}: {error}", "build the pinned llama.cpp again") from error
    finally:
        # child processes must see what the user had set
        if previous is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = previous
