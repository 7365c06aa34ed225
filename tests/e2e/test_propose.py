"""Retrieval heads and recommended settings, on tiny models whose tokens spell their text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import paths, spelling
from support.families import FAMILIES

from pyridgefill.cli.main import run
from pyridgefill.config import RidgeFillConfig
from pyridgefill.maps import read_maps
from pyridgefill.selection.finding import find_heads, head_counts
from pyridgefill.selection.propose import candidates, propose
from pyridgefill.selection.recommend import QUICK, Effort, Trial

SPLIT = FAMILIES["llama"].split
# a byte is a token: questions are long
TAIL, LENGTH = 640, 2048
EFFORT = Effort((LENGTH,), QUICK.kinds, needles=1, keys=1, texts=1, repeats=0)
HEADS = {SPLIT: [(0, 0), (1, 1)]}


@pytest.fixture(autouse=True)
def engine_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGEFILL_LIB_PATH", str(paths.engine_library()))


@pytest.fixture(scope="module")
def model(workshop: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spelling.write(workshop.oracle("llama", 5), tmp_path_factory.mktemp("spelling") / "model.gguf")


def config(workshop: Any, kind: str) -> RidgeFillConfig:
    return RidgeFillConfig(workshop.maps("llama", kind), sink=4, tail=TAIL, skip_fingerprint=True)


def test_maps_that_are_exact_need_the_least_work(workshop: Any, model: Path) -> None:
    seen: list[Trial | None] = []
    found = propose(
        model, config(workshop, "identity"), HEADS, splits=[SPLIT], effort=EFFORT, on_trial=seen.append, n_threads=1
    )
    assert seen == [None, *found.trials]
    assert found.prompts == 6
    (trial,) = found.trials
    assert (trial.point.split, trial.point.select, trial.point.budget) == (SPLIT, "none", 0.0)
    assert trial.faults() == []
    assert found.recommendation.trial == trial
    assert found.recommendation.accepted == (found.hits > 0)
    assert trial.outcomes[0].loss_increase == pytest.approx(0, abs=1e-3)


def test_settings_are_tried_from_the_cheapest_on(workshop: Any, model: Path) -> None:
    maps = config(workshop, "poison")
    found = propose(
        model, maps, HEADS, splits=[SPLIT], budgets=(0.2, 0.1), effort=EFFORT, max_loss_increase=-0.5, n_threads=1
    )
    settings = [(trial.point.select, trial.point.budget) for trial in found.trials]
    assert settings == [("none", 0.0), ("attention", 0.1), ("attention", 0.2)]
    assert not found.recommendation.accepted
    assert [item.get("accepted") for item in found.to_list()] == [None, False, False, False]


def test_a_lower_split_with_more_rows_can_be_less_work() -> None:
    heads = {split: [(7, 7)] for split in (10, 15)}
    found = sorted(candidates(heads, [10, 15], (0.05, 0.2), 512), key=lambda point: point.work(30, 2048))
    assert [(item.split, item.budget) for item in found] == [(10, 0.05), (10, 0.2), (15, 0.0), (15, 0.05), (15, 0.2)]
    assert [item.select for item in found] == ["attention", "attention", "none", "attention", "attention"]


def test_heads_are_below_each_split(workshop: Any, model: Path) -> None:
    found = find_heads(
        model, config(workshop, "identity"), splits=[2, SPLIT], count=2, prompts=1, lengths=(LENGTH,), n_threads=1
    )
    assert {head.split for head in found} == {2, SPLIT}
    for head in found:
        assert head.layer < head.split
        assert head.head < head_counts(model)[head.layer]
        assert 0 <= head.recall[0] <= head.recall[1] <= head.recall[2] <= 1
    assert len({(head.split, head.layer, head.head) for head in found}) == len(found)


def test_calibrate_recommends(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    maps = tmp_path / "maps.gguf"
    arguments = ["calibrate", model, "-o", maps, "--splits", "auto", "--tokens", 9000, "--tail", TAIL, "--threads", 1]
    arguments += ["--ctx", 512]
    assert run([*map(str, arguments), "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [split["layer"] for split in report["splits"]] == [2, 3, 4, 5]
    assert report["trials"][0]["split"] is None
    found = report["trials"][0]["hits"]
    accepted = [trial for trial in report["trials"][1:] if trial["accepted"] and found]
    recommended = read_maps(maps).recommended
    assert recommended.split == (accepted[0]["split"] if accepted else None)
    assert recommended.select in (("attention", "none") if accepted else (None,))
    if recommended.select == "attention":
        assert recommended.pool == (5, 5)
        assert recommended.budget == pytest.approx(accepted[0]["budget"])
        assert {head["split"] for head in report["heads"]} >= {recommended.split}
    assert [item.name for item in tmp_path.iterdir()] == ["maps.gguf"]


def test_layers_that_do_not_fit_one_graph_score_in_turns(
    workshop: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyridgefill.selection import finding as heads

    def find() -> object:
        settings = config(workshop, "identity")
        return find_heads(model, settings, splits=[SPLIT], prompts=1, lengths=(LENGTH,), n_threads=1)

    together = find()
    monkeypatch.setattr(heads, "MAX_HEADS", 2)
    assert SPLIT > 2
    assert find() == together
