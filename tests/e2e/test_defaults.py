"""What is done where neither the caller nor the maps file says anything: the engine and the package agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import capi, maps, paths
from support.families import FAMILIES
from support.loaded import Maps, Model

from pyridgefill import defaults
from pyridgefill.errors import MapsError
from pyridgefill.maps import Recommended, RetrievalHead, read_maps, write_maps


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


def test_without_a_recommendation_all_take_the_highest_split(workshop: Any, tmp_path: Any) -> None:
    from pyridgefill import RidgeFillConfig
    from pyridgefill.evaluation.run.session import Session
    from pyridgefill.evaluation.run.settings import resolve

    path, family = tmp_path / "silent.gguf", FAMILIES["llama"]
    heads = tuple(RetrievalHead(split, 0, 0) for split in (2, 3))
    silent = replace(maps.identity(workshop.model("llama"), [2, 3], family.sites()), heads=heads)
    assert silent.recommended == Recommended()
    write_maps(path, silent)
    best = read_maps(path).defaults()
    assert (best.split, best.select) == (3, "none")
    resolved = resolve(RidgeFillConfig(path), read_maps(path))
    assert (resolved.split, resolved.select) == (3, "none")
    with Session(workshop.model("llama"), n_ctx=64) as session:
        session.set_maps(RidgeFillConfig(path))
        assert session._fill is not None
        assert (session._fill.split, session._fill.select) == (3, "none")


def test_settings_that_were_measured_stay(workshop: Any) -> None:
    made = maps.identity(workshop.model("llama"), [2, 3], FAMILIES["llama"].sites())
    made = replace(made, heads=(RetrievalHead(2, 0, 0),))
    best = Recommended(split=2, tail=64, select="attention", budget=0.2)
    found = replace(made, recommended=best).defaults()
    assert (found.split, found.select, found.budget, found.tail) == (2, "attention", 0.2, 64)
    # the other split has no heads to select with
    assert replace(made, recommended=best).defaults(3).select == "none"
    with pytest.raises(MapsError, match="split 4 is not in the maps file"):
        made.defaults(4)
    with pytest.raises(MapsError, match="attention without ridgefill"):
        replace(made, recommended=Recommended(select="attention")).validate()
