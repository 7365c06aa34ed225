from __future__ import annotations

import json
import os
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyridgefill.calibration.corpus import BUILTIN, Corpus, Document, interleave
from pyridgefill.errors import CorpusError

TEXT = "First line\nsecond line\n\nA new paragraph: größe 文字 😀\nend\n"


def texts(path: Path, data: bytes | str, **options: object) -> list[str]:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return [document.text for document in Corpus(str(path), **options).documents()]  # type: ignore[arg-type]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_byte_order_mark_do_not_matter(tmp_path: Path, ending: str, mark: str) -> None:
    assert texts(tmp_path / "a.txt", mark + TEXT.replace("\n", ending)) == [TEXT]


def test_line_ends_across_read_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TEXT * 3
    for size in (3, 4, 5, 7):
        monkeypatch.setattr("pyridgefill.calibration.corpus._READ_BYTES", size)
        assert texts(tmp_path / "a.txt", "\ufeff" + text.replace("\n", "\r\n")) == [text]


def test_invalid_utf8_names_file_and_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = "größe ".encode() * 5 + b"\xff" + b" rest"
    for size in (1 << 20, 7, 3):
        monkeypatch.setattr("pyridgefill.calibration.corpus._READ_BYTES", size)
        with pytest.raises(CorpusError, match=r"a\.txt: byte 40 is not UTF-8 text") as caught:
            texts(tmp_path / "a.txt", data)
        assert "--" not in str(caught.value), "evaluations have no such option"
    assert texts(tmp_path / "a.txt", data, errors="replace") == ["größe " * 5 + "\ufffd rest"]
    with pytest.raises(CorpusError, match=r"a\.txt: byte 2 is not UTF-8"):
        texts(tmp_path / "a.txt", b"ab\xe6\x96")  # ends within a character


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", b" \r\n\t\n"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_empty_file_is_an_error(tmp_path: Path, name: str, data: bytes) -> None:
    with pytest.raises(CorpusError, match=f"{name}: the file has no text"):
        texts(tmp_path / name, data)


def test_single_word_and_missing_file(tmp_path: Path) -> None:
    assert texts(tmp_path / "a.txt", "word") == ["word"]
    with pytest.raises(CorpusError, match=r"none\.txt: no such file"):
        list(Corpus(str(tmp_path / "none.txt")).documents())


@given(st.text(alphabet="ab \n", max_size=400), st.integers(4, 60))
def test_cutting_keeps_the_text(text: str, limit: int) -> None:
    from pyridgefill.calibration.corpus import _pieces

    pieces = list(_pieces([text[:100], text[100:]], limit))
    assert all(len(piece) <= limit for piece in pieces)
    # only pieces of white space are dropped
    assert "".join("".join(pieces).split()) == "".join(text.split())


def test_cuts_are_at_paragraphs() -> None:
    from pyridgefill.calibration.corpus import _pieces

    text = ("word " * 8 + "\n\n") * 10
    assert all(piece.endswith("\n\n") for piece in _pieces([text], 100))


def test_long_text_is_streamed(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    with path.open("w") as file:
        for _ in range(400):
            file.write("some words in a line\n" * 5000)  # 42 MB
    tracemalloc.start()
    count = sum(len(document.text) for document in Corpus(str(path)).documents())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == path.stat().st_size
    assert peak < 10 << 20


def test_chat_records(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    record = {"messages": [{"role": "user", "content": "Größe?\r\n"}, {"role": "assistant", "content": "文"}]}
    path.write_text("\ufeff" + json.dumps(record) + "\r\n\r\n" + json.dumps({**record, "tools": [{"a": 1}]}), "utf-8")
    one, two = Corpus(str(path)).documents()
    assert list(one.messages) == record["messages"]
    assert (one.source, two.source, two.tools) == ("chat.jsonl:1", "chat.jsonl:3", ({"a": 1},))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: expected a non-empty list 'messages'"),
        ('{"messages": []}', "line 2: expected a non-empty list"),
        ('{"messages": [{"content": "x"}]}', "line 2: expected messages with a 'role'"),
        ('{"text": "x"}', "line 2: expected a non-empty list"),
        ('{"messages": [{"role": "user"}], "tools": 5}', "line 2: expected 'tools' to be a list of objects"),
        ('{"messages": [{"role": "user"}], "tools": "abc"}', "line 2: expected 'tools'"),
        ('{"messages": [{"role": "user"}], "tools": {"a": 1}}', "line 2: expected 'tools'"),
        ('{"messages": [{"role": "user"}], "tools": ["a"]}', "line 2: expected 'tools'"),
        ("[" * 100_000 + "]" * 100_000, "line 2: brackets in too many brackets"),
    ],
)
def test_bad_chat_record_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "x"}]}\n' + line)
    with pytest.raises(CorpusError, match=rf"chat\.jsonl: {message}"):
        list(Corpus(str(path)).documents())


@pytest.mark.parametrize("depth", [900, 985, 1000])
def test_deep_records_are_read_or_named(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": ' + "[" * depth + "]" * depth + "}]}")
    with suppress(CorpusError):
        (document,) = Corpus(str(path)).documents()
        assert document.is_held_out(1.0)


def test_the_ending_may_be_written_in_capitals(tmp_path: Path) -> None:
    path = tmp_path / "chat.JSONL"
    path.write_text('{"messages": [{"role": "user", "content": "x"}]}')
    (document,) = Corpus(str(path)).documents()
    assert document.messages


def test_held_out_documents_depend_on_content_only() -> None:
    documents = [Document("a", text=f"text {i}") for i in range(4000)]
    share = sum(document.is_held_out(0.1) for document in documents) / len(documents)
    assert 0.08 < share < 0.12
    assert [Document("b", text=d.text).is_held_out(0.1) for d in documents] == [d.is_held_out(0.1) for d in documents]
    assert not any(document.is_held_out(0.0) for document in documents)
    chat = Document("a", messages=({"role": "user", "content": "x"},))
    assert chat.digest() != Document("a", text="x").digest()


def test_interleaving_takes_turns(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 30)
    (tmp_path / "b.txt").write_text("b" * 10)
    corpora = [Corpus(str(tmp_path / name), document_chars=10) for name in ("a.txt", "b.txt")]
    assert [document.text[0] for document in interleave(corpora)] == ["a", "b", "a", "a"]


def test_names_hold_no_path(tmp_path: Path) -> None:
    assert Corpus(str(tmp_path / "book.txt")).name == "book.txt"
    assert Corpus(os.fsdecode(b"/folder/b\xff.txt")).name == "b\ufffd.txt"


@pytest.mark.parametrize("name", BUILTIN)
def test_builtin_corpora_have_text_and_do_not_overlap(name: str) -> None:
    documents = [document for document, _ in zip(Corpus(name).documents(), range(50), strict=False)]
    assert len(documents) == 50
    assert sum(len(document.text) for document in documents) > 50_000
    assert documents == [document for document, _ in zip(Corpus(name).documents(), range(50), strict=False)]


def test_code_corpora_share_no_text() -> None:
    names = ("stdlib-code", "stdlib-packages")
    code, packages = ({doc.source.split(":", 1)[1] for doc in Corpus(name).documents()} for name in names)
    assert code
    assert not code & packages
