from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from synthetic import BASE, Relation, activations, collected
from test_base_model import write_model

from pyridgefill import __version__
from pyridgefill.calibration.statistics_file import read_statistics, write_statistics
from pyridgefill.cli.main import run
from pyridgefill.errors import MapsError
from pyridgefill.maps import read_maps


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    relation = Relation.random()
    statistics = collected(activations(300, 1, relation), activations(60, 2, relation))
    statistics.provenance = {"corpora": ["a.txt"], "tokens": 360, "documents": 2, "documents_held_out": 1}
    write_statistics(tmp_path / "sums.npz", statistics)
    return tmp_path / "sums.npz"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model.gguf", tokens=["a", "b"], layers=6)


def output(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert run([str(argument) for argument in arguments]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_fit_and_inspect(tmp_path: Path, sums: Path, capsys: pytest.CaptureFixture[str]) -> None:
    maps = tmp_path / "maps.gguf"
    out, _ = output(capsys, "fit", sums, "-o", maps, "--target", "input", "--type", "f32", "--tail", 99, "--json", "-")
    report = json.loads(out)
    assert [item["r2"] > 0.999 for item in report["maps"]][:3] == [True] * 3
    assert report["recommended"] == {"sink": 4, "tail": 99, "min_prompt": 1024}
    inspected = json.loads(output(capsys, "inspect", maps, "--json", "-")[0])
    assert inspected["base"]["weights_hash"] == BASE.weights_hash
    assert [item["name"] for item in inspected["maps"]] == [item["name"] for item in report["maps"]]
    assert {item["type"] for item in inspected["maps"]} == {"f32"}
    table, _ = output(capsys, "inspect", maps)
    for text in (
        "no setting is known to be as good as exact: used at split 3, without selection",
        "split 2: target input",
        BASE.weights_hash,
        "2.blk.3.input",
        "eigh",
        "tail 99",
        "a.txt",
    ):
        assert text in table


def test_merge(tmp_path: Path, sums: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = output(capsys, "merge", sums, sums, "-o", tmp_path / "both.npz", "--json", "-")
    assert json.loads(out)["tokens"] == 720
    assert read_statistics(tmp_path / "both.npz").splits[2].fit.rows == 600


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_pack_arrays(tmp_path: Path, model: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    arrays = {
        "3.blk.4.attn_k.weight": random.standard_normal((4, 8)).astype(np.float32),
        "3.blk.4.attn_k.bias": random.standard_normal(4).astype(np.float32),
        "ridgefill.3.blk.5.attn_k.weight": random.standard_normal((4, 8)).astype(np.float32),
        "2.blk.3.input.weight_a": random.standard_normal((2, 8)).astype(np.float32),
        "2.blk.3.input.weight_b": random.standard_normal((8, 2)).astype(np.float32),
    }
    source = tmp_path / f"arrays.{kind}"
    if kind == "npz":
        np.savez_compressed(source, **arrays)
    else:
        save_file(arrays, source)
    path = tmp_path / "m.gguf"
    output(capsys, "pack", source, "--model", model, "-o", path, "--type", "f32", "--feature-norm", "rms")
    maps = read_maps(path)
    assert [(split.layer, split.target, split.rank) for split in maps.splits] == [(2, "input", 2), (3, "proj", 0)]
    assert maps.feature_norm == "rms"
    tensors = {name: rows[:] for item in maps.maps for name, rows in item.tensors().items()}
    stored = {name.removeprefix("ridgefill."): rows for name, rows in tensors.items()}
    assert stored.keys() == {name.removeprefix("ridgefill.") for name in arrays}
    for name, array in arrays.items():
        assert np.array_equal(stored[name.removeprefix("ridgefill.")], array)


def test_pack_baselines(tmp_path: Path, model: Path, sums: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.gguf"
    output(capsys, "pack", "identity", "--model", model, "--splits", "1,4", "-o", path)
    maps = read_maps(path)
    assert [split.layer for split in maps.splits] == [1, 4]
    assert maps.feature_norm == "none"
    assert all(np.array_equal(item.weight[:], np.eye(8)) for item in maps.maps)  # type: ignore[index]
    output(capsys, "pack", "mean", "--statistics", sums, "--target", "proj", "-o", path, "--type", "f32")
    item = read_statistics(sums).splits[2]
    first = read_maps(path).maps[0]
    assert not first.weight[:].any()  # type: ignore[index]
    np.testing.assert_allclose(first.bias[:], item.fit.y[:4] / item.fit.rows, rtol=1e-6)  # type: ignore[index]
    output(capsys, "pack", "zero", "--statistics", sums, "--splits", "3", "-o", path)
    maps = read_maps(path)
    assert {entry.split for entry in maps.maps} == {3}
    assert not any(entry.weight[:].any() for entry in maps.maps)  # type: ignore[index]
    assert not any(entry.bias for entry in maps.maps)


ERRORS = {
    "no command": (["frobnicate"], 2, "No such command 'frobnicate'"),
    "no argument": (["inspect"], 2, "Missing argument"),
    "bad number": (["fit", "x.npz", "-o", "m.gguf", "--rank", "many"], 2, "Invalid value for '--rank'"),
    "missing maps": (["inspect", "none.gguf"], 1, "none.gguf: cannot open"),
    "missing statistics": (["fit", "none.npz", "-o", "m.gguf"], 1, "none.npz: cannot read"),
    "missing model": (["collect", "none.gguf", "-o", "s.npz"], 1, "none.gguf: cannot open"),
    "mean needs statistics": (["pack", "mean", "-o", "m.gguf"], 2, "hint: give --statistics"),
    "identity needs a model": (["pack", "identity", "-o", "m.gguf"], 2, "hint: give --model"),
    "missing arrays": (["pack", "a.npz", "--model", "MODEL", "-o", "m.gguf"], 1, "a.npz: no such file"),
    "unknown arrays": (["pack", "SELF", "--model", "MODEL", "-o", "m.gguf"], 1, "unknown kind of file '.py'"),
    "bad choice": (["fit", "SUMS", "-o", "m.gguf", "--target", "kv"], 2, "--target 'kv': expected one of proj, input"),
    "bad type": (["fit", "SUMS", "-o", "m.gguf", "--type", "q2"], 2, "--type 'q2': expected one of"),
    "bad splits": (["fit", "SUMS", "-o", "m.gguf", "--splits", "a"], 2, "--splits 'a'"),
    "split not collected": (["fit", "SUMS", "-o", "m.gguf", "--splits", "4"], 1, "split 4 was not collected"),
    "no folder": (["fit", "SUMS", "-o", "none/m.gguf"], 1, "none/m.gguf: the folder"),
    "missing corpus": (["collect", "MODEL", "-o", "s.npz", "--corpus", "none.txt"], 1, "none.txt: no such file"),
    "split out of range": (["collect", "MODEL", "-o", "s.npz", "--splits", "5"], 1, "split 5: expected 0 to 4"),
    "other model": (["serve", "MODEL", "--maps", "MAPS"], 1, "made for another model"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_one_line_and_not_zero(
    tmp_path: Path,
    model: Path,
    sums: Path,
    case: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    # an engine folder of its own, so that the errors of `serve` do not depend on an installed one
    (tmp_path / "llama-server").write_text("")
    monkeypatch.setenv("RIDGEFILL_BIN_PATH", str(tmp_path))
    output(capsys, "fit", sums, "-o", "maps.gguf")
    arguments, code, message = ERRORS[case]
    places = {"MODEL": model, "SUMS": sums, "SELF": __file__, "MAPS": "maps.gguf"}
    out, err = output(capsys, *(places.get(argument, argument) for argument in arguments), code=code)
    lines = [line for line in err.splitlines() if line.startswith("error:")]
    assert message in lines[0]
    assert len(lines) == 1
    assert "Traceback" not in err
    assert not out
    assert {item.name for item in tmp_path.iterdir()} == {"maps.gguf", "model.gguf", "sums.npz", "llama-server"}


def test_debug_shows_where() -> None:
    with pytest.raises(MapsError, match=r"none\.gguf"):
        run(["--debug", "inspect", "none.gguf"])


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    from pyridgefill import __version__

    assert output(capsys, "--version")[0].strip() == __version__
    help_text = output(capsys, "--help")[0]
    for command in ("calibrate", "collect", "merge", "fit", "pack", "inspect", "fetch-model", "eval", "serve"):
        assert command in help_text


@pytest.mark.parametrize("command", ["needle", "far-loss", "kld", "ruler", "longbench"])
def test_evaluations_share_their_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    help_text = output(capsys, "eval", command, "--help")[0]
    for option in ("MODEL", "MAPS", "--ctx", "--split", "--select", "--budget", "--baselines", "--json", "--seed"):
        assert option in help_text


def test_repack(tmp_path: Path, sums: Path, capsys: pytest.CaptureFixture[str]) -> None:
    maps, small = tmp_path / "maps.gguf", tmp_path / "small.gguf"
    output(capsys, "fit", sums, "-o", maps, "--target", "input", "--type", "f32")
    whole = read_maps(maps)
    out, _ = output(capsys, "repack", maps, "-o", small, "--splits", "recommended", "--tail", 99, "--json", "-")
    report = json.loads(out)
    assert report["recommended"]["tail"] == 99
    assert {item["type"] for item in report["maps"]} == {"f32"}, "as in the file"
    output(capsys, "repack", maps, "-o", small, "--splits", "recommended", "--tail", 99, "--type", "f16")
    kept = read_maps(small)
    assert {item.weight_type for item in kept.maps} == {"f16"}
    assert [split.layer for split in kept.splits] == [whole.defaults().split]
    for item in kept.maps:
        same = next(other for other in whole.maps if other.name == item.name)
        assert item.weight is not None
        assert same.weight is not None
        np.testing.assert_allclose(item.weight[0:4], same.weight[0:4], rtol=2e-3, atol=1e-5)
    _, error = output(capsys, "repack", maps, "-o", small, "--splits", "1", code=1)
    assert "split 1 is not in the maps file" in error
    _, error = output(capsys, "repack", maps, "-o", small, "--select", "attention", "--budget", "0.1", code=1)
    assert "expected retrieval heads" in error
    _, error = output(capsys, "repack", maps, "-o", small, "--tail", 0, code=2)
    assert "--tail" in error
    _, error = output(capsys, "repack", maps, "-o", small, "--tail", 1 << 31, code=1)
    assert "ridgefill.recommended.tail: expected 1 to 2147483647" in error
    _, error = output(capsys, "repack", maps, "-o", small, "--budget", 0, code=2)
    assert "--budget 0: expected a share above 0 and up to 1" in error
    _, error = output(capsys, "repack", maps, "-o", small, "--select", "none", "--budget", 0.3, code=2)
    assert "--budget does not go with --select none" in error
    _, error = output(capsys, "repack", maps, "-o", small, "--splits", "auto", code=2)
    assert "--splits 'auto': expected all, recommended, or a list" in error
    assert read_maps(small).recommended.tail == 99, "what was there before stays"


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pyridgefill", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == __version__


@pytest.mark.parametrize("option", ["--baselines", "--statistics", "--seed"])
def test_bench_has_no_option_that_it_does_not_use(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"No such option: {option}" in output(capsys, "bench", "m.gguf", "maps.gguf", option, "1", code=2)[1]


def command(*arguments: object, code: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a process of its own, after some code."""
    program = f"import sys\n{code}\nfrom pyridgefill.__main__ import main\nmain()"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **environment}
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, env=env, check=False
    )


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "ascii"])
def test_a_console_that_lacks_characters(tmp_path: Path, sums: Path, encoding: str) -> None:
    maps = tmp_path / "Ω.gguf"
    made = command("fit", sums, "-o", maps, PYTHONIOENCODING=encoding)
    assert made.returncode == 0, made.stderr
    assert b"eigh" in made.stdout
    shown = command("inspect", maps, "--json", "-", PYTHONIOENCODING=encoding)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["path"] == str(maps)
    refused = command("fit", sums, "-o", tmp_path / "Ω" / "m.gguf", PYTHONIOENCODING=encoding)
    assert refused.returncode == 1
    assert refused.stderr.startswith(b"error: ")


INTERRUPTED_IMPORT = """
import importlib.abc, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background has it ignored
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "{module}":
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise ImportError("initialization failed")
sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.parametrize("module", ["numpy", "safetensors"])  # loaded at the start, and within a command
def test_ctrl_c_while_modules_are_loaded(tmp_path: Path, model: Path, module: str) -> None:
    save_file({"2.blk.3.input.weight": np.eye(8, dtype=np.float32)}, tmp_path / "arrays.safetensors")
    arguments = ["pack", tmp_path / "arrays.safetensors", "--model", model, "-o", tmp_path / "m.gguf"]
    done = command(*arguments, code=INTERRUPTED_IMPORT.format(module=module))
    assert (done.returncode, done.stderr) == (130, b"error: interrupted\n")


@pytest.mark.parametrize("budget", ["0", "-0.1", "1.5", "40", "nan"])
@pytest.mark.parametrize(
    "arguments", [["repack", "m.gguf", "-o", "n.gguf"], ["eval", "needle", "model.gguf", "m.gguf"]]
)
def test_budgets_are_shares(arguments: list[str], budget: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = output(capsys, *arguments, "--budget", budget, code=2)[1]
    assert f"--budget {float(budget):g}: expected a share above 0 and up to 1" in error
