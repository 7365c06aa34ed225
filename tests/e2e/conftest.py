from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from support import maps, paths
from support.families import FAMILIES
from support.oracle import oracle

# before any test module imports the bindings
os.environ["COLUMNS"] = "200"  # tables of commands do not wrap
os.environ["LLAMA_CPP_LIB_PATH"] = str(paths.engine_library())


class Workshop:
    """Makes models and maps on demand, each once per session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = cache(self._model)
        self.oracle = cache(self._oracle)
        self.maps = cache(self._maps)

    def _model(self, family: str, seed: int = 0) -> Path:
        return FAMILIES[family].write(self.folder / f"{family}.{seed}.gguf", seed)

    def _oracle(self, family: str, live: int) -> Path:
        path = self.folder / f"{family}.live{live}.gguf"
        return oracle(self.model(family), path, FAMILIES[family].split, live)

    def _maps(self, family: str, kind: str) -> Path:
        """``identity``, ``identity-rms``, ``projected``, ``low-rank`` or ``poison`` maps."""
        f, model = FAMILIES[family], self.model(family)
        make: dict[str, Callable[[], maps.product.MapSet]] = {
            "identity": lambda: maps.identity(model, [f.split], f.sites()),
            "identity-rms": lambda: maps.identity(model, [f.split], f.sites(), "rms"),
            "projected": lambda: maps.projected(model, f.split, f.sites()),
            "low-rank": lambda: maps.projected(model, f.split, f.sites(), rank=f.n_embd),
            "poison": lambda: maps.poison(model, f.split, f.sites()),
        }
        return maps.write(self.folder / f"{family}.{kind}.maps.gguf", make[kind]())


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return paths.smollm2()
