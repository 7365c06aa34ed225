"""ORACLE models: every layer above the split adds nothing to the residual stream, except one.

The input of each layer up to the live one then equals the split state, so that identity maps are exact, and the layers
after it cannot change the logits: a filled run must equal an exact one, whatever the weights are.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import gguf

# what a block adds to the residual stream goes through one of these, or through gemma4's per-layer input projection
_OUTPUTS = re.compile(
    r"^blk\.(\d+)\."
    r"(attn_output|ffn_down|ffn_down_exps|ffn_down_shexp|ssm_out|shortconv\.out_proj|proj)\.(weight|bias)$"
)


def output_tensors(path: Path) -> dict[str, int]:
    """Names of the tensors that feed the residual stream, with their layer."""
    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        if match := _OUTPUTS.match(tensor.name):
            found[tensor.name] = int(match[1])
    return found


def zero_tensors(path: Path, names: set[str]) -> None:
    """Overwrite tensors with zero bytes, which decode to zero in every type used here."""
    tensors = [t for t in gguf.GGUFReader(path).tensors if t.name in names]
    if missing := names - {t.name for t in tensors}:
        raise KeyError(f"{path} has no tensors {sorted(missing)}")
    with path.open("r+b") as file:
        for tensor in tensors:
            file.seek(int(tensor.data_offset))
            file.write(bytes(int(tensor.n_bytes)))


def oracle(path_in: Path, path_out: Path, split: int, live: int) -> Path:
    """Copy a model and silence the layers from ``split`` on except ``live``."""
    names = {name for name, layer in output_tensors(path_in).items() if layer >= split and layer != live}
    shutil.copyfile(path_in, path_out)
    zero_tensors(path_out, names)
    return path_out
