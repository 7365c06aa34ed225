"""Multiply-adds of an exact and of a filled prefill: the speed-up that the work allows."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import LlamaFileType

from pyridgefill.config import RidgeFillConfig
from pyridgefill.errors import ModelError
from pyridgefill.maps import MapSet, read_maps
from pyridgefill.maps.base import model_shards
from pyridgefill.maps.gguf_file import GGUFFile

_PROJECTION = re.compile(r"blk\.(\d+)\.(.+)\.weight")


@dataclass(frozen=True)
class Work:
    """Multiply-adds of one prefill, by kind."""

    weights: float
    attention: float
    maps: float
    output: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.attention + self.maps + self.output


@dataclass(frozen=True)
class CostModel:
    """What a row costs in each layer.

    Attributes
    ----------
    weights
        For each layer, multiply-adds per row of each projection by its name; experts count as many as a row uses.
    attention
        For each layer, multiply-adds per row and cached position: queries times keys, and weights times values.
    output
        Multiply-adds of the output matrix, for one row.
    """

    weights: dict[int, dict[str, float]]
    attention: dict[int, float]
    output: float

    def exact(self, n_prompt: int) -> Work:
        """Multiply-adds of a stock prefill of `n_prompt` rows, of which the last has logits."""
        positions = n_prompt * (n_prompt + 1) / 2
        weights = n_prompt * sum(sum(layer.values()) for layer in self.weights.values())
        return Work(weights, positions * sum(self.attention.values()), 0.0, self.output)

    def filled(
        self, n_prompt: int, maps: MapSet, split: int, ranges: list[tuple[int, int]], n_selected: int = 0
    ) -> Work:
        """Multiply-adds when the rows in `ranges` are filled.

        These run the layers below the split, the memory write of layer `split` and the maps; the others run all.
        `n_selected` of the rows in `ranges`, spread evenly, run the layers above as well.
        """
        is_filled = np.zeros(n_prompt, dtype=bool)
        for start, end in ranges:
            is_filled[start:end] = True
        n_filled = int(is_filled.sum())
        n_full = n_prompt - n_filled
        lower = {layer for layer in self.weights if layer < split}
        full = {layer: sum(parts.values()) for layer, parts in self.weights.items()}
        sites = {(item.layer, item.site) for item in maps.maps if item.split == split}
        projections = {name for _, name in sites if name != "input"} or {"attn_k", "attn_v", "attn_qkv"}
        writes = {
            layer: sum(cost for name, cost in parts.items() if name in projections)
            for layer, parts in self.weights.items()
        }
        target_is_input = any(name == "input" for _, name in sites)
        weights = sum(n_prompt * full[layer] if layer in lower else n_full * full[layer] for layer in full)
        weights += n_filled * writes.get(split, 0.0)
        if target_is_input:
            weights += n_filled * sum(cost for layer, cost in writes.items() if layer > split)
        rows = np.arange(1, n_prompt + 1)
        everywhere, tail_only = float(rows.sum()), float(rows[~is_filled].sum())
        attention = sum(cost * (everywhere if layer in lower else tail_only) for layer, cost in self.attention.items())
        sizes = [item for item in maps.maps if item.split == split]
        per_row = sum(
            float(np.prod(part.shape))
            for item in sizes
            for part in (item.weight, item.weight_a, item.weight_b)
            if part is not None
        )
        if n_selected:
            upper = [layer for layer in self.weights if layer not in lower]
            weights += n_selected * sum(full[layer] for layer in upper)
            attention += (
                n_selected / n_filled * (everywhere - tail_only) * sum(self.attention[layer] for layer in upper)
            )
        return Work(weights, attention, n_filled * per_row, self.output)


def cost_model(model_path: str | os.PathLike[str]) -> CostModel:
    """Read the costs of an attention model from its GGUF.

    Raises
    ------
    ModelError
        For models with recurrent layers, whose state updates this does not count.
    """
    shards = [GGUFFile(path, ModelError) for path in model_shards(Path(model_path))]
    arch = shards[0].text("general.architecture")

    def value(key: str, default: float | None = None) -> float:
        return shards[0].numbers(f"{arch}.{key}", default)[0]

    n_head, n_embd = value("attention.head_count"), value("embedding_length")
    key_length = value("attention.key_length", n_embd / n_head)
    value_length = value("attention.value_length", key_length)
    used = value("expert_used_count", 0.0) / max(1.0, value("expert_count", 0.0))
    weights: dict[int, dict[str, float]] = defaultdict(dict)
    output = 0.0
    for tensor in [tensor for shard in shards for tensor in shard.tensors.values()]:
        size = float(np.prod(tensor.dims))
        match = _PROJECTION.fullmatch(tensor.name)
        if match and len(tensor.dims) > 1:
            if match[2].startswith("ssm_"):
                raise ModelError(f"{model_path}: {tensor.name}", "the cost model needs an attention model")
            weights[int(match[1])][match[2]] = size * (used if "_exps" in match[2] else 1.0)
        elif tensor.name == "output.weight" or (tensor.name == "token_embd.weight" and not output):
            output = size
    attention = dict.fromkeys(weights, n_head * (key_length + value_length))
    return CostModel(dict(weights), attention, output)


def bound_ratio(model_path: str | os.PathLike[str], config: RidgeFillConfig, n_prompt: int, n_selected: int) -> float:
    """How many times more multiply-adds an exact prompt is than a filled one: the speed-up that the work allows.

    Parameters
    ----------
    model_path
        The model's GGUF.
    config
        Maps, split, sink and tail.
    n_prompt, n_selected
        Tokens of the prompt, and rows that are selected among those between sink and tail.

    Raises
    ------
    ModelError
        As `cost_model`.
    """
    costs = cost_model(model_path)
    assert config.split is not None
    ranges = [(config.sink or 0, n_prompt - (config.tail or 0))]
    filled = costs.filled(n_prompt, read_maps(Path(str(config.maps))), config.split, ranges, n_selected)
    return costs.exact(n_prompt).total / filled.total


def quantization(model_path: str | os.PathLike[str]) -> str:
    """How a model's weights are stored, like `Q4_K_M`; empty if its file does not say."""
    file = GGUFFile(model_shards(Path(model_path))[0], ModelError)
    if "general.file_type" not in file.types:
        return ""
    number = file.whole("general.file_type")
    known = number in set(LlamaFileType)
    return LlamaFileType(number).name.removeprefix("MOSTLY_") if known else str(number)
