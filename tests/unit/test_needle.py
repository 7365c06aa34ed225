"""Needles: what they say, where they are, and that they can be made again."""

from __future__ import annotations

from itertools import islice

import pytest
from letters import Letters, chat

from pyridgefill.errors import CorpusError, ModelError
from pyridgefill.evaluation.needle import KINDS, make_keyed_texts, make_needles
from pyridgefill.evaluation.text import text_windows

SHAPE = {"n_prompt": 2000, "sink": 4, "tail": 256}
LETTERS = Letters()


def needles(kind="digits", count=10, seed=0, chat=chat, **shape):
    return list(make_needles(LETTERS, chat, count=count, kind=kind, seed=seed, **(SHAPE | shape)))


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
    texts = list(make_keyed_texts(LETTERS, chat, count=3, keys=6, kind=kind, **SHAPE))
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


def test_what_does_not_fit() -> None:
    with pytest.raises(ModelError, match=r"question has \d+ tokens, the tail 40"):
        needles(tail=40)
    with pytest.raises(ModelError, match="needles do not fit"):
        list(make_keyed_texts(LETTERS, chat, count=1, keys=24, **SHAPE | {"n_prompt": 1200}))
    with pytest.raises(ModelError, match="25 keys in one text"):
        list(make_keyed_texts(LETTERS, chat, count=1, keys=25, **SHAPE))
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
