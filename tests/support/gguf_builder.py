"""Random-weight GGUF models, small enough to build in milliseconds.

The weights are scaled by their fan-in, so that activations keep their size over the layers, and depend on the tensor's
name and the seed alone, so that two models that share a layer share its bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

N_VOCAB = 256


class GGUFBuilder:
    """Collects the metadata and tensors of one model.

    Parameters
    ----------
    arch
        Architecture name as llama.cpp spells it; it prefixes the metadata keys.
    seed
        Seed of all weights.
    """

    def __init__(self, arch: str, seed: int = 0) -> None:
        self.arch = arch
        self.seed = seed
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, NDArray[np.float32]] = {}

    def set(self, **values: Any) -> None:
        """Set metadata keys below the architecture's prefix, ``__`` standing for a dot."""
        for key, value in values.items():
            self.metadata[key.replace("__", ".")] = value

    def _rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def add(self, name: str, values: NDArray[np.floating]) -> None:
        self.tensors[name] = np.ascontiguousarray(values, dtype=np.float32)

    def matrix(self, name: str, n_in: int, n_out: int, *outer: int, gain: float = 1.0) -> None:
        """Add a weight of shape ``[*outer, n_out, n_in]`` whose outputs have about ``gain`` times the inputs' size."""
        self.add(name, self._rng(name).normal(0, gain / np.sqrt(n_in), (*outer, n_out, n_in)))

    def norm(self, name: str, n: int, *outer: int, gain: float = 1.0) -> None:
        self.add(name, gain * (1 + 0.2 * self._rng(name).normal(size=(*outer, n))))

    def bias(self, name: str, n: int, *outer: int, scale: float = 0.2, mean: float = 0.0) -> None:
        self.add(name, mean + scale * self._rng(name).normal(size=(*outer, n)))

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.arch)
        writer.add_vocab_size(N_VOCAB)
        # upstream's test tokenizer: any text becomes token ids, any id becomes text
        writer.add_tokenizer_model("test")
        writer.add_token_list([f"tok_{i}" for i in range(N_VOCAB)])
        writer.add_token_scores([0.0] * N_VOCAB)
        writer.add_token_types([int(gguf.TokenType.NORMAL)] * N_VOCAB)
        for key, value in self.metadata.items():
            _add_value(writer, f"{self.arch}.{key}", value)
        for name, tensor in self.tensors.items():
            writer.add_tensor(name, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, Sequence):
        writer.add_array(key, list(value))
    else:
        raise TypeError(f"{key}: no GGUF type for {type(value).__name__}")
