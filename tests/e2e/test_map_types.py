"""Maps stored in narrower types, and split states that half precision cannot hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from support import capi, maps
from support.engine import Context, Maps, Model
from support.families import FAMILIES
from support.options import ContextOptions
from support.tokens import tokens

from pyridgefill.maps import write_maps

TYPES = {"f32": 1e-3, "f16": 5e-3, "bf16": 2e-2, "q8_0": 5e-2}  # tolerance, of the spread of the logits
N, TAIL = 300, 64
LLAMA = FAMILIES["llama"]


def logits(model: Model, maps_path: Path | None, options: ContextOptions = ContextOptions()) -> np.ndarray:
    with Context(model, options) as context:
        if maps_path is None:
            return context.decode({0: tokens(N)}, TAIL)[0]
        with Maps(model, maps_path) as loaded:
            context.set_maps(loaded)
            context.mark(0, (4, N - TAIL))
            out = context.decode({0: tokens(N)}, TAIL)[0]
            context.set_maps(None)
            return out


@pytest.mark.parametrize("kind", ["input", "proj"])
@pytest.mark.parametrize("weight_type", TYPES)
@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek2", "qwen35", "lfm2", "mamba2"])
def test_types_of_maps(workshop, tmp_path, name, weight_type, kind):
    family = FAMILIES[name]
    model_path = workshop.oracle(name, family.n_layer - 1)
    make = maps.projected if kind == "proj" else lambda m, split, s: maps.identity(m, [split], s, "rms")
    path = tmp_path / "maps.gguf"
    write_maps(path, make(model_path, family.split, family.sites()), weight_type=weight_type)
    with Model(model_path) as model:
        exact, filled = logits(model, None), logits(model, path)
    assert np.abs(filled - exact).max() < TYPES[weight_type] * np.ptp(exact)


@pytest.fixture(scope="module")
def massive(workshop, tmp_path_factory) -> Path:
    """An ORACLE model with one channel of the split state at 1e5, beyond half precision."""
    path = tmp_path_factory.mktemp("massive") / "model.gguf"
    path.write_bytes(workshop.oracle("llama", LLAMA.n_layer - 1).read_bytes())
    (tensor,) = (t for t in gguf.GGUFReader(path).tensors if t.name == "token_embd.weight")
    values = np.array(tensor.data)
    values[:, 7] = 1e5
    with path.open("r+b") as file:
        file.seek(int(tensor.data_offset))
        file.write(values.tobytes())
    return path


@pytest.mark.parametrize("weight_type", ["f16", "bf16", "q8_0"])
def test_normalised_features_keep_a_massive_channel_finite(massive, tmp_path, weight_type):
    """At every batch width, since other widths take other kernels."""
    path = tmp_path / "maps.gguf"
    write_maps(path, maps.projected(massive, LLAMA.split, LLAMA.sites()), weight_type=weight_type)
    widths = (1, 32, 63, 64, 512)
    with Model(massive) as model:
        exact = logits(model, None)
        got = [logits(model, path, ContextOptions(n_batch=max(n, 2), n_ubatch=n)) for n in widths]
    for values in got:
        assert np.isfinite(values).all()
        assert np.abs(values - got[0]).max() < 1e-2 * np.ptp(exact)


def test_the_hash_is_that_of_the_content(workshop, tmp_path):
    model_path = workshop.model("llama")
    one = maps.write(tmp_path / "one.gguf", maps.projected(model_path, LLAMA.split, LLAMA.sites()))
    same = maps.write(tmp_path / "same.gguf", maps.projected(model_path, LLAMA.split, LLAMA.sites()))
    changed = maps.projected(model_path, LLAMA.split, LLAMA.sites())
    last = changed.maps[-1]
    weight = np.array(last.weight)
    weight[-1, -1] += 1
    other = maps.write(
        tmp_path / "other.gguf", replace(changed, maps=(*changed.maps[:-1], replace(last, weight=weight)))
    )
    with (
        Model(model_path) as model,
        Maps(model, one) as a,
        Maps(model, same) as b,
        Maps(model, other) as c,
    ):
        hashes = [capi.native().llama_ridgefill_hash(m.handle) for m in (a, b, c)]
        sizes = [capi.native().llama_ridgefill_size(m.handle) for m in (a, b, c)]
    assert hashes[0] == hashes[1] != hashes[2]
    assert min(sizes) >= sum(np.array(item.weight).nbytes for item in changed.maps)
