"""What is done where neither the caller nor the maps file says anything: the engine and the package agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import capi, maps, paths
from support.families import FAMILIES
from support.loaded import Maps, Model

from pyridgefill import defaults
from pyridgefill.maps import Recommended


@pytest.fixture(autouse=True)
def engine_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGEFILL_LIB_PATH", str(paths.engine_library()))


def test_the_engine_has_the_same_default_numbers(workshop: Any, tmp_path: Any) -> None:
    family = FAMILIES["llama"]
    silent = replace(maps.identity(workshop.model("llama"), [2, 3], family.sites()), recommended=Recommended())
    native = capi.native()
    with Model(workshop.model("llama")) as model, Maps(model, maps.write(tmp_path / "silent.gguf", silent)) as loaded:
        plan = native.llama_ridgefill_default_plan_params(loaded.handle)
        select = native.llama_ridgefill_default_select_params(loaded.handle, -1)
        budget = native.llama_ridgefill_default_budget(loaded.handle)
    assert (plan.sink, plan.tail, plan.min_prompt) == (defaults.SINK, defaults.TAIL, defaults.MIN_PROMPT)
    assert ((select.n_before, select.n_after), select.n_query) == (defaults.POOL, defaults.QUERIES)
    assert select.type == native.LLAMA_RIDGEFILL_SELECT_NONE
    assert budget == pytest.approx(defaults.BUDGET)
