"""The document of a sweep: what was measured becomes JSON that follows the schema, and a page."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema

from pyridgefill.evaluation.intervals import Interval, wilson
from pyridgefill.evaluation.run.found import Agreement, DepthShare, Divergence, FarLosses, GroupLoss, Scores, Speed
from pyridgefill.evaluation.run.results import ResultFile, plain
from pyridgefill.evaluation.run.typed import from_json, to_json
from pyridgefill.report.page import render
from pyridgefill.selection.point import Point
from pyridgefill.selection.recommend import THOROUGH, Outcome, Trial, recommend
from pyridgefill.tuning.contents import Contents
from pyridgefill.tuning.document import make_document
from pyridgefill.tuning.grid import Grid
from pyridgefill.tuning.sweep import Measured, Numbers, Plan, Stop

SCHEMA = json.loads((Path(__file__).parents[2] / "pyridgefill/tuning/report.schema.json").read_text())
SHARE = Interval(0.5, 0.4, 0.6)
ONE_TEXT = Interval(0.1, float("nan"), float("nan"))


def scores(hits: int) -> Scores:
    depths = (DepthShare(0.5, 4, hits / 4, 0.1, 0.9),)
    return Scores((1.0,), (0.5,), ("a",), 10, 0, 4, hits, wilson(hits, 4), SHARE, depths)


def maps(name: str, r2: float | None) -> dict[str, Any]:
    """As `MapStore.get` returns them; what was not held out has no R²."""
    fit = {"split": 4, "layer": 5, "site": "attn_k", "r2": r2}
    head = {"split": 4, "layer": 0, "head": 1, "recall": [0.1, None, 0.3]}
    return {"file": name, "bytes": 1000, "digest": "d", "parameters": 10, "r2": [fit], "heads": [head]}


def test_a_sweep_becomes_json_and_a_page(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"model")
    group = GroupLoss("all", 10, 2, 1.0, 1.01, 1.5, SHARE, Interval(0.01, 0.0, 0.02), SHARE)
    losses = FarLosses(groups={"all": group})
    near = Divergence(1.0, 2.0, Agreement(3, ONE_TEXT, 0.2, SHARE))
    seconds = {"exact": (2.0, 2.1), "fill": (1.3, 1.4), "plain": (), "empty": ()}
    speed = Speed(1.5, (1.4, 1.6), None, 100, 0, seconds, (0.5, 0.6))
    exact = Numbers([scores(4)], FarLosses(exact=((1.0,),), removed=((1.0,),)), Divergence(1.0, 2.0))
    fill, zero = Numbers([scores(3)], losses, near, speed), Numbers([scores(1)], losses, near)
    swept, other = Point(4, 256, 0.0), Point(4, 256, 0.0, weight_type="q8_0")
    trials = [Trial(point, (Outcome(2048, 3, 4, 4, 0.01, None, 1.5),)) for point in (swept, other)]
    sweep: Any = SimpleNamespace(
        plan=Plan(Grid((2, 4), (0.0,), (256,), types=("f16", "q8_0")), THOROUGH, ("zero",), 0.03),
        shape=SimpleNamespace(sink=4, corpus="stdlib-packages"),
        lab=SimpleNamespace(model=model),
        statistics=tmp_path / "sums.npz",
        store=SimpleNamespace(path=lambda made: tmp_path / made["file"]),
        measured=[
            Measured("exact", "exact", None, 256, {2048: exact}),
            Measured("sweep", "fill", swept, 256, {2048: fill}, maps("a.gguf", 0.5), ((0, 1),)),
            Measured("type", "fill", other, 256, {2048: fill}, maps("b.gguf", None), ((0, 1),)),
            Measured("baseline", "zero", swept, 256, {2048: zero}),
        ],
        stopped=[Stop(256, 0.0, (2,), "split 4 found too few")],
        trials=trials,
        recommendation=recommend(trials),
        parts={2048: speed},
    )
    base: Any = SimpleNamespace(architecture="llama", block_count=6, embedding_length=64, vocab_size=100)
    document = make_document(
        sweep,
        base,
        machine={"cpu": "some", "threads": 1, "system": "Linux"},
        provenance={"tokens": 5, "corpora": ["text"]},
        command=["pyridgefill", "tune"],
        seeds={"prompts": 0},
        splices=ResultFile(None),
    )
    told = plain(to_json(document))
    jsonschema.validate(told, SCHEMA)
    json.dumps(told, allow_nan=False)
    assert document.best is document.points[1]
    assert f"--ridgefill-maps {tmp_path / 'a.gguf'} --ridgefill-split 4" in document.recommended.command
    assert document.recommended.reason in render(from_json(Contents, told))
