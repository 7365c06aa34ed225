"""Needles and losses through the engine: an ORACLE model with its maps is exact, noise is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import paths
from support.state import KVCells, parse_kv
from support.tokens import tokens

from pyridgefill.config import RidgeFillConfig
from pyridgefill.errors import ModelError, UsageError
from pyridgefill.evaluation.prompts.layout import Shape
from pyridgefill.evaluation.prompts.needle import make_keyed_texts, make_needles
from pyridgefill.evaluation.run.dropped import Dropped
from pyridgefill.evaluation.run.exact import EXACT
from pyridgefill.evaluation.run.found import RESULTS
from pyridgefill.evaluation.run.lab import Lab
from pyridgefill.evaluation.run.neutral import SENTENCE, Neutral, neutral_prompt
from pyridgefill.evaluation.run.results import ResultFile
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.task import Run, TextParams, TextTask
from pyridgefill.evaluation.run.way import Way
from pyridgefill.evaluation.tasks.far_loss import compare, score_text
from pyridgefill.evaluation.tasks.loss import token_losses
from pyridgefill.evaluation.tasks.scored import count_hits

N, TAIL, SINK = 300, 64, 4


@pytest.fixture(autouse=True)
def engine_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGEFILL_LIB_PATH", str(paths.engine_library()))


@pytest.fixture
def oracle(workshop: Any) -> Iterator[Session]:
    with Session(workshop.oracle("llama", 5), n_ctx=512, n_ubatch=64, n_threads=1) as session:
        yield session


def config(workshop: Any, kind: str, **changes: Any) -> RidgeFillConfig:
    return RidgeFillConfig(
        workshop.maps("llama", kind),
        **{"sink": SINK, "tail": TAIL, "min_prompt": 0, "skip_fingerprint": True} | changes,
    )


def started(session: Session, way: Way) -> Way:
    way.start(session)
    return way


SELECTIONS: list[dict[str, Any]] = [
    {},
    {"select": "stride", "budget": 0.1},
    {"select": "attention", "budget": 0.1, "heads": ((0, 0), (2, 1))},
    {"spans": ((30, 90), (128, 130))},
]


@pytest.mark.parametrize("selection", SELECTIONS)
def test_the_whole_tail_has_logits(workshop: Any, oracle: Session, selection: dict[str, Any]) -> None:
    prompt = tokens(N)
    exact = oracle.prefill(prompt, TAIL)
    oracle.set_maps(config(workshop, "identity", **selection))
    filled = oracle.prefill(prompt, TAIL)
    assert sum(end - start for start, end in oracle.ranges) >= 170
    assert filled.shape == exact.shape == (TAIL, 256)
    # other ubatches, cache in f16
    assert np.abs(filled - exact).max() < 3e-3 * np.ptp(exact)
    oracle.set_maps(config(workshop, "poison", **selection))
    assert np.abs(oracle.prefill(prompt, TAIL) - exact).max() > 0.03 * np.ptp(exact)


@pytest.mark.parametrize("kind", [None, "identity"])
def test_a_shared_prefix_is_reused(workshop: Any, oracle: Session, kind: str | None) -> None:
    first, second = tokens(N), tokens(N - 20) + tokens(20, seed=1)
    oracle.set_maps(config(workshop, kind) if kind else None)
    want = oracle.prefill(second, 20)
    oracle.prefill(first)
    oracle.generate(oracle.prefill(first)[0], 5)
    got = oracle.prefill(second, 20, reuse=True)
    assert oracle.n_reused == N - 20
    assert np.abs(got - want).max() < 3e-3 * np.ptp(want)
    # other ranges of filled rows, other maps: nothing is kept
    oracle.prefill([*second, 1], 20, reuse=True)
    assert oracle.n_reused == 0
    oracle.set_maps(config(workshop, "poison"))
    assert np.abs(oracle.prefill(second, 20, reuse=True) - want).max() > 0.03 * np.ptp(want)


@pytest.mark.parametrize("kind", ["identity", "poison"])
def test_rows_before_the_tail_are_kept_as_they_were_before_a_selection(
    workshop: Any, oracle: Session, kind: str
) -> None:
    prompts = [tokens(N - 20) + tokens(20, seed=seed) for seed in range(3)]
    oracle.set_maps(config(workshop, kind, select="attention", heads=((2, 1),)))
    want = []
    for prompt in prompts:
        logits = oracle.prefill(prompt, 20)
        assert len(oracle.selected) == round(0.05 * (N - TAIL - SINK))
        want.append((logits, oracle.selected))
    for prompt, (logits, rows), reused in zip(prompts, want, [0, N - TAIL, N - TAIL], strict=True):
        got = oracle.prefill(prompt, 20, reuse=True)
        assert (oracle.n_reused, oracle.selected) == (reused, rows)
        assert np.array_equal(got, logits)
        oracle.generate(got[-1], 3)
    oracle.prefill(tokens(N, seed=9), 20, reuse=True)
    assert oracle.n_reused == 0


@pytest.mark.parametrize("select", [{}, {"select": "stride", "budget": 40 / 231}])
def test_dropped_rows_are_not_seen(workshop: Any, oracle: Session, select: dict[str, Any]) -> None:
    """What a dropped row held does not matter; what a kept row holds does."""
    prompt = tokens(N)
    want = started(oracle, Dropped("drop", config(workshop, "identity", **select))).prefill(oracle, prompt, TAIL)
    assert oracle.ranges == [(SINK, N - TAIL - 1)]
    assert len(oracle.selected) == (40 if select else 0)
    # the oracle's live layer reads the split state alone, so only dropped rows could bring noise in
    noise = started(oracle, Dropped("drop", config(workshop, "poison", **select)))
    assert np.abs(noise.prefill(oracle, prompt, TAIL) - want).max() < 3e-3 * np.ptp(want)
    oracle.set_maps(config(workshop, "poison", **select))
    assert np.abs(oracle.prefill(prompt, TAIL) - want).max() > 0.03 * np.ptp(want)
    oracle.set_maps(config(workshop, "identity", **select))
    assert np.abs(oracle.prefill(prompt, TAIL) - want).max() > 0.03 * np.ptp(want), "filled rows matter"


def test_all_rows_selected_and_none_dropped_is_exact(workshop: Any, oracle: Session) -> None:
    prompt = tokens(N)
    exact = oracle.prefill(prompt, TAIL)
    drop = started(oracle, Dropped("drop", config(workshop, "poison", select="stride", budget=1.0)))
    assert np.abs(drop.prefill(oracle, prompt, TAIL) - exact).max() < 3e-3 * np.ptp(exact)
    assert oracle.selected == list(range(SINK, N - TAIL - 1))
    follow = oracle.extend(tokens(5, seed=3))
    oracle.set_maps(None)
    oracle.prefill(prompt)
    assert np.abs(follow - oracle.extend(tokens(5, seed=3))).max() < 3e-3 * np.ptp(follow)


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen35"])
def test_neutral_filler_is_a_run_of_a_neutral_text_above_the_split(workshop: Any, family: str) -> None:
    prompt = tokens(N)
    model, options = workshop.model(family), {"n_ctx": 512, "n_ubatch": 64, "n_threads": 1, "n_sequences": 2}

    def settings(kind: str) -> RidgeFillConfig:
        return replace(config(workshop, "identity"), maps=workshop.maps(family, kind), select="none")

    with Session(model, **options) as session:
        exact = session.prefill(prompt, TAIL)
        session.set_maps(settings("poison"))
        filled = session.prefill(prompt, TAIL)
        got = started(session, Neutral("neutral-filler", settings("poison"))).prefill(session, prompt, TAIL)
        assert session.ranges == [(SINK, N - TAIL)]
        assert session.exact_tail(N) == TAIL
        for other in (exact, filled):
            assert np.abs(got - other).max() > 0.01 * np.ptp(got)
        follow = session.extend(tokens(5, seed=3))

        # the maps say no more than which rows and layers these are
        way = started(session, Neutral("neutral-filler", settings("identity")))
        assert np.array_equal(way.prefill(session, prompt, TAIL), got)
        assert np.array_equal(session.extend(tokens(5, seed=3)), follow)

        # with the same text in it, the prompt is the filler
        sentence = session.tokenize(SENTENCE, parse_special=False)
        neutral = neutral_prompt(prompt, [(SINK, N - TAIL)], sentence)
        like_exact = way.prefill(session, neutral, TAIL)
        assert np.abs(like_exact - got).max() > 0.01 * np.ptp(got), "layers up to the split matter"
        session.set_maps(None)
        assert np.abs(session.prefill(neutral, TAIL) - like_exact).max() < 3e-3 * np.ptp(like_exact)


def test_memory_of_neutral_filler(workshop: Any) -> None:
    """Above the split filled rows are those of the filler, everything else is the prompt's own, bit for bit."""
    prompt, end, split = tokens(N), N - TAIL, 3
    with Session(workshop.model("llama"), n_ctx=512, n_ubatch=64, n_threads=1, n_sequences=2) as session:

        def cells(text: Sequence[int], *, neutral: bool) -> KVCells:
            way = Neutral("neutral-filler", config(workshop, "poison", select="none")) if neutral else EXACT
            started(session, way).prefill(session, [*text], TAIL)
            return parse_kv(session.save().tobytes())

        own = cells(prompt, neutral=False)
        filler = neutral_prompt(prompt, [(SINK, end)], session.tokenize(SENTENCE, parse_special=False))
        other = cells(filler, neutral=False)
        got = cells(prompt, neutral=True)
        for mine, neutral, found in ((own.k, other.k, got.k), (own.v, other.v, got.v)):
            for layer, (a, b, c) in enumerate(zip(mine, neutral, found, strict=True)):
                want = a.copy()
                if layer > split:
                    want[SINK:end] = b[SINK:end]
                # an exact prompt runs in one batch, this one in two: rounding of f16
                near = 2e-2 * np.ptp(want[:end].astype(np.float32))
                assert np.abs(c[:end].astype(np.float32) - want[:end].astype(np.float32)).max() <= near, layer
                if layer > split:
                    assert np.abs(a[SINK:end].astype(np.float32) - b[SINK:end].astype(np.float32)).max() > 5 * near


def test_a_shared_prefix_of_neutral_filler_is_kept(workshop: Any) -> None:
    first, second = tokens(N), tokens(N - 20) + tokens(20, seed=1)
    with Session(workshop.model("llama"), n_ctx=512, n_ubatch=64, n_threads=1, n_sequences=2) as session:
        way = started(session, Neutral("neutral-filler", config(workshop, "poison", select="none")))
        want = way.prefill(session, second, 20)
        session.generate(way.prefill(session, first, reuse=True)[0], 5)
        assert session.n_reused == 0
        got = way.prefill(session, second, 20, reuse=True)
        assert session.n_reused == N - TAIL
        assert np.array_equal(got, want)


def test_what_neutral_filler_needs(workshop: Any, oracle: Session) -> None:
    with pytest.raises(ModelError, match="a neutral text needs a sequence of its own"):
        Neutral("neutral-filler", config(workshop, "identity")).start(oracle)
    with pytest.raises(ModelError, match="rows of a neutral text cannot run again"):
        Neutral("neutral-filler", config(workshop, "identity", select="stride", budget=0.1)).start(oracle)


def test_losses_are_those_of_the_logits(oracle: Session) -> None:
    prompt = tokens(N)
    logits = oracle.prefill(prompt, TAIL).astype(np.float64)
    logp = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    want = [-logp[i, prompt[N - TAIL + i + 1]] for i in range(TAIL - 1)]
    assert token_losses(oracle, prompt, TAIL) == pytest.approx(want, rel=1e-6)


def test_filled_rows_are_not_scored(workshop: Any, oracle: Session) -> None:
    oracle.set_maps(config(workshop, "identity"))
    with pytest.raises(ModelError, match="loss on 65 rows, but only the last 64 run exact"):
        token_losses(oracle, tokens(N), TAIL + 1)


@pytest.mark.parametrize("selection", SELECTIONS)
def test_far_loss_of_exact_and_wrong_maps(workshop: Any, oracle: Session, selection: dict[str, Any]) -> None:
    texts = [score_text(oracle, tokens(N, seed), tail=TAIL, sink=SINK) for seed in range(4)]
    assert {len(text.exact) for text in texts} == {TAIL - TAIL // 2}
    assert all(np.abs(text.exact - text.removed).max() > 0.01 for text in texts)

    def losses_with(kind: str) -> list[Any]:
        oracle.set_maps(config(workshop, kind, **selection))
        return [token_losses(oracle, text.tokens, TAIL)[text.near - 1 :] for text in texts]

    good = losses_with("identity")
    found = {item.group: item for item in compare(texts, good, threshold=0.1)}
    assert {"far", "all", "not_far"} <= set(found)
    for group in found.values():
        assert abs(group.difference.value) < 1e-3
        assert group.fill == pytest.approx(group.exact, rel=1e-3)
    assert found["far"].exact < found["far"].removed - 0.1
    bad = losses_with("poison")
    for text, losses in zip(texts, bad):
        assert np.abs(losses - text.exact).max() > 0.01


def test_the_far_context_is_what_is_removed(oracle: Session) -> None:
    prompt = tokens(N)
    text = score_text(oracle, prompt, tail=TAIL, sink=SINK, near=10)
    short = [*prompt[:SINK], *prompt[-TAIL:]]
    assert text.removed == pytest.approx(token_losses(oracle, short, TAIL)[9:])
    assert text.exact == pytest.approx(token_losses(oracle, prompt, TAIL)[9:])
    far = set(zip(prompt[SINK : N - TAIL], prompt[SINK + 1 : N - TAIL], strict=False))
    assert text.repeated.tolist() == [(prompt[i - 1], prompt[i]) in far for i in range(N - TAIL + 10, N)]
    with pytest.raises(ModelError, match="a text of 68 tokens has no far context"):
        score_text(oracle, prompt[: TAIL + SINK], tail=TAIL, sink=SINK)
    with pytest.raises(UsageError, match="64 tokens of a tail of 64 are not scored"):
        score_text(oracle, prompt, tail=TAIL, near=TAIL)


@dataclass(frozen=True)
class Changed:
    """What the task below finds: how far logits are from the exact model's at the end of each text."""

    changes: tuple[float, ...]


class LastRow(TextTask[TextParams, Any, Changed]):
    name = "last-row"

    def measure(self, session: Session, way: Way, item: list[int]) -> Any:
        return way.prefill(session, item)[-1]

    def summarise(self, run: Run[list[int], Any, Changed]) -> Changed:
        self.exact = run.measured if run.exact is None else self.exact
        return Changed(tuple(float(np.abs(a - b).max()) for a, b in zip(run.measured, self.exact)))


def test_a_task_is_a_class_and_a_row(workshop: Any, oracle: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RESULTS, "last-row", Changed)
    task = LastRow(TextParams(ctx=N, sink=SINK, tail=TAIL, texts=2))
    monkeypatch.setattr(task, "prepare", lambda session, chat: [tokens(N), tokens(N, seed=1)])
    lab = Lab(workshop.model("llama"), oracle, ResultFile(None))
    monkeypatch.setattr(Lab, "chat", None)
    ways = [EXACT, *(Way(kind, config(workshop, kind)) for kind in ("identity", "poison"))]
    steps: list[int] = []
    found = {row.way.name: row.found for row in lab.run([task], ways, advance=lambda: steps.append(1))}
    assert found["exact"] == Changed((0.0, 0.0))
    assert max(found["identity"].changes) < min(found["poison"].changes) / 10
    assert len(steps) == 6
    assert {record.cell["variant"] for record in lab.results.records()} == {"exact", "identity", "poison"}
    again = lab.run([task], ways, on_start=steps.append, advance=lambda: steps.append(1))
    assert [row.found for row in again] == [*found.values()]
    assert steps[6:] == [0], "nothing is run again"


def test_a_real_model_finds_needles(smollm2: Path) -> None:
    with Session(smollm2, n_ctx=576, n_threads=2) as session:
        shape = Shape(session, None, 512, 4, 192)
        needles = [*islice(make_needles(shape, count=1, kind="uuids"), 1)]
        (text,) = make_keyed_texts(shape, count=1, keys=2)
        assert all(count_hits(session, [*needles, *text.needles]))
