"""Which settings a sweep tries, when it stops, and what it recommends."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pyridgefill.errors import RidgeFillError
from pyridgefill.evaluation.intervals import least_hits, wilson
from pyridgefill.evaluation.run.found import Speed
from pyridgefill.evaluation.run.lab import model_cell
from pyridgefill.evaluation.run.results import ResultFile
from pyridgefill.evaluation.run.spliced import Splice
from pyridgefill.evaluation.run.typed import from_json, to_json
from pyridgefill.files import file_name
from pyridgefill.report.tables import variations
from pyridgefill.selection.point import Point
from pyridgefill.selection.recommend import Outcome, Trial, recommend, stops, walk_down, walk_up
from pyridgefill.tuning import contents
from pyridgefill.tuning.contents import Contents
from pyridgefill.tuning.document import _breakdown, _splices
from pyridgefill.tuning.grid import Grid

ROOT = Path(__file__).parents[2]

# 18 of 20 found by the exact model: 14 are not below its interval
EXACT, LEAST = 18, 14


def outcome(
    hits: int = 18, loss: float = 0.01, far: float | None = 0.05, ratio: float = 1.5, ctx: int = 2048
) -> Outcome:
    return Outcome(ctx, hits, 20, EXACT, loss, far, ratio)


def trial(split: int, *outcomes: Outcome, budget: float = 0.1) -> Trial:
    return Trial(Point(split, 256, budget), outcomes)


def test_least_hits_is_the_end_of_the_interval() -> None:
    assert least_hits(EXACT, 20) == LEAST
    assert (LEAST - 1) / 20 < wilson(EXACT, 20).low <= LEAST / 20
    assert least_hits(0, 20) == 0


def test_families_go_down() -> None:
    grid = Grid((10, 18, 15), (0, 0.1), (512, 256), ("proj", "input"), (0, 64), ("f16", "q8_0"))
    families = grid.families()
    assert [(family[0].tail, family[0].budget) for family in families] == [(256, 0.1), (256, 0), (512, 0.1), (512, 0)]
    for family in families:
        assert [point.split for point in family] == [18, 15, 10]
        assert {(point.target, point.rank, point.weight_type) for point in family} == {("proj", 0, "f16")}
    found = list(grid.neighbours(families[0][1]))
    assert [(role, point.target, point.rank, point.weight_type) for role, point in found] == [
        ("target", "input", 0, "f16"), ("rank", "proj", 64, "f16"), ("type", "proj", 0, "q8_0"),
    ]  # fmt: skip
    assert {(point.split, point.tail, point.budget) for _, point in found} == {(15, 256, 0.1)}


@pytest.mark.parametrize(("name", "value"), [("splits", ()), ("budgets", (1.5,)), ("types", ())])
def test_grids_that_cannot_be_tried(name: str, value: tuple[object, ...]) -> None:
    with pytest.raises(RidgeFillError, match=f"--{name}"):
        replace(Grid((10,), (0,), (256,)), **{name: value})


def test_a_split_that_loses_needles_stops_those_below() -> None:
    hits = {18: 17, 15: LEAST, 12: LEAST - 1, 10: 20}
    family = [Point(split, 256, 0.1) for split in hits]
    asked: list[int] = []

    def measure(point: Point) -> Trial:
        asked.append(point.split)
        return Trial(point, (outcome(hits[point.split]),))

    trials, left, reason = walk_down(family, measure)
    assert asked == [18, 15, 12], "the split that fails is measured, no lower one"
    assert [item.point.split for item in trials] == asked
    assert [point.split for point in left] == [10]
    assert reason == "split 12 found 13 of 20 needles at 2048 tokens, exact 18"


def test_any_length_stops() -> None:
    assert not stops(trial(15, outcome(), outcome(LEAST, ctx=4096)))
    assert "at 4096 tokens" in stops(trial(15, outcome(), outcome(LEAST - 1, ctx=4096)))
    # loss alone does not: it grows slowly
    assert not stops(trial(15, outcome(loss=0.5)))


def test_the_last_split_stops_nothing() -> None:
    trials, left, reason = walk_down([Point(10, 256, 0.1)], lambda point: Trial(point, (outcome(0),)))
    assert (len(trials), left, reason) == (1, [], "")


def test_the_fastest_good_setting_wins() -> None:
    best = trial(12, outcome(ratio=1.7))
    found = recommend([
        trial(18, outcome(ratio=1.3)),
        best,
        trial(10, outcome(hits=LEAST - 1, ratio=1.9)),
        trial(9, outcome(loss=0.031, ratio=2.0)),
    ])  # fmt: skip
    assert found.accepted
    assert found.trial is best
    assert found.reason.startswith("The fastest of 2 settings that are as good as exact: 18 of 20 needles (18 exact)")


def test_among_equally_fast_settings_far_tokens_decide() -> None:
    fastest, close = trial(12, outcome(ratio=1.70, far=0.2)), trial(12, outcome(ratio=1.68, far=0.1))
    slower = trial(15, outcome(ratio=1.60, far=0.0))
    found = recommend([fastest, close, slower])
    assert found.trial is close
    assert found.reason.startswith("Of 2 equally fast settings")


def test_the_longest_prompts_decide_about_speed() -> None:
    flat = trial(15, outcome(ratio=1.6), outcome(ratio=1.6, ctx=8192))
    grows = trial(18, outcome(ratio=1.2), outcome(ratio=1.8, ctx=8192))
    assert recommend([flat, grows]).trial is grows


def test_what_is_slower_than_exact_is_not_good() -> None:
    found = recommend([trial(18, outcome(ratio=0.9))])
    assert not found.accepted
    assert "first token 0.90 times as fast" in found.reason


def test_without_a_good_setting_the_closest_is_shown() -> None:
    most = trial(15, outcome(hits=12, far=0.3))
    found = recommend([trial(12, outcome(hits=5)), most, trial(15, outcome(hits=12, far=0.5), budget=0.05)])
    assert found.trial is most
    assert not found.accepted
    assert found.reason == (
        "No setting was as good as exact. This one came closest: 12 of 20 needles at 2048 tokens, at least 14 wanted."
    )


def test_lengths_without_far_tokens_count_with_all_tokens() -> None:
    assert trial(12, outcome(far=None, loss=0.02), outcome(far=0.04, ctx=4096)).far == pytest.approx(0.03)


N_LAYER, N_PROMPT = 30, 2048


def measured(point: Point, broken: int, loss: float) -> Trial:
    """A model that loses its needles below split `broken`, later with more rows, and `loss` from there on."""
    keeps = point.split >= broken - 20 * point.budget
    ratio = 1 / point.work(N_LAYER, N_PROMPT)
    return Trial(point, (outcome(EXACT if keeps else LEAST - 1, loss / point.split, None, ratio),))


@pytest.mark.parametrize("broken", range(8, 24))
@pytest.mark.parametrize("loss", [0.0, 0.3, 0.5, 1.0])
def test_tune_and_calibrate_recommend_the_same(broken: int, loss: float) -> None:
    """Calibrate goes up until something is good, tune down until something is broken."""
    families = Grid((10, 12, 15, 18, 20), (0, 0.05, 0.1, 0.2), (256,)).families()
    up = walk_up(
        [point for family in families for point in family], lambda point: measured(point, broken, loss),
        n_layer=N_LAYER, n_prompt=N_PROMPT,
    )  # fmt: skip
    down = [trial for family in families for trial in walk_down(family, lambda point: measured(point, broken, loss))[0]]
    quick, thorough = recommend(up), recommend(down)
    assert quick.accepted == thorough.accepted
    if quick.accepted:
        assert quick.trial == thorough.trial
        assert quick.trial in down


def test_going_up_ends_with_settings_as_fast_as_the_first_good_one() -> None:
    points = [Point(split, 256, 0.1) for split in (20, 15, 16, 10)] + [Point(15, 256, 0.102)]
    trials = walk_up(points, lambda point: measured(point, 17, 0.0), n_layer=N_LAYER, n_prompt=N_PROMPT)
    assert [(item.point.split, item.point.budget) for item in trials] == [(10, 0.1), (15, 0.1), (15, 0.102)]
    assert recommend(trials).trial.point.split == 15


def test_work_counts_layers_and_rows() -> None:
    assert Point(15, 512, 0.0).work(30, 2048) == pytest.approx(0.25 + 0.75 * 0.5)
    assert Point(15, 512, 0.5).work(30, 2048) == pytest.approx(0.25 + 0.75 * 0.75)
    assert Point(15, 4096, 0.5).work(30, 2048) == 1


def test_splice_results_of_this_model_are_shown(tmp_path: Path) -> None:
    """As eval splice writes them: what is spliced is a part of the cell."""
    results = ResultFile(tmp_path / "results.jsonl")
    share = {"all": {"value": 0.5, "low": 0.4, "high": 0.6}}
    shape = {"task": "splice", "ctx": 400, "tail": 200, "split": 2, "variant": "fill"}
    splice = Splice("exact", ("K", "V"), 3, 5).cell()
    model, other = tmp_path / "m.gguf", tmp_path / "other" / "m.gguf"
    other.parent.mkdir()
    model.write_bytes(b"one model")
    other.write_bytes(b"a another")
    own, others = model_cell(model), model_cell(other)
    assert file_name(model) != file_name(other)
    assert (own["model"], own["model_bytes"]) == (others["model"], others["model_bytes"])
    results.add({**shape, **own}, {"losses": [[1.0]]}, {})
    results.add({**shape, **own, "splice": splice}, {"share": share}, {})
    results.add({**shape, **others, "splice": splice}, {"share": share}, {})
    results.add({**shape, **own, "variant": "zero", "splice": splice}, {"share": share}, {})
    shown = {"into": "exact", "components": ["K", "V"], "layers": [3, 5], "share": share}
    assert to_json(list(_splices(results, model))) == [{"ctx": 400, "tail": 200, "split": 2, **shown}]


@pytest.mark.parametrize(
    ("inside", "parts"),
    [([0.5], {"lower layers and maps": 0.5, "tail": 0.25}), ([], {"lower layers, maps and tail": 0.75})],
)
def test_times_that_a_device_hides_are_one_part(inside: list[float], parts: dict[str, float]) -> None:
    seconds: dict[str, tuple[float, ...]] = {"exact": (1.0,), "fill": (0.75,), "plain": (), "empty": ()}
    timing = Speed(4 / 3, (4 / 3,), None, 9, 0, seconds, tuple(inside))
    assert _breakdown(2048, timing).parts == parts


def test_a_real_report_tells_the_size_of_one_split() -> None:
    """The sweep's file holds three splits, the variation's only one, with as many weights for it."""
    document = json.loads((ROOT / "benchmarks/results/smollm2-tune.json").read_text(encoding="utf-8"))
    jsonschema.validate(document, json.loads((ROOT / "pyridgefill/tuning/report.schema.json").read_text()))
    swept, other = variations(from_json(Contents, document))
    assert (swept["maps"], other["maps"]) == ("proj, f16", "proj, q8_0")
    assert swept["parameters"] == other["parameters"] == "4.2"
    assert (swept["megabytes"], other["megabytes"]) == ("8.4", "4.5")


def test_the_schema_is_that_of_the_types() -> None:
    """The schema says more of values, but names the same fields, and requires those that are always there."""
    schema = json.loads((ROOT / "pyridgefill/tuning/report.schema.json").read_text())

    def compare(kind: type, told: dict[str, Any]) -> None:
        told = schema["$defs"][told["$ref"].rsplit("/", 1)[-1]] if "$ref" in told else told
        names = {field.name for field in fields(kind)}
        assert set(told["properties"]) == names, kind
        assert set(told["required"]) <= names, kind
        assert set(told["required"]) == {field.name for field in fields(kind) if field.default is MISSING}, kind

    told = schema["properties"]
    definitions = schema["$defs"]
    compare(Contents, schema)
    for kind, part in (
        (contents.ModelFacts, told["model"]),
        (contents.MachineFacts, told["machine"]),
        (contents.Sums, told["statistics"]),
        (contents.Tried, told["settings"]),
        (contents.Stopped, told["stopped"]["items"]),
        (contents.Breakdown, told["breakdown"]["items"]),
        (contents.Spliced, told["splices"]["items"]),
        (contents.Recommended, told["recommended"]),
        (contents.MapsFile, definitions["maps"]),
        (contents.MapFit, definitions["maps"]["properties"]["r2"]["items"]),
        (contents.Row, definitions["point"]),
        (contents.AtLength, definitions["numbers"]),
        (contents.Times, definitions["numbers"]["properties"]["ttft"]),
    ):
        compare(kind, part)
