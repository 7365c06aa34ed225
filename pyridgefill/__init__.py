"""RidgeFill cuts the time to first token of long prompts: it predicts what the upper layers write into memory."""

from __future__ import annotations

from typing import Any

from pyridgefill.config import RidgeFillConfig, find_maps
from pyridgefill.errors import RidgeFillError

__version__ = "0.1.0"

__all__ = ["Llama", "RidgeFillConfig", "RidgeFillError", "__version__", "find_maps"]


def __getattr__(name: str) -> Any:
    # the native library is loaded when it is needed, not when a tool only computes
    if name == "Llama":
        from pyridgefill.llama import Llama

        return Llama
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
