"""A router, which loads no model itself: settings that it hands on, and maps that it finds beside models."""

from __future__ import annotations

from pathlib import Path

import pytest
from server.conftest import Kit
from support.server import Server
from support.tokens import tokens

PROMPT = tokens(300)
CHILD = ("-np", "1", "-c", "1024")


def rows(router: Server, model: str) -> dict[str, int]:
    return router.complete(PROMPT, model=model, cache_prompt=False).rows


@pytest.mark.parametrize("place", ["argument", "environment", "preset"])
def test_settings_without_maps(kit: Kit, tmp_path: Path, place: str) -> None:
    """They act on the models that have maps and do no harm to the others, whose log says so."""
    common = "[*]\nridgefill-tail = 40\nridgefill-min-prompt = 100\n" if place == "preset" else ""
    arguments = ("--ridgefill-tail", "40", "--ridgefill-min-prompt", "100") if place == "argument" else ()
    names = {"LLAMA_ARG_RIDGEFILL_TAIL": "40", "LLAMA_ARG_RIDGEFILL_MIN_PROMPT": "100"}
    preset = tmp_path / "models.ini"
    preset.write_text(
        f"version = 1\n{common}"
        f"[filled]\nmodel = {kit.model()}\nridgefill-maps = {kit.poison()}\n"
        f"[plain]\nmodel = {kit.model()}\n"
    )
    options = ("--models-preset", preset, *CHILD, *arguments)
    with kit.serve(None, *options, env=names if place == "environment" else None) as router:
        filled = rows(router, "filled")
        assert filled["exact"] - 40 in range(100)  # the rest is the sink, which the maps recommend
        assert filled["filled"] + filled["exact"] == len(PROMPT)
        assert filled["filled"] > 0
        assert rows(router, "plain") == {}
        assert router.get("/ridgefill?model=filled").json()["defaults"]["tail"] == 40
        assert router.get("/ridgefill?model=plain").status_code == 501
    assert "--ridgefill-* have no effect on this model, it has no --ridgefill-maps" in router.log
    assert ("--ridgefill-* are handed on" in router.log) == (place != "preset")


def test_models_in_a_folder(kit: Kit, tmp_path: Path) -> None:
    """`MODEL.ridgefill.gguf` is no model; it has the maps of the model beside it."""
    folder = tmp_path / "models"
    (folder / "deep").mkdir(parents=True)
    places = ("flat", "deep/inner", "without", "wrong")
    for place in places:
        (folder / f"{place}.gguf").symlink_to(kit.model())
    for place in ("flat", "deep/inner", "lonely"):
        (folder / f"{place}.ridgefill.gguf").symlink_to(kit.poison())
    (folder / "wrong.ridgefill.gguf").symlink_to(kit.poison("gemma3"))
    options = ("--models-dir", folder, *CHILD, "--ridgefill-tail", "64", "--ridgefill-min-prompt", "0")
    with kit.serve(None, *options) as router:
        names = {model["id"] for model in router.get("/v1/models").json()["data"]}
        assert names == {"flat", "deep", "without", "wrong"}
        assert rows(router, "flat")["filled"] > 0
        assert rows(router, "deep")["filled"] > 0
        assert rows(router, "without") == {}
        refused = router.post("/completion", router.request(PROMPT, model="wrong"))
        assert refused.status_code == 500
    assert "failed to load RidgeFill maps" in router.log


def test_a_folder_with_other_maps(kit: Kit, tmp_path: Path) -> None:
    """What the preset of a model says goes before the maps beside it: none, or others."""
    for name in ("none", "other"):
        (tmp_path / f"{name}.gguf").symlink_to(kit.model())
        (tmp_path / f"{name}.ridgefill.gguf").symlink_to(kit.poison())
    other = kit.poison("llama", split=5)
    preset = tmp_path / "models.ini"
    preset.write_text(f"[none]\nridgefill-maps =\n[other]\nridgefill-maps = {other}\n")
    with kit.serve(None, "--models-dir", tmp_path, "--models-preset", preset, *CHILD) as router:
        assert rows(router, "none") == {}
        assert rows(router, "other")["split"] == 5


def test_common_settings_of_selection(kit: Kit, tmp_path: Path) -> None:
    """They do no harm to a model whose maps recommend no selection."""
    preset = tmp_path / "models.ini"
    preset.write_text(
        "[*]\nridgefill-budget = 0.5\nridgefill-min-prompt = 0\n"
        f"[some]\nmodel = {kit.model()}\nridgefill-maps = {kit.poison()}\nridgefill-select = stride\n"
        f"[none]\nmodel = {kit.model()}\nridgefill-maps = {kit.poison()}\n"
        f"[off]\nmodel = {kit.model()}\nridgefill-maps = {kit.poison()}\nridgefill-select = none\n"
    )
    with kit.serve(None, "--models-preset", preset, *CHILD, "--ridgefill-tail", "64") as router:
        assert rows(router, "some")["selected"] > 0
        for name in ("none", "off"):
            assert rows(router, name)["selected"] == 0
            assert rows(router, name)["filled"] > 0
    assert "-queries have no effect without --ridgefill-select or --ridgefill-heal" in router.log


def test_settings_in_a_config_file(kit: Kit, tmp_path: Path) -> None:
    """All programs read it: settings in it wait for maps."""
    (tmp_path / "llama.cpp").mkdir()
    (tmp_path / "llama.cpp" / "config.ini").write_text("[*]\nridgefill-tail = 40\nridgefill-min-prompt = 0\n")
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    with kit.serve("llama", *CHILD, env=env) as plain:
        assert plain.complete(PROMPT).rows == {}
    assert "--ridgefill-* have no effect on this model, it has no --ridgefill-maps" in plain.log
    with kit.serve("llama", *CHILD, "--ridgefill-maps", kit.poison(), env=env) as server:
        assert server.get("/ridgefill").json()["defaults"]["tail"] == 40
