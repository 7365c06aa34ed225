"""Generators of the RULER-like tasks: token counts, rows, depth, and that answers are in the text."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from letters import Letters, chat

from pyridgefill.errors import CorpusError, ModelError, UsageError
from pyridgefill.evaluation.prompts.families import FAMILIES
from pyridgefill.evaluation.prompts.layout import Shape
from pyridgefill.evaluation.prompts.prompt import Prompt
from pyridgefill.evaluation.prompts.ruler_words import english_words
from pyridgefill.evaluation.prompts.squad import SquadTask, read_squad
from pyridgefill.evaluation.tasks.ruler import find_families

N, SINK, TAIL = 4000, 4, 400
LETTERS = Letters()


def shape(seed=0, n_prompt=N, chat=chat, tail=TAIL):
    return Shape(LETTERS, chat, n_prompt, SINK, tail, seed)


def make_prompts(shape: Shape, family: str, count: int) -> list[Prompt]:
    return list(FAMILIES[family](shape, count))


@pytest.mark.parametrize("task", FAMILIES)
@pytest.mark.parametrize("template", [chat, None])
def test_what_an_answer_needs_is_filled(task, template) -> None:
    prompts = make_prompts(shape(chat=template), task, 3)
    assert len(prompts) == 3
    for prompt in prompts:
        assert len(prompt.tokens) == N
        assert prompt.tokens[0] == LETTERS.bos
        assert prompt.rows
        text = "".join(LETTERS.text(prompt.tokens[start:end]) for start, end in prompt.rows)
        for start, end in prompt.rows:
            assert SINK <= start < end < N - TAIL
        tail = LETTERS.text(prompt.tokens[N - TAIL :])
        for value in prompt.values:
            assert value in text
            assert not re.search(rf"\b{value}\b", tail)
        assert prompt.answer_tokens >= sum(map(len, prompt.values))


@pytest.mark.parametrize("task", FAMILIES)
def test_the_seed_decides(task) -> None:
    assert make_prompts(shape(), task, 2) == make_prompts(shape(), task, 2)
    assert make_prompts(shape(), task, 2) != make_prompts(shape(1), task, 2)


def test_depths() -> None:
    found = make_prompts(shape(), "single-noise", 9)
    assert [prompt.depth for prompt in found] == pytest.approx([0.1 * i for i in range(1, 10)])
    ((start, end),) = found[8].rows
    first = LETTERS.text(found[8].tokens).index("\n\n")
    assert (start - first) / (N - TAIL - (end - start) - first) == pytest.approx(0.9, abs=0.01)


def text_of(prompt):
    return LETTERS.text(prompt.tokens[: N - TAIL])


def test_multi_value_asks_for_all_values_of_one_key() -> None:
    (prompt,) = make_prompts(shape(), "multi-value", 1)
    assert len(prompt.values) == len(prompt.rows) == 4
    leads = {LETTERS.text(prompt.tokens[a:b]).split(" is: ")[0] for a, b in prompt.rows}
    assert len(leads) == 1


def test_multi_query_asks_for_all_keys() -> None:
    (prompt,) = make_prompts(shape(), "multi-query", 1)
    assert len(prompt.values) == 4
    tail = LETTERS.text(prompt.tokens[N - TAIL :])
    for start, end in prompt.rows:
        key = LETTERS.text(prompt.tokens[start:end]).split(" for ")[1].split(" is: ")[0]
        assert tail.count(key) == 2, "in the question and in the start of the answer"


def test_multi_key_has_distractors() -> None:
    (prompt,) = make_prompts(shape(), "multi-key", 1)
    assert len(prompt.values) == 1
    assert text_of(prompt).count("The special magic number for ") == 4
    (prompt,) = make_prompts(shape(), "multi-key-needles", 1)
    text = text_of(prompt)
    assert text.count("The special magic number for ") > 40
    key = LETTERS.text(prompt.tokens[N - TAIL :]).rsplit(" for ", 1)[1].removesuffix(" is:")
    assert text.count(f"for {key} is") == 1


def test_variables_follow_each_other() -> None:
    (prompt,) = make_prompts(shape(), "variable-tracking", 1)
    steps = [LETTERS.text(prompt.tokens[a:b]).strip() for a, b in prompt.rows]
    value = steps[0].split()[-1].rstrip(".")
    assert value in LETTERS.text(prompt.tokens[N - TAIL :])
    assert [step.split()[0] for step in steps] == list(prompt.values)
    assert [step.split()[-1].rstrip(".") for step in steps[1:]] == list(prompt.values[:-1])
    assert [start for start, _ in prompt.rows] == sorted(start for start, _ in prompt.rows)


@pytest.mark.parametrize(("task", "count"), [("common-words", 10), ("frequent-words", 3)])
def test_the_right_words_are_the_most_frequent(task, count) -> None:
    (prompt,) = make_prompts(shape(), task, 1)
    ((start, end),) = prompt.rows
    assert end - start > 0.9 * (N - TAIL) - 300, "the words take the filled rows"
    counts = Counter(LETTERS.text(prompt.tokens[start:end]).split())
    most = counts.most_common(count + 1)
    assert {word for word, _ in most[:count]} == set(prompt.values)
    assert most[count - 1][1] > most[count][1]
    if task == "common-words":
        assert {n for _, n in most[:count]} == {most[0][1]}
        assert most[count - 1][1] >= 5 * most[count][1]
        assert set(counts) <= set(english_words())


def test_what_does_not_fit() -> None:
    with pytest.raises(ModelError, match="the tail 50"):
        make_prompts(shape(tail=50), "multi-query", 1)
    with pytest.raises(ModelError, match="do not fit"):
        make_prompts(shape(n_prompt=600), "multi-value", 1)
    with pytest.raises(ModelError, match="too few to count words"):
        make_prompts(shape(n_prompt=600), "common-words", 1)
    with pytest.raises(UsageError, match=r"task 'sorting' is not known .*single-noise"):
        find_families(["sorting"])
    with pytest.raises(UsageError, match="give --squad"):
        find_families(["qa"])
    assert find_families([]) == FAMILIES


def squad(path, paragraphs):
    data = {"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}
    path.write_text(json.dumps(data))
    return path


def paragraph(i, **more):
    qas = [
        {"id": str(i), "question": f"What is item {i}?", "answers": [{"text": f"thing {i}", "answer_start": 0}], **more}
    ]
    return {"context": f"Item {i} is a thing {i}, or thing number {i}. It lies on shelf {i}.", "qas": qas}


def test_squad(tmp_path) -> None:
    path = squad(tmp_path / "dev.json", [*map(paragraph, range(10, 16)), paragraph(99, is_impossible=True)])
    assert len(read_squad(path)) == 6
    prompts = list(SquadTask(path)(shape(), 6))
    assert sorted(prompt.values for prompt in prompts) == [(f"thing {i}",) for i in range(10, 16)]
    for prompt in prompts:
        ((start, end),) = prompt.rows
        assert SINK <= start < end < N - TAIL
        i = prompt.values[0].split()[1]
        assert f"Item {i} is" in LETTERS.text(prompt.tokens[start:end])
        assert LETTERS.text(prompt.tokens).count(f"Item {i} is") == 1
        assert f"What is item {i}?" in LETTERS.text(prompt.tokens[N - TAIL :])
        assert prompt.any_of
        assert len(prompt.tokens) == N


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not in SQuAD's format"),
        ("[]", "not in SQuAD's format: TypeError"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', "no question has an answer"),
        ('{"data": [{"paragraphs": [{"context": "a", "qas": [{"question": "b"}]}]}]}', "KeyError: 'answers'"),
    ],
)
def test_bad_squad(tmp_path, text, message) -> None:
    path = tmp_path / "dev.json"
    path.write_text(text)
    with pytest.raises(CorpusError, match=message):
        read_squad(path)
    with pytest.raises(CorpusError, match="cannot read"):
        read_squad(tmp_path / "none.json")


def test_too_few_questions(tmp_path) -> None:
    path = squad(tmp_path / "dev.json", [paragraph(1), paragraph(2)])
    with pytest.raises(CorpusError, match="2 questions, 3 wanted"):
        list(SquadTask(path)(shape(), 3))
    path = squad(tmp_path / "one.json", [paragraph(1)])
    with pytest.raises(CorpusError, match="only one paragraph"):
        list(SquadTask(path)(shape(), 1))
