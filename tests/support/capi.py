"""The C API of RidgeFill as the package declares it, loaded on first use: the unpatched library has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class RefusedError(RuntimeError):
    """A call failed; the message is what llama_ridgefill_last_error says."""


def __getattr__(name: str) -> Any:
    from pyridgefill import _native

    return getattr(_native, name)


def last_error() -> str:
    return str(__getattr__("llama_ridgefill_last_error")().decode())


def ranges(pairs: Sequence[tuple[int, int]]) -> Any:
    range_type = __getattr__("llama_ridgefill_range")
    return (range_type * max(1, len(pairs)))(*[range_type(*pair) for pair in pairs])
