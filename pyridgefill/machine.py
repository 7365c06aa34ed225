"""What a measurement ran on."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any


def describe_machine(n_threads: int) -> dict[str, Any]:
    """CPU, threads and operating system, JSON-ready."""
    return {"cpu": _cpu(), "threads": n_threads, "system": platform.system()}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({len(names)} CPUs)" if names else platform.machine()
