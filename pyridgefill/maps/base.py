"""Identity of a base model as maps files store it, read from the model's GGUF without loading the model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gguf import GGMLQuantizationType

from pyridgefill import defaults
from pyridgefill.errors import ModelError
from pyridgefill.files import SHARD
from pyridgefill.maps.gguf_file import TEXTS, GGUFFile

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_SAMPLE_BYTES = 256
_MOST_TOKENS = 1 << 24


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

    A file that stays as it is is read once in a process.

    Raises
    ------
    ModelError
        If a file cannot be read, is no model, lacks a key, or a shard is missing.
    """
    shards = model_shards(path)
    return _read_base_model(tuple(shards), tuple(map(_stamp, shards)))


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()  # opening it says why
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=16)
def _read_base_model(shards: tuple[Path, ...], _stamps: tuple[tuple[int, ...], ...]) -> BaseModel:
    files = [GGUFFile(shard, ModelError) for shard in shards]
    head = files[0]
    architecture = head.text("general.architecture")
    tokens = _tokens(head, architecture)
    block_count = head.whole(f"{architecture}.block_count")
    if f"{architecture}.nextn_predict_layers" in head.types:
        block_count -= head.whole(f"{architecture}.nextn_predict_layers")
    return BaseModel(
        architecture=architecture,
        block_count=block_count,
        embedding_length=head.whole(f"{architecture}.embedding_length"),
        vocab_size=len(tokens),
        vocab_hash=fnv1a(token + b"\0" for token in tokens),
        weights_hash=_weights_hash(files, block_count),
    )


def trained_ctx(path: str | os.PathLike[str]) -> int | None:
    """Tokens of the longest prompt that a model was trained for; None if its file does not say."""
    head = GGUFFile(model_shards(path)[0], ModelError)
    key = f"{head.text('general.architecture')}.context_length"
    return head.whole(key) if key in head.types else None


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
    match = SHARD.search(path.name)
    if match is None:
        return [path]
    stem, count = path.name[: match.start()], int(match.group(2))
    shards = [path.with_name(f"{stem}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]
    for shard in shards:
        if not shard.is_file():
            raise ModelError(f"{shard}: shard is missing, expected {count} shards", "download all shards of the model")
    return shards


def _tokens(file: GGUFFile, architecture: str) -> list[bytes]:
    kind = "tokenizer.ggml.model"
    if kind in file.types and file.text(kind) in ("no_vocab", "none"):
        file.fail("the model has no vocabulary", "maps are made for models that read and write text")
    if "tokenizer.ggml.tokens" not in file.types:
        # a model without tokenizer has that many tokens with empty text
        size = f"{architecture}.vocab_size"
        count = file.whole(size) if size in file.types else 0
        if count > _MOST_TOKENS:
            file.fail(f"key {size}: expected {_MOST_TOKENS} at most, found {count}", "the file is damaged")
        return [b""] * count
    # llama.cpp gives empty tokens a text at load
    return [text or f"[EMPTY_{i}]".encode() for i, text in enumerate(file.field("tokenizer.ggml.tokens", TEXTS))]


def _weights_hash(files: list[GGUFFile], block_count: int) -> str:
    samples = {}
    for file in files:
        for tensor in file.tensors.values():
            if tensor.raw_type != GGMLQuantizationType.F32 or not tensor.name.endswith("norm.weight"):
                continue
            layer = re.match(r"blk\.(\d+)\.", tensor.name)
            if layer is None or int(layer.group(1)) < block_count:
                data = file.data(tensor).reshape(-1)[: _SAMPLE_BYTES // 4]
                samples[tensor.name.encode()] = data.tobytes()
    return fnv1a(part for name in sorted(samples) for part in (name, b"\0", samples[name]))
