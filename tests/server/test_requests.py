"""The request field on every route, what the answers tell, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gguf
import pytest
from server.conftest import Kit
from support.raw_gguf import RawGGUF, RawKey
from support.server import MIN_PROMPT, SINK, TAIL, Answer, Server, same, serve
from support.tokens import tokens

PROMPT = tokens(300)
FILLED = len(PROMPT) - TAIL - SINK
FRESH = {"cache_prompt": False}


@pytest.fixture(scope="module")
def plain(kit: Kit) -> Iterator[Server]:
    with kit.serve("llama", "-np", "1", "-c", "2048") as running:
        yield running


#
# rows
#


@pytest.mark.parametrize("n_prompt", [1, 64, 68, 69, 127, 128, 129, 160, 192, 193, 400])
@pytest.mark.parametrize("tail", [1, 31, 64, 65])
def test_rows_follow_the_plan(server: Server, n_prompt: int, tail: int) -> None:
    answer = server.complete(tokens(n_prompt, seed=n_prompt), {"tail": tail, "min_prompt": 0}, **FRESH)
    filled = max(0, n_prompt - tail - SINK)
    assert answer.count(filled=filled, exact=n_prompt - filled, reused=0)
    assert answer.rows["split"] == 3
    assert answer.rows["selected"] == 0
    assert ("reason" in answer.rows) == (filled == 0)


def test_parameters_of_the_request(server: Server) -> None:
    cases: list[tuple[Any, int]] = [
        (True, FILLED),
        ({}, FILLED),
        ({"sink": 0}, FILLED + SINK),
        ({"sink": 100, "tail": 1}, 199),
        ({"tail": 300}, 0),
        ({"min_prompt": 301}, 0),
        ({"min_prompt": 300}, FILLED),
        ({"split": 3, "spans": []}, FILLED),
        ({"spans": [[0, 50], [200, 300]]}, 150),
        (None, FILLED),
        (False, 0),
    ]
    for ridgefill, filled in cases:
        assert server.complete(PROMPT, ridgefill, **FRESH).rows["filled"] == filled, ridgefill


def test_null_is_absent(server: Server) -> None:
    body = server.request(PROMPT, **FRESH) | {"ridgefill": None}
    assert Answer.read(server.post("/completion", body).json()).rows["filled"] == FILLED


def test_long_tail_is_exact(server: Server, plain: Server) -> None:
    answer = server.complete(PROMPT, {"tail": 2**31 - 1}, **FRESH)
    assert answer.count(filled=0, exact=len(PROMPT), reused=0)
    assert answer.body["content"] == plain.complete(PROMPT, **FRESH).body["content"]
    assert answer.logprobs == plain.complete(PROMPT, **FRESH).logprobs  # equal batches: equal bits


def test_many_spans(server: Server) -> None:
    spans = [[i, i + 1] for i in range(SINK, 236, 2)]
    answer = server.complete(PROMPT, {"spans": spans}, **FRESH)
    assert answer.count(filled=FILLED - len(spans), exact=len(PROMPT) - FILLED + len(spans), reused=0)


def test_reused_rows(server: Server) -> None:
    server.complete(PROMPT, True, **FRESH)
    again = server.complete(PROMPT, True)
    assert again.count(filled=0, exact=1, reused=len(PROMPT) - 1)
    longer = server.complete(PROMPT + tokens(100, seed=1), True)
    assert longer.count(filled=100 - TAIL, exact=TAIL, reused=len(PROMPT))


def test_several_prompts_in_one_request(server: Server) -> None:
    body = server.request([tokens(200, seed=2), tokens(100, seed=3)], True, **FRESH)  # type: ignore[arg-type]
    first, second = server.post("/completion", body).json()
    assert first["timings"]["ridgefill"]["filled"] == 200 - TAIL - SINK
    assert second["timings"]["ridgefill"]["filled"] == 0


def test_answers_without_maps_have_no_rows(plain: Server) -> None:
    assert plain.complete(PROMPT, **FRESH).rows == {}
    assert plain.complete(PROMPT, False, **FRESH).rows == {}


#
# routes
#


ROUTES = {
    "/completion": "prompt",
    "/completions": "prompt",
    "/v1/completions": "prompt",
    "/chat/completions": "messages",
    "/v1/chat/completions": "messages",
    "/responses": "input",
    "/v1/responses": "input",
    "/v1/messages": "messages",
}


def text_body(route: str, start: str = "", **fields: Any) -> dict[str, Any]:
    """A request with a long text; the Anthropic route has no way to turn the cache off, so texts start differently."""
    text = start + "word " * 250
    prompt = [{"role": "user", "content": text}] if ROUTES[route] == "messages" else text
    return {ROUTES[route]: prompt, "max_tokens": 4, "temperature": 0, "cache_prompt": False, **fields}


@pytest.mark.parametrize("route", ROUTES)
def test_routes(server: Server, route: str) -> None:
    cases: list[tuple[str, dict[str, Any], bool]] = [
        ("a", {}, True),
        ("b", {"ridgefill": True}, True),
        ("c", {"ridgefill": False}, False),
        ("d", {"ridgefill": {"tail": 100}}, True),
    ]
    for start, field, is_filled in cases:
        before = server.metric("ridgefill_rows_filled_total")
        response = server.post(route, text_body(route, f"{route} {start}" * 20, **field))
        assert response.status_code == 200, response.text
        filled = server.metric("ridgefill_rows_filled_total") - before
        assert (filled > 0) == is_filled
        timings = response.json()["timings"]
        assert timings["ridgefill"]["filled"] == filled
        assert timings["ridgefill"]["reused"] == timings["cache_n"]


def test_infill(kit: Kit) -> None:
    model = RawGGUF.read(kit.model())
    for token, name in enumerate(("pre", "suf", "mid"), start=1):
        model.keys.append(RawKey(f"tokenizer.ggml.fim_{name}_token_id", gguf.GGUFValueType.UINT32, token))
    path = model.write(kit.folder / "infill.gguf")
    body = {"input_prefix": "word " * 250, "input_suffix": "word", "n_predict": 4, **FRESH}
    options = ("-np", "1", "-c", "1024", "-b", "512")  # the prefix is cut to three quarters of a batch
    with serve(path, *options, maps=kit.poison(), log=kit.folder / "infill.log") as server:
        for field, is_filled in (({}, True), ({"ridgefill": False}, False), ({"ridgefill": {"tail": 16}}, True)):
            rows = server.post("/infill", body | field).json()["timings"]["ridgefill"]
            assert (rows["filled"] > 0) == is_filled
        refused = server.post("/infill", body | {"ridgefill": "yes"})
        assert refused.status_code == 400, refused.text
        assert "Field 'ridgefill'" in refused.text


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("ridgefill", ["yes", 1, [], {"tial": 5}, {"tail": 0}, {"split": 4}])
def test_routes_refuse_bad_fields(server: Server, route: str, ridgefill: Any) -> None:
    response = server.post(route, text_body(route, ridgefill=ridgefill))
    assert response.status_code == 400, response.text
    assert "Field 'ridgefill'" in response.text


@pytest.mark.parametrize("route", ROUTES)
def test_streams_tell_the_rows(server: Server, route: str) -> None:
    timings = server.stream(route, text_body(route, f"stream {route} " * 20))[-1]["timings"]
    assert timings["ridgefill"]["filled"] > 0
    assert timings["prompt_n"] == timings["ridgefill"]["filled"] + timings["ridgefill"]["exact"]


@pytest.mark.parametrize("route", ["/completions", "/v1/completions"])
def test_each_of_several_prompts_tells_its_rows(server: Server, route: str) -> None:
    lengths = (200, 100, 150)
    prompts = [tokens(n, seed=n) for n in lengths]
    body = {"prompt": prompts, "max_tokens": 2, "temperature": 0, **FRESH}
    answer = server.post(route, body).json()
    parts = answer if isinstance(answer, list) else sorted(answer["choices"], key=lambda choice: choice["index"])
    filled = [part["timings"]["ridgefill"]["filled"] for part in parts]
    assert filled == [n - TAIL - SINK if n >= MIN_PROMPT else 0 for n in lengths]


def test_stream_with_progress_and_timings_per_token(server: Server) -> None:
    body = server.request(PROMPT, True, **FRESH, return_progress=True, timings_per_token=True)
    events = server.stream("/completion", body)
    rows = [event["timings"]["ridgefill"]["filled"] for event in events if "timings" in event]
    assert rows == sorted(rows)
    assert rows[-1] == FILLED
    text = "".join(event.get("content", "") for event in events)
    assert text == server.complete(PROMPT, True, **FRESH).body["content"]


#
# refused
#

BAD: list[tuple[Any, str]] = [
    ("true", "must be true, false or an object"),
    (0, "must be true, false or an object"),
    ([True], "must be true, false or an object"),
    ({"tails": 5}, "unknown key 'tails'"),
    ({"": 1}, "unknown key ''"),
    ({"select": "attention"}, "select needs a server that keeps split states"),
    ({"tail": 0}, "tail must be an integer of at least 1"),
    ({"tail": -5}, "tail must be"),
    ({"tail": 2**31}, "tail must be"),
    ({"tail": 2**64 - 1}, "tail must be"),
    ({"tail": 1.5}, "tail must be"),
    ({"tail": "64"}, "tail must be"),
    ({"tail": True}, "tail must be"),
    ({"tail": None}, "tail must be"),
    ({"sink": -1}, "sink must be an integer of at least 0"),
    ({"min_prompt": [1]}, "min_prompt must be"),
    ({"split": 2}, "split must be the one in use, 3"),
    ({"spans": {}}, "spans must be an array"),
    ({"spans": [5]}, "spans[0] must be {"),
    ({"spans": [[1, 2, 3]]}, "spans[0] must be"),
    ({"spans": [[1, 2], [3]]}, "spans[1] must be"),
    ({"spans": [[1.0, 2]]}, "the start of spans[0]"),
    ({"spans": [[1, "2"]]}, "the end of spans[0]"),
    ({"spans": [[-1, 2]]}, "the start of spans[0]"),
    ({"spans": [[5, 5]]}, "is empty"),
    ({"spans": [[9, 5]]}, "is empty"),
    ({"spans": [[0, len(PROMPT) + 1]]}, "ends after the prompt of 300 tokens"),
    ({"spans": [[0, 2**31]]}, "the end of spans[0]"),
]


@pytest.mark.parametrize(("ridgefill", "message"), BAD, ids=lambda value: str(value)[:40])
def test_bad_field(server: Server, ridgefill: Any, message: str) -> None:
    error = server.error(PROMPT, ridgefill)
    assert error.startswith("Field 'ridgefill': ")
    assert message in error


def test_server_without_maps_refuses_to_fill(plain: Server) -> None:
    for ridgefill in (True, {}, {"tail": 64}):
        assert "this server has no maps, start it with --ridgefill-maps" in plain.error(PROMPT, ridgefill)


@pytest.mark.parametrize("ridgefill", [True, False, None])
def test_cache_reuse_is_refused(server: Server, ridgefill: bool | None) -> None:
    error = server.error(PROMPT, ridgefill, n_cache_reuse=16)
    assert error.startswith("Field 'n_cache_reuse': not possible while RidgeFill maps are loaded")


def test_a_refused_request_changes_nothing(server: Server) -> None:
    truth = server.complete(PROMPT, True, **FRESH)
    server.error(PROMPT, {"tail": 0})
    again = server.complete(PROMPT, True)
    assert again.cached == len(PROMPT) - 1
    assert same(again, truth)
