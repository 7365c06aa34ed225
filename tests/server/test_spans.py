"""Spans: rows that a request names by tokens, characters, messages and roles run exact, and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from server.conftest import Kit
from support import maps, paths
from support.server import SINK, TAIL, Server, run, same, serve
from support.tokens import tokens

FRESH = {"cache_prompt": False}
TEXT = "The quick brown fox — über 日本語 🙂 jumps. " * 12
CHATML = """
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content | trim }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
# system prompts with tools, as Qwen2.5 writes them
WITH_TOOLS = """
{%- if tools -%}
<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}You help.{% endif %}

# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call them.<|im_end|>
{% elif messages[0].role == 'system' -%}
<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}{% for m in messages %}{% if m.role != 'system' -%}
<|im_start|>{{ m.role }}
{{ m.content }}{% for call in m.tool_calls or [] %}<call>{{ call.function | tojson }}{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

SYSTEM = {"role": "system", "content": "Answer the questions with the words of the system, in order. " * 3}
# the first text is also in the template and in the system prompt, the last one is in the tail
CHAT = [
    SYSTEM,
    {"role": "user", "content": "system"},
    {"role": "assistant", "content": "  I was asked about the word user. Fine.  "},
    {"role": "user", "content": "word " * 60},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Finds the {name} of a town",
            "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
        },
    }
    for name in ("weather", "mayor")
]


class Prompt:
    """A rendered prompt with the place of its tokens in the text."""

    def __init__(self, server: Server, text: str) -> None:
        self.text = text.encode()
        body = {"content": text, "add_special": True, "parse_special": True, "with_pieces": True}
        found = server.post("/tokenize", body).json()["tokens"]
        pieces = [p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in found]
        joined = b"".join(pieces)
        assert joined.endswith(self.text)
        self.ids = [p["id"] for p in found]
        position = len(self.text) - len(joined)
        self.places = []
        for piece in pieces:
            self.places.append((position, position + len(piece)))
            position += len(piece)

    def rows(self, first: int, second: int) -> set[int]:
        """Tokens that are at least partly in these bytes."""
        return {i for i, (start, end) in enumerate(self.places) if start < second and end > first}

    def rows_of(self, part: str, nth: int = 0) -> set[int]:
        """Tokens of the nth occurrence of a text."""
        first = -1
        for _ in range(nth + 1):
            first = self.text.index(part.encode(), first + 1)
        return self.rows(first, first + len(part.encode()))

    def filled(self, exact: set[int], tail: int = TAIL) -> int:
        """Rows that are filled if these are exact."""
        return len(set(range(SINK, len(self.ids) - tail)) - exact)


def rendered(server: Server, messages: list[dict[str, Any]], **fields: Any) -> Prompt:
    response = server.post("/apply-template", {"messages": messages, **fields})
    assert response.status_code == 200, response.text
    return Prompt(server, response.json()["prompt"])


def chat(server: Server, messages: list[dict[str, Any]], ridgefill: Any = None, **fields: Any) -> dict[str, Any]:
    body = {"messages": messages, "max_tokens": 2, "temperature": 0, "logprobs": True, "top_logprobs": 5, **FRESH}
    body["ignore_eos"] = True
    if ridgefill is not None:
        body["ridgefill"] = ridgefill
    response = server.post("/v1/chat/completions", body | fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


def rows_of_chat(server: Server, messages: list[dict[str, Any]], spans: Any, **fields: Any) -> dict[str, Any]:
    return dict(chat(server, messages, {"spans": spans}, **fields)["timings"]["ridgefill"])


def refusal(server: Server, spans: Any, route: str = "/v1/chat/completions", **body: Any) -> str:
    response = server.post(route, {"max_tokens": 1, "ridgefill": {"spans": spans}, **body})
    assert response.status_code == 400, response.text
    message = str(response.json()["error"]["message"])
    assert message.startswith("Field 'ridgefill': ")
    assert "\n" not in message
    return message


@contextmanager
def with_template(kit: Kit, template: str, *options: str) -> Iterator[Server]:
    path = kit.folder / f"template{abs(hash(template))}.jinja"
    path.write_text(template, encoding="utf-8")
    template_options = ("-np", "1", "-c", "2048", "--jinja", "--chat-template-file", path)
    with kit.serve("spelling", *template_options, *options, maps=kit.poison("spelling")) as running:
        yield running


@pytest.fixture(scope="module")
def server(kit: Kit) -> Iterator[Server]:
    """With tokens that spell a text."""
    with kit.serve("spelling", "-np", "1", "-c", "2048", maps=kit.poison("spelling")) as running:
        yield running


@pytest.fixture(scope="module")
def chatml(kit: Kit) -> Iterator[Server]:
    with with_template(kit, CHATML) as running:
        yield running


@pytest.fixture(scope="module")
def tooling(kit: Kit) -> Iterator[Server]:
    with with_template(kit, WITH_TOOLS) as running:
        yield running


#
# characters of a text
#


@pytest.mark.parametrize(
    ("first", "second"), [(0, 1), (0, 30), (22, 24), (29, 33), (34, 35), (100, 101), (100, 300), (0, len(TEXT))]
)
def test_characters_of_a_text(server: Server, first: int, second: int) -> None:
    """The answer is that of a request which names the same rows by their tokens."""
    prompt = Prompt(server, TEXT)
    exact = prompt.rows(len(TEXT[:first].encode()), len(TEXT[:second].encode()))
    assert exact
    answer = server.complete(TEXT, {"spans": [{"chars": [first, second]}]}, **FRESH)
    assert answer.rows["filled"] == prompt.filled(exact)
    assert answer.rows["filled"] + answer.rows["exact"] == len(prompt.ids)
    by_tokens = {"spans": [{"tokens": [min(exact), max(exact) + 1]}]}
    assert same(answer, server.complete(prompt.ids, by_tokens, **FRESH))


def test_each_character_has_a_row(server: Server) -> None:
    """Every character alone, and all of them together: thousands of spans are one range."""
    spans = [{"chars": [i, i + 1]} for i in range(len(TEXT))] * 8
    answer = server.complete(TEXT, {"spans": spans}, **FRESH)
    assert answer.rows["filled"] == 0
    assert answer.rows["reason"] == "sink, tail and spans cover the prompt"


def test_spans_overlap(server: Server) -> None:
    prompt = Prompt(server, TEXT)
    spans = [{"chars": [40, 90]}, [20, 25], {"chars": [60, 120]}, {"tokens": [23, 28]}, {"chars": [89, 90]}]
    exact = set(range(20, 28)) | prompt.rows(len(TEXT[:40].encode()), len(TEXT[:120].encode()))
    assert server.complete(TEXT, {"spans": spans}, **FRESH).rows["filled"] == prompt.filled(exact)


def test_several_texts_in_one_request(server: Server) -> None:
    texts = [TEXT, "Другой текст. " * 40]
    body = server.request(texts, {"spans": [{"chars": [100, 200]}]}, **FRESH)  # type: ignore[arg-type]
    for text, answer in zip(texts, server.post("/completion", body).json(), strict=True):
        prompt = Prompt(server, text)
        exact = prompt.rows(len(text[:100].encode()), len(text[:200].encode()))
        assert answer["timings"]["ridgefill"]["filled"] == prompt.filled(exact)


def test_a_prompt_object(server: Server) -> None:
    body = server.request({"prompt_string": TEXT}, {"spans": [{"chars": [100, 200]}]}, **FRESH)  # type: ignore[arg-type]
    answer = server.post("/completion", body).json()
    prompt = Prompt(server, TEXT)
    exact = prompt.rows(len(TEXT[:100].encode()), len(TEXT[:200].encode()))
    assert answer["timings"]["ridgefill"]["filled"] == prompt.filled(exact)


@pytest.mark.parametrize("prompt", [tokens(300), [*tokens(299), "word"]], ids=["tokens", "mixed"])
def test_characters_need_a_text(server: Server, prompt: list[int]) -> None:
    error = server.error(prompt, {"spans": [{"chars": [0, 5]}]})
    assert error == "Field 'ridgefill': spans[0]: the prompt is not a text (hint: use tokens)"


def test_select_spans(kit: Kit, server: Server) -> None:
    """The spans, and no rows that the server would select."""
    prompt = Prompt(server, TEXT)
    spans = {"select": "spans", "spans": [{"chars": [40, 90]}]}
    expected = prompt.filled(prompt.rows(len(TEXT[:40].encode()), len(TEXT[:90].encode())))
    assert server.complete(TEXT, spans, **FRESH).count(expected, len(prompt.ids) - expected, 0)

    select = ("--ridgefill-select", "attention", "--ridgefill-heads", "0.0,1.1", "--ridgefill-budget", "0.5")
    with kit.serve("spelling", "-np", "1", "-c", "2048", *select, maps=kit.poison("spelling")) as selecting:
        alone = selecting.complete(TEXT, spans, **FRESH)
        assert (alone.rows["filled"], alone.rows["selected"]) == (expected, 0)
        both = selecting.complete(TEXT, {"spans": spans["spans"]}, **FRESH)
        assert (both.rows["filled"], both.rows["selected"]) == (expected, round(expected / 2))


#
# messages and roles
#


def test_roles(chatml: Server) -> None:
    prompt = rendered(chatml, CHAT)
    texts = {
        "system": prompt.rows_of(CHAT[0]["content"].strip()),
        "assistant": prompt.rows_of("I was asked about the word user. Fine."),
        "user": prompt.rows_of("system", 4) | prompt.rows_of(("word " * 60).strip()),
    }
    for role, exact in texts.items():
        assert rows_of_chat(chatml, CHAT, [{"role": role}])["filled"] == prompt.filled(exact), role
    everything = set().union(*texts.values())
    spans = [{"role": role} for role in texts]
    assert rows_of_chat(chatml, CHAT, spans)["filled"] == prompt.filled(everything)
    for role in ("tool", "tools", "developer"):
        assert rows_of_chat(chatml, CHAT, [{"role": role}])["filled"] == prompt.filled(set()), role


def test_rows_of_a_role_are_the_right_ones(chatml: Server) -> None:
    """The answer is that of a request which names the same rows by their tokens."""
    prompt = rendered(chatml, CHAT)
    exact = prompt.rows_of(CHAT[0]["content"].strip())
    answer = chat(chatml, CHAT, {"spans": [{"role": "system"}]})
    spans = {"spans": [{"tokens": [min(exact), max(exact) + 1]}]}
    by_tokens = chatml.complete(prompt.text.decode(), spans, **FRESH)
    top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert {t["id"]: t["logprob"] for t in top} == pytest.approx(by_tokens.logprobs[0], abs=1e-4)


def test_developer_is_a_system_role(chatml: Server) -> None:
    messages = [{**SYSTEM, "role": "developer"}, *CHAT[1:]]
    prompt = rendered(chatml, messages)
    exact = prompt.rows_of(SYSTEM["content"].strip())
    for role in ("developer", "system"):
        assert rows_of_chat(chatml, messages, [{"role": role}])["filled"] == prompt.filled(exact)


def test_messages(chatml: Server) -> None:
    prompt = rendered(chatml, CHAT)
    text = "I was asked about the word user. Fine."
    cases: list[tuple[dict[str, Any], set[int]]] = [
        ({"message": 0}, prompt.rows_of(SYSTEM["content"].strip())),
        ({"message": 1}, prompt.rows_of("system", 4)),
        ({"message": 2}, prompt.rows_of(text)),
        ({"message": -2}, prompt.rows_of(text)),
        ({"message": -4, "chars": [11, 20]}, prompt.rows_of("questions")),
        ({"message": 2, "chars": [0, 42]}, prompt.rows_of(text)),
        ({"message": 2, "chars": [0, 2]}, set()),  # white space that the template trims
        ({"message": 2, "chars": [1, 8]}, prompt.rows_of("I was ")),
    ]
    for span, exact in cases:
        assert rows_of_chat(chatml, CHAT, [span])["filled"] == prompt.filled(exact), span


def test_content_parts(chatml: Server) -> None:
    parts = [{"type": "text", "text": text} for text in ("First part of it. ", " ", "And the second part.")]
    messages = [{"role": "system", "content": parts}, *CHAT[1:]]
    prompt = rendered(chatml, messages)
    first = prompt.text.index(b"First part")
    second = prompt.text.index(b"second part.") + len(b"second part.")
    assert rows_of_chat(chatml, messages, [{"role": "system"}])["filled"] == prompt.filled(prompt.rows(first, second))


def test_characters_of_a_rendered_prompt(chatml: Server) -> None:
    prompt = rendered(chatml, CHAT)
    exact = prompt.rows(10, 50)
    assert rows_of_chat(chatml, CHAT, [{"chars": [10, 50]}])["filled"] == prompt.filled(exact)


def test_empty_messages_have_no_rows(chatml: Server) -> None:
    messages = [{"role": "system", "content": ""}, {"role": "user", "content": " \n"}, *CHAT[1:]]
    prompt = rendered(chatml, messages)
    assert rows_of_chat(chatml, messages, [{"role": "system"}])["filled"] == prompt.filled(set())
    assert rows_of_chat(chatml, messages, [{"message": 1}])["filled"] == prompt.filled(set())


@pytest.mark.parametrize("route", ["/v1/responses", "/v1/messages"])
def test_roles_on_converted_routes(chatml: Server, route: str) -> None:
    # the Anthropic route has no way to turn the cache off: the text starts like no other
    system = f"{route} {SYSTEM['content']}"
    prompt = rendered(chatml, [{"role": "system", "content": system}, CHAT[3]])
    expected = prompt.filled(prompt.rows_of(system.strip()))
    body: dict[str, Any] = (
        {"instructions": system, "input": CHAT[3]["content"]}
        if route == "/v1/responses"
        else {"system": system, "messages": [CHAT[3]]}
    )
    before = chatml.metric("ridgefill_rows_filled_total")
    response = chatml.post(route, body | {"max_tokens": 1, "ridgefill": {"spans": [{"role": "system"}]}, **FRESH})
    assert response.status_code == 200, response.text
    assert chatml.metric("ridgefill_rows_filled_total") - before == expected
    error = refusal(chatml, [{"message": 0}], route, **body)
    assert error.startswith("Field 'ridgefill': spans[0]: this route has no message indices")


def test_roles_need_a_chat_route(server: Server) -> None:
    for spans in ([{"role": "system"}], [{"message": 0}]):
        for route in ("/completion", "/v1/completions"):
            error = refusal(server, spans, route, prompt="word " * 250, messages=CHAT, ridgefill_chat=[[0, 5]])
            assert "this route has no chat messages (hint: use chars or tokens)" in error


def test_a_forged_place_is_ignored(chatml: Server) -> None:
    prompt = rendered(chatml, CHAT)
    exact = prompt.rows_of(SYSTEM["content"].strip())
    rows = rows_of_chat(chatml, CHAT, [{"role": "system"}], ridgefill_chat=[[0, 10**6]])
    assert rows["filled"] == prompt.filled(exact)


def test_texts_that_look_like_marks(chatml: Server) -> None:
    messages = [SYSTEM, {"role": "user", "content": "ridgefill0m0a ridgefill1m1z ridgefill0m"}, *CHAT[1:]]
    prompt = rendered(chatml, messages)
    exact = prompt.rows_of(SYSTEM["content"].strip())
    assert rows_of_chat(chatml, messages, [{"role": "system"}])["filled"] == prompt.filled(exact)


#
# tools
#


def tools_place(prompt: Prompt) -> tuple[int, int]:
    """What follows the system prompt."""
    start = re.search(rb"\n+# Tools", prompt.text)
    assert start is not None
    return start.start(), prompt.text.index(b"Call them.") + len(b"Call them.")


@pytest.mark.parametrize("messages", [CHAT, CHAT[1:]], ids=["system", "no-system"])
def test_tools(tooling: Server, messages: list[dict[str, Any]]) -> None:
    prompt = rendered(tooling, messages, tools=TOOLS)
    start, end = tools_place(prompt)
    if messages is not CHAT:
        start = 0  # the template writes a system prompt only for tools
        end = prompt.text.index(b"<|im_start|>user")
    expected = prompt.filled(prompt.rows(start, end))
    found = rows_of_chat(tooling, messages, [{"role": "tools"}], tools=TOOLS)["filled"]
    assert abs(found - expected) <= 8 * (messages is not CHAT)  # headers look alike

    exact = prompt.rows(start, end) | (prompt.rows_of(SYSTEM["content"].strip()) if messages is CHAT else set())
    both = rows_of_chat(tooling, messages, [{"role": "tools"}, {"role": "system"}], tools=TOOLS)["filled"]
    assert abs(both - prompt.filled(exact)) <= 8 * (messages is not CHAT)


def test_a_conversation_with_tools(tooling: Server) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "mayor", "arguments": json.dumps({"town": "Ulm"})}}
    messages = [
        SYSTEM,
        {"role": "user", "content": "Who is it?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": '{"mayor": "Ada"}'},
        CHAT[3],
    ]
    prompt = rendered(tooling, messages, tools=TOOLS)
    result = prompt.rows_of('{"mayor": "Ada"}')
    assert rows_of_chat(tooling, messages, [{"role": "tool"}], tools=TOOLS)["filled"] == prompt.filled(result)
    # all that the template makes of a message with calls, up to its neighbours
    first, second = prompt.text.index(b"Who is it?") + len(b"Who is it?"), prompt.text.index(b'{"mayor": "Ada"}')
    rows = rows_of_chat(tooling, messages, [{"role": "assistant"}], tools=TOOLS)
    assert rows["filled"] == prompt.filled(prompt.rows(first, second))


def test_tools_that_the_template_leaves_out(chatml: Server) -> None:
    error = refusal(chatml, [{"role": "tools"}], messages=CHAT, tools=TOOLS)
    assert "spans[0]: tools: the chat template leaves their definitions out" in error


#
# templates
#

BASE = "{% for m in messages %}<{{ m.role }}>PUT\n{% endfor %}<assistant>"


@pytest.mark.parametrize(
    "put",
    [
        "{{ m.content }}",
        "{{ m.content | trim }}. {{ m.content }}",
        "{{ m.content.split('words')[-1] }}",
        "{{ m.content.split('words')[0] }}",
    ],
    ids=["plain", "twice", "cut-start", "cut-end"],
)
def test_templates(kit: Kit, put: str) -> None:
    """Text that a template repeats or cuts is found; where its end is lost, more rows are exact, never less."""
    with with_template(kit, BASE.replace("PUT", put)) as server:
        prompt = rendered(server, CHAT)
        least: set[int] = set()
        for part in ("Answer the questions with the", "of the system, in order."):
            for nth in range(prompt.text.count(part.encode())):
                least |= prompt.rows_of(part, nth)
        assert least
        found = rows_of_chat(server, CHAT, [{"message": 0}])["filled"]
        assert found <= prompt.filled(least)
        assert found >= prompt.filled(prompt.rows(0, prompt.text.index(b"<user>system") + len(b"<user>")))


@pytest.mark.parametrize("filter_", ["| upper", "| length", "[:50]"])
def test_templates_that_change_a_message(kit: Kit, filter_: str) -> None:
    with with_template(
        kit, BASE.replace("PUT", f"{{{{ m.content {filter_} }}}}"), "--ridgefill-exact-roles", "system"
    ) as server:
        error = refusal(server, [{"role": "system"}], messages=CHAT)
        assert "spans[0]: message 0 (system): the chat template changes its text" in error
        # nobody asked for this one: the prompt runs exact
        rows = chat(server, [SYSTEM, {"role": "user", "content": "word " * 250}])["timings"]["ridgefill"]
        assert rows["filled"] == 0
        assert "changes its text" in rows["reason"]


def test_a_template_that_changes_other_messages(kit: Kit) -> None:
    put = "{{ m.content | upper if m.role == 'assistant' else m.content }}"
    with with_template(kit, BASE.replace("PUT", put)) as server:
        prompt = rendered(server, CHAT)
        exact = prompt.rows_of(SYSTEM["content"].strip())
        assert rows_of_chat(server, CHAT, [{"role": "system"}])["filled"] == prompt.filled(exact)
        spans = [{"message": 0}, {"message": -2}]
        assert "message 2 (assistant): the chat template changes its text" in refusal(server, spans, messages=CHAT)


def test_a_template_that_leaves_a_message_out(kit: Kit) -> None:
    put = "{{ m.content if m.role != 'assistant' else '' }}"
    with with_template(kit, BASE.replace("PUT", put), "--ridgefill-exact-roles", "assistant") as server:
        error = refusal(server, [{"role": "assistant"}], messages=CHAT)
        assert "spans[0]: message 2 (assistant): the chat template leaves it out" in error
        prompt = rendered(server, CHAT)
        assert chat(server, CHAT)["timings"]["ridgefill"]["filled"] == prompt.filled(set())


def test_a_system_prompt_in_the_first_message(kit: Kit) -> None:
    """Where a template knows no system role, the server puts the text into the message that follows."""
    with with_template(kit, BASE.replace("PUT", "{{ m.content if m.role != 'system' else '' }}")) as server:
        prompt = rendered(server, CHAT)
        exact = prompt.rows_of(SYSTEM["content"].strip())
        assert rows_of_chat(server, CHAT, [{"role": "system"}])["filled"] == prompt.filled(exact)


def test_characters_of_a_changed_message(kit: Kit) -> None:
    with with_template(kit, BASE.replace("PUT", "{{ m.content | replace('questions', 'riddles') }}")) as server:
        error = refusal(server, [{"message": 0, "chars": [0, 5]}], messages=CHAT)
        assert "message 0 (system): the chat template changes its text, so that characters cannot be found" in error
        prompt = rendered(server, CHAT)
        exact = prompt.rows_of(SYSTEM["content"].strip().replace("questions", "riddles"))
        assert rows_of_chat(server, CHAT, [{"message": 0}])["filled"] == prompt.filled(exact)


#
# the server's roles
#


def test_exact_roles(kit: Kit) -> None:
    with with_template(kit, WITH_TOOLS, "--ridgefill-exact-roles", "system,tools") as server:
        assert server.get("/props").json()["ridgefill"]["defaults"]["exact_roles"] == ["system", "tools"]
        prompt = rendered(server, CHAT, tools=TOOLS)
        exact = prompt.rows_of(SYSTEM["content"].strip()) | prompt.rows(*tools_place(prompt))
        for field in (None, True, {"sink": SINK}, {"select": "spans"}):
            rows = chat(server, CHAT, field, tools=TOOLS)["timings"]["ridgefill"]
            assert rows["filled"] == prompt.filled(exact), field
        # a request has its own
        assert rows_of_chat(server, CHAT, [], tools=TOOLS)["filled"] == prompt.filled(set())
        assert chat(server, CHAT, False, tools=TOOLS)["timings"]["ridgefill"]["filled"] == 0
        # other routes have no messages
        long = "word " * 250
        assert server.complete(long, **FRESH).rows["filled"] == Prompt(server, long).filled(set())


def test_exact_roles_in_the_environment(kit: Kit) -> None:
    env = {"LLAMA_ARG_RIDGEFILL_EXACT_ROLES": "user"}
    with kit.serve("llama", "-np", "1", "-c", "1024", maps=kit.poison(), env=env) as server:
        assert server.get("/ridgefill").json()["defaults"]["exact_roles"] == ["user"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ridgefill-exact-roles", "system,tolls"], "must be system, developer, user, assistant, tool or tools"),
        (["--ridgefill-exact-roles", ""], "must be system, developer, user, assistant, tool or tools"),
    ],
)
def test_bad_exact_roles(kit: Kit, options: list[str], message: str) -> None:
    result = run("llama-server", "-m", kit.model(), "--ridgefill-maps", kit.poison(), *options)
    assert result.returncode == 1
    assert message in result.stderr


def test_exact_roles_need_maps(kit: Kit) -> None:
    result = run("llama-server", "-m", kit.model(), "--ridgefill-exact-roles", "system")
    assert result.returncode == 1
    assert "no effect without --ridgefill-maps" in result.stderr


#
# the cache
#


def test_filled_cells_are_not_reused_in_spans(chatml: Server) -> None:
    prompt = rendered(chatml, CHAT)
    exact = prompt.rows_of("I was asked about the word user. Fine.")
    chat(chatml, CHAT, True)
    again = chat(chatml, CHAT, {"spans": [{"role": "assistant"}]}, cache_prompt=True)["timings"]["ridgefill"]
    assert again["reused"] == min(exact)
    fresh = rows_of_chat(chatml, CHAT, [{"role": "assistant"}])
    assert again["filled"] == fresh["filled"] - (min(exact) - SINK)
    # now they are exact, and stay so where less is asked for
    more = chat(chatml, CHAT, {"spans": [{"role": "assistant"}]}, cache_prompt=True)["timings"]["ridgefill"]
    assert more["reused"] == len(prompt.ids) - 1


def test_a_role_that_covers_the_prompt_is_exact(chatml: Server) -> None:
    messages = [{"role": "user", "content": "word " * 250}]
    covered = chat(chatml, messages, {"sink": 30, "spans": [{"role": "user"}]})
    exact = chat(chatml, messages, False)
    assert covered["timings"]["ridgefill"]["filled"] == 0
    assert covered["choices"][0]["logprobs"] == exact["choices"][0]["logprobs"]


#
# refused
#

SHAPE = 'spans[0] must be {"tokens": [start, end]} or short [start, end]'
BAD: list[tuple[Any, str]] = [
    ({}, "spans must be an array"),
    ("system", "spans must be an array"),
    (["system"], SHAPE),
    ([None], SHAPE),
    ([{}], SHAPE),
    ([{"char": [0, 1]}], SHAPE),
    ([{"chars": [0, 1], "tokens": [0, 1]}], SHAPE),
    ([{"role": "user", "chars": [0, 1]}], SHAPE),
    ([{"role": "user", "message": 0}], SHAPE),
    ([{"message": 0, "chars": [0, 1], "more": 1}], SHAPE),
    ([{"role": "User"}], "role of spans[0] must be system, developer, user, assistant, tool or tools"),
    ([{"role": ["user"]}], "role of spans[0] must be"),
    ([{"role": "x" * 10**5}], "role of spans[0] must be"),
    ([{"message": "0"}], "message of spans[0] must be an integer, but got"),
    ([{"message": 0.5}], "message of spans[0] must be"),
    ([{"message": True}], "message of spans[0] must be"),
    ([{"message": None}], "message of spans[0] must be"),
    ([{"message": 2**63}], "message of spans[0] must be"),
    ([{"message": 4}], "spans[0]: message 4 does not exist, there are 4"),
    ([{"message": -5}], "spans[0]: message -5 does not exist, there are 4"),
    ([{"message": -(2**31)}], "does not exist"),
    ([{"message": 0, "chars": [0, 10**6]}], "spans[0] = [0, 1000000) ends after the text of "),
    ([[0, 5], {"chars": [3]}], "spans[1] must be a [start, end) pair of characters"),
    ([{"chars": [3, 3]}], "spans[0] = [3, 3) is empty"),
    ([{"chars": [5, 3]}], "spans[0] = [5, 3) is empty"),
    ([{"chars": [-1, 3]}], "the start of spans[0] must be an integer of at least 0, but got -1"),
    ([{"chars": [0, 1.5]}], "the end of spans[0] must be an integer"),
    ([{"chars": [0, 1e300]}], "the end of spans[0] must be an integer"),
    ([{"chars": [0, "1"]}], "the end of spans[0] must be an integer"),
    ([{"chars": [0, None]}], "the end of spans[0] must be an integer"),
    ([{"chars": [0, 2**31]}], "the end of spans[0] must be an integer"),
    ([{"chars": [0, 10**6]}], "spans[0] = [0, 1000000) ends after the text of "),
    ([{"tokens": [0, 10**6]}], "spans[0] = [0, 1000000) ends after the prompt of "),
    ([[0, 1]] * 4097, "spans has 4097 entries, the limit is 4096"),
]


@pytest.mark.parametrize(("spans", "message"), BAD, ids=lambda value: str(value)[:50])
def test_bad_spans(chatml: Server, spans: Any, message: str) -> None:
    error = refusal(chatml, spans, messages=CHAT)
    assert message in error
    assert len(error) < 400


def test_too_many_ranges(server: Server) -> None:
    prompt = tokens(2047)
    apart = [[i, i + 1] for i in range(0, 2047, 2)]
    assert "spans are 1024 separate ranges of rows, the limit is 1023" in server.error(prompt, {"spans": apart})


@pytest.mark.parametrize("select", [{"select": "spans"}, {"select": "spans", "spans": []}])
def test_select_spans_needs_spans(server: Server, select: dict[str, Any]) -> None:
    assert "select spans has no effect without spans" in server.error(tokens(300), select)


#
# a real model
#


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, model = tmp_path_factory.mktemp("smollm2"), paths.smollm2()
    sites = {layer: ("attn_k", "attn_v") for layer in range(21, 30)}
    path = maps.write(folder / "maps.gguf", maps.identity(model, [20], sites))
    options = ("-np", "1", "-c", "2048", "-b", "512", "-ub", "512")
    with serve(model, *options, maps=path, log=folder / "server.log") as running:
        yield running


def test_real_model(smollm2: Server) -> None:
    messages = [
        {"role": "system", "content": "You translate between English, Deutsch and 日本語. " * 4},
        {"role": "user", "content": "Wie heißt „Schmetterling“ auf Japanisch? 🦋 " * 6},
        {"role": "assistant", "content": "蝶 (ちょう, chō)."},
        {"role": "user", "content": "Danke! And in English?" + " Please." * TAIL},
    ]
    prompt = rendered(smollm2, messages)
    for i, message in enumerate(messages):
        exact = prompt.rows_of(str(message["content"]).strip())
        assert len(exact) > 4
        assert rows_of_chat(smollm2, messages, [{"message": i}])["filled"] == prompt.filled(exact)
    system = prompt.rows_of(str(messages[0]["content"]).strip())
    assert rows_of_chat(smollm2, messages, [{"role": "system"}])["filled"] == prompt.filled(system)
    text = prompt.text.decode()
    for first in range(0, 200, 47):
        exact = prompt.rows(len(text[:first].encode()), len(text[: first + 10].encode()))
        found = rows_of_chat(smollm2, messages, [{"chars": [first, first + 10]}])["filled"]
        assert found == prompt.filled(exact), first


def test_tokens_that_do_not_spell_the_text(kit: Kit) -> None:
    with kit.serve("llama", "-np", "1", "-c", "1024", "--ridgefill-exact-roles", "user", maps=kit.poison()) as server:
        for span in ({"chars": [0, 5]}, {"role": "user"}):
            error = refusal(server, [span], messages=CHAT)
            assert "those of this model do not (hint: use tokens)" in error
        rows = chat(server, CHAT)["timings"]["ridgefill"]
        assert (rows["filled"], rows["reason"][:24]) == (0, "spans of characters, mes")
