"""The main job as a function and as a command: what is measured, what is refused first, what is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import paths, spelling
from support.families import FAMILIES

import pyridgefill
from pyridgefill import calibrator
from pyridgefill.calibration.collect_run import Step
from pyridgefill.cli.main import run
from pyridgefill.errors import CorpusError, RidgeFillError, StatisticsError, UsageError
from pyridgefill.maps import Recommended, RetrievalHead, read_maps
from pyridgefill.selection.point import Point
from pyridgefill.selection.propose import Proposal
from pyridgefill.selection.recommend import Outcome, Trial, recommend

SPLIT = FAMILIES["llama"].split
SMALL: dict[str, Any] = {"tokens": 4000, "n_ctx": 256, "n_ubatch": 64, "n_threads": 1}


@pytest.fixture(autouse=True)
def engine_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGEFILL_LIB_PATH", str(paths.engine_library()))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    letters = np.random.default_rng(0).integers(97, 123, 9000).astype(np.uint8).tobytes().decode()
    path = tmp_path / "letters.txt"
    path.write_text("\n".join(letters[i : i + 60] for i in range(0, len(letters), 60)))
    return path


def trial(split: int, budget: float, *, hits: int = 4, exact: int = 4) -> Trial:
    return Trial(Point(split, 256, budget), (Outcome(2048, hits, 4, exact, 0.0, None, 1.5),))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands in for what finds heads and tries settings, which takes minutes; says what it was asked."""
    asked: dict[str, Any] = {"accept": None, "hits": 4}

    def find_heads(model: Any, config: Any, *, splits: Any, on_progress: Any, **_options: Any) -> list[RetrievalHead]:
        asked["heads"] = list(splits)
        asked["file"] = read_maps(config.maps)
        on_progress(1, 1)
        return [RetrievalHead(split, 0, 0) for split in splits]

    def propose(model: Any, config: Any, heads: Any, *, splits: Any, on_trial: Any, **_options: Any) -> Any:
        asked["settings"] = dict(heads)
        assert Path(config.maps).is_file()
        trials = (asked["accept"] or trial(4, 0.0, hits=0),)
        for item in (None, *trials):
            on_trial(item)
        return Proposal(asked["hits"], 4, trials, recommend(trials))

    monkeypatch.setattr(calibrator, "find_heads", find_heads)
    monkeypatch.setattr(calibrator, "propose", propose)
    return asked


def test_the_function_measures_and_recommends(
    workshop: Any, tmp_path: Path, corpus: Path, measured: dict[str, Any]
) -> None:
    measured["accept"] = trial(2, 0.1)
    steps: list[Step] = []
    made = pyridgefill.calibrate(
        workshop.model("llama"), tmp_path / "maps.gguf", corpora=corpus, splits=[2, 4], tail=99,
        on_step=steps.append, **SMALL,
    )  # fmt: skip
    assert measured["heads"] == [2, 4]
    assert measured["file"].splits == made.maps.splits
    assert made.accepted == measured["accept"]
    best = read_maps(made.path).recommended
    assert best == made.maps.recommended
    assert best == Recommended(2, 4, 99, 1024, select="attention", budget=0.1, pool=(5, 5), queries=512)
    assert list(dict.fromkeys(step.name for step in steps)) == ["collect", "fit", "heads", "settings"]
    assert {item.name for item in tmp_path.iterdir()} == {"letters.txt", "maps.gguf"}


def test_resume_checks_the_model(workshop: Any, tmp_path: Path, corpus: Path, measured: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"corpora": corpus, "splits": [SPLIT], "statistics": tmp_path / "sums.npz", **SMALL}
    pyridgefill.calibrate(workshop.model("llama"), tmp_path / "maps.gguf", trials=False, heads=False, **settings)
    settings["tokens"] += 1000
    with pytest.raises(StatisticsError, match="collected from another model"):
        pyridgefill.calibrate(workshop.model("llama", 1), tmp_path / "other.gguf", resume=True, **settings)
    assert not (tmp_path / "other.gguf").exists()


def test_nothing_is_below_layer_0(workshop: Any, tmp_path: Path, corpus: Path, measured: dict[str, Any]) -> None:
    for splits, asked in (([0, 2], [2]), ([0], None)):
        measured.pop("heads", None)
        made = pyridgefill.calibrate(
            workshop.model("llama"), tmp_path / "maps.gguf", corpora=[corpus], splits=splits, **SMALL
        )
        assert measured.get("heads") == asked
        assert [split.layer for split in made.maps.splits] == splits


def test_a_model_that_finds_no_needles_is_no_measure(
    workshop: Any, tmp_path: Path, corpus: Path, measured: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    measured["accept"] = trial(2, 0.0, hits=0, exact=0)
    measured["hits"] = 0
    path = tmp_path / "maps.gguf"
    made = pyridgefill.calibrate(workshop.model("llama"), path, corpora=[corpus], splits=[2, 4], **SMALL)
    assert made.accepted is None
    assert read_maps(path).defaults().split == 4
    assert "The exact model itself finds none of 4 needles" in caplog.text


@pytest.mark.parametrize("splits", [None, [2, 4]])
def test_no_low_split_becomes_the_default_without_measurement(
    workshop: Any, tmp_path: Path, corpus: Path, measured: dict[str, Any], splits: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def make(**options: Any) -> pyridgefill.maps.MapSet:
        path = tmp_path / "maps.gguf"
        pyridgefill.calibrate(workshop.model("llama"), path, corpora=[corpus], splits=splits, **SMALL, **options)
        return read_maps(path)

    for options in ({}, {"heads": False}, {"trials": False}, {"heads": False, "trials": False}):
        caplog.clear()
        maps = make(**options)
        best = maps.defaults()
        assert maps.recommended.split is None
        assert (best.split, best.select) == (max(split.layer for split in maps.splits), "none"), options
        (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
        asked = "no setting was measured" if "trials" in options else "No setting was as good as exact"
        assert asked in warning
        assert ("pyridgefill heads" in warning) == ("trials" in options)
    # without heads the highest split alone is tried
    measured.pop("heads")
    make(heads=False)
    assert "heads" not in measured
    assert not any(measured["settings"].values())


@pytest.mark.parametrize("family", ["qwen35", "mamba2"])
def test_models_whose_rows_cannot_run_again_have_maps_without_heads(
    workshop: Any,
    tmp_path: Path,
    corpus: Path,
    measured: dict[str, Any],
    family: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps: list[tuple[Step, int]] = []
    made = pyridgefill.calibrate(
        workshop.model(family), tmp_path / "maps.gguf", corpora=[corpus], splits=[FAMILIES[family].split],
        on_step=lambda step: steps.append((step, len(caplog.records))), **SMALL,
    )  # fmt: skip
    assert made.maps.heads == ()
    assert "heads" not in measured
    assert "settings" in measured
    first = caplog.records[0].getMessage()
    assert first.startswith("no retrieval heads, and no selection: ")
    assert steps[0][1] > 0, "said before the first token"


def test_conflicts_are_found_before_the_first_token(workshop: Any, tmp_path: Path, corpus: Path) -> None:
    def refused(kind: type[RidgeFillError], match: str, **options: Any) -> None:
        def nothing(step: Step) -> None:
            raise AssertionError(step)

        settings = {"corpora": [corpus], "splits": [SPLIT], "on_step": nothing, **SMALL, **options}
        with pytest.raises(kind, match=match):
            pyridgefill.calibrate(workshop.model("llama"), tmp_path / "maps.gguf", **settings)
        assert {item.name for item in tmp_path.iterdir()} == {"letters.txt"}

    refused(UsageError, "rank 5: q8_0 needs rows of a multiple of 32", rank=5, weight_type="q8_0")
    refused(StatisticsError, "rank 64, expected less than", rank=64)
    refused(UsageError, "10 tokens: maps of this model need 16 rows", tokens=10)
    refused(CorpusError, "no held-out rows: the first 20 tokens are one document", tokens=20)


def command(*arguments: object) -> subprocess.Popen[str]:
    program = "import sys; from pyridgefill.__main__ import main; sys.argv[0] = 'pyridgefill'; main()"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], stderr=subprocess.PIPE, text=True, env=environment
    )


OPTIONS = ["--tokens", 4000, "--ctx", 256, "--ubatch-size", 64, "--threads", 1, "--splits", SPLIT]


def test_a_model_without_a_vocabulary_is_refused(workshop: Any, tmp_path: Path, corpus: Path) -> None:
    model = spelling.without_vocabulary(workshop.model("llama"), tmp_path / "bare.gguf")
    process = command("calibrate", model, "-o", tmp_path / "maps.gguf", "--corpus", corpus, *OPTIONS)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert "bare.gguf: the model has no vocabulary" in err
    assert not (tmp_path / "maps.gguf").exists()


def test_two_runs_to_one_output(workshop: Any, tmp_path: Path, corpus: Path) -> None:
    model = spelling.write(workshop.oracle("llama", 5), tmp_path / "model.gguf")
    arguments = ["calibrate", model, "-o", tmp_path / "maps.gguf", "--corpus", corpus, "--no-trials", *OPTIONS]
    runs = [command(*arguments) for _ in range(2)]
    for process in runs:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    read_maps(tmp_path / "maps.gguf")
    assert {item.name for item in tmp_path.iterdir()} == {"letters.txt", "maps.gguf", "model.gguf"}


def test_a_terminated_run_leaves_nothing_temporary(workshop: Any, tmp_path: Path, corpus: Path) -> None:
    model = spelling.write(workshop.oracle("llama", 5), tmp_path / "model.gguf")
    process = command("calibrate", model, "-o", tmp_path / "maps.gguf", "--corpus", corpus, *OPTIONS)
    while not any(item.name.startswith(".ridgefill-") for item in tmp_path.iterdir()):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGTERM, err
    names = {item.name for item in tmp_path.iterdir()}
    assert names == {"letters.txt", "maps.gguf.statistics.npz", "model.gguf"}


def test_inspect_tells_the_default(
    workshop: Any, tmp_path: Path, corpus: Path, measured: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "maps.gguf")
    arguments = ["calibrate", workshop.model("llama"), "-o", path, "--corpus", corpus, *OPTIONS, "--splits", "2,4"]
    assert run([str(argument) for argument in arguments]) == 0
    capsys.readouterr()
    assert run(["inspect", path]) == 0
    assert "used at split 4, without selection" in capsys.readouterr().out
