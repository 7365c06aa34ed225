"""Map sets whose right effect is known without statistics.

``identity`` predicts each layer's input as the split state and ``projected`` each projection from it, both exact on an
ORACLE model; ``poison`` predicts noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from pyridgefill import maps as product
from support.blocks import EPS

Sites = Mapping[int, Sequence[str]]


def identity(model: Path, splits: Sequence[int], sites: Sites, feature_norm: str = "none") -> product.MapSet:
    """Each layer's input is the split state."""
    maps = product.identity_maps(product.read_base_model(model), splits, layers=sites)
    return replace(maps, feature_norm=feature_norm, feature_norm_eps=EPS)


def projected(model: Path, split: int, sites: Sites, rank: int = 0) -> product.MapSet:
    """Each projection of the split state, as the layer computes it after its norm.

    Parameters
    ----------
    rank
        The model's width, to store each map as two factors of full rank; 0 for one matrix.
    """
    base = product.read_base_model(model)
    tensors = {t.name: t for t in gguf.GGUFReader(model).tensors}

    def values(name: str) -> NDArray[np.float32]:
        tensor = tensors[name]
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)

    q = np.linalg.qr(np.random.default_rng(0).normal(size=(base.embedding_length, rank)))[0].astype(np.float32)
    maps = []
    for layer in sorted(layer for layer in sites if layer > split):
        norm = values(f"blk.{layer}.attn_norm.weight")
        for site in sites[layer]:
            weight = values(f"blk.{layer}.{site}.weight") * norm
            parts: dict[str, Any] = {"weight_a": q.T, "weight_b": weight @ q} if rank else {"weight": weight}
            maps.append(product.SiteMap(split, layer, site, **parts, solver="given"))
    return product.MapSet(
        base=base,
        splits=(product.Split(split, "proj", rank),),
        maps=tuple(maps),
        feature_norm="rms",
        feature_norm_eps=EPS,
        recommended=product.Recommended(split=split),
    )


def poison(model: Path, split: int, sites: Sites, seed: int = 0) -> product.MapSet:
    """Large noise in every layer's input."""
    base = product.read_base_model(model)
    inputs = [product.Site(layer, "input", base.embedding_length) for layer in sorted(sites)]
    return product.poison_maps(base, split, inputs, seed=seed)


def write(path: Path, maps: product.MapSet) -> Path:
    """Write a maps file with F32 weights."""
    product.write_maps(path, maps, weight_type="f32")
    return path
