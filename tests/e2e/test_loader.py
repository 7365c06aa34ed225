"""Every malformed maps file is refused with the name of the tensor or key; a well-formed one still loads after it."""

from __future__ import annotations

import copy
import ctypes
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import pytest
from support import capi, loaded, maps, paths, spelling
from support.capi import RefusedError
from support.engine import Context, Maps, Model
from support.families import FAMILIES
from support.options import ContextOptions
from support.raw_gguf import RawGGUF, RawKey, RawTensor
from support.tokens import tokens

from pyridgefill.errors import ModelError

FAMILY = FAMILIES["qwen2"]  # wider than its K and V, so that a transposed map has another shape
N_EMBD, WIDTH, SPLIT, N_LAYER = FAMILY.n_embd, FAMILY.head, FAMILY.split, FAMILY.n_layer
K5 = f"ridgefill.{SPLIT}.blk.5.attn_k.weight"
V5 = f"ridgefill.{SPLIT}.blk.5.attn_v.weight"
BIAS5 = f"ridgefill.{SPLIT}.blk.5.attn_k.bias"
Q8_0, F16, F32, F64, I32 = 8, 1, 0, 28, 26

Kind = gguf.GGUFValueType
Mutation = Callable[[RawGGUF], None]


@pytest.fixture(scope="module")
def model(workshop) -> Iterator[Model]:
    with Model(workshop.model(FAMILY.name)) as model:
        yield model


@pytest.fixture(scope="module")
def valid(workshop, tmp_path_factory) -> RawGGUF:
    """Projection maps with biases, and recommended settings."""
    map_set = maps.projected(workshop.model(FAMILY.name), SPLIT, FAMILY.sites())
    map_set = replace(
        map_set,
        maps=tuple(replace(item, bias=np.zeros(WIDTH, np.float32)) for item in map_set.maps),
        recommended=maps.product.Recommended(split=SPLIT, sink=4, tail=64, min_prompt=128),
    )
    return RawGGUF.read(maps.write(tmp_path_factory.mktemp("valid") / "maps.gguf", map_set))


@pytest.fixture(scope="module")
def low_rank(workshop, tmp_path_factory) -> RawGGUF:
    map_set = maps.projected(workshop.model(FAMILY.name), SPLIT, FAMILY.sites(), rank=N_EMBD)
    return RawGGUF.read(maps.write(tmp_path_factory.mktemp("low_rank") / "maps.gguf", map_set))


@pytest.fixture(autouse=True)
def a_valid_file_loads_after_all(model, valid, tmp_path) -> Iterator[None]:
    yield
    use(model, valid.write(tmp_path / "valid.gguf"))


def use(model: Model, path: Path, skip_fingerprint: bool = False) -> None:
    """Load maps and set them in a context, which is when the model's graph is known."""
    with Maps(model, path, skip_fingerprint) as loaded, Context(model) as context:
        context.set_maps(loaded)


def load_sanitized(model: Path, path: Path) -> None:
    """Load the file once more in a process whose loader is built with AddressSanitizer: it ends at its first error."""
    result = subprocess.run([paths.sanitized_loader(), model, path], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(("refused\t", "ok\t"))


def refusal(model: Model, path: Path) -> str:
    load_sanitized(model.path, path)
    with pytest.raises(RefusedError) as caught:
        use(model, path)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def refused(model: Model, valid: RawGGUF, path: Path, mutation: Mutation) -> str:
    raw = copy.deepcopy(valid)
    mutation(raw)
    return refusal(model, raw.write(path))


# tensors


def change(name: str, dims: list[int] | None = None, kind: int | None = None, data: bytes | None = None) -> Mutation:
    def mutate(raw: RawGGUF) -> None:
        tensor = raw.tensor(name)
        tensor.dims = dims if dims is not None else tensor.dims
        tensor.kind = kind if kind is not None else tensor.kind
        tensor.data = data if data is not None else tensor.data

    return mutate


def change_both(n_in: int, n_out: int) -> Mutation:
    """Weight and bias agree on a shape that the model does not have."""

    def mutate(raw: RawGGUF) -> None:
        change(K5, dims=[n_in, n_out], data=bytes(4 * n_in * n_out))(raw)
        change(BIAS5, dims=[n_out], data=bytes(4 * n_out))(raw)

    return mutate


def rename(old: str, new: str) -> Mutation:
    """The tensor, and the entry in the list of maps where there is one."""

    def mutate(raw: RawGGUF) -> None:
        raw.tensor(old).name = new
        names = raw.key("ridgefill.map.names").value
        before, after = (text.removeprefix("ridgefill.").rsplit(".", 1)[0] for text in (old, new))
        if before in names:
            names[names.index(before)] = after

    return mutate


def drop(*names: str) -> Mutation:
    def mutate(raw: RawGGUF) -> None:
        raw.tensors = [tensor for tensor in raw.tensors if tensor.name not in names]

    return mutate


def drop_layer(layer: int) -> Mutation:
    """Tensors and all entries of the lists, as if the layer had never been there."""

    def mutate(raw: RawGGUF) -> None:
        raw.tensors = [tensor for tensor in raw.tensors if f".blk.{layer}." not in tensor.name]
        names = raw.key("ridgefill.map.names").value
        keep = [i for i, name in enumerate(names) if f".blk.{layer}." not in name]
        for key in raw.keys:
            if key.name.startswith("ridgefill.map."):
                key.value = [key.value[i] for i in keep]

    return mutate


def append(name: str, dims: list[int]) -> Mutation:
    return lambda raw: raw.tensors.append(RawTensor(name, dims, F32, bytes(4 * int(np.prod(dims)))))


def value_at(name: str, value: float, dtype: type = np.float32) -> Mutation:
    def mutate(raw: RawGGUF) -> None:
        tensor = raw.tensor(name)
        values = np.frombuffer(tensor.data, np.float32).astype(dtype)
        values[len(values) // 2] = value
        tensor.data = values.tobytes()
        tensor.kind = F16 if dtype is np.float16 else F32

    return mutate


def q8_0_scale(name: str, value: float) -> Mutation:
    def mutate(raw: RawGGUF) -> None:
        tensor = raw.tensor(name)
        values = np.frombuffer(tensor.data, np.float32).reshape(tensor.dims[::-1])
        blocks = bytearray(gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0).tobytes())
        blocks[34:36] = np.float16(value).tobytes()
        tensor.data, tensor.kind = bytes(blocks), Q8_0

    return mutate


def path_of(layer: str, site: str = "attn_k", split: str = str(SPLIT)) -> str:
    return f"ridgefill.{split}.blk.{layer}.{site}.weight"


TENSORS: dict[str, tuple[Mutation, str]] = {
    "transposed": (change(K5, dims=[WIDTH, N_EMBD]), K5),
    "one row too many": (change_both(N_EMBD, WIDTH + 1), "blk.5.attn_k"),
    "one row too few": (change_both(N_EMBD, WIDTH - 1), "blk.5.attn_k"),
    "more rows than biases": (change(K5, dims=[N_EMBD, WIDTH + 1], data=bytes(4 * N_EMBD * (WIDTH + 1))), BIAS5),
    "one column too many": (change(K5, dims=[N_EMBD + 1, WIDTH], data=bytes(4 * (N_EMBD + 1) * WIDTH)), K5),
    "third dimension": (change(K5, dims=[N_EMBD, WIDTH, 2], data=bytes(8 * N_EMBD * WIDTH)), K5),
    "fourth dimension": (change(K5, dims=[N_EMBD, WIDTH, 1, 2], data=bytes(8 * N_EMBD * WIDTH)), K5),
    "one dimension": (change(K5, dims=[N_EMBD * WIDTH]), K5),
    "no rows": (change(K5, dims=[N_EMBD, 0], data=b""), "blk.5.attn_k"),
    "no rows, no biases": (change_both(N_EMBD, 0), "blk.5.attn_k"),
    "bias too long": (change(BIAS5, dims=[WIDTH + 1], data=bytes(4 * (WIDTH + 1))), BIAS5),
    "bias of two dimensions": (change(BIAS5, dims=[WIDTH, 2], data=bytes(8 * WIDTH)), BIAS5),
    "bias in half precision": (change(BIAS5, kind=F16, data=bytes(2 * WIDTH)), BIAS5),
    "float64": (change(K5, kind=F64, data=bytes(8 * N_EMBD * WIDTH)), K5),
    "int32": (change(K5, kind=I32), K5),
    "a type that ggml removed": (change(K5, kind=4), "type"),
    "a type that ggml does not know": (change(K5, kind=999), "type"),
    "layer -1": (rename(K5, path_of("-1")), path_of("-1")),
    "layer at the split": (rename(K5, path_of(str(SPLIT))), path_of(str(SPLIT))),
    "layer below the split": (rename(K5, path_of("0")), path_of("0")),
    "layer beyond the model": (rename(K5, path_of(str(N_LAYER))), path_of(str(N_LAYER))),
    "layer beyond 32 bits": (rename(K5, path_of("4294967301")), path_of("4294967301")),
    "layer with a leading zero": (rename(K5, path_of("05")), path_of("05")),
    "layer with a plus": (rename(K5, path_of("+5")), path_of("+5")),
    "layer with a space": (rename(K5, path_of(" 5")), path_of(" 5")),
    "no layer": (rename(K5, path_of("")), path_of("")),
    "a split that is not listed": (rename(K5, path_of("5", split="2")), path_of("5", split="2")),
    "negative split": (rename(K5, path_of("5", split="-1")), path_of("5", split="-1")),
    "a gap in the layers": (drop_layer(5), "blk.5.attn_k"),
    "weight missing": (drop(K5), "blk.5.attn_k"),
    "duplicate": (append(K5, [N_EMBD, WIDTH]), K5),
    "unknown site": (append(path_of("5", "attn_q"), [N_EMBD, 2 * WIDTH]), "blk.5.attn_q"),
    "site of the other target": (append(path_of("5", "input"), [N_EMBD, N_EMBD]), "blk.5.input"),
    "unknown part": (append(path_of("5") + "_c", [N_EMBD, WIDTH]), path_of("5") + "_c"),
    "foreign tensor": (append("blk.5.attn_k.weight.lora_a", [N_EMBD, 8]), "blk.5.attn_k.weight.lora_a"),
    "low rank beside full rank": (append(path_of("5") + "_a", [N_EMBD, 8]), "blk.5.attn_k"),
    "NaN": (value_at(K5, float("nan")), K5),
    "infinity": (value_at(V5, float("inf")), V5),
    "NaN in a bias": (value_at(BIAS5, float("nan")), BIAS5),
    "infinity in half precision": (value_at(K5, float("-inf"), np.float16), K5),
    "NaN as a block's scale": (q8_0_scale(K5, float("nan")), K5),
    "infinity as a block's scale": (q8_0_scale(K5, float("inf")), K5),
}


@pytest.mark.parametrize("case", TENSORS)
def test_bad_tensor(model, valid, tmp_path, case):
    mutation, name = TENSORS[case]
    assert name in refused(model, valid, tmp_path / "maps.gguf", mutation)


def test_quantized_rows_that_are_no_multiple_of_the_block(model, low_rank, tmp_path):
    """The rank is the row length of the second factor; 16 values are half a block."""
    rank = 16
    raw = copy.deepcopy(low_rank)
    for tensor in raw.tensors:
        if tensor.name.endswith("weight_a"):
            tensor.dims, tensor.data = [N_EMBD, rank], bytes(4 * N_EMBD * rank)
        else:
            tensor.dims, tensor.data = [rank, WIDTH], bytes(4 * rank * WIDTH)
    raw.key("ridgefill.ranks").value = [rank]
    use(model, raw.write(tmp_path / "rank.gguf"))
    name = path_of("5") + "_b"
    change(name, kind=Q8_0, data=bytes(rank * WIDTH // 32 * 34))(raw)
    assert name in refusal(model, raw.write(tmp_path / "maps.gguf"))


LOW_RANK: dict[str, tuple[Mutation, str]] = {
    "factors of rank 0": (
        lambda raw: (
            change(path_of("5") + "_a", dims=[N_EMBD, 0], data=b"")(raw),
            change(path_of("5") + "_b", dims=[0, WIDTH], data=b"")(raw),
        ),
        "blk.5.attn_k",
    ),
    "first factor missing": (drop(path_of("5") + "_a"), "blk.5.attn_k"),
    "second factor missing": (drop(path_of("5") + "_b"), "blk.5.attn_k"),
    "factors of different rank": (
        change(path_of("5") + "_b", dims=[8, WIDTH], data=bytes(32 * WIDTH)),
        path_of("5") + "_b",
    ),
    "full rank beside low rank": (append(path_of("5"), [N_EMBD, WIDTH]), "blk.5.attn_k"),
    "rank 0 in the metadata": (lambda raw: setattr(raw.key("ridgefill.ranks"), "value", [0]), "ridgefill.ranks"),
    "other rank in the metadata": (lambda raw: setattr(raw.key("ridgefill.ranks"), "value", [8]), "ridgefill.ranks"),
    "first factor of the wrong width": (
        change(path_of("5") + "_a", dims=[N_EMBD - 1, N_EMBD], data=bytes(4 * N_EMBD * (N_EMBD - 1))),
        path_of("5") + "_a",
    ),
}


@pytest.mark.parametrize("case", LOW_RANK)
def test_bad_low_rank_map(model, low_rank, tmp_path, case):
    mutation, name = LOW_RANK[case]
    assert name in refused(model, low_rank, tmp_path / "maps.gguf", mutation)


# metadata


def set_key(name: str, value: object, kind: Kind | None = None) -> Mutation:
    def mutate(raw: RawGGUF) -> None:
        key = raw.key(name)
        key.value, key.kind = value, kind or key.kind

    return mutate


def put_key(name: str, value: object, kind: Kind) -> Mutation:
    """Set a key that the file may lack."""

    def mutate(raw: RawGGUF) -> None:
        raw.keys = [key for key in raw.keys if key.name != name] + [RawKey(name, kind, value)]

    return mutate


def put_pool(before: int, after: int, kind: Kind) -> Mutation:
    def mutate(raw: RawGGUF) -> None:
        put_key("ridgefill.recommended.pool_before", before, kind)(raw)
        put_key("ridgefill.recommended.pool_after", after, kind)(raw)

    return mutate


def drop_key(name: str) -> Mutation:
    def mutate(raw: RawGGUF) -> None:
        raw.keys.remove(raw.key(name))

    return mutate


METADATA: dict[str, tuple[Mutation, str]] = {
    "a model": (set_key("general.type", "model"), "general.type"),
    "a LoRA": (set_key("adapter.type", "lora"), "adapter.type"),
    "another architecture": (set_key("general.architecture", "llama"), "general.architecture"),
    "a later version": (set_key("ridgefill.format_version", 2), "ridgefill.format_version"),
    "version as text": (set_key("ridgefill.format_version", "1", Kind.STRING), "ridgefill.format_version"),
    "version as a list": (set_key("ridgefill.format_version", [1]), "ridgefill.format_version"),
    "another depth": (set_key("ridgefill.base.block_count", N_LAYER + 1), "ridgefill.base.block_count"),
    "another width": (set_key("ridgefill.base.embedding_length", N_EMBD + 1), "ridgefill.base.embedding_length"),
    "another vocabulary size": (set_key("ridgefill.base.vocab_size", 7), "ridgefill.base.vocab_size"),
    "another vocabulary": (set_key("ridgefill.base.vocab_hash", "0" * 16), "ridgefill.base.vocab_hash"),
    "other weights": (set_key("ridgefill.base.weights_hash", "0" * 16), "ridgefill.base.weights_hash"),
    "another split": (set_key("ridgefill.splits", [SPLIT + 1]), str(SPLIT)),
    "a split without maps": (
        lambda raw: (
            set_key("ridgefill.splits", [SPLIT, SPLIT + 1])(raw),
            set_key("ridgefill.targets", ["proj", "proj"])(raw),
            set_key("ridgefill.ranks", [0, 0])(raw),
        ),
        f"split {SPLIT + 1}",
    ),
    "no splits": (set_key("ridgefill.splits", []), "ridgefill.splits"),
    "negative split": (set_key("ridgefill.splits", [-1]), "ridgefill.splits"),
    "split beyond the model": (set_key("ridgefill.splits", [N_LAYER]), "ridgefill.splits"),
    "split at the last layer": (set_key("ridgefill.splits", [N_LAYER - 1]), "ridgefill.splits"),
    "a split twice": (
        lambda raw: (
            set_key("ridgefill.splits", [SPLIT, SPLIT])(raw),
            set_key("ridgefill.targets", ["proj", "proj"])(raw),
            set_key("ridgefill.ranks", [0, 0])(raw),
        ),
        "ridgefill.splits",
    ),
    "splits as u32": (set_key("ridgefill.splits", [SPLIT], Kind.UINT32), "ridgefill.splits"),
    "splits as one number": (set_key("ridgefill.splits", SPLIT), "ridgefill.splits"),
    "more targets than splits": (set_key("ridgefill.targets", ["proj", "proj"]), "ridgefill.targets"),
    "an unknown target": (set_key("ridgefill.targets", ["layer"]), "ridgefill.targets"),
    "the other target": (set_key("ridgefill.targets", ["input"]), "input"),
    "fewer ranks than splits": (set_key("ridgefill.ranks", []), "ridgefill.ranks"),
    "negative rank": (set_key("ridgefill.ranks", [-1]), "ridgefill.ranks"),
    "an unknown norm": (set_key("ridgefill.feature_norm", "layer"), "ridgefill.feature_norm"),
    "no epsilon": (drop_key("ridgefill.feature_norm_eps"), "ridgefill.feature_norm_eps"),
    "negative epsilon": (set_key("ridgefill.feature_norm_eps", -1.0), "ridgefill.feature_norm_eps"),
    "epsilon NaN": (set_key("ridgefill.feature_norm_eps", float("nan")), "ridgefill.feature_norm_eps"),
    "recommended split without maps": (set_key("ridgefill.recommended.split", 4), "ridgefill.recommended.split"),
    "negative tail": (set_key("ridgefill.recommended.tail", -1), "ridgefill.recommended.tail"),
    "negative sink": (set_key("ridgefill.recommended.sink", -1), "ridgefill.recommended.sink"),
    "negative minimum": (set_key("ridgefill.recommended.min_prompt", -1), "ridgefill.recommended.min_prompt"),
    "tail as text": (set_key("ridgefill.recommended.tail", "64", Kind.STRING), "ridgefill.recommended.tail"),
    "unknown selection": (
        put_key("ridgefill.recommended.select", "best", Kind.STRING),
        "expected 'none' or 'attention'",
    ),
    "selection as number": (put_key("ridgefill.recommended.select", 1, Kind.UINT32), "ridgefill.recommended.select"),
    "selection without heads": (
        put_key("ridgefill.recommended.select", "attention", Kind.STRING),
        f"expected retrieval heads for split {SPLIT}",
    ),
    "selection without a split": (
        lambda raw: (
            drop_key("ridgefill.recommended.split")(raw),
            put_key("ridgefill.recommended.select", "attention", Kind.STRING)(raw),
        ),
        "ridgefill.recommended.split",
    ),
    "no budget": (put_key("ridgefill.recommended.budget", 0.0, Kind.FLOAT32), "expected a share above 0"),
    "budget over 1": (put_key("ridgefill.recommended.budget", 1.5, Kind.FLOAT32), "ridgefill.recommended.budget"),
    "budget NaN": (put_key("ridgefill.recommended.budget", float("nan"), Kind.FLOAT32), "ridgefill.recommended.budget"),
    "budget as rows": (put_key("ridgefill.recommended.budget", 40, Kind.UINT32), "ridgefill.recommended.budget"),
    "half a pool": (put_key("ridgefill.recommended.pool_after", 40, Kind.UINT32), "expected both or none"),
    "huge pool": (put_pool(8, 2**31, Kind.UINT32), "ridgefill.recommended.pool_after"),
    "signed pool": (put_pool(8, 40, Kind.INT32), "ridgefill.recommended.pool_before"),
    "no queries": (put_key("ridgefill.recommended.queries", 0, Kind.UINT32), "ridgefill.recommended.queries"),
}

REQUIRED = [
    "general.type",
    "adapter.type",
    "general.architecture",
    "ridgefill.format_version",
    "ridgefill.base.block_count",
    "ridgefill.base.embedding_length",
    "ridgefill.base.vocab_size",
    "ridgefill.base.vocab_hash",
    "ridgefill.base.weights_hash",
    "ridgefill.splits",
    "ridgefill.targets",
    "ridgefill.ranks",
    "ridgefill.feature_norm",
]


@pytest.mark.parametrize("case", METADATA)
def test_bad_metadata(model, valid, tmp_path, case):
    mutation, name = METADATA[case]
    assert name in refused(model, valid, tmp_path / "maps.gguf", mutation)


@pytest.mark.parametrize("key", REQUIRED)
def test_missing_key(model, valid, tmp_path, key):
    assert key in refused(model, valid, tmp_path / "maps.gguf", drop_key(key))


@pytest.mark.parametrize("key", ["ridgefill.splits", "ridgefill.feature_norm"])
def test_key_given_twice(model, valid, tmp_path, key):
    message = refused(model, valid, tmp_path / "maps.gguf", lambda raw: raw.keys.append(copy.deepcopy(raw.key(key))))
    assert "maps.gguf" in message


# identity of the model


@pytest.fixture(scope="module")
def other_model(workshop) -> Iterator[Model]:
    """Same architecture, shape and vocabulary, other weights."""
    with Model(workshop.model(FAMILY.name, seed=1)) as model:
        yield model


def test_another_model_of_the_same_shape(valid, other_model, tmp_path):
    path = valid.write(tmp_path / "maps.gguf")
    assert "ridgefill.base.weights_hash" in refusal(other_model, path)
    use(other_model, path, skip_fingerprint=True)


def test_another_vocabulary_can_be_overridden(model, valid, tmp_path):
    raw = copy.deepcopy(valid)
    raw.key("ridgefill.base.vocab_hash").value = "0" * 16
    use(model, raw.write(tmp_path / "maps.gguf"), skip_fingerprint=True)


@pytest.mark.parametrize("case", ["another architecture", "another depth", "another width"])
def test_a_shape_is_never_overridden(model, valid, tmp_path, case):
    mutation, name = METADATA[case]
    raw = copy.deepcopy(valid)
    mutation(raw)
    with pytest.raises(RefusedError, match=name):
        Maps(model, raw.write(tmp_path / "maps.gguf"), skip_fingerprint=True)


def test_fingerprint_equals_the_package(model, workshop):
    base = maps.product.read_base_model(workshop.model(FAMILY.name))
    fingerprint = capi.native().llama_ridgefill_model_fingerprint(model.handle)
    assert fingerprint.vocab.decode() == base.vocab_hash
    assert fingerprint.weights.decode() == base.weights_hash


def test_a_model_without_a_vocabulary_is_refused(workshop, valid, tmp_path):
    path = spelling.without_vocabulary(workshop.model(FAMILY.name), tmp_path / "no-words.gguf")
    with Model(path) as wordless:
        with pytest.raises(RefusedError, match=r"maps\.gguf': the model has no vocabulary"):
            Maps(wordless, valid.write(tmp_path / "maps.gguf"))
        assert capi.native().llama_ridgefill_model_fingerprint(wordless.handle).vocab == b""
        assert "no vocabulary" in capi.last_error()
    with pytest.raises(ModelError, match=r"no-words\.gguf: the model has no vocabulary"):
        maps.product.read_base_model(path)


# the container


def test_truncated_anywhere(model, valid, tmp_path):
    """Cut in the header, in each key, in the tensor list and in the data."""
    data = valid.write(tmp_path / "whole.gguf").read_bytes()
    n_head = len(valid.head())
    cuts = {
        0,
        1,
        4,
        8,
        16,
        23,
        *range(24, n_head, 97),
        n_head - 1,
        n_head,
        len(data) - 4 * N_EMBD * WIDTH,
        len(data) - 32,
    }
    path = tmp_path / "maps.gguf"
    for cut in sorted(cuts):
        path.write_bytes(data[:cut])
        assert str(path) in refusal(model, path)


def test_truncated_data_is_named(model, valid, tmp_path):
    last = valid.tensors[-1]
    path = valid.write(tmp_path / "maps.gguf")
    path.write_bytes(path.read_bytes()[: -(len(last.data) // 2) - 32])
    assert last.name in refusal(model, path)


def test_data_offset_outside_of_the_file(model, valid, tmp_path):
    for offset in (1 << 20, 1 << 40, (1 << 64) - 32, 16):
        path = valid.write(tmp_path / "maps.gguf")
        data = bytearray(path.read_bytes())
        at = data.index(K5.encode()) + len(K5) + 4 + 2 * 8 + 4  # after the number of dimensions, two of them, the type
        data[at : at + 8] = struct.pack("<Q", offset)
        path.write_bytes(data)
        assert "maps.gguf" in refusal(model, path)


@pytest.mark.parametrize(
    ("at", "value"), [(8, 1 << 62), (16, 1 << 62), (8, (1 << 64) - 1), (16, (1 << 64) - 1)], ids=["tensors", "keys"] * 2
)
def test_absurd_counts(model, valid, tmp_path, at, value):
    path = valid.write(tmp_path / "maps.gguf")
    data = bytearray(path.read_bytes())
    data[at : at + 8] = struct.pack("<Q", value)
    path.write_bytes(data)
    assert "maps.gguf" in refusal(model, path)


@pytest.mark.parametrize("dims", [[1 << 62, 4], [N_EMBD, 1 << 60], [N_EMBD, (1 << 64) - 1]])
def test_absurd_shape(model, valid, tmp_path, dims):
    assert "maps.gguf" in refused(model, valid, tmp_path / "maps.gguf", change(K5, dims=dims))


def test_name_too_long(model, valid, tmp_path):
    name = path_of("5", "x" * 64)
    assert f"behind '{name}'" in refused(model, valid, tmp_path / "maps.gguf", append(name, [N_EMBD, WIDTH]))


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"", "empty"), (b"GGUF", "only the magic"), (b"PK\3\4" + bytes(100), "a zip"), (bytes(4096), "zeros")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_not_a_gguf(model, tmp_path, content, what):
    path = tmp_path / "maps.gguf"
    path.write_bytes(content)
    assert "maps.gguf" in refusal(model, path)


def test_a_damaged_file_is_located(model, valid, tmp_path):
    data = valid.write(tmp_path / "maps.gguf").read_bytes()
    cut = data.index(K5.encode()) + len(K5) + 4
    (tmp_path / "maps.gguf").write_bytes(data[:cut])
    assert f"damaged at byte {cut} of {cut}, behind '{K5}'" in refusal(model, tmp_path / "maps.gguf")


def test_the_log_stays_the_programs_own(model, tmp_path):
    """A reader that put its own callback there to listen in would take it from other threads."""
    path = tmp_path / "maps.gguf"
    path.write_bytes(b"PK\3\4" + bytes(100))
    current, lines = ctypes.c_void_p(), []

    @llama_cpp.llama_log_callback
    def listen(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
        llama_cpp.llama_cpp._lib.ggml_log_get(ctypes.byref(current), ctypes.byref(ctypes.c_void_p()))
        lines.append((current.value, text.decode()))

    llama_cpp.llama_log_set(listen, None)
    try:
        with pytest.raises(RefusedError, match="not a valid GGUF file"):
            Maps(model, path)
    finally:
        llama_cpp.llama_log_set(loaded._keep, None)
    assert any("invalid magic" in text for _, text in lines)
    assert {callback for callback, _ in lines} == {ctypes.cast(listen, ctypes.c_void_p).value}
    assert not any("failed to load maps" in text for _, text in lines), "the caller reports it"


def test_no_such_file_and_a_folder(model, tmp_path):
    assert "nothing.gguf" in refusal(model, tmp_path / "nothing.gguf")
    assert str(tmp_path) in refusal(model, tmp_path)


def test_big_endian(model, valid, tmp_path):
    path = valid.write(tmp_path / "maps.gguf")
    data = bytearray(path.read_bytes())
    data[4:8] = struct.pack(">I", 3)
    path.write_bytes(data)
    assert "maps.gguf" in refusal(model, path)


def test_a_shard(model, valid, tmp_path):
    raw = copy.deepcopy(valid)
    raw.keys += [RawKey("split.no", Kind.UINT16, 0), RawKey("split.count", Kind.UINT16, 2)]
    assert "split.count" in refusal(model, raw.write(tmp_path / "maps-00001-of-00002.gguf"))


def test_the_model_itself(model):
    assert "general.type" in refusal(model, model.path)


@pytest.mark.parametrize("alignment", [16, 32, 64, 256])
def test_alignment_and_size_of_the_metadata(model, valid, workshop, tmp_path, alignment):
    """The maps are the same wherever the data begins."""
    prompt = tokens(200)

    def logits(raw: RawGGUF) -> np.ndarray:
        path = raw.write(tmp_path / "maps.gguf")
        with Maps(model, path) as loaded, Context(model, ContextOptions()) as context:
            context.set_maps(loaded)
            context.mark(0, (4, 136))
            return context.decode({0: prompt}, 64)[0]

    expected = logits(valid)
    for n in range(0, 64, 16):
        raw = copy.deepcopy(valid)
        raw.alignment = alignment
        raw.keys.append(RawKey("general.alignment", Kind.UINT32, alignment))
        raw.keys.append(RawKey("general.description", Kind.STRING, "x" * n))
        assert np.array_equal(logits(raw), expected)


@pytest.mark.parametrize("folder", ["Кириллица и пробел", "日本語", "emoji 🙂"])
def test_awkward_paths(model, valid, tmp_path, folder):
    (tmp_path / folder).mkdir()
    path = valid.write(tmp_path / folder / "maps.gguf")
    use(model, path)
    path.write_bytes(b"")
    assert folder in refusal(model, path)
