"""Records in the format of LongBench v2."""

from __future__ import annotations

from typing import Any


def record(i: int, **changes: Any) -> dict[str, Any]:
    return {
        "_id": f"r{i}",
        "domain": "Single-Document QA" if i % 2 else "Code Repository Understanding",
        "sub_domain": "x",
        "difficulty": "easy" if i % 2 else "hard",
        "length": "short",
        "question": f"Who keeps bees in house {i}?",
        "choice_A": "Anna",
        "choice_B": "Bert",
        "choice_C": "Carla",
        "choice_D": "Dirk",
        "answer": "ABCD"[i % 4],
        "context": f"Start {i}. " + "Nobody knows. " * 200 + f"End {i}.",
        **changes,
    }
