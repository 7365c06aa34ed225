"""The lm-eval harness on a real model: tasks from files, exact and filled, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import paths

# before the harness is imported: its data sets are files here
os.environ["HF_HUB_OFFLINE"] = "1"

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from pyridgefill.cli.main import run
from pyridgefill.errors import ModelError, RidgeFillError
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.tasks.harness import RidgeFillLM
from pyridgefill.evaluation.tasks.loss import token_losses
from pyridgefill.maps import identity_maps, read_base_model, write_maps, zero_maps

SPLIT, TAIL, SINK = 28, 48, 4
OPTIONS: dict[str, Any] = {"n_ctx": 512, "threads": 1}
FILL: dict[str, Any] = {"tail": TAIL, "sink": SINK, "min_prompt": 0}
FILLER = "The sea was calm and the ships stayed in the harbor. " * 12
CITIES = {"Oslo": "4471", "Rome": "8205"}
NAMES = ["Anna", "Peter"]

RECALL = """
task: recall
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
  cache_dir: {cache}
test_split: test
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs:
  until: [".", "\\n"]
  max_gen_toks: 8
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    regexes_to_ignore: [" "]
"""

CHOICE = """
task: choice
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
  cache_dir: {cache}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""


@pytest.fixture(autouse=True)
def engine_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGEFILL_LIB_PATH", str(paths.engine_library()))


@pytest.fixture(scope="module")
def folder(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Maps that are nearly exact, maps of zeros, and two tasks with their data."""
    folder = tmp_path_factory.mktemp("harness")
    base = read_base_model(smollm2)
    identity = identity_maps(base, [SPLIT])
    write_maps(folder / "identity.gguf", identity, weight_type="f32")
    write_maps(folder / "zero.gguf", zero_maps(identity), weight_type="f32")
    recall = [
        {
            "text": f"The code of {city} is {code}. {FILLER}Which code is that of {city}? The code of {city} is",
            "answer": code,
        }
        for city, code in CITIES.items()
    ]
    choice = [
        {"text": f"My name is {name}. {FILLER}Again, my name is", "choices": NAMES, "label": i}
        for i, name in enumerate(NAMES)
    ]
    for name, task, lines in (("recall", RECALL, recall), ("choice", CHOICE, choice)):
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / f"{name}.yaml").write_text(task.format(data=data, cache=folder))
    return folder


@pytest.fixture
def made(smollm2: Path) -> Iterator[Any]:
    """Makes models, and closes them."""
    kept = []

    def make(maps: Path | bool, **settings: Any) -> RidgeFillLM:
        value = maps if isinstance(maps, bool) else str(maps)
        kept.append(RidgeFillLM(str(smollm2), value, **(OPTIONS | settings)))
        return kept[-1]

    yield make
    for lm in kept:
        lm.close()


def evaluate(lm: RidgeFillLM, folder: Path, task: str) -> dict[str, Any]:
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return simple_evaluate(model=lm, tasks=[task], task_manager=manager, bootstrap_iters=0)


def request(kind: str, *arguments: Any) -> Instance:
    return Instance(kind, {}, arguments, 0)


def test_a_task_that_generates(made: Any, folder: Path) -> None:
    exact = evaluate(made(False), folder, "recall")
    lm = made(folder / "identity.gguf", **FILL)
    filled = evaluate(lm, folder, "recall")
    assert exact["results"]["recall"]["exact_match,none"] == 1
    assert filled["results"]["recall"]["exact_match,none"] == 1
    assert lm.filled > 200
    for sample in filled["samples"]["recall"]:
        (answer,) = sample["resps"][0]
        assert answer.strip() == sample["doc"]["answer"], "up to the stop, and without it"


def test_arguments_of_generation(made: Any) -> None:
    lm = made(False)
    text = "Count: one, two, three, four,"

    def generate(**arguments: Any) -> str:
        (answer,) = lm.generate_until([request("generate_until", text, arguments)], disable_tqdm=True)
        return answer

    long = generate(until=[], max_gen_toks=12)
    assert generate(until=[], max_gen_toks=4) == long[: len(generate(until=[], max_gen_toks=4))] != long
    assert "," in long
    assert generate(until=",", max_gen_toks=12) == long.split(",")[0]
    assert generate(until=[], max_gen_toks=12, do_sample=False, temperature=2.0) == long
    sampled = {"until": [], "max_gen_toks": 12, "temperature": 5.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert generate(**sampled, seed=1) != long
    assert generate(**sampled, seed=1) == generate(**sampled, seed=1)
    with pytest.raises(RidgeFillError, match="generation argument 'num_beams' is not known"):
        generate(until=[], num_beams=4)
    with pytest.raises(ModelError, match=r"a prompt and its answer take \d+ tokens, the context has 512"):
        generate(until=[], max_gen_toks=510)


def test_a_multiple_choice_task(made: Any, smollm2: Path, folder: Path) -> None:
    exact, lm, wrong = made(False), made(folder / "identity.gguf", **FILL), made(folder / "zero.gguf", **FILL)
    results = [evaluate(model, folder, "choice") for model in (exact, lm, wrong)]
    assert results[0]["results"]["choice"]["acc,none"] == results[1]["results"]["choice"]["acc,none"] == 1
    values = [
        [[float(resp[0][0]) for resp in sample["resps"]] for sample in result["samples"]["choice"]]
        for result in results
    ]
    assert exact.filled == 0
    assert lm.filled > 2 * 2 * 80
    near, far = (np.abs(np.asarray(found) - np.asarray(values[0])) for found in values[1:])
    assert near.max() < far.max()
    assert far.max() > 0.01

    # as the losses of the tail say
    text = f"My name is Anna. {FILLER}Again, my name is"
    with Session(smollm2, n_ctx=512, n_threads=1) as session:
        session.set_maps(lm._config)
        before, whole = (session.tokenize(part, parse_special=True) for part in (text, f"{text} Peter"))
        bos = [] if session.bos is None else [session.bos]
        scored = len(whole) - len(before)
        want = -float(token_losses(session, [*bos, *whole], scored + 1).sum())
    assert values[1][0][1] == pytest.approx(want, abs=0.02)


def test_what_would_score_filled_rows_is_refused(made: Any, folder: Path) -> None:
    lm = made(folder / "identity.gguf", **FILL)
    long = " and on" * TAIL
    with pytest.raises(ModelError, match=rf"but only the last {TAIL} rows run exact: filled rows have no logits"):
        lm.loglikelihood([request("loglikelihood", FILLER, long)], disable_tqdm=True)
    (found,) = made(False).loglikelihood([request("loglikelihood", FILLER, long)], disable_tqdm=True)
    assert found[0] < 0
    with pytest.raises(ModelError, match="loglikelihood_rolling scores every row of a text, and filled rows have no"):
        lm.loglikelihood_rolling([request("loglikelihood_rolling", FILLER)])
    with pytest.raises(ModelError, match=r"take \d+ tokens, the context has 512"):
        lm.loglikelihood([request("loglikelihood", FILLER * 5, " end")], disable_tqdm=True)


def test_scores_of_greedy_text_and_of_no_context(made: Any) -> None:
    lm = made(False)
    text = "one, two, three, four,"
    (answer,) = lm.generate_until([request("generate_until", text, {"until": [], "max_gen_toks": 3})])
    scores = lm.loglikelihood(
        [request("loglikelihood", *pair) for pair in ((text, answer), (text, " zebra"), ("", "Hello"))]
    )
    assert [greedy for _, greedy in scores][:2] == [True, False]
    assert scores[1][0] < scores[0][0] < 0
    assert scores[2][0] < 0


def test_chat_template(made: Any) -> None:
    lm = made(False)
    text = lm.apply_chat_template([{"role": "user", "content": "Hello there"}])
    assert "Hello there" in text
    assert text.rstrip().endswith("assistant")
    assert "messages" in lm.chat_template(True)
    with pytest.raises(RidgeFillError, match="the model's own is the only one"):
        lm.chat_template("rag")


ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "batch": ({"batch_size": 8}, "one prompt at a time"),
    "device": ({"device": "cuda"}, "device 'cuda'"),
    "text": ({"sink": "many"}, "RidgeFillConfig.sink: expected a whole number, found 'many'"),
    "unknown": ({"tial": 64}, "model argument 'tial' is not known"),
    "exact": ({"maps": False, "tail": 64}, "tail with maps=false"),
    "value": ({"tail": 0}, "expected 1 to 2147483647, found 0"),
    "maps": ({"maps": "none.gguf"}, "no such maps file"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(smollm2: Path, folder: Path, case: str) -> None:
    arguments, message = ERRORS[case]
    with pytest.raises(RidgeFillError, match=message):
        RidgeFillLM(str(smollm2), **({"maps": str(folder / "identity.gguf")} | arguments))


def test_the_command(smollm2: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        f"model={smollm2},maps={folder / 'identity.gguf'},tail={TAIL},sink={SINK},min_prompt=0,n_ctx=512,threads=1"
    )
    command = ["lm-eval", "--model", "ridgefill", "--model_args", arguments, "--tasks", "recall"]
    assert run([*command, "--include_path", str(folder), "--limit", "1"]) == 0
    assert "exact_match" in capsys.readouterr().out


def test_unknown_tasks_are_wrong_usage(smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["lm-eval", "run", "--model", "ridgefill", "--model_args", f"model={smollm2}", "--tasks", "nope"]
    assert run(arguments) == 2
    assert "error: lm-eval: Tasks not found: nope" in capsys.readouterr().err
