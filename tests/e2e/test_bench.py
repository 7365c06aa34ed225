"""The bench command: which rows it runs, and that results are kept. Times are not looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import maps, paths, spelling
from support.families import FAMILIES

from pyridgefill.cli.main import run

CTX, TAIL, SINK = 400, 100, 4


@pytest.fixture(autouse=True)
def engine_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGEFILL_LIB_PATH", str(paths.engine_library()))


@pytest.mark.parametrize("select", ["none", "attention"])
def test_runs_are_counted_and_kept(workshop: Any, tmp_path: Path, select: str) -> None:
    family = FAMILIES["llama"]
    model = spelling.write(workshop.model("llama"), tmp_path / "model.gguf")
    path = maps.write(tmp_path / "maps.gguf", maps.identity(model, [family.split], family.sites()))
    results = tmp_path / "results.jsonl"
    arguments = ["bench", model, path, "--ctx", CTX, "--tail", TAIL, "--sink", SINK, "--repeats", 2, "--threads", 1]
    arguments += ["--select", select, "--budget", 0.1, "--heads", "0.0", "--json", results]
    assert run([*map(str, arguments)]) == 0
    (line,) = results.read_text().splitlines()
    result = json.loads(line)["result"]
    n_filled = CTX - TAIL - SINK
    assert result["n_filled"] == n_filled
    assert result["n_selected"] == (round(0.1 * n_filled) if select == "attention" else 0)
    counts = {name: len(times) for name, times in result["seconds"].items()}
    extra = 2 if select == "attention" else 0
    assert counts == {"exact": 2, "fill": 2, "plain": extra, "empty": extra}
    assert (result["selection_overhead"] is None) == (select == "none")
    assert run([*map(str, arguments)]) == 0
    assert results.read_text().splitlines() == [line], "what the file has is not run again"
