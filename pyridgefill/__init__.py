"""RidgeFill cuts the time to first token of long prompts: it predicts what the upper layers write into memory."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyridgefill.calibrator import calibrate
    from pyridgefill.config import RidgeFillConfig, find_maps
    from pyridgefill.errors import RidgeFillError
    from pyridgefill.llama import Llama

__version__ = "0.1.0"

__all__ = ["Llama", "RidgeFillConfig", "RidgeFillError", "__version__", "calibrate", "find_maps"]

_MODULES = {
    "Llama": "llama",
    "RidgeFillConfig": "config",
    "RidgeFillError": "errors",
    "calibrate": "calibrator",
    "find_maps": "config",
}


def __getattr__(name: str) -> Any:
    # nothing is loaded before it is needed: numpy takes its time, the native library is not there everywhere
    if name in _MODULES:
        return getattr(import_module(f"pyridgefill.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
