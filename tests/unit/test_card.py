"""Cards tell what a maps file holds and what was measured with it, and nothing of other files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_maps_file import example

from pyridgefill.card import make_card, table
from pyridgefill.cli.main import run
from pyridgefill.config import RidgeFillConfig
from pyridgefill.evaluation.intervals import Interval
from pyridgefill.evaluation.run.found import FarLosses, GroupLoss, Scores, Speed
from pyridgefill.evaluation.run.results import SETTING, Record
from pyridgefill.evaluation.run.settings import setting_cell
from pyridgefill.evaluation.run.typed import to_json
from pyridgefill.files import digest
from pyridgefill.maps import Recommended, read_maps, write_maps

INTERVAL = Interval(0.02, -0.01, 0.05)


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_maps(path, example(), weight_type="q8_0")
    return path


def cell(task: str, variant: str, maps: str | None = None, **more: Any) -> dict[str, Any]:
    setting = {} if maps is None else {"maps": maps, "split": 1, "select": "attention", "budget": 0.1}
    shape = {"model": "m.gguf", "model_bytes": 1, "model_digest": "0" * 16, "ctx": 2048, "tail": 256, "seed": 0}
    return {"task": task, **shape, "variant": variant, **setting, **more}


def needles(hits: int, *, compared: bool) -> dict[str, Any]:
    accuracy, difference = Interval(hits / 20, 0.5, 1.0), Interval(-5.0, -10.0, 0.0)
    found = Scores((), (), (), 0, 0, 20, hits, accuracy, accuracy, ())
    return dict(to_json(replace(found, difference=difference) if compared else found))


def losses() -> dict[str, Any]:
    group = GroupLoss("far", 12, 3, 1.5, 1.53, 2.0, INTERVAL, INTERVAL, INTERVAL)
    return dict(to_json(FarLosses(groups={"far": group, "all": group})))


def speed(*ratios: float) -> dict[str, Any]:
    return dict(to_json(Speed(ratios[len(ratios) // 2], ratios, None, 9, 0, {"exact": (1.0,), "fill": (0.5,)})))


def test_a_card_shows_what_was_measured_with_its_file(maps: Path) -> None:
    own, info = digest(maps), {"command": "pyridgefill eval needle m.gguf", "machine": {"cpu": "C", "threads": 2}}
    records = [
        Record(cell("needle", "fill", own, kind="digits"), needles(18, compared=True), info),
        Record(cell("needle", "drop", own, kind="digits"), needles(7, compared=True), info),
        Record(cell("needle", "exact", kind="digits"), needles(19, compared=False), info),
        Record(cell("needle", "exact", kind="uuids"), needles(13, compared=False), {"command": "not this"}),
        Record(cell("needle", "fill", "0" * 16, kind="digits"), needles(11, compared=True), {"command": "nor this"}),
        Record(cell("far-loss", "fill", own), losses(), info),
        Record(cell("ttft", "fill", own), speed(1.4, 1.5, 1.6), info),
    ]
    card = make_card(maps, records, "Tiny")
    assert card.startswith("# Maps for Tiny\n")
    lines = card.splitlines()
    found = [line for line in lines if line.startswith("| 2048 | 256 | digits")]
    assert [line.split(" | ")[3] for line in found] == ["exact", "ridge", "drop"], "the exact model comes first"
    assert "18 of 20" in found[1]
    assert "-5 (-10 to +0)" in found[1]
    assert "| 2048 | 256 | ridge | 1, 10 % selected | 12 | 1.500 | 1.530 | +2.0 (-1.0 to +5.0) |  | +2.0" in card
    assert "| 2048 | 256 | 1, 10 % selected | 1.50 | 1.40, 1.50, 1.60 |" in card
    assert card.count("pyridgefill eval needle m.gguf") == 1, "each command once"
    for other in ("13 of 20", "11 of 20", "not this", "nor this"):
        assert other not in card
    assert "Q8_0" in card or "q8_0" in card


def test_settings_do_not_tell_prompts_apart(maps: Path) -> None:
    config = RidgeFillConfig(maps, split=1, select="attention", budget=0.1, pool=(5, 5), queries=512, heads=((0, 0),))
    assert set(setting_cell(config)) < set(SETTING)


def test_splices_are_told_with_their_needles(maps: Path) -> None:
    own = digest(maps)
    splice = {"into": "fill", "components": ["k", "v"], "layers": [2, 3]}
    share = {"value": 0.5, "low": 0.25, "high": 0.75}
    records = [
        Record(cell("splice", "fill", own), {"groups": {}}, {}),
        Record(cell("splice", "fill", own, splice=splice), {"share": {"all": share}}, {}),
        Record(cell("splice-needle", "fill", own, splice=splice), needles(5, compared=True), {}),
    ]
    card = make_card(maps, records, "Tiny")
    assert "| 2048 | 1 | exact into filled | k+v | 2-3 | 50 (25 to 75) |  | 5 |" in card


def test_a_card_without_results_describes_the_file(maps: Path) -> None:
    card = make_card(maps, [], "Tiny")
    assert "## R² on held-out text" in card
    assert read_maps(maps).base.weights_hash in card
    assert "Needles" not in card
    assert "measured" not in card


def test_tables_are_markdown() -> None:
    assert table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_the_command_reads_results(maps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "lines.jsonl"
    record = Record(cell("ttft", "fill", digest(maps)), speed(1.25), {})
    lines.write_text(json.dumps(record._asdict()) + "\n")
    assert run(["card", str(maps), str(lines), "-o", str(tmp_path / "card.md"), "--title", "T"]) == 0
    assert "| 1.25 |" in (tmp_path / "card.md").read_text()
    assert run(["card", str(maps), str(tmp_path / "none"), "-o", str(tmp_path / "other.md")]) == 1
    assert "none: no such file" in capsys.readouterr().err
    other = Record(cell("ttft", "fill", "0" * 16), speed(1.25), {})
    lines.write_text(json.dumps(other._asdict()) + "\n")
    assert run(["card", str(maps), str(lines), "-o", str(tmp_path / "other.md")]) == 1
    assert f"{lines}: no result is of {maps}" in capsys.readouterr().err
    assert not (tmp_path / "other.md").exists()


def test_a_card_says_that_no_setting_is_known_to_be_good(tmp_path: Path) -> None:
    write_maps(tmp_path / "tiny.gguf", replace(example(), recommended=Recommended(tail=99)))
    card = make_card(tmp_path / "tiny.gguf", [], "Tiny")
    assert "No setting is known to be as good as exact: used at split 1, without selection." in card
