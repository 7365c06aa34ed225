"""Splice tests through the evaluation: tiny models by their logits, a real one by the command."""

from __future__ import annotations

import json
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
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.splice import Splice, SpliceSession, SpliceVariant, make_splices
from pyridgefill.evaluation.run.variants import Variant
from pyridgefill.evaluation.tasks.loss import token_losses
from pyridgefill.maps import identity_maps, read_base_model, write_maps

# of whole ubatches: exact and filled rows, in one part or two, are computed alike
N, TAIL, SINK = 320, 64, 64
PROMPT = tokens(N)


@pytest.fixture(autouse=True)
def engine_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGEFILL_LIB_PATH", str(paths.engine_library()))


def session_of(model: Path, folder: Path) -> SpliceSession:
    return SpliceSession(model, n_ctx=512, sink=SINK, tail=TAIL, folder=folder, n_ubatch=SINK, n_threads=1)


def config(workshop: Any, name: str, kind: str, **changes: Any) -> RidgeFillConfig:
    shape = {"sink": SINK, "tail": TAIL, "min_prompt": 0, "skip_fingerprint": True, "select": "none"}
    return RidgeFillConfig(workshop.maps(name, kind), **shape | changes)


@pytest.fixture(params=["llama", "gemma3", "deepseek2", "mamba2", "qwen35", "falcon-h1"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def logits_of(session: SpliceSession, filled: Variant, splice: Splice | None) -> Any:
    variant = filled if splice is None else SpliceVariant.of(filled, splice)
    variant.set_on(session)
    return session.prefill(PROMPT, TAIL)


def everything(session: SpliceSession, name: str, into: str) -> Splice:
    """The splice of all components above the split."""
    splices = make_splices(session.components(), FAMILIES[name].split, 1, [into])
    return max(splices, key=lambda splice: len(splice.components))


def test_parts_of_noise(workshop: Any, tmp_path: Path, family: str) -> None:
    with session_of(workshop.model(family), tmp_path) as session:
        noise = Variant("fill", config(workshop, family, "poison"), {})
        exact = session.prefill(PROMPT, TAIL)
        filled = logits_of(session, noise, None)
        assert session.ranges == [(SINK, N - TAIL)]
        with Session(workshop.model(family), n_ctx=512, n_ubatch=SINK, n_threads=1) as plain:
            # restored rows of a sliding window are in other cells: another order of sums
            near = 3e-3 * np.ptp(exact) if FAMILIES[family].windowed else 0
            assert np.abs(plain.prefill(PROMPT, TAIL) - exact).max() <= near
            plain.set_maps(noise.config)
            assert np.abs(plain.prefill(PROMPT, TAIL) - filled).max() <= near
        assert np.abs(filled - exact).max() > 0.03 * np.ptp(exact)
        assert np.array_equal(logits_of(session, noise, everything(session, family, "fill")), exact)
        assert session.ranges == [(SINK, N - TAIL)]
        assert np.array_equal(logits_of(session, noise, everything(session, family, "exact")), filled)
        assert session.ranges == []
        assert np.array_equal(logits_of(session, noise, None), filled), "a splice leaves nothing behind"
        session.set_maps(None)
        assert np.array_equal(session.prefill(PROMPT, TAIL), exact)


def test_an_oracle_loses_nothing(workshop: Any, tmp_path: Path, family: str) -> None:
    with session_of(workshop.oracle(family, FAMILIES[family].n_layer - 1), tmp_path) as session:
        right = Variant("fill", config(workshop, family, "identity"), {})
        losses = token_losses(session, PROMPT, TAIL)
        splices = make_splices(session.components(), FAMILIES[family].split, 0, ["fill", "exact"])
        assert len(splices) >= 8
        for splice in splices:
            SpliceVariant.of(right, splice).set_on(session)
            assert np.array_equal(token_losses(session, PROMPT, TAIL), losses), splice


def test_what_a_splice_cannot_measure(workshop: Any, tmp_path: Path) -> None:
    with session_of(workshop.model("llama"), tmp_path) as session:
        for changes in ({"drop": True}, {"select": "stride"}):
            drop = bool(changes.pop("drop", False))
            with pytest.raises(ModelError, match="all rows filled"):
                session.set_maps(config(workshop, "llama", "identity", **changes), drop=drop)
        for prompt, n_logits in ((PROMPT, TAIL + 1), (PROMPT[:TAIL], 1)):
            with pytest.raises(ModelError, match=f"logits of {n_logits} rows of a prompt of {len(prompt)}"):
                session.prefill(prompt, n_logits)
        session.set_maps(config(workshop, "llama", "identity", tail=TAIL + 1))
        with pytest.raises(ModelError, match=r"the plan fills \[\(64, 255\)\], expected \[\(64, 256\)\]"):
            session.prefill(PROMPT)
        session.set_maps(config(workshop, "llama", "identity"))
        session.splice = Splice("fill", ("state",), 4, 7)
        with pytest.raises(RidgeFillError, match="no layer from 4 to 7 has a recurrent state"):
            session.prefill(PROMPT)


@pytest.fixture(scope="module")
def maps(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("maps") / "maps.gguf"
    write_maps(path, identity_maps(read_base_model(smollm2), [27]), weight_type="f32")
    return path


def test_the_command(smollm2: Path, maps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.jsonl"
    command = ["eval", "splice", smollm2, maps, "--ctx", 400, "--tail", 200, "--sink", 4, "--threads", 1]
    command += ["--texts", 2, "--needles", 1, "--near", 100, "--threshold", 0.3, "--groups", 2, "--json", out]
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
        (["--baseline", "drop"], "--baseline drop (hint: rows"),
        (["--baseline", "neutral-filler"], "--baseline neutral-filler (hint: its rows"),
        (["--into", "both"], "--into 'both': expected one of fill, exact"),
    ],
)
def test_options(
    smollm2: Path, maps: Path, option: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["eval", "splice", str(smollm2), str(maps), *option]) == 1
    assert message in capsys.readouterr().err
