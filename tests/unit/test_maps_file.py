from __future__ import annotations

import hashlib
import resource
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.raw_gguf import RawGGUF, RawKey, RawTensor
from test_base_model import write_model

from pyridgefill.errors import MapsError, RidgeFillError
from pyridgefill.maps import (
    BaseModel,
    Calibration,
    MapSet,
    Recommended,
    RetrievalHead,
    Site,
    SiteMap,
    Split,
    identity_maps,
    poison_maps,
    read_base_model,
    read_maps,
    write_maps,
)

KIND = gguf.GGUFValueType
F32, F16, F64 = (int(gguf.GGMLQuantizationType[name]) for name in ("F32", "F16", "F64"))
BASE = BaseModel("llama", 4, 64, 100, "0123456789abcdef", "fedcba9876543210")
NAME = "ridgefill.1.blk.2.attn_k.weight"


def example(rank: int = 0, width: int = 32) -> MapSet:
    random = np.random.default_rng(0)

    def matrix(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    maps = []
    for layer in (2, 3):
        for site in ("attn_k", "attn_v"):
            parts = (
                {"weight_a": matrix(rank, 64), "weight_b": matrix(width, rank)}
                if rank
                else {"weight": matrix(width, 64)}
            )
            bias = matrix(width) if site == "attn_v" else None
            number = len(maps) + 1.0
            maps.append(
                SiteMap(1, layer, site, **parts, bias=bias, damping=number, r2=0.5, condition=1e9, solver="eigh")
            )
    return MapSet(
        base=BASE,
        splits=(Split(1, "proj", rank),),
        maps=tuple(maps),
        feature_norm="rms",
        feature_norm_eps=1e-5,
        recommended=Recommended(1, 4, 256, 1024),
        calibration=Calibration(50_000, ("pydoc-topics", "книга.txt"), 12, 3),
    )


HEADS = (RetrievalHead(1, 0, 3, (0.25, 0.5, 1.0)),)


def selecting(**recommended: Any) -> MapSet:
    return replace(example(), recommended=Recommended(split=1, **recommended), heads=HEADS)


def test_a_recommended_selection_is_stored(tmp_path: Path) -> None:
    maps = selecting(select="attention", budget=0.2, pool=(8, 40), queries=64)
    write_maps(tmp_path / "maps.gguf", maps)
    read = read_maps(tmp_path / "maps.gguf")
    assert (read.recommended, read.heads) == (maps.recommended, maps.heads)


def assert_same(written: MapSet, read: MapSet, tolerance: float = 0.0) -> None:
    assert (read.base, read.splits, read.recommended, read.calibration) == (
        written.base,
        written.splits,
        written.recommended,
        written.calibration,
    )
    assert read.feature_norm == written.feature_norm
    if written.feature_norm == "rms":
        assert read.feature_norm_eps == pytest.approx(written.feature_norm_eps)
    assert [item.name for item in read.maps] == [item.name for item in written.maps]
    for mine, theirs in zip(written.maps, read.maps, strict=True):
        assert (theirs.damping, theirs.solver) == (mine.damping, mine.solver)
        np.testing.assert_equal((theirs.r2, theirs.condition), (mine.r2, mine.condition))
        assert mine.tensors().keys() == theirs.tensors().keys()
        for name, source in mine.tensors().items():
            limit = 0.0 if name.endswith("bias") else tolerance
            np.testing.assert_allclose(theirs.tensors()[name][:], source[:], atol=limit, rtol=limit)


@pytest.mark.parametrize(
    ("weight_type", "tolerance"), [("f32", 0), ("f16", 1e-3), ("bf16", 8e-3), ("q8_0", 2e-2), ("q4_0", 0.4)]
)
@pytest.mark.parametrize("rank", [0, 32])
def test_round_trip(tmp_path: Path, weight_type: str, tolerance: float, rank: int) -> None:
    path = tmp_path / "Карты 地図 😀.gguf"
    write_maps(path, example(rank), weight_type=weight_type)
    read = read_maps(path)
    assert_same(example(rank), read, tolerance)
    stored = {name: source.type_name for item in read.maps for name, source in item.tensors().items()}  # type: ignore[attr-defined]
    assert all(kind == ("f32" if name.endswith("bias") else weight_type) for name, kind in stored.items())
    # what was read can be written again, to the same bytes
    write_maps(tmp_path / "again.gguf", read, weight_type=weight_type)
    if weight_type not in ("q8_0", "q4_0"):
        assert (tmp_path / "again.gguf").read_bytes() == path.read_bytes()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(padding=st.integers(1, 80), alignment=st.sampled_from([8, 16, 32, 64, 256]))
def test_alignment_and_metadata_size_do_not_shift_data(tmp_path: Path, padding: int, alignment: int) -> None:
    maps = replace(example(), calibration=Calibration(1, ("x" * padding,)))
    write_maps(tmp_path / "maps.gguf", maps, weight_type="f32", alignment=alignment)
    assert_same(maps, read_maps(tmp_path / "maps.gguf"))


def test_several_splits_of_both_targets(tmp_path: Path) -> None:
    identity = identity_maps(BASE, [0, 2])
    proj = example()
    both = replace(
        identity,
        splits=(Split(0, "input"), Split(1, "proj"), Split(2, "input")),
        maps=tuple(sorted((*identity.maps, *proj.maps), key=lambda item: item.split)),
    )
    write_maps(tmp_path / "maps.gguf", both, weight_type="f32")
    assert_same(both, read_maps(tmp_path / "maps.gguf"))


def test_many_layers_have_names_that_fit(tmp_path: Path) -> None:
    base = BaseModel("llama", 200, 8, 100, BASE.vocab_hash, BASE.weights_hash)
    sites = [Site(layer, "attn_kv_a_mqa", 4) for layer in range(2, 200)]
    maps = poison_maps(base, 1, sites, target="proj")
    write_maps(tmp_path / "maps.gguf", maps, weight_type="f32")
    assert_same(maps, read_maps(tmp_path / "maps.gguf"))


def test_poison_is_large_and_depends_on_the_seed() -> None:
    one, same, other = (poison_maps(BASE, 1, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.maps[0].weight[:], same.maps[0].weight[:])  # type: ignore[index]
    assert not np.array_equal(one.maps[0].weight[:], other.maps[0].weight[:])  # type: ignore[index]
    assert np.abs(one.maps[0].weight[:]).max() > 100  # type: ignore[index]


class Zeros:
    """A matrix that is in no memory."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.largest_read = 0

    def __getitem__(self, rows: slice) -> np.ndarray:
        block = np.zeros((len(range(*rows.indices(self.shape[0]))), *self.shape[1:]), np.float32)
        self.largest_read = max(self.largest_read, block.nbytes)
        return block


def test_tensors_are_streamed(tmp_path: Path) -> None:
    base = replace(BASE, embedding_length=4096)
    big = Zeros(64 * 1024, 4096)  # 1 GiB
    maps = MapSet(base, (Split(1, "proj"),), (SiteMap(1, 2, "attn_k", weight=big),))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    write_maps(tmp_path / "maps.gguf", maps, weight_type="q8_0")
    assert big.largest_read <= 32 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10
    assert (tmp_path / "maps.gguf").stat().st_size > 1 << 28


@pytest.mark.parametrize(
    ("weight_type", "value", "message"),
    [
        ("f16", 70000.0, "value 70000 is too large for f16"),
        ("q8_0", 1e8, "value 1e\\+08 is too large for q8_0"),
        ("q4_0", 1e6, "value 1e\\+06 is too large for q4_0"),
        ("f32", 1e39, "value 1e\\+39 is too large for f32"),
        ("bf16", np.nan, "value that is not finite"),
        ("f32", -np.inf, "value that is not finite"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, weight_type: str, value: float, message: str
) -> None:
    maps = example()
    weight = maps.maps[2].weight[:].astype(np.float64)  # type: ignore[index]
    weight[31, 63] = value
    spoiled = replace(maps, maps=(*maps.maps[:2], replace(maps.maps[2], weight=weight), maps.maps[3]))
    with pytest.raises(MapsError, match=rf"tensor ridgefill\.1\.blk\.3\.attn_k\.weight: {message}"):
        write_maps(tmp_path / "maps.gguf", spoiled, weight_type=weight_type)
    assert list(tmp_path.iterdir()) == []


def one(**changes: object) -> MapSet:
    maps = example()
    return replace(maps, maps=(replace(maps.maps[0], **changes), *maps.maps[1:]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        (one(weight=np.zeros((64, 32), np.float32)), r"expected shape \[64, 64\], found \[32, 64\]"),
        (one(weight=np.zeros((32, 64, 1), np.float32)), r"found \[1, 64, 32\]"),
        (one(bias=np.zeros(31, np.float32)), r"attn_k\.bias: expected shape \[32\], found \[31\]"),
        (one(layer=1), "map 1.blk.1.attn_k: layer 1, expected 2 to 3"),
        (one(layer=4), "map 1.blk.4.attn_k: layer 4, expected 2 to 3"),
        (one(layer=3), "map 1.blk.3.attn_k: given twice"),
        (one(split=0), r"split 0 is not in ridgefill\.splits \[1\]"),
        (one(site="input"), "site 'input' does not fit target 'proj'"),
        (one(weight=None), r"rank 0 expects \['weight'\], found \[\]"),
        (one(site="a" * 60), "name has 85 bytes, at most 63 fit"),
        (replace(example(), splits=(Split(3, "proj"),)), "expected 0 to 2, found 3"),
        (replace(example(), splits=(Split(1, "proj"), Split(2, "proj"))), "split 2: no maps"),
        (replace(example(), splits=(Split(1, "kv"),)), "ridgefill.targets"),  # type: ignore[arg-type]
        (replace(example(), feature_norm="l1"), "ridgefill.feature_norm: expected"),  # type: ignore[arg-type]
        (replace(example(), recommended=Recommended(split=2)), r"ridgefill.recommended.split: expected one of \[1\]"),
        (replace(example(), recommended=Recommended(split=1, tail=-1)), "ridgefill.recommended.tail"),
        (selecting(select="spans"), "ridgefill.recommended.select: expected none or attention"),
        (replace(selecting(select="attention"), heads=()), "expected retrieval heads for split 1, found none"),
        (selecting(budget=0.0), "ridgefill.recommended.budget"),
        (selecting(budget=1.5), "ridgefill.recommended.budget"),
        (selecting(pool=(8, -1)), "ridgefill.recommended.pool_before, pool_after"),
        (selecting(queries=0), "ridgefill.recommended.queries"),
    ],
)
def test_sets_that_are_not_valid_are_refused(tmp_path: Path, maps: MapSet, message: str) -> None:
    with pytest.raises(MapsError, match=message):
        write_maps(tmp_path / "maps.gguf", maps)
    assert list(tmp_path.iterdir()) == []


def test_quantized_rows_must_be_whole_blocks(tmp_path: Path) -> None:
    with pytest.raises(MapsError, match=r"1\.blk\.2\.attn_k\.weight_b: q8_0 needs rows of a multiple of 32, found 8"):
        write_maps(tmp_path / "maps.gguf", example(rank=8), weight_type="q8_0")


def test_unknown_type_alignment_and_folder(tmp_path: Path) -> None:
    with pytest.raises(MapsError, match="weight type 'q2'"):
        write_maps(tmp_path / "maps.gguf", example(), weight_type="q2")
    with pytest.raises(MapsError, match="alignment 48"):
        write_maps(tmp_path / "maps.gguf", example(), alignment=48)
    with pytest.raises(Exception, match="does not exist"):
        write_maps(tmp_path / "none" / "maps.gguf", example())


def change(entry: str, /, **fields: object) -> Callable[[RawGGUF], None]:
    def apply(raw: RawGGUF) -> None:
        target = raw.tensor(entry) if any(tensor.name == entry for tensor in raw.tensors) else raw.key(entry)
        for field, value in fields.items():
            setattr(target, field, value)

    return apply


def drop_key(name: str) -> Callable[[RawGGUF], None]:
    return lambda raw: raw.keys.remove(raw.key(name))


def drop_tensor(name: str) -> Callable[[RawGGUF], None]:
    return lambda raw: raw.tensors.remove(raw.tensor(name))


def add_tensor(name: str, *dims: int, kind: int = F32) -> Callable[[RawGGUF], None]:
    return lambda raw: raw.tensors.append(RawTensor(name, list(dims), kind, bytes(8 * int(np.prod(dims)))))


OTHER_NAMES = ["1.blk.2.attn_v", "1.blk.3.attn_k", "1.blk.3.attn_v"]
NOT_A_NUMBER = np.full(64 * 32, np.nan, "<f4").tobytes()

MALFORMED = {
    "another kind of file": (
        change("general.type", value="model"),
        "key general.type: expected 'adapter', found 'model'",
    ),
    "another adapter": (change("adapter.type", value="lora"), "key adapter.type: expected 'ridgefill', found 'lora'"),
    "newer version": (change("ridgefill.format_version", value=2), "key ridgefill.format_version: expected 1, found 2"),
    "missing key": (drop_key("ridgefill.splits"), "key ridgefill.splits is missing"),
    "missing fingerprint": (drop_key("ridgefill.base.weights_hash"), "key ridgefill.base.weights_hash is missing"),
    "bad fingerprint": (
        change("ridgefill.base.vocab_hash", value="xyz"),
        "vocab_hash: expected 16 hex digits, found 'xyz'",
    ),
    "key of another type": (
        change("ridgefill.base.block_count", kind=KIND.INT32),
        "key ridgefill.base.block_count: expected type uint32, found int32",
    ),
    "array of another type": (
        change("ridgefill.splits", kind=KIND.INT64),
        "key ridgefill.splits: expected type array of int32, found array of int64",
    ),
    "lists of unequal length": (
        change("ridgefill.map.lambda", value=[1.0]),
        "key ridgefill.map.lambda: expected 4 entries, found 1",
    ),
    "split that the maps do not have": (
        lambda raw: [change("ridgefill.splits", value=[0])(raw), drop_key("ridgefill.recommended.split")(raw)],
        "map 1.blk.2.attn_k: split 1 is not in ridgefill.splits .0.",
    ),
    "recommended split": (
        change("ridgefill.recommended.split", value=0),
        "ridgefill.recommended.split: expected one of",
    ),
    "descending splits": (
        lambda raw: [
            change("ridgefill.splits", value=[1, 0])(raw),
            change("ridgefill.targets", value=["proj", "proj"])(raw),
            change("ridgefill.ranks", value=[0, 0])(raw),
        ],
        "ridgefill.splits: expected ascending",
    ),
    "layer below the split": (
        lambda raw: [
            change(
                "ridgefill.map.names", value=["1.blk.1.attn_k", "1.blk.2.attn_v", "1.blk.3.attn_k", "1.blk.3.attn_v"]
            )(raw),
            change(NAME, name="ridgefill.1.blk.1.attn_k.weight")(raw),
        ],
        "map 1.blk.1.attn_k: layer 1, expected 2 to 3",
    ),
    "negative layer": (
        lambda raw: [
            change(
                "ridgefill.map.names", value=["1.blk.-1.attn_k", "1.blk.2.attn_v", "1.blk.3.attn_k", "1.blk.3.attn_v"]
            )(raw),
            change(NAME, name="ridgefill.1.blk.-1.attn_k.weight")(raw),
        ],
        "1.blk.-1.attn_k",
    ),
    "missing tensor": (drop_tensor(NAME), "tensor ridgefill.1.blk.2.attn_k.weight: missing"),
    "unknown tensor": (add_tensor("output.weight", 64, 2), "tensor output.weight: unknown"),
    "map that is not named": (
        add_tensor("ridgefill.1.blk.3.attn_q.weight", 64, 2),
        "ridgefill.1.blk.3.attn_q.weight: unknown",
    ),
    "duplicate tensor": (add_tensor(NAME, 64, 32), f"tensor {NAME}: stored twice"),
    "transposed": (change(NAME, dims=[32, 64]), f"tensor {NAME}: expected shape \\[64, 64\\], found \\[32, 64\\]"),
    "one row too many for the bias": (
        lambda raw: change("ridgefill.1.blk.2.attn_v.weight", dims=[64, 33], data=bytes(64 * 33 * 4))(raw),
        "attn_v.bias: expected shape \\[33\\], found \\[32\\]",
    ),
    "third dimension": (change(NAME, dims=[64, 16, 2]), f"tensor {NAME}: expected one or two dimensions"),
    "no rows": (change(NAME, dims=[64, 0]), f"tensor {NAME}: expected one or two dimensions, found shape \\[64, 0\\]"),
    "f64": (change(NAME, kind=F64, data=bytes(64 * 32 * 8)), f"tensor {NAME}: type F64, expected one of"),
    "unknown type": (change(NAME, kind=77), f"tensor {NAME}: type 77, expected one of"),
    "half a block": (
        change(NAME, kind=int(gguf.GGMLQuantizationType.Q8_0), dims=[48, 32]),
        f"tensor {NAME}: expected rows of a multiple of 32, found shape \\[48, 32\\]",
    ),
    "f16 bias": (change("ridgefill.1.blk.2.attn_v.bias", kind=F16), "attn_v.bias: expected type F32, found F16"),
    "not finite": (change(NAME, data=NOT_A_NUMBER), f"tensor {NAME}: value that is not finite"),
    "huge tensor": (change(NAME, dims=[64, 1 << 55]), f"tensor {NAME}: data ends at byte"),
    "long name": (change(NAME, name="ridgefill.1.blk.2." + "k" * 60), "name has 78 bytes, at most 63 fit"),
    "duplicate key": (
        lambda raw: raw.keys.append(RawKey("adapter.type", KIND.STRING, "lora")),
        "not a readable GGUF file: .*adapter.type",
    ),
    "shard": (
        lambda raw: raw.keys.append(RawKey("split.count", KIND.UINT16, 2)),
        "key split.count: maps files are not sharded",
    ),
    "unaligned": (
        lambda raw: [setattr(raw, "alignment", 1), change(NAME, data=bytes(64 * 32 * 4 + 8))(raw)],
        "is not aligned to 32 bytes",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_file_is_refused_by_name(tmp_path: Path, case: str) -> None:
    path = tmp_path / "maps.gguf"
    write_maps(path, example(), weight_type="f32")
    raw = RawGGUF.read(path)
    apply, message = MALFORMED[case]
    apply(raw)
    raw.write(path)
    with pytest.raises(MapsError, match=message) as caught:
        read_maps(path, check_values=True)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_any_truncation_is_refused(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.gguf", tmp_path / "cut.gguf"
    write_maps(whole, replace(example(), maps=example().maps[:1]), weight_type="f32")
    data = whole.read_bytes()
    for size in [*range(0, len(data) - 64 * 32 * 4, 37), *range(len(data) - 64 * 32 * 4, len(data), 997)]:
        cut.write_bytes(data[:size])
        with pytest.raises(MapsError, match=r"cut\.gguf"):
            read_maps(cut)


def test_foreign_byte_order_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "maps.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_string("general.type", "adapter")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with pytest.raises(MapsError, match="expected little-endian byte order, found big-endian"):
        read_maps(path)


def test_text_and_missing_files_are_refused(tmp_path: Path) -> None:
    for bad in (Path(__file__), tmp_path / "none.gguf"):
        with pytest.raises(MapsError, match=bad.name):
            read_maps(bad)


def test_writing_is_reproducible(tmp_path: Path) -> None:
    digests = set()
    for name in ("a", "b"):
        write_maps(tmp_path / name, example())
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).digest())
    assert len(digests) == 1


def flipped(data: bytes, bits: tuple[int, ...]) -> bytes:
    changed = bytearray(data)
    for bit in bits:
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def check_damage(path: Path, data: bytes, read: Callable[[Path], object]) -> None:
    """A damaged file is read or refused in one line that names it, with little memory."""
    path.write_bytes(data)
    message = ""
    tracemalloc.start()
    try:
        read(path)
    except RidgeFillError as error:
        message = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8 << 20
    assert not message or path.name in message
    assert "\n" not in message


def test_a_flipped_length_does_not_eat_memory(tmp_path: Path) -> None:
    path = tmp_path / "maps.gguf"
    write_maps(path, replace(example(), heads=HEADS), weight_type="f32")
    data = bytearray(path.read_bytes())
    start = data.index(b"ridgefill.heads.layers") + len("ridgefill.heads.layers")
    data[start + 15] ^= 0x10  # the top byte of the array's length
    for padding in range(4):  # what follows is a whole number of elements, or not
        path.write_bytes(data + bytes(padding))
        with pytest.raises(MapsError, match=r"maps\.gguf: .*key ridgefill\.heads\.layers: \d+ values"):
            read_maps(path)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bits_are_refused_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    maps, model = tmp_path / "maps.gguf", tmp_path / "model.gguf"
    if not maps.exists():
        write_maps(maps, replace(example(), heads=HEADS), weight_type="f16")
        write_model(model, tokens=["a", "bc", "", "文"], layers=4)
    path, read = data.draw(st.sampled_from([(maps, read_maps), (model, read_base_model)]))
    whole = path.read_bytes()
    header = whole.rindex(b"weight") + 64  # behind the last tensor's name
    bits = data.draw(st.lists(st.integers(0, 8 * header - 1), min_size=1, max_size=3, unique=True))
    check_damage(tmp_path / "damaged.gguf", flipped(whole, tuple(bits)), read)  # type: ignore[arg-type]
