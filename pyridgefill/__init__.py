"""RidgeFill cuts the time to first token of long prompts: it predicts what the upper layers write into memory."""

from __future__ import annotations

from typing import Any

from pyridgefill.config import RidgeFillConfig, find_maps
from pyridgefill.errors import RidgeFillError

__version__ = "0.1.0"

__all__ = ["Llama", "RidgeFillConfig", "RidgeFillError", "__version__", "calibrate", "find_maps"]


def __getattr__(name: str) -> Any:
    # the native library is loaded when it is needed, not when a tool only computes
    if name == "Llama":
        from pyridgefill.llama import Llama

        return Llama
    if name == "calibrate":
        from pyridgefill.calibrator import calibrate

        return calibrate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
