from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from pyridgefill.errors import ModelError
from pyridgefill.maps import read_base_model
from pyridgefill.maps.base import fnv1a


def write_model(
    path: Path,
    *,
    tokens: list[str] | None = None,
    kind: str | None = None,
    layers: int = 2,
    nextn: int = 0,
    seed: int = 0,
) -> Path:
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(layers + nextn)
    writer.add_embedding_length(8)
    if nextn:
        writer.add_uint32("llama.nextn_predict_layers", nextn)
    if kind is not None:
        writer.add_tokenizer_model(kind)
    if tokens is None:
        writer.add_vocab_size(7)
    else:
        writer.add_token_list(tokens)
    for name in (
        "output_norm.weight",
        "token_embd.weight",
        *(f"blk.{i}.attn_norm.weight" for i in range(layers + nextn)),
    ):
        writer.add_tensor(name, random.standard_normal(100).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_fnv1a_gives_the_published_values() -> None:
    assert fnv1a([]) == "cbf29ce484222325"
    assert fnv1a([b"a"]) == "af63dc4c8601ec8c"
    assert fnv1a([b"foo", b"bar"]) == "85944171f73967e8"


def test_shape_and_hashes(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", tokens=["a", "", "文"])
    base = read_base_model(path)
    assert (base.architecture, base.block_count, base.embedding_length, base.vocab_size) == ("llama", 2, 8, 3)
    assert base.vocab_hash == fnv1a(["a\0[EMPTY_1]\0文\0".encode()])
    data = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    expected = b""
    for name in ("blk.0.attn_norm.weight", "blk.1.attn_norm.weight", "output_norm.weight"):
        expected += name.encode() + b"\0" + data[name][:64].tobytes()
    assert base.weights_hash == fnv1a([expected])


def test_other_words_and_other_weights_differ(tmp_path: Path) -> None:
    bases = [
        read_base_model(write_model(tmp_path / f"{i}.gguf", tokens=tokens, seed=seed))
        for i, (tokens, seed) in enumerate(((["a", "b"], 0), (["ab", ""], 0), (["a", "b"], 1)))
    ]
    assert len({base.vocab_hash for base in bases}) == 2
    assert len({base.weights_hash for base in bases}) == 2


def test_layers_for_multi_token_prediction_do_not_count(tmp_path: Path) -> None:
    base = read_base_model(write_model(tmp_path / "m.gguf", tokens=["a"], layers=3, nextn=1))
    assert base.block_count == 3


def test_model_without_tokenizer(tmp_path: Path) -> None:
    base = read_base_model(write_model(tmp_path / "m.gguf"))
    assert (base.vocab_size, base.vocab_hash) == (7, fnv1a([bytes(7)]))


@pytest.mark.parametrize("kind", ["no_vocab", "none"])
def test_a_model_that_says_it_has_no_vocabulary_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ModelError, match=r"m\.gguf: the model has no vocabulary"):
        read_base_model(write_model(tmp_path / "m.gguf", kind=kind))


def test_missing_shard_is_named(tmp_path: Path) -> None:
    write_model(tmp_path / "m-00001-of-00003.gguf", tokens=["a"])
    write_model(tmp_path / "m-00003-of-00003.gguf", tokens=["a"])
    with pytest.raises(ModelError, match=r"m-00002-of-00003\.gguf: shard is missing, expected 3 shards"):
        read_base_model(tmp_path / "m-00001-of-00003.gguf")


def test_files_that_are_no_models(tmp_path: Path) -> None:
    adapter = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    adapter.write_header_to_file()
    adapter.write_kv_data_to_file()
    adapter.write_ti_data_to_file()
    adapter.close()
    with pytest.raises(ModelError, match=r"a\.gguf: key llama\.block_count is missing"):
        read_base_model(tmp_path / "a.gguf")
    for bad in (Path(__file__), tmp_path / "none.gguf"):
        with pytest.raises(ModelError, match=bad.name):
            read_base_model(bad)


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyridgefill.maps import base

    opened: list[Path] = []
    whole = base.GGUFFile
    monkeypatch.setattr(base, "GGUFFile", lambda path, error: opened.append(path) or whole(path, error))
    path = write_model(tmp_path / "model.gguf", tokens=["a", "b"])
    first = read_base_model(path)
    assert read_base_model(str(path)) == first
    assert len(opened) == 1
    write_model(path, tokens=["a", "c"])
    assert read_base_model(path).vocab_hash != first.vocab_hash
    assert len(opened) == 2
