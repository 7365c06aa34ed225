"""A device that computes late: nothing is read from its memory before the work that writes it is done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.device import Case, measure, on_device
from support.families import FAMILIES
from support.options import ContextOptions


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen35"])
def test_a_late_device_gives_what_the_cpu_gives(workshop: Any, family: str, flash: bool) -> None:
    f = FAMILIES[family]
    options = ContextOptions(n_ctx=1024, n_seq_max=2, flash_attn=flash, swa_full=True)
    case = Case(workshop.model(family), workshop.maps(family, "poison"), f.split, options, reruns=not f.recurrent)
    want, got = measure(case), on_device(case)
    assert want.keys() == got.keys()
    assert ("scores" in want) == (not f.recurrent)
    wrong = {}
    for name, values in want.items():
        assert np.isfinite(values).all(), name
        assert np.ptp(values) > 0, name
        assert got[name].shape == values.shape, name
        if not np.abs(got[name] - values).max() <= 1e-3 * np.ptp(values):  # NaN too
            wrong[name] = (got[name], values)
    assert not wrong, list(wrong)
