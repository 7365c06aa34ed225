"""The C API of RidgeFill as the package declares it, loaded on first use: the unpatched library has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class RefusedError(RuntimeError):
    """A call failed; the message is what llama_ridgefill_last_error says."""


def native() -> Any:
    """The package's declarations of llama-ridgefill.h."""
    from pyridgefill import _native

    return _native


def last_error() -> str:
    return str(native().llama_ridgefill_last_error().decode())


def ranges(pairs: Sequence[tuple[int, int]]) -> Any:
    range_type = native().llama_ridgefill_range
    return (range_type * max(1, len(pairs)))(*[range_type(*pair) for pair in pairs])


def plan(
    n_prompt: int,
    sink: int,
    tail: int,
    min_prompt: int = 0,
    exact: Sequence[tuple[int, int]] = (),
    n_max: int = 64,
) -> list[tuple[int, int]]:
    """The rows of a prompt to fill, at most ``n_max`` ranges of them."""
    out = ranges([(0, 0)] * n_max)
    params = native().llama_ridgefill_plan_params(sink, tail, min_prompt, ranges(exact), len(exact))
    n = native().llama_ridgefill_plan(params, n_prompt, out, n_max)
    if n < 0:
        raise RefusedError(last_error())
    return [(r.p0, r.p1) for r in out[:n]]
