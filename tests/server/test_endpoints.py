"""What the server tells about itself, and to whom."""

from __future__ import annotations

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from server.conftest import Kit
from support import maps
from support.families import FAMILIES
from support.server import MIN_PROMPT, SINK, START_SECONDS, TAIL, Server
from support.tokens import tokens

from pyridgefill.maps import RetrievalHead, read_maps

PROMPT = tokens(300)
FILLED = len(PROMPT) - TAIL - SINK
FRESH = {"cache_prompt": False}
KEY = {"Authorization": "Bearer secret"}


def test_maps_are_described(server: Server, kit: Kit) -> None:
    maps = server.get("/ridgefill").json()
    assert maps["split"] == 3
    assert maps["splits"] == [3]
    plan = {"tail": TAIL, "sink": SINK, "min_prompt": MIN_PROMPT}
    selection = {"select": "none", "budget": 0.05, "pool": [5, 5], "queries": 512}
    assert maps["defaults"] == plan | selection | {"exact_roles": []}
    assert maps["heads"] == []
    assert maps["heal"] is False
    assert re.fullmatch("[0-9a-f]{16}", maps["hash"])
    assert maps["file"] == kit.poison().name
    assert maps["size"] > 0
    assert maps["meta"]["ridgefill.format_version"] == "1"


def test_props(server: Server) -> None:
    maps = server.get("/ridgefill").json()
    props = server.get("/props").json()["ridgefill"]
    assert props == {key: maps[key] for key in ("hash", "split", "splits", "defaults", "heads", "heal")}


def test_maps_without_a_recommendation_are_served_as_python_reads_them(kit: Kit, tmp_path: Path) -> None:
    family = FAMILIES["llama"]
    silent = maps.identity(kit.model(), [2, 3], family.sites())
    silent = replace(silent, heads=tuple(RetrievalHead(split, 0, 0) for split in (2, 3)))
    path = maps.write(tmp_path / "silent.gguf", silent)
    best = read_maps(path).defaults()
    with kit.serve("llama", "-np", "1", "-c", "1024", maps=path) as running:
        found = running.get("/ridgefill").json()
    assert (found["split"], found["defaults"]["select"]) == (best.split, best.select) == (3, "none")
    budget, pool, queries = (found["defaults"][key] for key in ("budget", "pool", "queries"))
    assert (budget, tuple(pool), queries) == (best.budget, best.pool, best.queries)


def test_no_path_is_told(server: Server, kit: Kit) -> None:
    server.complete(PROMPT)
    for route in ("/ridgefill", "/slots", "/metrics"):
        assert str(kit.folder) not in server.get(route).text
    assert str(kit.folder) not in json.dumps(server.get("/props").json()["ridgefill"])


def test_server_without_maps(kit: Kit) -> None:
    with kit.serve("llama", "-np", "1", "-c", "1024") as plain:
        plain.complete(PROMPT)
        response = plain.get("/ridgefill")
        assert response.status_code == 501
        assert "--ridgefill-maps" in response.json()["error"]["message"]
        for route in ("/props", "/slots", "/metrics"):
            assert "ridgefill" not in plain.get(route).text
        assert "ridgefill" not in plain.log


def test_metrics_add_up(kit: Kit) -> None:
    with kit.serve("llama", "-np", "2", "-c", "2048", maps=kit.poison()) as server:
        for ridgefill, n in ((True, 2), (False, 1)):
            server.post("/completion", server.request(PROMPT, ridgefill, n_cmpl=n, cache_prompt=False))
        assert server.metric("ridgefill_rows_filled_total") == FILLED
        assert server.metric("ridgefill_rows_exact_total") == 2 * len(PROMPT) - FILLED
        assert server.metric("ridgefill_requests_filled_total") == 1
        assert server.metric("prompt_tokens_total") == 2 * len(PROMPT)


def test_slots_tell_the_rows_while_a_request_runs(server: Server) -> None:
    body = server.request(PROMPT, True, cache_prompt=False, n_predict=400, ignore_eos=True)
    job = threading.Thread(target=server.post, args=("/completion", body))
    job.start()
    seen = []
    while job.is_alive():
        seen += [slot["ridgefill"] for slot in server.get("/slots").json() if "ridgefill" in slot]
    job.join()
    assert seen[-1]["filled"] == FILLED
    assert seen[-1]["split"] == 3


def test_one_log_line_per_request(kit: Kit) -> None:
    with kit.serve("llama", "-np", "2", "-c", "2048", maps=kit.poison()) as server:
        server.complete(PROMPT, True)
        server.complete(PROMPT, False)
        server.complete(PROMPT[:50])
        server.post("/completion", server.request(PROMPT, True, n_cmpl=2))
    lines = re.findall(r"ridgefill: (filled = .*)", server.log)
    shape = "filled = {}, selected = 0, exact = {}, reused = {} rows, split = 3, tail = 64"
    assert lines[0] == shape.format(FILLED, TAIL + SINK, 0)
    assert lines[1] == shape.format(0, len(PROMPT) - SINK, SINK) + ", exact because the request turned it off"
    assert "exact because the prompt is shorter than min_prompt, 128" in lines[2]
    assert len(lines) == 4  # a child has no line of its own
    assert len(re.findall("ridgefill: maps '", server.log)) == 1


def test_api_key(kit: Kit) -> None:
    with kit.serve("llama", "-np", "1", "-c", "1024", "--api-key", "secret", maps=kit.poison()) as server:
        for route in ("/ridgefill", "/props", "/slots", "/metrics"):
            assert server.get(route).status_code == 401, route
            assert server.get(route, headers=KEY).status_code == 200, route
        body = server.request(PROMPT, True)
        assert server.post("/completion", body).status_code == 401
        answer = server.post("/completion", body, headers=KEY).json()
        assert answer["timings"]["ridgefill"]["filled"] == FILLED


def wait_for_sleep(server: Server) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not server.get("/props").json()["is_sleeping"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_sleep_and_wake(kit: Kit) -> None:
    """The maps go with the model and come back with it."""
    with kit.serve("llama", "-np", "1", "-c", "1024", "--sleep-idle-seconds", "1", maps=kit.poison()) as server:
        before = server.complete(PROMPT, True)
        wait_for_sleep(server)
        assert server.get("/ridgefill").json()["split"] == 3  # without waking up
        assert server.get("/props").json()["is_sleeping"]
        assert "ridgefill_rows_filled_total" in server.get("/metrics").text
        after = server.complete(PROMPT, True)
        assert after.count(filled=FILLED, exact=TAIL + SINK, reused=0)
        assert after.tokens == before.tokens


def test_other_maps_at_wake_up(kit: Kit, tmp_path: Path) -> None:
    """Whoever asks hears of the maps that are loaded, not of those before the sleep."""
    path = tmp_path / "maps.gguf"
    path.write_bytes(kit.poison().read_bytes())
    with kit.serve("llama", "-np", "1", "-c", "1024", "--sleep-idle-seconds", "1", maps=path) as server:
        before = server.complete(PROMPT, {"split": 3})
        old = server.get("/ridgefill").json()
        wait_for_sleep(server)
        path.write_bytes(kit.poison("llama", split=5).read_bytes())
        assert server.get("/ridgefill").json() == old  # of the last load, without waking up
        told = []
        with ThreadPoolExecutor(1) as pool:
            waking = pool.submit(server.complete, PROMPT, True, **FRESH)
            while not waking.done():
                told.append(server.get("/ridgefill").json())
        after = waking.result()
        new = server.get("/ridgefill").json()
        assert all(maps in (old, new) for maps in told)
        assert (before.rows["split"], after.rows["split"]) == (3, 5)
        assert (new["split"], new["splits"]) == (5, [5])
        assert new["hash"] != old["hash"]
        assert server.get("/props").json()["ridgefill"]["hash"] == new["hash"]
        assert "split must be the one in use, 5" in server.error(PROMPT, {"split": 3})
        assert server.complete(PROMPT, {"split": 5}, **FRESH).rows["filled"] == FILLED
        wait_for_sleep(server)
        assert server.get("/ridgefill").json() == new
    assert f"is another file than the last time, whose hash was {old['hash']}" in server.log


@pytest.mark.parametrize("spec", ["ngram-simple", "ngram-mod", "draft-simple"])
def test_speculation(kit: Kit, spec: str) -> None:
    """Speculation over a filled prompt says what the prompt says without it; a draft context is never filled."""
    prompt = tokens(40, seed=5) * 8
    options = ("-np", "1", "-c", "2048", "-b", "128")  # a batch holds the longest draft
    draft = ("-md", kit.model()) if spec == "draft-simple" else ()
    with (
        kit.serve("llama", *options, maps=kit.poison()) as server,
        kit.serve("llama", *options, "--spec-type", spec, *draft, maps=kit.poison()) as drafting,
    ):
        for ridgefill in (True, False, True):
            fields = {"n_predict": 100, "ignore_eos": True, "cache_prompt": False, "n_probs": 0}
            answers = [s.post("/completion", s.request(prompt, ridgefill, **fields)).json() for s in (server, drafting)]
            assert answers[0]["content"] == answers[1]["content"]
            assert answers[0]["timings"]["ridgefill"] == answers[1]["timings"]["ridgefill"]
        drafted = [s.metric("spec_decode_num_draft_tokens_total") for s in (server, drafting)]
        assert drafted[0] == 0
        assert drafted[1] > 0 or not draft
