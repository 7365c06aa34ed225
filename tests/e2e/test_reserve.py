"""No prompt makes the compute buffers grow: the worst cases of all modes are reserved when maps are set."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import maps, paths
from support.families import FAMILIES

from pyridgefill.maps.model import RetrievalHead


@pytest.mark.parametrize("family", ["llama", "llama-moe", "gemma3", "gpt-oss", "deepseek2"])
@pytest.mark.parametrize("n_seq", [1, 3])
def test_compute_buffers_keep_their_size(workshop: Any, tmp_path: Path, family: str, n_seq: int) -> None:
    f, model = FAMILIES[family], workshop.model(family)
    heads = tuple(RetrievalHead(f.split, layer, 0) for layer in range(f.split))
    made = maps.identity(model, [f.split], f.sites())
    # a stream's share of a ubatch is 42 rows
    asking = replace(made.recommended, queries=512 if n_seq == 1 else 40)
    path = maps.write(tmp_path / "maps.gguf", replace(made, heads=heads, recommended=asking))
    command = [str(paths.reserve_checker()), str(model), str(path), str(n_seq)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    sizes = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(sizes) == 4
    for before, after in sizes:
        assert 0 < before == after
