from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from support import maps, spelling
from support.families import FAMILIES
from support.server import Server, serve


class Pair(NamedTuple):
    """Two servers that should agree on every exact request."""

    ridgefill: Server
    plain: Server


class Kit:
    """Tiny models, POISON maps that break whatever they fill, and servers; "spelling" is llama with a tokenizer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = cache(self._model)
        self.poison = cache(self._poison)
        self._logs = itertools.count()

    def _model(self, family: str = "llama", seed: int = 0) -> Path:
        if family == "spelling":
            return spelling.write(self.model("llama", seed), self.folder / f"spelling.{seed}.gguf")
        return FAMILIES[family].write(self.folder / f"{family}.{seed}.gguf", seed)

    def _poison(self, family: str = "llama", seed: int = 0, split: int | None = None) -> Path:
        f, model = FAMILIES["llama" if family == "spelling" else family], self.model(family)
        split = f.split if split is None else split
        sites = {layer: names for layer, names in f.sites().items() if layer >= split}
        poison = maps.poison(model, split, sites, seed=seed)
        return maps.write(self.folder / f"{family}.poison{seed}.{split}.maps.gguf", poison)

    def serve(
        self,
        family: str | None = "llama",
        *args: str | Path,
        maps: Path | None = None,
        env: dict[str, str] | None = None,
        stock: bool = False,
    ) -> AbstractContextManager[Server]:
        """A server without maps unless they are given; without a family, a router."""
        log = self.folder / f"server{next(self._logs)}.log"
        model = None if family is None else self.model(family)
        return serve(model, *args, maps=maps, log=log, env=env, stock=stock)

    @contextmanager
    def pair(self, family: str = "llama", *args: str | Path) -> Iterator[Pair]:
        """A server with POISON maps and one without maps, otherwise equal."""
        with (
            self.serve(family, *args, maps=self.poison(family)) as ridgefill,
            self.serve(family, *args) as plain,
        ):
            yield Pair(ridgefill, plain)


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    return Kit(tmp_path_factory.mktemp("kit"))


@pytest.fixture(scope="module")
def server(kit: Kit) -> Iterator[Server]:
    """A server with POISON maps and one slot, for tests that leave it as they found it."""
    with kit.serve("llama", "-np", "1", "-c", "2048", maps=kit.poison()) as running:
        yield running
