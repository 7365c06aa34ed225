"""A sweep on a tiny model, its numbers, and its report in a real browser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from playwright.sync_api import Browser
from support import paths, spelling
from support.browser import browser as open_browser
from support.browser import view

from pyridgefill.cli.main import run
from pyridgefill.evaluation.run.typed import from_json
from pyridgefill.maps import read_maps
from pyridgefill.report.page import render
from pyridgefill.tuning.contents import Contents

# a byte is a token: questions are long
CTX, TAIL, SPLITS = 1200, 640, (2, 4)
SCHEMA = json.loads((paths.REPOSITORY / "pyridgefill/tuning/report.schema.json").read_text())


@pytest.fixture(scope="module", autouse=True)
def engine_library() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIDGEFILL_LIB_PATH", str(paths.engine_library()))
        yield


@pytest.fixture(scope="module")
def model(workshop: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spelling.write(workshop.model("llama"), tmp_path_factory.mktemp("spelling") / "model.gguf")


@pytest.fixture(scope="module")
def sums(model: Path) -> Path:
    path = model.with_name("sums.npz")
    splits = ",".join(map(str, SPLITS))
    arguments = ["collect", model, "-o", path, "--splits", splits, "--tokens", 9000, "--ctx", 512, "--threads", 1]
    assert run([*map(str, arguments)]) == 0
    return path


def command(model: Path, sums: Path, report: Path, *more: object) -> list[str]:
    arguments = ["tune", model, sums, "-o", report, "--ctx", CTX, "--tails", TAIL, "--budgets", "0,0.1", "--needles", 2]
    arguments += ["--keys", 2, "--texts", 2, "--repeats", 1, "--head-prompts", 1, "--threads", 1]
    return [*map(str, [*arguments, *more])]


VARIED = ["--targets", "proj,input", "--ranks", "0,8", "--types", "f16,q8_0,q4_0"]


@pytest.fixture(scope="module")
def report(model: Path, sums: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    assert run(command(model, sums, path, *VARIED)) == 0
    return path


@pytest.fixture(scope="module")
def document(report: Path) -> dict[str, Any]:
    return dict(json.loads(report.with_suffix(".json").read_text()))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as running:
        yield running


def test_numbers_follow_the_schema(document: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(document, SCHEMA)
    for key in ("seeds", "recommended", "machine"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({name: value for name, value in document.items() if name != key}, SCHEMA)


def test_lines_follow_their_schema(report: Path) -> None:
    schema = json.loads((paths.REPOSITORY / "pyridgefill/evaluation/run/results.schema.json").read_text())
    lines = [json.loads(line) for line in report.with_suffix(".jsonl").read_text().splitlines()]
    for path in (paths.REPOSITORY / "benchmarks" / "results").glob("*-selected.jsonl"):
        lines += [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        jsonschema.validate(line, schema)


def test_everything_was_tried(document: dict[str, Any]) -> None:
    points = document["points"]
    swept = [(point["split"], point["budget"]) for point in points if point["role"] == "sweep"]
    left_out = {(split, stop["budget"]) for stop in document["stopped"] for split in stop["splits"]}
    assert {*swept, *left_out} == {(split, budget) for split in SPLITS for budget in (0, 0.1)}
    assert swept == sorted(swept, key=lambda item: (-item[1], -item[0])), "from the highest split down"
    varied = [(point["role"], point["target"], point["rank"], point["type"]) for point in points if "target" in point]
    assert [item for item in varied if item[0] != "sweep"] == [
        ("target", "input", 0, "f16"), ("rank", "proj", 8, "f16"), ("type", "proj", 0, "q8_0"),
        ("type", "proj", 0, "q4_0"),
    ]  # fmt: skip
    baselines = [point["variant"] for point in points if point["role"] == "baseline"]
    assert baselines == list(document["baselines"])
    assert {"identity", "mean", "zero", "drop"} <= set(baselines)


def test_points_hold_what_was_measured(document: dict[str, Any], report: Path) -> None:
    for point in document["points"]:
        (numbers,) = point["lengths"]
        assert numbers["ctx"] == CTX
        assert numbers["needles"]["prompts"] == 2
        assert sum(item["prompts"] for item in numbers["depths"]) == 2
        if "maps" in point:
            n_filled = CTX - TAIL - 4
            assert numbers["ttft"]["filled_rows"] == n_filled
            assert numbers["ttft"]["selected_rows"] == round(point["budget"] * n_filled)
            assert numbers["kl"]["value"] >= 0
            assert (report.with_suffix(".maps") / point["maps"]).is_file()
    (parts,) = document["breakdown"]
    best = document["points"][document["recommended"]["point"]]
    assert len(parts["parts"]) == (4 if best["budget"] else 2)
    assert all(value >= 0 for value in parts["parts"].values())


def test_the_command_names_files_and_settings_that_exist(document: dict[str, Any]) -> None:
    words = document["recommended"]["command"].split()
    options = dict(zip(words[1::2], words[2::2], strict=True))
    best = document["points"][document["recommended"]["point"]]
    maps = read_maps(Path(options["--ridgefill-maps"]))
    assert int(options["--ridgefill-split"]) == best["split"]
    assert best["split"] in [split.layer for split in maps.splits]
    assert options["--ridgefill-select"] == best["select"]
    assert ("--ridgefill-heads" in options) == (best["budget"] > 0)


def test_a_second_run_computes_nothing(
    model: Path, sums: Path, report: Path, document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyridgefill.evaluation.run.session import Session
    from pyridgefill.tuning import maps as tuning_maps

    def refuse(*_args: object, **_options: object) -> None:
        raise AssertionError("computed again")

    lines = report.with_suffix(".jsonl")
    before = lines.read_bytes()
    monkeypatch.setattr(Session, "prefill", refuse)
    for name in ("fit_maps", "find_heads"):
        monkeypatch.setattr(tuning_maps, name, refuse)
    assert run(command(model, sums, report, *VARIED, "--json", tmp_path / "again.json")) == 0
    assert lines.read_bytes() == before
    again = json.loads((tmp_path / "again.json").read_text())
    for key in ("created", "command"):
        assert again.pop(key)
    assert again == {key: value for key, value in document.items() if key not in ("created", "command")}


def test_an_interrupted_run_goes_on(model: Path, sums: Path, report: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    shutil.copytree(report.with_suffix(".maps"), path.with_suffix(".maps"))
    lines = report.with_suffix(".jsonl").read_bytes().splitlines(keepends=True)
    # the last line is cut in its middle
    path.with_suffix(".jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:50])
    assert run(command(model, sums, path, *VARIED)) == 0
    again = path.with_suffix(".jsonl").read_bytes().splitlines(keepends=True)
    assert again[: len(lines) - 1] == lines[:-1]
    assert json.loads(again[-1])["cell"] == json.loads(lines[-1])["cell"]


def test_maps_that_cannot_be_made_again_to_the_bit_are_fitted_once(
    model: Path, sums: Path, report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a move to another machine: the file is fitted anew, and the next run finds it."""
    from pyridgefill.tuning import maps as tuning_maps

    path = tmp_path / "report.html"
    shutil.copytree(report.with_suffix(".maps"), path.with_suffix(".maps"))
    lines = []
    for text in report.with_suffix(".jsonl").read_text().splitlines():
        record = json.loads(text)
        if record["cell"]["task"] == "maps" and record["cell"]["target"] == "input":
            record["result"]["digest"] = "of another fit"
        lines.append(json.dumps(record) + "\n")
    path.with_suffix(".jsonl").write_text("".join(lines))
    fits: list[object] = []
    fit = tuning_maps.fit_maps
    monkeypatch.setattr(tuning_maps, "fit_maps", lambda *args, **options: fits.append(args) or fit(*args, **options))
    for count in (1, 1):
        assert run(command(model, sums, path, *VARIED)) == 0
        assert len(fits) == count


LOOKS = {"light": (1280, False), "dark": (1280, True), "phone": (390, False), "dark phone": (390, True)}


@pytest.mark.parametrize("look", LOOKS)
def test_the_report_renders(browser: Browser, report: Path, look: str) -> None:
    width, dark = LOOKS[look]
    with view(browser, report, width=width, dark=dark) as seen:
        assert seen.complaints == []
        assert {url.split(":")[0] for url in seen.requests} <= {"file", "data"}
        assert seen.evaluate("document.documentElement.scrollWidth") <= width
        drawn = "[...document.querySelectorAll('[data-figure]')].map(item => item.querySelectorAll('.main-svg').length)"
        assert min(seen.evaluate(drawn)) > 0
        assert seen.evaluate("[...document.querySelectorAll('svg')].every(svg => !svg.outerHTML.includes('var(--'))")
        background = seen.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(background.split("(")[1].split(",")[0]) < 128) == dark
        ink = seen.evaluate("getComputedStyle(document.querySelector('[data-figure] .xtick text')).fill")
        assert (int(ink.split("(")[1].split(",")[0]) > 128) == dark, "axes follow the theme"


def test_the_report_is_told_in_words(browser: Browser, report: Path, document: dict[str, Any]) -> None:
    with view(browser, report, width=1280, dark=False) as seen:
        levels = seen.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(item => Number(item.tagName[1]))")
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        labels = seen.evaluate("[...document.querySelectorAll('[role=img]')].map(item => item.ariaLabel)")
        assert labels
        assert all(len(label) > 20 for label in labels)
        assert seen.evaluate("document.querySelectorAll('table').length") == 2
        rows = seen.evaluate("[...document.querySelectorAll('table')].at(-1).tBodies[0].rows.length")
        assert rows == len(document["points"])
        text = seen.evaluate("document.body.innerText")
        for seed in document["seeds"]:
            assert seed in text
        assert document["recommended"]["reason"] in text


def test_the_theme_can_change(browser: Browser, report: Path) -> None:
    color = "getComputedStyle(document.querySelector('[data-figure] .xtick text')).fill"
    with view(browser, report, width=1280, dark=False) as seen:
        before = seen.evaluate(color)
        seen.page.emulate_media(color_scheme="dark")
        seen.page.wait_for_function(f"{color} !== '{before}'")
        assert seen.complaints == []


def test_splices_are_shown(browser: Browser, document: dict[str, Any], tmp_path: Path) -> None:
    share = {group: {"value": 0.4, "low": 0.3, "high": 0.5} for group in ("all", "far")}
    splice = {"ctx": CTX, "tail": TAIL, "split": 2, "components": ["k"], "layers": [3, 5], "share": share}
    spliced = document | {"splices": [splice | {"into": into} for into in ("fill", "exact")]}
    jsonschema.validate(spliced, SCHEMA)
    path = tmp_path / "report.html"
    path.write_text(render(from_json(Contents, spliced)))
    with view(browser, path, width=390, dark=False) as seen:
        assert seen.complaints == []
        assert "Which parts carry the error" in seen.evaluate("document.body.innerText")
        assert seen.evaluate("document.documentElement.scrollWidth") <= 390


ERRORS = {
    "split": (["--splits", "3"], "--splits: split 3 was not collected"),
    "target": (["--targets", "all"], "--targets 'all'"),
    "type": (["--types", "q1"], "--types 'q1'"),
    "budget": (["--budgets", "2"], "--budgets '2'"),
    "tails": (["--tails", "x"], "--tails 'x'"),
    "baseline": (["--baselines", "best"], "--baselines 'best'"),
    "kind": (["--kinds", "colours"], "--kinds 'colours'"),
    "folder": (["-o", "/none/report.html"], "the folder /none does not exist"),
    "splice": (["--splice", "none.jsonl"], "none.jsonl: no such file"),
    "splices of another kind": (["--splice", __file__], "line 1 is not a result"),
    "numbers in the report": (["-o", "report.json"], "report.json: the report and its numbers in one place"),
    "results in the report": (["-o", "report.jsonl"], "report.jsonl: the report and its results in one place"),
    "maps in the report": (["-o", "report.maps"], "report.maps: the report and the folder of its maps in one place"),
    "numbers in the results": (["--json", "a.jsonl", "-o", "a.html"], "its numbers and its results in one place"),
    "no tail": (["--tails", "0"], "--tails '0'"),
    "no rank": (["--ranks=-3"], "--ranks '-3'"),
    "too short": (["--ctx", "600"], "prompts of 600 tokens have no rows to fill"),
}


USAGE = ("target", "type", "budget", "tails", "baseline", "kind", "no tail", "no rank", "too short")


@pytest.mark.parametrize("case", ERRORS)
def test_errors(
    model: Path,
    sums: Path,
    tmp_path: Path,
    case: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    more, message = ERRORS[case]
    monkeypatch.chdir(tmp_path)
    assert run(command(model, sums, tmp_path / "report.html", *more)) == (2 if case in USAGE else 1)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert message in line


def test_other_model(workshop: Any, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command(workshop.model("qwen3"), sums, tmp_path / "report.html")) == 1
    assert "collected from another model" in capsys.readouterr().err


def test_without_plotly(
    model: Path, sums: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "plotly" else find(name))
    assert run(command(model, sums, tmp_path / "report.html")) == 1
    error = capsys.readouterr().err
    assert "reports need plotly" in error
    assert "pip install 'pyridgefill[report]'" in error
