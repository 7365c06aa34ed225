"""The bench command: which rows it runs, and that results are kept. Times are not looked at."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import maps, paths, spelling
from support.families import FAMILIES

from pyridgefill.cli.main import run
from pyridgefill.config import RidgeFillConfig
from pyridgefill.cost import bound_ratio

CTX, TAIL, SINK = 400, 100, 4


@pytest.fixture(autouse=True)
def engine_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGEFILL_LIB_PATH", str(paths.engine_library()))


@pytest.fixture(scope="module")
def model(workshop: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spelling.write(workshop.model("llama"), tmp_path_factory.mktemp("spelling") / "model.gguf")


@pytest.fixture(scope="module")
def identity(model: Path) -> Path:
    family = FAMILIES["llama"]
    return maps.write(model.with_name("maps.gguf"), maps.identity(model, [family.split], family.sites()))


def command(model: Path, maps: Path, *more: object) -> list[str]:
    return [*map(str, ["bench", model, maps, "--repeats", 2, "--threads", 1, *more])]


@pytest.mark.parametrize(("ctx", "tail", "sink"), [(400, 400, 4), (200, 256, 4), (260, 256, 4)])
def test_prompts_without_rows_to_fill_are_refused(
    model: Path, identity: Path, capsys: pytest.CaptureFixture[str], ctx: int, tail: int, sink: int
) -> None:
    assert run(command(model, identity, "--ctx", ctx, "--tail", tail, "--sink", sink)) != 0
    output = capsys.readouterr()
    assert f"prompts of {ctx} tokens have no rows to fill" in output.err
    assert output.out == ""


def test_the_table_tells_rows_and_range(model: Path, identity: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command(model, identity, "--ctx", CTX, "--tail", TAIL, "--sink", SINK)) == 0
    output = capsys.readouterr().out
    assert str(CTX - TAIL - SINK) in output
    assert re.search(r"\d\.\d\d \(\d\.\d\d to \d\.\d\d\)", output)


def test_times_inside_a_run_are_told_on_the_cpu_only(
    model: Path, identity: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device works on while the program goes on: when it fills rows cannot be told from outside."""
    from llama_cpp import llama_cpp

    results = tmp_path / "results.jsonl"
    for gpu, count in ((False, 2), (True, 0)):
        monkeypatch.setattr(llama_cpp, "llama_supports_gpu_offload", lambda gpu=gpu: gpu)
        results.unlink(missing_ok=True)
        assert run(command(model, identity, "--ctx", CTX, "--tail", TAIL, "--sink", SINK, "--json", results)) == 0
        (line,) = results.read_text().splitlines()
        assert len(json.loads(line)["result"]["filled_seconds"]) == count


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


@pytest.mark.parametrize("through", [[], ["--server"]])
def test_lines_say_what_was_measured(model: Path, identity: Path, tmp_path: Path, through: list[str]) -> None:
    results = tmp_path / "results.jsonl"
    heads = ["--select", "attention", "--budget", 0.1, "--heads", "0.0", "--queries", 512]
    arguments = command(
        model, identity, "--ctx", CTX, "--tail", TAIL, "--sink", SINK, *heads, "--json", results, *through
    )
    assert run(arguments) == 0
    (line,) = map(json.loads, results.read_text().splitlines())
    cell, result, info = line["cell"], line["result"], line["info"]
    assert (cell["ctx"], cell["tail"], cell["sink"], cell["repeats"]) == (CTX, TAIL, SINK, 2)
    assert (cell["select"], cell["budget"]) == ("attention", 0.1)
    assert cell.get("through") == ("server" if through else None)
    n_filled = CTX - TAIL - SINK
    assert (result["n_filled"], result["n_selected"], result["cached"]) == (n_filled, round(0.1 * n_filled), 0)
    assert len(result["seconds"]["exact"]) == len(result["seconds"]["fill"]) == len(result["ratios"]) == 2
    assert 1 < result["bound"] < 2
    assert info["machine"]["threads"] == 1
    said = {"n_layer", "quantization", "kv_type", "flash_attention", "n_ubatch", "n_batch", "device", "command"}
    assert said <= info.keys()
    assert run(arguments) == 0
    assert len(results.read_text().splitlines()) == 1, "what the file has is not run again"


def test_lines_on_standard_output(model: Path, identity: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command(model, identity, "--ctx", CTX, "--tail", TAIL, "--sink", SINK, "--json", "-")) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["cell"]["task"] == "ttft"


def test_selected_rows_are_more_work(model: Path, identity: Path) -> None:
    config = RidgeFillConfig(identity, split=FAMILIES["llama"].split, sink=SINK, tail=TAIL)
    n_filled = CTX - TAIL - SINK
    bounds = [bound_ratio(model, config, CTX, count) for count in (0, 30, n_filled)]
    assert bounds[0] > bounds[1] > bounds[2]
    assert bounds[2] <= 1


def test_no_server_outlives_its_command(model: Path, identity: Path) -> None:
    arguments = command(model, identity, "--ctx", CTX, "--tail", TAIL, "--sink", SINK, "--server", "--repeats", 100000)
    process = subprocess.Popen([sys.executable, "-m", "pyridgefill", *arguments], stderr=subprocess.DEVNULL)

    def servers() -> list[Path]:
        """Processes with this model, the command among them."""
        return [path for path in Path("/proc").glob("[0-9]*") if str(model).encode() in _words(path)[1:]]

    def until(done: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + 60
        while not done() and time.monotonic() < deadline:
            time.sleep(0.1)
        return done()

    try:
        assert until(lambda: any(b"llama-server" in _words(path)[0] for path in servers()))
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
        assert until(lambda: not servers())
    finally:
        process.kill()
        for path in servers():
            os.kill(int(path.name), signal.SIGKILL)


def _words(process: Path) -> list[bytes]:
    try:
        return (process / "cmdline").read_bytes().split(b"\0") or [b""]
    except OSError:  # it has ended
        return [b""]
