"""Options of a context, apart from the bindings so that they travel between processes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ContextOptions:
    """Small batches, so that prompts cross their borders often."""

    n_ctx: int = 2048
    n_batch: int = 64
    n_ubatch: int = 32
    n_seq_max: int = 1
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: bool = False
    kv_unified: bool = False
    swa_full: bool = False
    n_threads: int = 1  # tiny models lose more by synchronising threads than they win
