"""RidgeFill: a sooner first token for long prompts, by predicting what the upper layers write into memory."""

from __future__ import annotations

from pyridgefill.errors import RidgeFillError

__version__ = "0.1.0"

__all__ = ["RidgeFillError", "__version__"]
