"""Needles: what they say, where they are, and that they can be made again."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from letters import Letters, chat

from pyridgefill.errors import CorpusError, ModelError
from pyridgefill.evaluation.prompts.layout import Shape
from pyridgefill.evaluation.prompts.needle import KINDS, make_keyed_texts, make_needles
from pyridgefill.evaluation.prompts.needle_absent import make_absent
from pyridgefill.evaluation.prompts.score import gives_value
from pyridgefill.evaluation.prompts.text import text_windows

SHAPE = {"n_prompt": 2000, "sink": 4, "tail": 256}
LETTERS = Letters()


def shaped(chat=chat, **shape):
    return Shape(LETTERS, chat, **(SHAPE | shape))


def needles(kind="digits", count=10, group="filled", **shape):
    return list(make_needles(shaped(**shape), count=count, kind=kind, group=group))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", [chat, None])
def test_rows_of_a_needle(kind, template) -> None:
    found = needles(kind, chat=template)
    wording = KINDS[kind].wording
    for needle in found:
        assert len(needle.tokens) == SHAPE["n_prompt"]
        assert needle.tokens.count(LETTERS.bos) == 1
        text = LETTERS.text(needle.tokens[needle.start : needle.end])
        assert (
            text.strip()
            == wording.lead.format(key=needle.key, noun=KINDS[kind].noun) + wording.gap + needle.value + wording.stop
        )
        assert LETTERS.text(needle.tokens[needle.value_start : needle.value_end]) == wording.gap + needle.value
        assert LETTERS.text(needle.tokens).count(needle.value) == 1
        tail = LETTERS.text(needle.tokens[-SHAPE["tail"] :])
        assert wording.question.format(key=needle.key, noun=KINDS[kind].noun) in tail
        assert tail.endswith(wording.answer.format(key=needle.key, noun=KINDS[kind].noun))


@pytest.mark.parametrize("sink", [4, 300])
def test_depths_cover_the_filled_rows(sink) -> None:
    found = needles(sink=sink, count=9)
    assert [needle.depth for needle in found] == pytest.approx([0.1 * i for i in range(1, 10)])
    first = max(sink, LETTERS.text(found[0].tokens).index("\n\n") + 3)  # the request, with BOS
    for needle in found:
        assert first <= needle.start < needle.end <= SHAPE["n_prompt"] - SHAPE["tail"]
        place = (needle.start - first) / (SHAPE["n_prompt"] - SHAPE["tail"] - (needle.end - needle.start) - first)
        assert place == pytest.approx(needle.depth, abs=0.001)


def test_the_seed_decides() -> None:
    assert needles(seed=3) == needles(seed=3)
    assert needles(seed=3) != needles(seed=4)
    assert len({needle.value for needle in needles()}) == 10


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_of_one_text_differ_in_the_tail_only(kind) -> None:
    texts = list(make_keyed_texts(shaped(), count=3, keys=6, kind=kind))
    assert len({text.shared for text in texts}) == 3
    for text in texts:
        assert text.n_shared == SHAPE["n_prompt"] - SHAPE["tail"]
        assert {needle.tokens[: text.n_shared] for needle in text.needles} == {text.shared}
        assert [text.shared + tail for tail in text.tails] == [needle.tokens for needle in text.needles]
        assert len({needle.key for needle in text.needles}) == len({needle.value for needle in text.needles}) == 6
        for a, b in zip(text.needles, text.needles[1:]):
            assert a.end <= b.start
        for needle in text.needles:
            assert needle.end <= text.n_shared
            assert needle.value in LETTERS.text(needle.tokens[needle.value_start : needle.value_end])
            assert needle.key in LETTERS.text(needle.tokens[text.n_shared :])
            assert len(needle.tokens) == SHAPE["n_prompt"]
    depths = sorted(needle.depth for text in texts for needle in text.needles)
    assert depths == pytest.approx([0.05 + 0.9 * (i + 0.5) / 18 for i in range(18)])


@pytest.mark.parametrize("template", [chat, None])
@pytest.mark.parametrize(("group", "rows"), [("filled", (400, 1600)), ("tail", (1600, 2000)), ("sink", (0, 400))])
def test_each_group_has_its_rows(group, rows, template) -> None:
    shape = SHAPE | {"sink": 400, "tail": 400}
    texts = list(make_keyed_texts(shaped(template, **shape), count=6, keys=2, group=group))
    for text in texts:
        for needle in text.needles:
            assert rows[0] <= needle.start < needle.end <= rows[1]
            assert needle.value in LETTERS.text(needle.tokens[needle.start : needle.end])
            assert LETTERS.text(needle.tokens).count(needle.value) == 1
            assert needle.group == needle.prompt().group == group
            asked = LETTERS.text(needle.tokens).rindex(needle.key)
            assert needle.end < asked, "the question comes last"
            assert len(needle.tokens) == 2000
    starts = sorted(needle.start for text in texts for needle in text.needles)
    assert starts[-1] - starts[0] > 60
    # the same values are hidden in all groups
    filled = make_keyed_texts(shaped(template, **shape), count=6, keys=2)
    assert [n.value for text in filled for n in text.needles] == [n.value for text in texts for n in text.needles]


def test_a_run_tells_whether_the_rows_are_where_they_should_be() -> None:
    shape = SHAPE | {"sink": 400, "tail": 400}
    prompts = {group: needles(group=group, count=1, **shape)[0].prompt() for group in ("filled", "tail", "sink")}
    for prompt in prompts.values():
        prompt.check([(400, 1600)])
        prompt.check([])
    for group, ranges, where in [
        ("filled", [(400, 1000), (1010, 1600)], "filled"),
        ("tail", [(400, 1900)], "in the tail"),
        ("sink", [(200, 1600)], "in the sink"),
    ]:
        with pytest.raises(ModelError, match=rf"rows \d+ to \d+ hold an answer and are not {where}"):
            prompts[group].check(ranges)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("others", [0, 3])
def test_what_is_absent_is_not_in_the_text(kind, others) -> None:
    prompts = list(make_absent(shaped(), count=5, others=others, kind=kind))
    wording = KINDS[kind].wording
    assert len({prompt.tokens for prompt in prompts}) == 5
    for prompt in prompts:
        assert len(prompt.tokens) == SHAPE["n_prompt"]
        assert (prompt.values, prompt.rows, prompt.depth, prompt.group) == ((), (), None, "absent")
        before = LETTERS.text(prompt.tokens[: -SHAPE["tail"]])
        tail = LETTERS.text(prompt.tokens[-SHAPE["tail"] :])
        (asked,) = [key for key in wording.keys if wording.question.format(key=key, noun=KINDS[kind].noun) in tail]
        lead = wording.lead.format(key="|", noun=KINDS[kind].noun).split("|")[0]
        assert wording.lead.format(key=asked, noun=KINDS[kind].noun) not in before
        assert before.count(f"\n\n{lead}" if lead else wording.lead.split("{noun}")[0].removeprefix("{key}")) == others
    assert prompts == list(make_absent(shaped(), count=5, others=others, kind=kind))


@pytest.mark.parametrize("kind", KINDS)
def test_values_have_their_form(kind) -> None:
    draw = random.Random(0)
    for _ in range(50):
        value = KINDS[kind].draw(draw)
        assert gives_value(f" {value}.", KINDS[kind].form)
        others = [name for name in KINDS if not gives_value(f" {value}.", KINDS[name].form)]
        assert len(others) == len(KINDS) - (3 if KINDS[kind].form == r"\d{7}" else 1)


def test_what_does_not_fit() -> None:
    with pytest.raises(ModelError, match=r"1 needles do not fit 0 rows of the sink after the request, which takes \d+"):
        needles(group="sink")
    with pytest.raises(
        ModelError, match=r"tail before the question: they have \d+ tokens \(hint: ask for a longer tail"
    ):
        needles(group="tail", tail=170)
    with pytest.raises(ModelError, match="needles of group 'middle' are not known"):
        needles(group="middle")
    with pytest.raises(ModelError, match="25 keys in one text"):
        list(make_absent(shaped(), count=1, others=24))
    with pytest.raises(ModelError, match=r"question has \d+ tokens, the tail 40"):
        needles(tail=40)
    with pytest.raises(ModelError, match="needles do not fit"):
        list(make_keyed_texts(shaped(n_prompt=1200), count=1, keys=24))
    with pytest.raises(ModelError, match="25 keys in one text"):
        list(make_keyed_texts(shaped(), count=1, keys=25))
    with pytest.raises(ModelError, match="kind 'colours'"):
        needles("colours")
    with pytest.raises(ModelError, match="needles do not fit"):
        needles(n_prompt=330)


def test_windows_of_a_file(tmp_path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("abcdefgh" * 2000)
    windows = list(islice(text_windows(LETTERS, 4001, corpus=str(path)), 2))
    assert [len(window) for window in windows] == [4001, 4001]
    assert [window.count(LETTERS.bos) for window in windows] == [1, 1]
    with pytest.raises(CorpusError, match="used up"):
        list(text_windows(LETTERS, 10**6, corpus=str(path)))
    with pytest.raises(CorpusError, match="no such file"):
        next(text_windows(LETTERS, 100, corpus=str(tmp_path / "none.txt")))
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"messages": [{"role": "user", "content": "hello"}]}\n')
    with pytest.raises(CorpusError, match="a conversation is no running text"):
        next(text_windows(LETTERS, 100, corpus=str(chats)))
