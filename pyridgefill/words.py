"""Numbers and settings as a reader wants them."""

from __future__ import annotations

from typing import Any


def times(ratio: float) -> str:
    """A ratio of times."""
    return f"{ratio:.2f} ×"


def percent(share: float) -> str:
    """A share."""
    return f"{100 * share:.0f} %"


def signed_percent(share: float) -> str:
    """A change."""
    return f"{100 * share:+.1f} %"


def selected(budget: float) -> str:
    """A budget."""
    return f"{100 * budget:g} % selected" if budget else "nothing selected"


def maps_words(point: Any) -> str:
    """Target, rank and type of a setting's maps."""
    rank = f", rank {point.rank}" if point.rank else ""
    return f"{point.target}{rank}, {point.type}"


def describe(point: Any) -> str:
    """Split and selection of a setting."""
    return f"split {point.split}, {selected(point.budget)}, tail {point.tail}"


def size(count: int) -> str:
    """Bytes."""
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.2f} GB"
