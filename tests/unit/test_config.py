"""Settings of fill: what the engine could not hold is refused, not taken modulo 2**32."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pyridgefill.cli.eval_options import EvalOptions
from pyridgefill.config import RidgeFillConfig
from pyridgefill.errors import RidgeFillError, UsageError

MOST = 2**31 - 1


@pytest.mark.parametrize("value", [-1, MOST + 1, 2**32 + 1])
@pytest.mark.parametrize("name", ["split", "sink", "tail", "min_prompt", "queries"])
def test_numbers_that_do_not_fit(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"RidgeFillConfig\.{name}: expected [01] to {MOST}, found {value}"):
        RidgeFillConfig(**{name: value})
    RidgeFillConfig(**{name: MOST})


@pytest.mark.parametrize("budget", [float("nan"), float("inf"), -0.1, 1.5, 2, 1e12, True, "0.1"])
def test_budgets_are_shares(budget: Any) -> None:
    with pytest.raises(ValueError, match=r"RidgeFillConfig\.budget: expected a share of the filled rows up to 1"):
        RidgeFillConfig(budget=budget)


REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"tial": 3}, "unknown key 'tial', expected tail, sink"),
    "a key of the object only": ({"pool": (5, 5)}, "unknown key 'pool'"),
    "null": ({"tail": None}, "tail: expected a whole number, found None"),
    "type": ({"sink": "4"}, "sink: expected a whole number, found '4'"),
    "range": ({"tail": 0}, "tail: expected 1 to 2147483647, found 0"),
    "select": ({"select": "best"}, "select: expected none, stride or attention, found 'best'"),
    "rows": ({"budget": 40}, "budget: expected a share of the filled rows up to 1, found 40"),
    "nothing": ({"budget": 0}, "budget: expected a share above 0"),
    "split": ({"split": 9}, "split must be the one in use, 3, found 9"),
    "spans": ({"spans": 5}, "spans: expected a list, found 5"),
    "a span": ({"spans": [(5, 3)]}, "spans: expected (start, end)"),
    "no spans": ({"select": "spans"}, "select spans has no effect without spans"),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_requests_are_checked(case: str) -> None:
    request, message = REQUESTS[case]
    with pytest.raises(UsageError, match=f"ridgefill: {re.escape(message)}"):
        RidgeFillConfig().requested(request, 3)


def test_requests_take_the_place_of_settings() -> None:
    config = RidgeFillConfig("m.gguf", tail=9, sink=1, spans=((0, 3),), select="attention")
    asked = config.requested({"tail": 5, "split": 3, "spans": [[2, 4]], "select": "spans"}, 3)
    assert asked == RidgeFillConfig("m.gguf", tail=5, sink=1, spans=([2, 4],), select="none")  # type: ignore[arg-type]
    assert config.requested({"spans": []}, 3).spans == ()
    assert config.requested({"select": "spans"}, 3).spans == ((0, 3),)


@pytest.mark.parametrize(
    "wrong",
    [{"heads": "9.6"}, {"heads": ((9,),)}, {"pool": 5}, {"pool": "55"}, {"split": "10"}, {"tail": 2.5}, {"sink": True}],
)
def test_settings_of_another_type(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"RidgeFillConfig\.{next(iter(wrong))}: expected"):
        RidgeFillConfig(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"pool": (2**32, 0)}, {"pool": (0, -1)}, {"pool": (1, 2, 3)}, {"heads": ((2**32, 0),)}, {"heads": ((0, 2**32),)}],
)
def test_pools_and_heads_that_do_not_fit(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"RidgeFillConfig\.{next(iter(wrong))}: expected"):
        RidgeFillConfig(**wrong)


def test_lengths_are_measured_once() -> None:
    options = EvalOptions(model=Path("m.gguf"), maps=Path("m.ridgefill.gguf"), ctx="4096,2048,4096")
    assert options.lengths == (4096, 2048)
    with pytest.raises(RidgeFillError, match=r"--pool .4294967296,0.: expected rows before and after"):
        EvalOptions(model=Path("m.gguf"), maps=Path("m.ridgefill.gguf"), pool=f"{2**32},0").config()
