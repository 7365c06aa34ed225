"""The lines of benchmarks/results, for the plots and tables of the documentation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Model:
    """A model that was measured, known by the digest of its file."""

    digest: str
    name: str
    short: str


MODELS = (
    Model("e7aad6b7cf76c0f8", "Qwen2.5-Coder-0.5B-Instruct Q4_K_M", "Qwen2.5-Coder-0.5B"),
    Model("bad8a3c4602d479c", "SmolLM2-135M-Instruct Q4_1", "SmolLM2-135M"),
)


@dataclass(frozen=True)
class Line:
    """One line: what was measured, what came out, and how."""

    cell: dict[str, Any]
    result: dict[str, Any]
    info: dict[str, Any]

    def matches(self, **wanted: Any) -> bool:
        """Whether the cell has all these values."""
        return all(self.cell.get(key) == value for key, value in wanted.items())


def read_lines() -> list[Line]:
    """All lines, those of `*-selected.jsonl` before those of the lab."""
    paths = sorted(RESULTS.glob("*.jsonl"), key=lambda path: ("-selected" not in path.name, path.name))
    found = [json.loads(text) for path in paths for text in path.read_text(encoding="utf-8").splitlines()]
    return [Line(item["cell"], item["result"], item["info"]) for item in found if "cell" in item]


def find(lines: list[Line], **wanted: Any) -> Line | None:
    """The last line with these values."""
    return next((line for line in reversed(lines) if line.matches(**wanted)), None)


def ratios(lines: list[Line], **wanted: Any) -> list[float]:
    """How many times faster the first token was, in each pair of runs in process with these values, sorted."""
    return sorted(
        ratio for line in lines if line.matches(task="ttft", through=None, **wanted) for ratio in line.result["ratios"]
    )
