"""The results file: cells are found again, half a line of an interrupted run is not, and other files are refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import pytest

from pyridgefill.errors import RidgeFillError
from pyridgefill.evaluation.run.found import RESULTS, Scores, results_schema
from pyridgefill.evaluation.run.results import Record, ResultFile, plain
from pyridgefill.evaluation.run.typed import to_json

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "pyridgefill" / "evaluation" / "run" / "results.schema.json"

CELL = {"task": "needle", "ctx": 2048, "heads": ("9.6",), "budget": 0.05}


def test_results_are_found_again(tmp_path) -> None:
    path = tmp_path / "results.jsonl"
    file = ResultFile(path)
    assert file.find(CELL) is None
    file.add(CELL, {"hits": 3, "p": float("nan")}, {"seconds": 1.5})
    file.add({**CELL, "ctx": 4096}, {"hits": 2}, {})
    for found in (file, ResultFile(path)):
        assert found.find(dict(reversed(CELL.items()))) == {"hits": 3, "p": None}
        assert found.find({**CELL, "ctx": 4096}) == {"hits": 2}
        assert found.find({**CELL, "ctx": 1024}) is None
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["info"] for line in lines] == [{"seconds": 1.5}, {}]
    assert lines[0]["cell"] == {**CELL, "heads": ["9.6"]}


def test_an_interrupted_line_is_written_again(tmp_path) -> None:
    path = tmp_path / "results.jsonl"
    ResultFile(path).add(CELL, {"hits": 3}, {})
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    file = ResultFile(path)
    assert file.find(CELL) == {"hits": 3}
    assert path.read_bytes() == whole + whole[:20]  # who writes the file may be in the middle of a line
    for ctx in (1, 2):
        file.add({**CELL, "ctx": ctx}, {"hits": 4}, {})
    assert path.read_bytes().startswith(whole)
    assert [json.loads(line)["cell"]["ctx"] for line in path.read_text().splitlines()] == [2048, 1, 2]


@pytest.mark.parametrize("size", [1, 9, 20])
def test_half_a_first_line(tmp_path, size) -> None:
    path = tmp_path / "results.jsonl"
    ResultFile(path).add(CELL, {"hits": 3}, {})
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    ResultFile(path).add(CELL, {"hits": 3}, {})
    assert path.read_bytes() == whole


def test_two_runs_write_one_file(tmp_path) -> None:
    path = tmp_path / "results.jsonl"
    ResultFile(path).add(CELL, {"hits": 3}, {})
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    first, second = ResultFile(path), ResultFile(path)
    first.add({**CELL, "ctx": 1}, {"hits": 1}, {})
    first.add({**CELL, "ctx": 2}, {"hits": 2}, {})
    second.add({**CELL, "ctx": 3}, {"hits": 3}, {"long": "x" * 200_000})
    path.write_bytes(path.read_bytes()[:-1])
    second.add({**CELL, "ctx": 4}, {"hits": 4}, {})
    assert [record.cell["ctx"] for record in ResultFile(path).records()] == [2048, 1, 2, 4]


@pytest.mark.parametrize("data", [b"my notes", b"GGUF\x03\0\0\0", b'{"a": 1}', b'{"cell": 1, "result": 2}\n', b"\n"])
def test_other_files_are_left_as_they_are(tmp_path, data) -> None:
    path = tmp_path / "precious"
    path.write_bytes(data)
    with pytest.raises(RidgeFillError, match="line 1 is not a result"):
        ResultFile(path)
    assert path.read_bytes() == data


@pytest.mark.parametrize("text", ["hello\n", '{"cell": 1}\n', "[1]\n"])
def test_other_files_are_refused(tmp_path, text) -> None:
    path = tmp_path / "results.jsonl"
    ResultFile(path).add(CELL, {"hits": 3}, {})
    with path.open("a") as file:
        file.write(text)
    with pytest.raises(RidgeFillError, match="line 2 is not a result"):
        ResultFile(path)
    assert path.read_text().endswith(text)
    with pytest.raises(RidgeFillError, match="does not exist"):
        ResultFile(tmp_path / "none" / "results.jsonl")


def test_memory_only() -> None:
    file = ResultFile(None)
    file.add(CELL, {"hits": 3}, {})
    assert file.find(CELL) == {"hits": 3}


def test_the_schema_is_that_of_the_types() -> None:
    assert json.loads(SCHEMA.read_text()) == results_schema(), "write results_schema() to results.schema.json"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks" / "results").glob("*-*.jsonl")), ids=lambda path: path.name
)
def test_results_of_earlier_releases(path: Path) -> None:
    """Lines that are in the tree are read as types, written as they were, and follow the schema."""
    validator = jsonschema.Draft202012Validator(results_schema())
    for record in ResultFile(path).records():
        validator.validate(record._asdict())
        assert record.about.task == record.cell["task"]
        again = plain(to_json(record.found(RESULTS[record.about.task])))
        assert again == {key: value for key, value in record.result.items() if key in again}
        assert again.keys() - record.result.keys() <= {"filled_seconds"}


def test_a_line_that_says_less_is_no_result() -> None:
    record = Record({**CELL, "model": "m", "model_bytes": 1, "model_digest": "0"}, {"hits": 3}, {})
    with pytest.raises(RidgeFillError, match=r"a result of needle has another form: .*scores"):
        record.found(Scores)


def test_plain() -> None:
    assert plain({"a": (1.23456789, math.inf), 2: [True, None, "x"]}) == {"a": [1.23457, None], "2": [True, None, "x"]}


def test_names_that_are_not_utf8(tmp_path) -> None:
    path = tmp_path / "results.jsonl"
    ResultFile(path).add({"maps": "bad\udcff.gguf"}, {"value": 1}, {})
    assert ResultFile(path).find({"maps": "bad\udcff.gguf"}) == {"value": 1}
