"""Identity of a base model as maps files store it, read from the model's GGUF without loading the model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gguf import GGMLQuantizationType, GGUFReader

from pyridgefill import defaults
from pyridgefill.errors import ModelError

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_SAMPLE_BYTES = 256
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(frozen=True)
class BaseModel:
    """Shape and fingerprint of the model that maps belong to.

    Attributes
    ----------
    architecture
        The model's `general.architecture`.
    block_count
        Number of layers, without layers for multi-token prediction.
    embedding_length
        Width of the residual stream.
    vocab_size
        Number of tokens.
    vocab_hash, weights_hash
        16 hex digits each, as docs/map-format.md defines them.
    """

    architecture: str
    block_count: int
    embedding_length: int
    vocab_size: int
    vocab_hash: str
    weights_hash: str


def candidate_splits(block_count: int) -> tuple[int, ...]:
    """Splits to try, from a third to two thirds of the layers."""
    return tuple(sorted({min(int(block_count * share), block_count - 2) for share in defaults.SPLIT_SHARES}))


def fnv1a(parts: Iterable[bytes]) -> str:
    """FNV-1a 64 over the concatenation of `parts`, as 16 hex digits."""
    value = _FNV_OFFSET
    for part in parts:
        for byte in part:
            value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def read_base_model(path: str | os.PathLike[str]) -> BaseModel:
    """Read shape and fingerprint of a model file; all shards of a sharded model are looked at.

    Raises
    ------
    ModelError
        If a file cannot be read, is no model, lacks a key, or a shard is missing.
    """
    readers = [_open(shard) for shard in model_shards(path)]
    head = readers[0]
    architecture = str(_value(head, "general.architecture", path))
    tokens = _tokens(head, architecture)
    block_count = int(_value(head, f"{architecture}.block_count", path))
    nextn = head.get_field(f"{architecture}.nextn_predict_layers")
    if nextn is not None:
        block_count -= int(nextn.contents())
    return BaseModel(
        architecture=architecture,
        block_count=block_count,
        embedding_length=int(_value(head, f"{architecture}.embedding_length", path)),
        vocab_size=len(tokens),
        vocab_hash=fnv1a(token + b"\0" for token in tokens),
        weights_hash=_weights_hash(readers, block_count),
    )


def difference(expected: BaseModel, found: BaseModel) -> str:
    """In what two models differ, in words."""
    names = {
        "architecture": "architecture",
        "block_count": "layers",
        "embedding_length": "width",
        "vocab_size": "tokens in the vocabulary",
        "vocab_hash": "vocabulary",
        "weights_hash": "weights",
    }
    pairs = ((words, getattr(expected, name), getattr(found, name)) for name, words in names.items())
    return "; ".join(f"{words}: expected {want}, found {have}" for words, want, have in pairs if want != have)


def model_shards(path: str | os.PathLike[str]) -> list[Path]:
    """All files of a model, given its first one.

    Raises
    ------
    ModelError
        If one is missing.
    """
    path = Path(path)
    match = _SHARD.search(path.name)
    if match is None:
        return [path]
    stem, count = path.name[: match.start()], int(match.group(2))
    shards = [path.with_name(f"{stem}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]
    for shard in shards:
        if not shard.is_file():
            raise ModelError(f"{shard}: shard is missing, expected {count} shards", "download all shards of the model")
    return shards


def _open(path: Path) -> GGUFReader:
    try:
        return GGUFReader(path)
    except OSError as error:
        raise ModelError(f"{path}: cannot open: {error.strerror or error}", "give the path of a GGUF model") from error
    except (ValueError, KeyError, IndexError) as error:
        raise ModelError(f"{path}: not a readable GGUF file: {error}", "give the path of a GGUF model") from error


def _value(reader: GGUFReader, key: str, path: str | os.PathLike[str]) -> str | int:
    field = reader.get_field(key)
    if field is None:
        raise ModelError(f"{os.fspath(path)}: key {key} is missing", "give a model's GGUF, not an adapter")
    value = field.contents()
    assert isinstance(value, (str, int))
    return value


def _tokens(reader: GGUFReader, architecture: str) -> list[bytes]:
    field = reader.get_field("tokenizer.ggml.tokens")
    if field is None:
        # a model without tokenizer has that many tokens with empty text
        size = reader.get_field(f"{architecture}.vocab_size")
        return [b""] * (0 if size is None else int(size.contents()))
    texts = (field.parts[index].tobytes() for index in field.data)
    # llama.cpp gives empty tokens a text at load
    return [text or f"[EMPTY_{i}]".encode() for i, text in enumerate(texts)]


def _weights_hash(readers: list[GGUFReader], block_count: int) -> str:
    samples = {}
    for reader in readers:
        for tensor in reader.tensors:
            if tensor.tensor_type != GGMLQuantizationType.F32 or not tensor.name.endswith("norm.weight"):
                continue
            layer = re.match(r"blk\.(\d+)\.", tensor.name)
            if layer is None or int(layer.group(1)) < block_count:
                data = tensor.data.reshape(-1)[: _SAMPLE_BYTES // 4]
                samples[tensor.name.encode()] = data.astype("<f4").tobytes()
    return fnv1a(part for name in sorted(samples) for part in (name, b"\0", samples[name]))
