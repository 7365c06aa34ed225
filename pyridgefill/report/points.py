"""Finds numbers in a document."""

from __future__ import annotations

from typing import Any


def at(point: dict[str, Any], ctx: int) -> dict[str, Any]:
    """The numbers of a setting at one length."""
    return dict(next(item for item in point["lengths"] if item["ctx"] == ctx))


def same(point: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two settings agree in split, tail and budget."""
    return all(point[key] == other[key] for key in ("split", "tail", "budget"))


def scaled(value: dict[str, Any], factor: float) -> dict[str, Any]:
    """An interval in another unit."""
    return {key: None if value[key] is None else factor * value[key] for key in ("value", "low", "high")}


def recommended(document: dict[str, Any]) -> dict[str, Any]:
    """The point that is recommended; identity tells it from others."""
    found: dict[str, Any] = document["points"][document["recommended"]["point"]]
    return found
