"""Splice tests through the evaluation: tiny models by their logits, a real one by the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import paths
from support.families import FAMILIES
from support.tokens import tokens

from pyridgefill.cli.main import run
from pyridgefill.config import RidgeFillConfig
from pyridgefill.errors import ModelError, RidgeFillError
from pyridgefill.evaluation.run.dropped import Dropped
from pyridgefill.evaluation.run.exact import EXACT
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.spliced import Splice, Spliced, States, make_splices
from pyridgefill.evaluation.run.way import Way
from pyridgefill.evaluation.tasks.loss import token_losses
from pyridgefill.maps import identity_maps, read_base_model, write_maps

# of whole ubatches: exact and filled rows, in one part or two, are computed alike
N, TAIL, SINK = 320, 64, 64
PROMPT = tokens(N)


@pytest.fixture(autouse=True)
def engine_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGEFILL_LIB_PATH", str(paths.engine_library()))


def session_of(model: Path) -> Session:
    return Session(model, n_ctx=512, n_ubatch=SINK, n_threads=1, n_sequences=2)


def spliced(way: Way, folder: Path) -> Spliced:
    return Spliced(way, None, States(folder, sink=SINK, tail=TAIL))


def config(workshop: Any, name: str, kind: str, **changes: Any) -> RidgeFillConfig:
    shape = {"sink": SINK, "tail": TAIL, "min_prompt": 0, "skip_fingerprint": True, "select": "none"}
    return RidgeFillConfig(workshop.maps(name, kind), **shape | changes)


@pytest.fixture(params=["llama", "gemma3", "deepseek2", "mamba2", "qwen35", "falcon-h1"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def logits_of(session: Session, way: Way) -> Any:
    way.start(session)
    return way.prefill(session, PROMPT, TAIL)


def everything(session: Session, name: str, into: str) -> Splice:
    """The splice of all components above the split."""
    splices = make_splices(session.components(), FAMILIES[name].split, 1, [into])
    return max(splices, key=lambda splice: len(splice.components))


def test_parts_of_noise(workshop: Any, tmp_path: Path, family: str) -> None:
    with session_of(workshop.model(family)) as session:
        noise = spliced(Way("fill", config(workshop, family, "poison")), tmp_path)
        plain_exact = Spliced(EXACT, None, noise.states)
        exact = logits_of(session, plain_exact)
        filled = logits_of(session, noise)
        assert session.ranges == [(SINK, N - TAIL)]
        with Session(workshop.model(family), n_ctx=512, n_ubatch=SINK, n_threads=1) as plain:
            # restored rows of a sliding window are in other cells: another order of sums
            near = 3e-3 * np.ptp(exact) if FAMILIES[family].windowed else 0
            assert np.abs(plain.prefill(PROMPT, TAIL) - exact).max() <= near
            plain.set_maps(noise.config)
            assert np.abs(plain.prefill(PROMPT, TAIL) - filled).max() <= near
        assert np.abs(filled - exact).max() > 0.03 * np.ptp(exact)
        assert np.array_equal(logits_of(session, noise.of(everything(session, family, "fill"))), exact)
        assert session.ranges == [(SINK, N - TAIL)]
        assert np.array_equal(logits_of(session, noise.of(everything(session, family, "exact"))), filled)
        assert session.ranges == []
        assert np.array_equal(logits_of(session, noise), filled), "a splice leaves nothing behind"
        assert np.array_equal(logits_of(session, plain_exact), exact)


def test_an_oracle_loses_nothing(workshop: Any, tmp_path: Path, family: str) -> None:
    with session_of(workshop.oracle(family, FAMILIES[family].n_layer - 1)) as session:
        right = spliced(Way("fill", config(workshop, family, "identity")), tmp_path)
        exact = Spliced(EXACT, None, right.states)
        exact.start(session)
        losses = token_losses(session, PROMPT, TAIL, exact)
        splices = make_splices(session.components(), FAMILIES[family].split, 0, ["fill", "exact"])
        assert len(splices) >= 8
        for splice in splices:
            way = right.of(splice)
            way.start(session)
            assert np.array_equal(token_losses(session, PROMPT, TAIL, way), losses), splice


def test_what_a_splice_cannot_measure(workshop: Any, tmp_path: Path) -> None:
    plain = config(workshop, "llama", "identity")
    for refused in (Dropped("drop", plain), Way("fill", replace(plain, select="stride"))):
        with pytest.raises(ModelError, match="all rows filled"):
            spliced(refused, tmp_path)
    with session_of(workshop.model("llama")) as session:
        exact = spliced(EXACT, tmp_path)
        exact.start(session)
        for prompt, n_logits in ((PROMPT, TAIL + 1), (PROMPT[:TAIL], 1)):
            with pytest.raises(ModelError, match=f"logits of {n_logits} rows of a prompt of {len(prompt)}"):
                exact.prefill(session, prompt, n_logits)
        with pytest.raises(ModelError, match=r"the plan fills \[\(64, 255\)\], expected \[\(64, 256\)\]"):
            logits_of(session, spliced(Way("fill", replace(plain, tail=TAIL + 1)), tmp_path))
        filled = spliced(Way("fill", plain), tmp_path)
        with pytest.raises(RidgeFillError, match="no layer from 4 to 7 has a recurrent state"):
            logits_of(session, filled.of(Splice("fill", ("state",), 4, 7)))


@pytest.fixture(scope="module")
def maps(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("maps") / "maps.gguf"
    write_maps(path, identity_maps(read_base_model(smollm2), [27]), weight_type="f32")
    return path


def test_the_command(smollm2: Path, maps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.jsonl"
    command = ["eval", "splice", smollm2, maps, "--ctx", 400, "--tail", 200, "--sink", 4, "--threads", 1]
    command += ["--texts", 2, "--needles", 1, "--near", 100, "--threshold", 0.3, "--layer-groups", 2, "--json", out]
    assert run([*map(str, [*command, "--into", "fill"])]) == 0
    shown = capsys.readouterr().out
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    losses = [line for line in lines if line["cell"]["task"] == "splice"]
    wanted = [("K", 28, 29), ("V", 28, 29), ("K+V", 28, 29), ("K+V", 28, 28), ("K+V", 29, 29)]
    found = {}
    for line in losses[2:]:
        splice = line["cell"]["splice"]
        found["+".join(splice["components"]), *splice["layers"]] = line["result"]
        assert splice["into"] == "fill"
    assert list(found) == wanted
    exact, filled = losses[0]["result"], losses[1]["result"]
    assert found["K+V", 28, 29]["losses"] == exact["exact"] != filled["losses"]
    assert found["K+V", 28, 29]["share"]["all"] == pytest.approx({"value": 1, "low": 1, "high": 1}, abs=0.01)
    assert found["K", 28, 29]["share"]["all"]["value"] != found["V", 28, 29]["share"]["all"]["value"]
    answers = [line["result"] for line in lines if line["cell"]["task"] == "splice-needle"]
    assert len(answers) == 7
    assert answers[4]["answers"] == answers[0]["answers"]
    assert all(part in shown for part in ("100 (100 to 100)", "fill + exact K 28-29", "1 of 1"))
    before = out.read_text()
    assert run([*map(str, [*command, "--into", "fill"])]) == 0
    assert out.read_text() == before, "finished cells are not run again"
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--select", "stride"], "--select stride: splice tests change filled rows"),
        (["--baselines", "drop"], "--baselines drop (hint: rows"),
        (["--baselines", "neutral-filler"], "--baselines neutral-filler (hint: its rows"),
        (["--into", "both"], "--into 'both': expected one of fill, exact"),
    ],
)
def test_options(
    smollm2: Path, maps: Path, option: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["eval", "splice", str(smollm2), str(maps), *option]) == 2
    assert message in capsys.readouterr().err
