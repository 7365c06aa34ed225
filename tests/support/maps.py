"""Maps files whose right effect is known without statistics.

``identity`` predicts each layer's input as the split state and ``projected`` each projection from it, both exact on an
ORACLE model; ``poison`` predicts noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from support.families import EPS

Array = NDArray[Any]


def fnv1a(data: bytes, value: int = 0xCBF29CE484222325) -> int:
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


@dataclass(frozen=True)
class Base:
    """What a maps file must know about its model, read from the model's file."""

    arch: str
    n_layer: int
    n_embd: int
    vocab: tuple[str, ...]
    weights_hash: str
    tensors: Mapping[str, gguf.ReaderTensor]

    @classmethod
    def read(cls, path: Path) -> Base:
        reader = gguf.GGUFReader(path)
        arch = str(reader.fields["general.architecture"].contents())

        def value(key: str) -> Any:
            return reader.fields[key].contents()

        n_layer = int(value(f"{arch}.block_count"))
        tensors = {t.name: t for t in reader.tensors}
        h = fnv1a(b"")
        for name in sorted(tensors, key=str.encode):
            t = tensors[name]
            if name.endswith("norm.weight") and t.tensor_type == gguf.GGMLQuantizationType.F32 and _in_model(name, n_layer):
                h = fnv1a(t.data.tobytes()[:256], fnv1a(name.encode() + b"\0", h))
        return cls(
            arch=arch,
            n_layer=n_layer,
            n_embd=int(value(f"{arch}.embedding_length")),
            vocab=tuple(value("tokenizer.ggml.tokens")),
            weights_hash=f"{h:016x}",
            tensors=tensors,
        )

    @property
    def vocab_hash(self) -> str:
        return f"{fnv1a(b''.join(text.encode() + bytes(1) for text in self.vocab)):016x}"

    def weight(self, layer: int, site: str) -> Array:
        """Weight of a projection in float32, ``[width][n_embd]``."""
        t = self.tensors[f"blk.{layer}.{site}.weight"]
        return gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)

    def norm(self, layer: int) -> Array:
        return self.tensors[f"blk.{layer}.attn_norm.weight"].data.astype(np.float32)


def _in_model(name: str, n_layer: int) -> bool:
    parts = name.split(".")
    return parts[0] != "blk" or int(parts[1]) < n_layer


@dataclass
class MapsFile:
    """The content of a maps file, open to any change before it is written.

    Attributes
    ----------
    tensors
        By full name; values, or values with the type to store them in.
    metadata
        By full key; a pair of a GGUF value type and a value. For arrays the type is that of the elements.
    """

    arch: str
    metadata: dict[str, tuple[gguf.GGUFValueType, Any]] = field(default_factory=dict)
    tensors: dict[str, Array | tuple[Array, gguf.GGMLQuantizationType]] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.arch)
        for key, (kind, value) in self.metadata.items():
            if isinstance(value, list):
                writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, sub_type=kind)
            else:
                writer.add_key_value(key, value, kind)
        for name, entry in self.tensors.items():
            values, kind = entry if isinstance(entry, tuple) else (entry, None)
            if kind is not None:
                values = gguf.quants.quantize(values, kind)
            writer.add_tensor(name, values, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


Sites = Mapping[int, Sequence[str]]
MapOf = Callable[[int, str], Mapping[str, Array]]  # (layer, site) -> tensors by suffix


def maps_file(
    base: Base, splits: Mapping[int, tuple[str, Sites]], map_of: MapOf, feature_norm: str = "none", rank: int = 0
) -> MapsFile:
    """A maps file for some splits, each with its target and sites per layer."""
    kind = gguf.GGUFValueType
    file = MapsFile(base.arch)
    names = []
    for split, (_, sites) in sorted(splits.items()):
        for layer, layer_sites in sorted(sites.items()):
            for site in layer_sites:
                names.append(f"{split}.blk.{layer}.{site}")
                for suffix, values in map_of(layer, site).items():
                    file.tensors[f"ridgefill.{names[-1]}.{suffix}"] = np.ascontiguousarray(values, dtype=np.float32)
    file.metadata = {
        "general.type": (kind.STRING, "adapter"),
        "adapter.type": (kind.STRING, "ridgefill"),
        "ridgefill.format_version": (kind.UINT32, 1),
        "ridgefill.base.block_count": (kind.UINT32, base.n_layer),
        "ridgefill.base.embedding_length": (kind.UINT32, base.n_embd),
        "ridgefill.base.vocab_size": (kind.UINT32, len(base.vocab)),
        "ridgefill.base.vocab_hash": (kind.STRING, base.vocab_hash),
        "ridgefill.base.weights_hash": (kind.STRING, base.weights_hash),
        "ridgefill.splits": (kind.INT32, sorted(splits)),
        "ridgefill.targets": (kind.STRING, [splits[s][0] for s in sorted(splits)]),
        "ridgefill.ranks": (kind.INT32, [rank] * len(splits)),
        "ridgefill.feature_norm": (kind.STRING, feature_norm),
        "ridgefill.calibration.tokens": (kind.UINT64, 0),
        "ridgefill.calibration.corpora": (kind.STRING, ["none"]),
        "ridgefill.calibration.rows_massive": (kind.UINT64, 0),
        "ridgefill.calibration.rows_nonfinite": (kind.UINT64, 0),
        "ridgefill.map.names": (kind.STRING, names),
        "ridgefill.map.lambda": (kind.FLOAT32, [0.0] * len(names)),
        "ridgefill.map.r2": (kind.FLOAT32, [0.0] * len(names)),
        "ridgefill.map.condition": (kind.FLOAT32, [1.0] * len(names)),
        "ridgefill.map.solver": (kind.STRING, ["identity"] * len(names)),
    }
    if feature_norm == "rms":
        file.metadata["ridgefill.feature_norm_eps"] = (kind.FLOAT32, EPS)
    return file


def input_sites(sites: Sites, split: int) -> dict[int, tuple[str, ...]]:
    return {layer: ("input",) for layer in sites if layer > split}


def proj_sites(sites: Sites, split: int) -> dict[int, tuple[str, ...]]:
    return {layer: tuple(names) for layer, names in sites.items() if layer > split}


def identity(base: Base, split: int, sites: Sites, feature_norm: str = "none") -> MapsFile:
    """Each layer's input is the split state."""
    eye = np.eye(base.n_embd)
    return maps_file(base, {split: ("input", input_sites(sites, split))}, lambda *_: {"weight": eye}, feature_norm)


def projected(base: Base, split: int, sites: Sites, low_rank: bool = False) -> MapsFile:
    """Each projection of the split state, as the layer itself would compute it after its norm.

    With ``low_rank`` the map is stored as two factors of full rank.
    """
    q = np.linalg.qr(np.random.default_rng(0).normal(size=(base.n_embd, base.n_embd)))[0]

    def map_of(layer: int, site: str) -> dict[str, Array]:
        weight = base.weight(layer, site) * base.norm(layer)
        return {"weight_a": q.T, "weight_b": weight @ q} if low_rank else {"weight": weight}

    rank = base.n_embd if low_rank else 0
    return maps_file(base, {split: ("proj", proj_sites(sites, split))}, map_of, "rms", rank)


def poison(base: Base, split: int, sites: Sites) -> MapsFile:
    """Large noise that depends on the split state."""
    rng = np.random.default_rng(0)
    weight = 3.0 * rng.normal(size=(base.n_embd, base.n_embd))
    return maps_file(base, {split: ("input", input_sites(sites, split))}, lambda *_: {"weight": weight})
