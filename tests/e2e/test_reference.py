"""K and V in filled cells equal a numpy forward pass, for every kind of map."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import maps
from support.blocks import EPS
from support.engine import Context, Maps, Model
from support.families import FAMILIES
from support.llama_numpy import FillMaps, LlamaNumpy
from support.options import ContextOptions
from support.state import KVCells, parse_kv
from support.tokens import tokens

from pyridgefill.maps import MapSet, SiteMap, Split, read_base_model

LLAMA = FAMILIES["llama"]
TAIL, N, RANK = 64, 300, 16
TOLERANCE = 1e-4
FILLED = ((4, 100), (130, N - TAIL))


def random_maps(model: Path, split: int, target: str, norm: str, low_rank: bool, bias: bool) -> MapSet:
    """Maps with nothing in common with the model, so that every term of the formula shows."""
    rng = np.random.default_rng(0)
    width = {"input": LLAMA.n_embd, "attn_k": LLAMA.head, "attn_v": LLAMA.head}
    out = []
    for layer in range(split + 1, LLAMA.n_layer):
        for site in ("input",) if target == "input" else ("attn_k", "attn_v"):

            def matrix(rows: int, columns: int) -> np.ndarray:
                return rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

            parts: dict[str, np.ndarray] = {}
            if low_rank:
                parts = {"weight_a": matrix(RANK, LLAMA.n_embd), "weight_b": matrix(width[site], RANK)}
            else:
                parts = {"weight": matrix(width[site], LLAMA.n_embd)}
            if bias:
                parts["bias"] = rng.normal(size=width[site]).astype(np.float32)
            out.append(SiteMap(split, layer, site, **parts))
    return MapSet(
        base=read_base_model(model),
        splits=(Split(split, target, RANK if low_rank else 0),),
        maps=tuple(out),
        feature_norm=norm,
        feature_norm_eps=EPS,
    )


def reference_maps(maps_set: MapSet) -> FillMaps:
    (split,) = maps_set.splits
    prefix = f"ridgefill.{split.layer}.blk."
    tensors = {
        name.removeprefix(prefix): source[:] for item in maps_set.maps for name, source in item.tensors().items()
    }
    eps = maps_set.feature_norm_eps if maps_set.feature_norm == "rms" else None
    return FillMaps(split.layer, split.target, tensors, eps)


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    """Largest error of a row, relative to the row's largest value."""
    return float((np.abs(got - expected).max(axis=1) / np.abs(expected).max(axis=1)).max())


def run_engine(model_path: Path, maps_path: Path, options: ContextOptions) -> tuple[KVCells, np.ndarray]:
    with Model(model_path) as model, Maps(model, maps_path) as loaded, Context(model, options) as context:
        context.set_maps(loaded)
        context.mark(0, *FILLED)
        logits = context.decode({0: tokens(N)}, TAIL)[0]
        return parse_kv(context.state(0)), logits


KINDS = list(itertools.product(["input", "proj"], ["none", "rms"], [False, True], [False, True]))


@pytest.mark.parametrize(
    ("target", "norm", "low_rank", "bias"),
    KINDS,
    ids=["-".join([t, n, "low_rank" if r else "full", "bias" if b else "plain"]) for t, n, r, b in KINDS],
)
def test_cache_and_logits_equal_the_reference(workshop, tmp_path, target, norm, low_rank, bias):
    model = workshop.model("llama")
    maps_set = random_maps(model, LLAMA.split, target, norm, low_rank, bias)
    path = maps.write(tmp_path / "maps.gguf", maps_set)

    cells, logits = run_engine(model, path, ContextOptions(type_k="f32", type_v="f32"))
    k, v, expected = LlamaNumpy(model).cache(tokens(N), reference_maps(maps_set), FILLED)

    assert cells.pos.tolist() == list(range(N))
    for layer in range(LLAMA.n_layer):
        assert relative_error(cells.k[layer], k[layer]) < TOLERANCE
        assert relative_error(cells.v[layer], v[layer]) < TOLERANCE
    assert relative_error(logits, expected[-TAIL:]) < TOLERANCE


@pytest.mark.parametrize("target", ["input", "proj"])
def test_v_stored_for_flash_attention(workshop, tmp_path, target):
    """At split 0, since flash attention itself rounds K and V to half precision in the layers below the split."""
    model = workshop.model("llama")
    maps_set = random_maps(model, 0, target, "rms", False, True)
    path = maps.write(tmp_path / "maps.gguf", maps_set)

    options = ContextOptions(type_k="f32", type_v="f32")
    transposed, _ = run_engine(model, path, options)
    plain, _ = run_engine(model, path, replace(options, flash_attn=True))
    k, v, _ = LlamaNumpy(model).cache(tokens(N), reference_maps(maps_set), FILLED)

    rows = np.concatenate([np.arange(*r) for r in FILLED])
    for layer in range(LLAMA.n_layer):
        for cells in (plain, transposed):
            assert relative_error(cells.k[layer][rows], k[layer][rows]) < TOLERANCE
            assert relative_error(cells.v[layer][rows], v[layer][rows]) < TOLERANCE


def test_exact_rows_are_not_touched_by_the_maps(workshop, tmp_path):
    """Rows before the first filled one, bit for bit."""
    model = workshop.model("llama")
    path = maps.write(tmp_path / "maps.gguf", random_maps(model, LLAMA.split, "proj", "rms", False, True))
    options = ContextOptions(type_k="f32", type_v="f32")
    filled, _ = run_engine(model, path, options)
    with Model(model) as loaded, Context(loaded, options) as context:
        # in the batches that the border of the filled range makes
        for p0, p1 in ((0, 4), (4, 64)):
            context.decode({0: tokens(N)[p0:p1]}, 0, start={0: p0})
        exact = parse_kv(context.state(0))
    for layer in range(LLAMA.n_layer):
        assert np.array_equal(filled.k[layer][:4], exact.k[layer][:4])
        assert np.array_equal(filled.v[layer][:4], exact.v[layer][:4])
