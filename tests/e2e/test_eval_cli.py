"""The eval commands on a real model, as a user runs them: short prompts, results that are found again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support import paths
from support.longbench import record

from pyridgefill.cli.main import run
from pyridgefill.evaluation.run.session import Logits, Session
from pyridgefill.evaluation.run.way import Way
from pyridgefill.evaluation.run.ways import WAYS, Row
from pyridgefill.maps import identity_maps, read_base_model, write_maps

SPLIT = 28
SHAPE = ["--ctx", "400", "--tail", "200", "--sink", "4", "--threads", "1"]


@pytest.fixture(autouse=True)
def engine_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGEFILL_LIB_PATH", str(paths.engine_library()))


@pytest.fixture(scope="module")
def maps(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Identity maps of the last layer: nearly exact."""
    path = tmp_path_factory.mktemp("maps") / "maps.gguf"
    write_maps(path, identity_maps(read_base_model(smollm2), [SPLIT]), weight_type="f32")
    return path


def evaluate(out: Path, *arguments: object) -> list[dict[str, Any]]:
    assert run([*map(str, ("eval", *arguments, "--json", out))]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def by_variant(lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {line["cell"]["variant"]: line["result"] for line in lines}


def test_needles_resume(smollm2: Path, maps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.jsonl"
    command = ["needle", smollm2, maps, *SHAPE, "--needles", 2]
    lines = evaluate(out, *command, "--baselines", "drop")
    found = by_variant(lines)
    assert list(found) == ["exact", "fill", "drop"]
    assert found["exact"]["hits"] == 2
    assert found["fill"]["filled"] == 400 - 204
    assert found["exact"]["filled"] == 0
    assert found["drop"]["hits"] == 0, "the needle is gone"
    assert found["fill"]["difference"]["value"] == 50 * (found["fill"]["hits"] - 2)
    assert {line["cell"]["split"] for line in lines[1:]} == {SPLIT}
    assert "2 of 2" in capsys.readouterr().out
    before = out.read_text()
    again = evaluate(out, *command, "--baselines", "drop")
    assert out.read_text() == before, "finished cells are not run again"
    assert "2 of 2" in capsys.readouterr().out
    more = evaluate(out, *command, "--kinds", "multi-key", "--keys", 2)
    assert [line["cell"]["kind"] for line in more] == [*["digits"] * len(again), "multi-key", "multi-key"]


def test_needles_that_are_not_filled(smollm2: Path, maps: Path, tmp_path: Path, capsys: Any) -> None:
    shape = ["--ctx", 500, "--tail", 200, "--sink", 120, "--threads", 1]
    places = ["--places", "tail,sink,absent"]
    lines = evaluate(
        tmp_path / "results.jsonl", "needle", smollm2, maps, *shape, "--needles", 2, "--baselines", "zero", *places
    )
    assert [line["cell"]["group"] for line in lines] == [name for name in ("tail", "sink", "absent") for _ in range(3)]
    found = {(line["cell"]["group"], line["cell"]["variant"]): line["result"] for line in lines}
    for group in ("tail", "sink"):
        assert found[group, "exact"]["hits"] == 2
        assert found[group, "fill"]["filled"] == 500 - 320
        assert "false_rate" not in found[group, "fill"]
    assert found["tail", "zero"]["hits"] == 2, "what is filled does not matter to a needle in the tail"
    for variant in ("exact", "fill", "zero"):
        result = found["absent", variant]
        assert result["hits"] == 0
        assert result["false_rate"]["value"] == sum(result["false_answers"]) / 2
    table = capsys.readouterr().out
    assert "digits," in table
    assert "absent" in table


def test_lines_on_standard_output(smollm2: Path, maps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["eval", "perplexity", smollm2, maps, *SHAPE, "--texts", 1, "--score", 20, "--json", "-"]
    assert run([*map(str, command)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["cell"]["variant"] for line in lines] == ["exact", "fill"]


def test_a_bad_byte_in_the_corpus(smollm2: Path, maps: Path, tmp_path: Path, capsys: Any) -> None:
    corpus = tmp_path / "bad.txt"
    corpus.write_bytes(b"good words\n" * 20 + b"bad \xff byte\n")
    command = ["eval", "perplexity", smollm2, maps, *SHAPE, "--texts", 1, "--corpus", corpus]
    assert run([*map(str, command)]) == 1
    error = capsys.readouterr().err
    assert "bad.txt" in error
    assert "--errors" not in error
    assert "convert the file" in error


def test_far_loss_and_divergence(smollm2: Path, maps: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    shape = [smollm2, maps, *SHAPE, "--texts", 2, "--baselines", "zero"]
    lines = evaluate(out, "far-loss", *shape, "--near", 100, "--threshold", 0.3)
    found = by_variant(lines)
    assert [len(text) for text in found["exact"]["exact"]] == [100, 100]
    near, far = (found[name]["groups"]["all"] for name in ("fill", "zero"))
    assert near["tokens"] == far["tokens"] == 200
    assert near["exact"] == far["exact"] < far["removed"]
    assert near["fill"] != far["fill"]
    lines = evaluate(out, "kld", *shape, "--generated", 4)
    found = by_variant([line for line in lines if line["cell"]["task"] == "kld"])
    assert found["exact"]["perplexity"] > 1
    for part, rows in (("tail", 400), ("generated", 8)):
        good, bad = found["fill"][part], found["zero"][part]
        assert good["rows"] == bad["rows"] == rows
        assert 0 <= good["kl"]["value"] < bad["kl"]["value"]
        assert good["top1"]["value"] >= bad["top1"]["value"]
    assert len(evaluate(out, "kld", *shape, "--generated", 4)) == len(lines)


def test_perplexity_of_exact_rows(smollm2: Path, maps: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "results.jsonl"
    shape = [smollm2, maps, *SHAPE, "--texts", 2, "--baselines", "zero,neutral-filler"]
    found = by_variant(evaluate(out, "perplexity", *shape))
    assert list(found) == ["exact", "fill", "zero", "neutral-filler"]
    assert {result["tokens"] for result in found.values()} == {2 * 199}
    exact, *others = found.values()
    assert exact["perplexity"]["value"] > 1
    for result in others:
        assert result["difference"]["value"] == pytest.approx(result["loss"] - exact["loss"], abs=1e-5)
        assert result["relative"]["value"] == pytest.approx(
            result["perplexity"]["value"] / exact["perplexity"]["value"] - 1, abs=1e-4
        )
    assert len({tuple(result["losses"]) for result in found.values()}) == 4
    table = capsys.readouterr().out
    assert all(f"{result['perplexity']['value']:.3f}" in table for result in found.values())
    few = evaluate(tmp_path / "few.jsonl", "perplexity", smollm2, maps, *SHAPE, "--texts", 2, "--score", 50)
    assert [line["result"]["tokens"] for line in few] == [98, 98]
    assert few[0]["result"]["losses"] != exact["losses"]


class Sparse(Way):
    """A new way in one class: one in twenty of the rows that may be filled is filled."""

    def prefill(self, session: Session, tokens: Sequence[int], n_logits: int = 1, *, reuse: bool = False) -> Logits:
        session.clear()
        ((start, end),) = session.plan(len(tokens))
        return session.run_prompt(tokens, [(row, row + 1) for row in range(start, end, 20)], n_logits)


def test_a_way_is_a_class_and_a_row(
    smollm2: Path, maps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(WAYS, "sparse", Row(Sparse, "one row in twenty"))
    shape = [smollm2, maps, *SHAPE, "--texts", 1, "--baselines", "sparse"]
    found = by_variant(evaluate(tmp_path / "results.jsonl", "perplexity", *shape))
    assert list(found) == ["exact", "fill", "sparse"]
    assert len({result["loss"] for result in found.values()}) == 3
    assert "sparse" in capsys.readouterr().out


def test_ruler_and_longbench(smollm2: Path, maps: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    lines = evaluate(out, "ruler", smollm2, maps, *SHAPE, "--prompts", 1, "--tasks", "single-noise,variable-tracking")
    assert [line["cell"]["kind"] for line in lines] == ["single-noise"] * 2 + ["variable-tracking"] * 2
    assert all(0 <= line["result"]["score"]["value"] <= 1 for line in lines)
    data = tmp_path / "longbench.json"
    data.write_text(json.dumps([record(i) for i in range(2)]))
    found = by_variant(evaluate(tmp_path / "choices.jsonl", "longbench", smollm2, maps, *SHAPE, "--data", data))
    assert found["fill"]["filled"] == [196, 196]
    assert all(letter in "ABCD" for letter in found["exact"]["chosen"])
    assert found["fill"]["same_choice"]["value"] in (0, 0.5, 1)


ERRORS = {
    "no rows to fill": (["needle", "--ctx", "200"], "prompts of 200 tokens have no rows to fill"),
    "split": (["needle", "--split", "3"], "split 3 is not in the maps file"),
    "kind": (["needle", "--kinds", "colours"], "--kinds 'colours': expected one of digits, words"),
    "place": (["needle", "--places", "middle"], "--places 'middle': expected one of filled, tail"),
    "sink": (["needle", "--places", "sink"], "1 needles do not fit 0 rows of the sink after the request"),
    "baseline": (["kld", "--baselines", "median"], "--baselines 'median': expected one of identity"),
    "selected filler": (
        ["needle", "--baselines", "neutral-filler", "--select", "stride"],
        "the baseline neutral-filler with selected rows: rows of another text cannot run again",
    ),
    "task": (["ruler", "--tasks", "qa"], "task 'qa' is not known (hint: give --squad)"),
    "heads": (["needle", "--select", "attention"], "the maps file has no retrieval heads"),
    "bad heads": (["needle", "--heads", "9"], "--heads '9'"),
    "bad pool": (["needle", "--pool", "9"], "--pool '9'"),
    "select": (["needle", "--select", "best"], "--select 'best'"),
    "data": (["longbench", "--data", "none.json"], "none.json: cannot read"),
    "near": (["far-loss", "--near", "200"], "200 tokens of a tail of 200 are not scored"),
    "filled rows": (["perplexity", "--score", "201"], "but only the last 200 run exact: filled rows have no logits"),
    "beyond training": (["needle", "--ctx", "8193"], "was trained for prompts of up to 8192 tokens"),
    "no length": (["needle", "--ctx", "0"], "--ctx '0'"),
    "other model": (["needle", "OTHER"], "made for another model"),
}

USAGE = {
    "no rows to fill", "kind", "place", "baseline", "selected filler", "task", "bad heads", "bad pool", "select",
    "near", "filled rows", "beyond training", "no length",
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_errors(smollm2: Path, maps: Path, case: str, capsys: pytest.CaptureFixture[str], workshop: Any) -> None:
    (command, *rest), message = ERRORS[case]
    model = smollm2
    if "OTHER" in rest:
        rest.remove("OTHER")
        model = workshop.model("llama")
    arguments = ["eval", command, model, maps, *SHAPE, *rest]
    if "--ctx" in rest:
        arguments = [*arguments[:4], *SHAPE[2:], *rest]
    assert run([*map(str, arguments)]) == (2 if case in USAGE else 1)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert message in line
