"""The maps in `gguf_maps`: found by fingerprint, used as recommended, described by their cards."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import paths

from pyridgefill import Llama
from pyridgefill.card import make_card
from pyridgefill.config import find_maps
from pyridgefill.evaluation.run.results import ResultFile
from pyridgefill.maps import read_base_model, read_maps

ROOT = Path(__file__).parents[2]
READY = sorted((ROOT / "gguf_maps").glob("*.gguf"))
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*-lab.jsonl"))


def test_there_are_maps_for_the_model_of_the_demo() -> None:
    assert [path.name for path in READY] == ["smollm2-135m-instruct.ridgefill.gguf"]


@pytest.mark.parametrize("maps", READY, ids=lambda path: path.name)
def test_a_card_is_what_the_command_makes_of_the_results(maps: Path) -> None:
    card = maps.with_name(maps.name.removesuffix(".ridgefill.gguf") + ".md").read_text(encoding="utf-8")
    records = [record for path in RESULTS for record in ResultFile(path).records()]
    title = card.splitlines()[0].removeprefix("# Maps for ")
    assert make_card(maps, records, title) == card
    for part in ("Needles in the filled rows", "Loss on far tokens", "Time to first token", "R² on held-out text"):
        assert f"## {part}" in card
    assert maps.stat().st_size < 6e6


def test_a_model_finds_its_ready_maps(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGEFILL_LIB_PATH", str(paths.engine_library()))
    model = tmp_path / "model.gguf"
    model.symlink_to(smollm2)
    found = find_maps(model)
    maps = read_maps(found)
    assert found.name == READY[0].name
    assert maps.base == read_base_model(smollm2)
    best = maps.recommended
    assert best.select == "attention"
    assert best.min_prompt is not None
    assert best.tail is not None
    assert best.sink is not None
    assert best.budget is not None
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    llm = Llama(str(model), ridgefill=True, n_ctx=2048, n_threads=2, verbose=False)
    prompt = llm.tokenize(text.encode())[: best.min_prompt + 100]
    try:
        llm.create_completion(prompt, max_tokens=1)
        stats = llm.fill_stats
        assert stats is not None
        n_fill = len(prompt) - best.tail - best.sink
        assert stats.filled == n_fill, stats
        assert stats.selected == pytest.approx(best.budget * n_fill, abs=1)
    finally:
        llm.close()
