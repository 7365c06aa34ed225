"""Settings of fill: what the engine could not hold is refused, not taken modulo 2**32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyridgefill.cli.eval_options import EvalOptions
from pyridgefill.config import RidgeFillConfig
from pyridgefill.errors import RidgeFillError

MOST = 2**31 - 1


@pytest.mark.parametrize("value", [-1, MOST + 1, 2**32 + 1])
@pytest.mark.parametrize("name", ["split", "sink", "tail", "min_prompt", "budget", "queries"])
def test_numbers_that_do_not_fit(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"RidgeFillConfig\.{name}: expected at (least|most) \d+, found {value}"):
        RidgeFillConfig(**{name: value})
    RidgeFillConfig(**{name: MOST})


@pytest.mark.parametrize("budget", [float("nan"), float("inf"), 1e12])
def test_budgets_that_are_no_number_of_rows(budget: float) -> None:
    with pytest.raises(ValueError, match=r"RidgeFillConfig\.budget: expected at most"):
        RidgeFillConfig(budget=budget)


@pytest.mark.parametrize("budget", [1.5, 2.5, 100.25])
def test_budgets_between_shares_and_rows(budget: float) -> None:
    with pytest.raises(ValueError, match=r"a share of the filled rows up to 1, or a whole number of rows from 2 on"):
        RidgeFillConfig(budget=budget)


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
    options = EvalOptions(model=Path("m.gguf"), maps=Path("m.ridgefill.gguf"), ctx=[4096, 2048, 4096])
    assert options.lengths == [4096, 2048]
    with pytest.raises(RidgeFillError, match=r"RidgeFillConfig\.pool"):
        EvalOptions(model=Path("m.gguf"), maps=Path("m.ridgefill.gguf"), pool=f"{2**32},0").config()
