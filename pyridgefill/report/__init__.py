"""Turns the numbers of a sweep into one HTML file."""

from __future__ import annotations

from pyridgefill.report.page import require_plotly, write_page

__all__ = ["require_plotly", "write_page"]
