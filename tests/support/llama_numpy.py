"""A plain numpy forward pass of a llama model with fill: what every cell of the cache must hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class FillMaps:
    """The maps of one split: tensors by ``<layer>.<site>.<suffix>``."""

    split: int
    target: str
    tensors: dict[str, NDArray[Any]]
    feature_norm_eps: float | None = None

    def predict(self, layer: int, site: str, x: Array) -> Array:
        """Value of a site, ``[rows][width]``, from split states ``[rows][n_embd]``."""
        scale = np.ones((len(x), 1))
        if self.feature_norm_eps is not None:
            scale = np.sqrt(np.mean(x**2, axis=1, keepdims=True) + self.feature_norm_eps)
        prefix = f"{layer}.{site}."
        if prefix + "weight" in self.tensors:
            y = (x / scale) @ self.tensors[prefix + "weight"].astype(np.float64).T
        else:
            a = self.tensors[prefix + "weight_a"].astype(np.float64)
            y = (x / scale) @ a.T @ self.tensors[prefix + "weight_b"].astype(np.float64).T
        if prefix + "bias" in self.tensors:
            y = y + self.tensors[prefix + "bias"].astype(np.float64)
        return y * scale if site == "input" else y


class LlamaNumpy:
    """A llama model of F32 tensors, computed in float64.

    Parameters
    ----------
    path
        GGUF file of architecture ``llama``, dense, F32.
    """

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)

        def value(key: str) -> Any:
            return reader.fields[f"llama.{key}"].contents()

        self.n_layer = int(value("block_count"))
        self.n_head = int(value("attention.head_count"))
        self.n_head_kv = int(value("attention.head_count_kv"))
        self.head = int(value("attention.key_length"))
        self.eps = float(value("attention.layer_norm_rms_epsilon"))
        self.rope_base = float(value("rope.freq_base"))
        self.weights: dict[str, Array] = {t.name: t.data.astype(np.float64) for t in reader.tensors}

    def _layer(self, layer: int, name: str) -> Array:
        return self.weights[f"blk.{layer}.{name}.weight"]

    def _rms_norm(self, x: Array, weight: Array) -> Array:
        return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + self.eps) * weight

    def _rope(self, x: Array, pos: NDArray[np.int64]) -> Array:
        """Rotate neighbouring pairs of ``[rows][heads][head]``."""
        angle = pos[:, None, None] * self.rope_base ** (-np.arange(0, self.head, 2) / self.head)
        even, odd = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2] = even * np.cos(angle) - odd * np.sin(angle)
        out[..., 1::2] = even * np.sin(angle) + odd * np.cos(angle)
        return out

    def _keys(self, k: Array, pos: NDArray[np.int64]) -> Array:
        return self._rope(k.reshape(len(k), self.n_head_kv, self.head), pos)

    def _probabilities(self, layer: int, x: Array, k: Array, pos: NDArray[np.int64]) -> Array:
        """What each head gives to each row, ``[n_head][rows that ask][rows]``."""
        q = self._rope((x @ self._layer(layer, "attn_q").T).reshape(len(x), self.n_head, self.head), pos)
        k = np.repeat(k, self.n_head // self.n_head_kv, axis=1)
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(self.head)
        scores = np.where(pos[None, :, None] >= pos[None, None, :], scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True)

    def _attention(self, layer: int, x: Array, k: Array, v: Array, pos: NDArray[np.int64]) -> Array:
        weights = self._probabilities(layer, x, k, pos)
        v = np.repeat(v, self.n_head // self.n_head_kv, axis=1)
        return np.einsum("hij,jhd->ihd", weights, v).reshape(len(x), -1) @ self._layer(layer, "attn_output").T

    def probabilities(self, tokens: Sequence[int]) -> list[Array]:
        """Attention probabilities of an exact prompt, one array ``[n_head][n_tokens][n_tokens]`` per layer."""
        pos = np.arange(len(tokens))
        x = self.weights["token_embd.weight"][list(tokens)]
        found = []
        for layer in range(self.n_layer):
            h = self._rms_norm(x, self._layer(layer, "attn_norm"))
            k = self._keys(h @ self._layer(layer, "attn_k").T, pos)
            v = (h @ self._layer(layer, "attn_v").T).reshape(len(x), self.n_head_kv, self.head)
            found.append(self._probabilities(layer, h, k, pos))
            x = x + self._attention(layer, h, k, v, pos)
            x = x + self._ffn(layer, self._rms_norm(x, self._layer(layer, "ffn_norm")))
        return found

    def _ffn(self, layer: int, x: Array) -> Array:
        gate = x @ self._layer(layer, "ffn_gate").T
        return (gate / (1 + np.exp(-gate)) * (x @ self._layer(layer, "ffn_up").T)) @ self._layer(layer, "ffn_down").T

    def cache(
        self, tokens: Sequence[int], maps: FillMaps | None = None, filled: Sequence[tuple[int, int]] = ()
    ) -> tuple[list[Array], list[Array], Array]:
        """K, V and logits after a prompt whose rows in ``filled`` are filled.

        Returns
        -------
        k, v
            One array ``[n_tokens][n_head_kv * head]`` per layer; K after RoPE.
        logits
            ``[n_tokens][n_vocab]``; those of filled rows mean nothing.
        """
        n = len(tokens)
        pos = np.arange(n)
        fill = np.zeros(n, bool)
        for p0, p1 in filled:
            fill[p0:p1] = True
        x = self.weights["token_embd.weight"][list(tokens)]
        split_state = x
        keys, values = [], []
        for layer in range(self.n_layer):
            if maps is not None and layer == maps.split:
                split_state = x
            if maps is not None and layer > maps.split and maps.target == "input":
                # filled rows of x are read by nobody but this layer's K and V
                x = np.where(fill[:, None], maps.predict(layer, "input", split_state), x)
            h = self._rms_norm(x, self._layer(layer, "attn_norm"))
            k, v = h @ self._layer(layer, "attn_k").T, h @ self._layer(layer, "attn_v").T
            if maps is not None and layer > maps.split and maps.target == "proj":
                k = np.where(fill[:, None], maps.predict(layer, "attn_k", split_state), k)
                v = np.where(fill[:, None], maps.predict(layer, "attn_v", split_state), v)
            k, v = self._keys(k, pos), v.reshape(n, self.n_head_kv, self.head)
            keys.append(k.reshape(n, -1))
            values.append(v.reshape(n, -1))
            x = x + self._attention(layer, h, k, v, pos)
            x = x + self._ffn(layer, self._rms_norm(x, self._layer(layer, "ffn_norm")))
        return keys, values, self._rms_norm(x, self.weights["output_norm.weight"]) @ self.weights["output.weight"].T
