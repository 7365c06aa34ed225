"""LongBench v2: the file, the prompt, and the scores."""

from __future__ import annotations

import json

import pytest
from letters import Letters, chat
from support.longbench import record

from pyridgefill.errors import CorpusError, ModelError
from pyridgefill.evaluation.prompts.layout import Shape
from pyridgefill.evaluation.tasks.longbench import make_choice, read_longbench, summarise_choices

LETTERS = Letters()


@pytest.mark.parametrize("lines", [False, True])
def test_read(tmp_path, lines) -> None:
    records = [record(i) for i in range(3)]
    path = tmp_path / "data.json"
    path.write_text("\n".join(map(json.dumps, records)) + "\n" if lines else json.dumps(records, indent=1))
    assert read_longbench(path) == records


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "not JSON"),
        ("[]", "no records"),
        ("[1]", "record 1 has no text '_id'"),
        (json.dumps([record(0), record(1, answer="E")]), "record 2: answer 'E'"),
        (json.dumps([record(0, choice_C=3)]), "record 1 has no text 'choice_C'"),
    ],
)
def test_bad_files(tmp_path, text, message) -> None:
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(CorpusError, match=message):
        read_longbench(tmp_path / "data.json")
    with pytest.raises(CorpusError, match="cannot read"):
        read_longbench(tmp_path / "none.json")


@pytest.mark.parametrize("template", [chat, None])
def test_the_middle_of_long_texts_is_cut_out(template) -> None:
    choice = make_choice(Shape(LETTERS, template, 1500, 0, 400), record(1))
    text = LETTERS.text(choice.tokens)
    assert len(choice.tokens) == 1500
    assert choice.dropped > 1000
    assert "Start 1. " in text
    assert "End 1." in text
    assert text.endswith("The correct answer is (")
    tail = LETTERS.text(choice.tokens[-400:])
    assert "Who keeps bees in house 1?\nChoices:\n(A) Anna\n(B) Bert\n(C) Carla\n(D) Dirk" in tail
    whole = make_choice(Shape(LETTERS, template, 9000, 0, 400), record(1))
    assert whole.dropped == 0
    assert len(whole.tokens) < 9000
    assert len(whole.tokens) == 1500 + choice.dropped
    with pytest.raises(ModelError, match="the tail 50"):
        make_choice(Shape(LETTERS, template, 1500, 0, 50), record(1))
    with pytest.raises(ModelError, match="which leaves none for the text"):
        make_choice(Shape(LETTERS, template, 50, 0, 400), record(1))


def test_scores() -> None:
    choices = [make_choice(Shape(LETTERS, chat, 1500, 0, 400), record(i)) for i in range(8)]
    alone = summarise_choices(choices, "ABCDABCA", [0] * 8, None, 0)
    assert alone.right == (True,) * 7 + (False,)
    assert (alone.hits, alone.prompts) == (7, 8)
    assert alone.difference is None
    assert alone.groups["difficulty"]["hard"].prompts == 4
    assert alone.groups["difficulty"]["hard"].value == 1
    assert alone.groups["length"]["short"].value == 7 / 8
    summary = summarise_choices(choices, "AACDABAA", [9] * 8, alone, 0)
    assert summary.right == (True, False, True, True, True, True, False, False)
    assert summary.difference is not None
    assert summary.difference.value == pytest.approx(-25)
    assert summary.mcnemar_p == pytest.approx(0.5)
    assert summary.same_choice is not None
    assert summary.same_choice.value == 6 / 8
