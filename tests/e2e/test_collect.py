"""Calibration on real engine values: sums, interruption, and maps that are exact where exact maps exist."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import paths
from support.families import FAMILIES
from support.tokens import tokens

from pyridgefill.calibration.collect import CollectOptions, collect
from pyridgefill.calibration.collect_run import Step
from pyridgefill.calibration.corpus import Corpus
from pyridgefill.calibration.fit import FitOptions, fit_maps
from pyridgefill.calibration.statistics import Statistics
from pyridgefill.calibration.statistics_file import read_statistics, write_statistics
from pyridgefill.calibration.sums import Settings
from pyridgefill.chat import chat_formatter
from pyridgefill.engine import Engine
from pyridgefill.errors import CorpusError, ModelError, StatisticsError
from pyridgefill.maps import Site, read_base_model, read_maps, write_maps

ARRAYS = ("xx", "yx", "x", "y", "yy")


@pytest.fixture(autouse=True)
def engine_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGEFILL_LIB_PATH", str(paths.engine_library()))


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Random letters in 28 documents."""
    letters = np.random.default_rng(0).integers(97, 123, 7000).astype(np.uint8).tobytes().decode()
    path = tmp_path / "letters.txt"
    path.write_text("\n".join(letters[i : i + 60] for i in range(0, len(letters), 60)))
    return Corpus(str(path), document_chars=250)


def options(split: int, **changes: object) -> CollectOptions:
    arguments = {"splits": (split,), "n_ctx": 256, "n_ubatch": 64, "n_threads": 1, **changes}
    return CollectOptions(**arguments)  # type: ignore[arg-type]


def assert_same_bits(a: Statistics, b: Statistics) -> None:
    for split in a.splits:
        for part in ("fit", "held"):
            mine, theirs = getattr(a.splits[split], part), getattr(b.splits[split], part)
            assert mine.rows == theirs.rows
            for name in ARRAYS:
                assert np.array_equal(getattr(mine, name), getattr(theirs, name)), (split, part, name)


@pytest.mark.parametrize("name", FAMILIES)
def test_sites_are_those_that_feed_memory(workshop, name) -> None:
    family = FAMILIES[name]
    with Engine(workshop.model(name), n_ctx=64, n_ubatch=32) as engine:
        engine.capture(family.split)
        engine.check_base(read_base_model(workshop.model(name)))
        expected = {(layer, site) for layer, sites in family.sites().items() for site in (*sites, "input")}
        found = {(site.layer, site.name) for site in engine.sites}
        assert {entry for entry in found if entry[0] > family.split} == {
            entry for entry in expected if entry[0] > family.split
        }
        assert (family.split, "input") in found


@pytest.mark.parametrize("name", FAMILIES)
def test_one_long_ubatch_and_many_short_ones_agree(workshop, name) -> None:
    family, prompt = FAMILIES[name], tokens(90)
    gathered = []
    for n_ubatch in (96, 32, 7):
        with Engine(workshop.model(name), n_ctx=96, n_ubatch=n_ubatch, n_threads=1) as engine:
            engine.capture(family.split)
            parts = [{site: array.copy() for site, array in values.items()} for _, values in engine.run(prompt)]
        gathered.append({site: np.concatenate([part[site] for part in parts]) for site in parts[0]})
    for other in gathered[1:]:
        for site, array in gathered[0].items():
            assert array.shape == (90, site.width)
            # the cache is f16 and batch shapes differ in rounding, which may send a row to another expert
            error, size = (np.linalg.norm(values, axis=1) for values in (other[site] - array, array))
            assert np.median(error / size) < 2e-2, site
            assert np.linalg.norm(error) < 0.1 * np.linalg.norm(size), site


def test_values_are_those_of_the_projection(workshop) -> None:
    """K of a llama layer is its weight times the normalised layer input, for captured values as in the model."""
    import gguf

    path, eps = workshop.model("llama"), 1e-5
    stored = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}
    with Engine(path, n_ctx=64) as engine:
        engine.capture(3)
        ((_, values),) = engine.run(tokens(40))
        for layer in range(4, 8):
            x = values[next(site for site in values if (site.layer, site.name) == (layer, "input"))].astype(float)
            normed = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + eps) * stored[f"blk.{layer}.attn_norm.weight"]
            k = values[next(site for site in values if (site.layer, site.name) == (layer, "attn_k"))]
            expected = normed @ stored[f"blk.{layer}.attn_k.weight"].T
            np.testing.assert_allclose(k, expected, atol=2e-3 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_maps_fitted_on_an_oracle_are_exact(workshop, tmp_path, corpus, name) -> None:
    """Layers above the split add nothing, so the best map of each input is the identity."""
    family = FAMILIES[name]
    oracle = workshop.oracle(name, family.n_layer - 1)
    statistics, complete = collect(oracle, [corpus], tmp_path / "sums.npz", options(family.split))
    assert complete
    maps = fit_maps(statistics, FitOptions(target="input"))
    assert len(maps.maps) == family.n_layer - family.split - 1
    for item in maps.maps:
        assert item.r2 > 0.999999, item.name
    # projections are linear in the normalised state up to the norm's epsilon
    assert min(item.r2 for item in fit_maps(statistics, FitOptions(target="proj")).maps) > 0.999


def test_interrupted_and_resumed_sums_have_the_same_bits(workshop, tmp_path, corpus) -> None:
    model, straight_path, path = workshop.model("llama"), tmp_path / "straight.npz", tmp_path / "sums.npz"
    straight, _ = collect(model, [corpus], straight_path, options(3, tokens=4000))
    calls = 0

    def interrupt(_: Step) -> None:
        nonlocal calls
        calls += 1
        if calls % 5 == 0:
            signal.raise_signal(signal.SIGINT)

    complete, rounds = False, 0
    while not complete:
        resumed, complete = collect(
            model, [corpus], path, options(3, tokens=4000), resume=rounds > 0, on_step=interrupt
        )
        rounds += 1
    assert rounds > 3
    assert_same_bits(straight, resumed)
    assert_same_bits(straight, read_statistics(path))
    assert resumed.provenance == straight.provenance
    assert straight.splits[3].held.rows > 0


def test_resume_checks_options_and_text(workshop, tmp_path, corpus) -> None:
    model, path = workshop.model("llama"), tmp_path / "sums.npz"
    collect(model, [corpus], path, options(3, tokens=1000))
    with pytest.raises(StatisticsError, match=r"splits differs: the checkpoint has .3., this run .4."):
        collect(model, [corpus], path, options(4, tokens=2000), resume=True)
    text = Path(corpus.source).read_text()
    Path(corpus.source).write_text("changed" + text)
    with pytest.raises(StatisticsError, match="the corpora differ from the checkpoint's"):
        collect(model, [corpus], path, options(3, tokens=2000), resume=True)


def test_nothing_to_resume(workshop, tmp_path, corpus) -> None:
    with pytest.raises(StatisticsError, match="nothing to resume") as raised:
        collect(workshop.model("llama"), [corpus], tmp_path / "none.npz", options(3), resume=True)
    assert "leave out --resume" in str(raised.value.hint)


def test_resume_checks_the_model(workshop, tmp_path, corpus) -> None:
    path = tmp_path / "sums.npz"
    collect(workshop.model("llama"), [corpus], path, options(3, tokens=1000))
    with pytest.raises(StatisticsError, match=r"sums\.npz: collected from another model: weights: expected"):
        collect(workshop.model("llama", 1), [corpus], path, options(3, tokens=2000), resume=True)


@pytest.mark.parametrize("progress", [{"odd": 1}, {"key": 3}, {"key": {}}])
def test_resume_from_a_file_that_is_no_checkpoint(workshop, tmp_path, corpus, progress) -> None:
    model, path = workshop.model("llama"), tmp_path / "sums.npz"
    statistics, _ = collect(model, [corpus], path, options(3, tokens=1000))
    statistics.progress = progress
    write_statistics(path, statistics)
    with pytest.raises(StatisticsError, match=r"sums\.npz: (no checkpoint of a run|corpora differs)"):
        collect(model, [corpus], path, options(3, tokens=2000), resume=True)


def test_a_bad_byte_late_in_the_text_keeps_the_sums(workshop, tmp_path, corpus, monkeypatch) -> None:
    monkeypatch.setattr("pyridgefill.calibration.corpus._READ_BYTES", 1000)
    good, late = Path(corpus.source).read_bytes()[:3000], tmp_path / "late.txt"
    late.write_bytes(good + b"\xff" + good)
    model, path = workshop.model("llama"), tmp_path / "sums.npz"
    strict, replacing = (Corpus(str(late), errors, 250) for errors in ("strict", "replace"))  # type: ignore[arg-type]
    with pytest.raises(
        CorpusError, match=r"byte 3000 is not UTF-8.*the sums so far are in .*--errors replace.*--resume"
    ):
        collect(model, [strict], path, options(3))
    assert read_statistics(path).provenance["tokens"] > 500
    resumed, complete = collect(model, [replacing], path, options(3), resume=True)
    straight, _ = collect(model, [replacing], tmp_path / "straight.npz", options(3))
    assert complete
    assert_same_bits(straight, resumed)


def test_a_bad_byte_at_the_start(workshop, tmp_path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    with pytest.raises(CorpusError, match=r"byte 0 is not UTF-8 text.*or use --errors replace\)$"):
        collect(workshop.model("llama"), [Corpus(str(tmp_path / "bad.txt"))], tmp_path / "sums.npz", options(3))
    assert not (tmp_path / "sums.npz").exists()


def test_names_that_are_not_utf8(workshop, tmp_path, corpus) -> None:
    model, text = tmp_path / os.fsdecode(b"m\xff.gguf"), tmp_path / os.fsdecode(b"t\xff.txt")
    model.write_bytes(workshop.model("llama").read_bytes())
    text.write_bytes(Path(corpus.source).read_bytes())
    sums, maps = tmp_path / os.fsdecode(b"s\xff.npz"), tmp_path / os.fsdecode(b"o\xff.gguf")
    statistics, _ = collect(model, [Corpus(str(text), document_chars=250)], sums, options(3, tokens=1000))
    collect(model, [Corpus(str(text), document_chars=250)], sums, options(3, tokens=1500), resume=True)
    assert read_statistics(sums).provenance["corpora"] == ["t\ufffd.txt"]
    write_maps(maps, fit_maps(statistics, FitOptions(damping=0.1)))
    assert read_maps(maps).calibration.corpora == ("t\ufffd.txt",)


def test_more_tokens_can_be_added_later(workshop, tmp_path, corpus) -> None:
    model, path = workshop.model("llama"), tmp_path / "sums.npz"
    collect(model, [corpus], path, options(3, tokens=1000))
    resumed, _ = collect(model, [corpus], path, options(3, tokens=3000), resume=True)
    straight, _ = collect(model, [corpus], tmp_path / "straight.npz", options(3, tokens=3000))
    assert_same_bits(straight, resumed)


def test_several_splits_and_line_ends(workshop, tmp_path, corpus) -> None:
    model = workshop.model("llama")
    both, _ = collect(model, [corpus], tmp_path / "a.npz", options(3, splits=(5, 3), tokens=1500))
    windows = tmp_path / "windows.txt"
    windows.write_bytes(b"\xef\xbb\xbf" + Path(corpus.source).read_bytes().replace(b"\n", b"\r\n"))
    again, _ = collect(model, [Corpus(str(windows), document_chars=250)], tmp_path / "b.npz", options(3, tokens=1500))
    assert sorted(both.splits) == [3, 5]
    assert both.splits[3].fit.rows == again.splits[3].fit.rows
    np.testing.assert_allclose(both.splits[3].fit.yx, again.splits[3].fit.yx, rtol=1e-9, atol=1e-9)
    assert {site.layer for site in both.splits[5].sites} == {6, 7}


def test_chat_tokens_are_those_of_the_template(smollm2) -> None:
    messages = [{"role": "user", "content": "Hi <|im_end|>?"}, {"role": "assistant", "content": "Größe 文."}]
    with Engine(smollm2, n_ctx=64) as engine:
        chat = chat_formatter(engine)
        assert chat is not None
        text = chat(messages, [])
        assert text.count("<|im_start|>") == 3  # with the template's system text
        parsed, plain = (engine.tokenize(text, parse_special=special) for special in (True, False))
        start, end = (engine.tokenize(token, parse_special=True) for token in ("<|im_start|>", "<|im_end|>"))
        assert (len(start), len(end)) == (1, 1)
        assert parsed.count(start[0]) == 3
        assert start[0] not in plain
        assert engine.bos is None


def command(*arguments: object) -> list[str]:
    program = "import sys; from pyridgefill.__main__ import main; sys.argv[0] = 'pyridgefill'; main()"
    return [sys.executable, "-c", program, *map(str, arguments)]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_command_line_from_text_to_maps(workshop, tmp_path, corpus) -> None:
    model, maps = workshop.model("llama"), tmp_path / "Карты.gguf"
    arguments = ["calibrate", model, "-o", maps, "--corpus", corpus.source, "--splits", "5", "--tokens", 5000]
    result = subprocess.run(
        [*command(*arguments, "--ctx", 64, "--no-heads", "--no-trials", "--json", "-")],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert [split["layer"] for split in report["splits"]] == [5]
    assert report["recommended"] == {"sink": 4, "tail": 256, "min_prompt": 1024}
    assert "no setting was measured: the default is split 5, without selection" in result.stderr
    assert "memory for sums and buffers" in result.stderr
    assert {item.name for item in tmp_path.iterdir()} == {"Карты.gguf", "letters.txt"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_of_the_command_leaves_a_checkpoint(workshop, tmp_path, corpus, number) -> None:
    long = tmp_path / "long.txt"
    long.write_text(Path(corpus.source).read_text() * 300)
    sums = tmp_path / "sums.npz"
    arguments = ["collect", workshop.model("llama"), "-o", sums, "--corpus", long, "--tokens", 0, "--splits", "3"]
    process = subprocess.Popen(command(*arguments), stderr=subprocess.PIPE, text=True, env=environment())
    assert process.stderr is not None
    for line in process.stderr:
        if "memory for sums" in line:
            break
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "--resume" in err
    assert "Traceback" not in err
    assert read_statistics(sums).progress is not None


def test_input_errors_are_named(workshop, tmp_path, corpus) -> None:
    model = workshop.model("llama")
    with pytest.raises(StatisticsError, match="split 7: expected 0 to 6"):
        collect(model, [corpus], tmp_path / "sums.npz", options(7))
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    with pytest.raises(CorpusError, match=r"empty\.txt: the file has no text"):
        collect(model, [Corpus(str(empty))], tmp_path / "sums.npz", options(3))
    with pytest.raises(ModelError, match="cannot open"):
        collect(tmp_path / "none.gguf", [corpus], tmp_path / "sums.npz", options(3))
    assert not (tmp_path / "sums.npz").exists()


def test_nonfinite_values_stop_on_request(workshop, tmp_path, corpus) -> None:
    import gguf

    path = tmp_path / "broken.gguf"
    path.write_bytes(workshop.model("llama").read_bytes())
    reader = gguf.GGUFReader(path, "r+")
    next(t for t in reader.tensors if t.name == "blk.5.attn_norm.weight").data[0] = np.nan
    reader.data.flush()
    with pytest.raises(StatisticsError, match=r"blk\.5\.attn_k: \d+ rows not finite in chunk 0"):
        collect(path, [corpus], tmp_path / "sums.npz", options(3, nonfinite="error"))
    statistics, _ = collect(path, [corpus], tmp_path / "sums.npz", options(3, tokens=500))
    assert statistics.splits[3].fit.rows == 0
    assert {5, 6, 7} <= statistics.nonfinite.keys()
    with pytest.raises(StatisticsError, match=r"0 rows to fit.*not finite in layer 5"):
        fit_maps(statistics)


def test_engine_frees_what_it_loaded(workshop) -> None:
    for _ in range(20):
        with Engine(workshop.model("llama"), n_ctx=64) as engine:
            engine.capture(3)
            assert Site(4, "input", 64) in engine.sites
            next(engine.run(tokens(10)))
    engine.close()
    assert Settings().skip_first == 4
