"""The `pyridgefill` command."""

from __future__ import annotations

from pyridgefill.cli.main import app, main

__all__ = ["app", "main"]
