"""Which parts of a memory are tried, and what share of the gap they are worth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyridgefill.errors import ModelError
from pyridgefill.evaluation.run.spliced import Splice, make_splices
from pyridgefill.evaluation.tasks.far_loss import FarText
from pyridgefill.evaluation.tasks.splice import share

DENSE = [("K", "V")] * 10
HYBRID = [("state",), ("K", "V")] * 5


def short(splices: list[Splice]) -> list[str]:
    return [f"{item.into} {item.part} {item.layers}" for item in splices]


def test_dense_models() -> None:
    assert short(make_splices(DENSE, 3, 3, ["fill"])) == [
        "fill K 4-9", "fill V 4-9", "fill K+V 4-9",
        "fill K+V 4-5", "fill K+V 6-7", "fill K+V 8-9", "fill K+V 4-7", "fill K+V 6-9",
    ]  # fmt: skip


def test_hybrid_models() -> None:
    assert short(make_splices(HYBRID, 4, 2, ["exact"])) == [
        "exact K 5-9", "exact V 5-9", "exact state 5-9", "exact K+V 5-9", "exact K+V+state 5-9",
        "exact K+V+state 5-7", "exact K+V+state 8-9",
    ]  # fmt: skip


def test_each_layer_and_both_directions() -> None:
    splices = make_splices(DENSE, 7, 0, ["fill", "exact"])
    assert short(splices)[3:5] == ["fill K+V 8", "fill K+V 9"]
    assert short(splices)[5:] == short([Splice("exact", s.components, s.first, s.last) for s in splices[:5]])


def test_layers_that_keep_nothing() -> None:
    kept = [("K",), ("K",), ("K",), ()]
    assert short(make_splices(kept, 1, 4, ["fill"])) == ["fill K 2"]
    with pytest.raises(ModelError, match="no layer above the split 2"):
        make_splices(kept, 2, 4, ["fill"])


def text(exact: list[float], removed: list[float]) -> FarText:
    return FarText((0,) * 9, 4, 1, np.asarray(exact), np.asarray(removed), np.zeros(len(exact), bool))


TEXTS = [text([1.0, 2.0], [4.0, 2.0]), text([3.0, 1.0], [3.0, 5.0])]
FILLED = [[2.0, 3.0], [3.0, 3.0]]


def test_shares() -> None:
    # gaps are 2 and 2, 1 and 2 on far tokens
    spliced = [[1.5, 2.5], [3.0, 3.0]]
    assert share(TEXTS, FILLED, spliced, "fill", "all", math.log(2), 0).value == pytest.approx(1 / 4)
    assert share(TEXTS, FILLED, spliced, "exact", "all", math.log(2), 0).value == pytest.approx(3 / 4)
    assert share(TEXTS, FILLED, spliced, "fill", "far", math.log(2), 0).value == pytest.approx(0.5 / 3)
    exact = [[1.0, 2.0], [3.0, 1.0]]
    found = share(TEXTS, FILLED, exact, "fill", "all", math.log(2), 0)
    assert (found.value, found.low, found.high) == (1, 1, 1)
    assert math.isnan(share(TEXTS, exact, spliced, "fill", "all", math.log(2), 0).value)
