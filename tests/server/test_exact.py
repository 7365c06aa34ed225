"""POISON maps never change an exact request, whatever ran before it or runs beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from server.conftest import Kit, Pair
from support.server import MIN_PROMPT, SINK, TAIL, Answer, Server, same
from support.tokens import tokens

PROMPT = tokens(330)
FILLED = len(PROMPT) - TAIL - SINK
# plain attention, sliding window, delta-net hybrid, state space and attention side by side, recurrent alone
FAMILIES = ["llama", "gemma3", "qwen35", "falcon-h1", "mamba2"]


@pytest.fixture(scope="module", params=FAMILIES)
def pair(kit: Kit, request: pytest.FixtureRequest) -> Iterator[Pair]:
    with kit.pair(request.param, "-np", "1", "-c", "2048", "--cache-ram", "0") as servers:
        yield servers


def filled(server: Server, prompt: list[int], ridgefill: object = True, **fields: object) -> Answer:
    """A completion that must have been broken by the POISON maps."""
    answer = server.complete(prompt, ridgefill, **fields)
    assert answer.rows["filled"] > 0, answer.rows
    return answer


def test_exact_filled_exact(pair: Pair) -> None:
    prompt = tokens(330, seed=1)
    truth = pair.plain.complete(prompt)

    before = pair.ridgefill.complete(prompt, False)
    assert same(before, truth)
    assert before.count(filled=0, exact=len(prompt), reused=0)

    broken = filled(pair.ridgefill, prompt, cache_prompt=False)
    assert broken.count(filled=FILLED, exact=TAIL + SINK, reused=0)
    assert not same(broken, truth)

    after = pair.ridgefill.complete(prompt, False)
    assert same(after, truth)
    assert after.cached <= SINK  # everything after the first filled cell was computed from it


def test_filled_first(pair: Pair) -> None:
    prompt = tokens(330, seed=2)
    broken = filled(pair.ridgefill, prompt)
    again = pair.ridgefill.complete(prompt, True)
    assert same(again, broken)
    assert same(pair.ridgefill.complete(prompt, False), pair.plain.complete(prompt))


def test_filled_request_reuses_exact_cells(pair: Pair) -> None:
    prompt = tokens(330, seed=3)
    truth = pair.ridgefill.complete(prompt, False, n_predict=1)
    again = pair.ridgefill.complete(prompt, True, n_predict=1)
    assert again.cached > 0
    # what the memory cannot keep is filled, so only a full reuse gives the exact answer
    assert again.rows["filled"] > 0 or same(again, truth)


def test_absent_switch_means_filled(pair: Pair) -> None:
    first, second = tokens(330, seed=4), tokens(330, seed=5)
    truth = pair.plain.complete(first)
    assert same(pair.ridgefill.complete(first, False), truth)
    assert filled(pair.ridgefill, second, None).rows["filled"] == FILLED
    assert same(pair.ridgefill.complete(first, False), truth)


def test_short_prompt_runs_exact(pair: Pair) -> None:
    prompt = tokens(MIN_PROMPT - 1, seed=6)
    answer = pair.ridgefill.complete(prompt)
    assert answer.count(filled=0, exact=len(prompt), reused=0)
    assert "shorter than min_prompt" in answer.rows["reason"]
    assert same(answer, pair.plain.complete(prompt))


def test_common_prefix_with_a_filled_prompt(pair: Pair) -> None:
    """The prompts differ in the filled region, inside the tail, and only by length."""
    prompt = tokens(330, seed=7)
    for keep in (SINK - 1, SINK, 100, len(prompt) - TAIL, len(prompt) - 10, len(prompt)):
        filled(pair.ridgefill, prompt, cache_prompt=False)
        other = prompt[:keep] + tokens(300, seed=8)
        assert same(pair.ridgefill.complete(other, False), pair.plain.complete(other)), keep


def test_later_tail_is_not_in_filled_cells(pair: Pair) -> None:
    prompt = tokens(330, seed=9)
    filled(pair.ridgefill, prompt, cache_prompt=False)
    shorter = prompt[:250]
    answer = pair.ridgefill.complete(shorter, True)
    # every row of the new tail was computed anew
    assert answer.cached <= len(shorter) - TAIL
    assert same(answer, filled(pair.ridgefill, shorter, cache_prompt=False))


def test_spans_run_exact(pair: Pair) -> None:
    prompt = tokens(330, seed=10)
    answer = filled(pair.ridgefill, prompt, {"spans": [[100, 150], [140, 160], [0, 2]]}, cache_prompt=False)
    assert answer.count(filled=FILLED - 60, exact=len(prompt) - FILLED + 60, reused=0)
    whole = pair.ridgefill.complete(prompt, {"spans": [[0, len(prompt)]]}, cache_prompt=False)
    assert whole.count(filled=0, exact=len(prompt), reused=0)
    assert same(whole, pair.plain.complete(prompt, cache_prompt=False))


def test_exact_span_is_not_in_filled_cells(pair: Pair) -> None:
    prompt = tokens(330, seed=11)
    filled(pair.ridgefill, prompt, cache_prompt=False)
    answer = pair.ridgefill.complete(prompt, {"spans": [[120, 130]]})
    assert answer.cached <= 120
    assert same(answer, filled(pair.ridgefill, prompt, {"spans": [[120, 130]]}, cache_prompt=False))


@pytest.mark.parametrize(
    ("family", "unified", "tolerance"),
    [
        ("llama", "--no-kv-unified", 0.03),
        ("gemma3", "--no-kv-unified", 0.03),
        ("qwen35", "--no-kv-unified", 0.03),
        # with cells of several sequences side by side, a server without maps varies by 0.02 from run to run
        ("llama", "--kv-unified", 0.1),
        ("qwen35", "--kv-unified", 0.1),
    ],
)
def test_beside_filled_requests(kit: Kit, family: str, unified: str, tolerance: float) -> None:
    """Filled and exact prompts share batches."""
    prompts = [tokens(200 + 37 * i, seed=20 + i) for i in range(8)]
    with kit.pair(family, "-np", "4", "-c", "4096", unified) as (ridgefill, plain):
        truth = [plain.complete(prompt, n_predict=24) for prompt in prompts]
        for _ in range(2):
            with ThreadPoolExecutor(8) as pool:
                noise = [pool.submit(filled, ridgefill, tokens(500, seed=40 + i), cache_prompt=False) for i in range(4)]
                exact = [pool.submit(ridgefill.complete, prompt, False, n_predict=24) for prompt in prompts]
            assert all(job.result().rows["filled"] == 500 - TAIL - SINK for job in noise)
            for job, expected in zip(exact, truth, strict=True):
                assert same(job.result(), expected, tolerance)


@pytest.mark.parametrize("family", ["llama", "qwen35"])
@pytest.mark.parametrize("unified", ["--kv-unified", "--no-kv-unified"])
def test_children(kit: Kit, family: str, unified: str) -> None:
    """A child's slot gets copies of filled cells."""
    with kit.pair(family, "-np", "2", "-c", "2048", "--cache-ram", "0", unified) as (ridgefill, plain):
        truth = plain.complete(PROMPT)
        broken = filled(ridgefill, PROMPT, cache_prompt=False)
        for _ in range(2):
            both = ridgefill.post("/completion", ridgefill.request(PROMPT, True, n_cmpl=2, cache_prompt=False)).json()
            assert all(same(Answer.read(body), broken) for body in both)
            assert all(Answer.read(body).rows["filled"] == FILLED for body in both)
            for slot in (0, 1):
                assert same(ridgefill.complete(PROMPT, False, id_slot=slot), truth)
        exact = ridgefill.post("/completion", ridgefill.request(PROMPT, False, n_cmpl=2)).json()
        assert all(same(Answer.read(body), truth) for body in exact)


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen35"])
def test_prompt_cache_in_memory(kit: Kit, family: str) -> None:
    """A prompt that left its slot comes back with the record of its filled cells."""
    other = tokens(330, seed=50)
    with kit.pair(family, "-np", "1", "-c", "1024", "--cache-ram", "256") as (ridgefill, plain):
        truth, truth_other = plain.complete(PROMPT), plain.complete(other)
        broken = filled(ridgefill, PROMPT)
        assert same(ridgefill.complete(other, False), truth_other)  # PROMPT moves into the cache
        back = ridgefill.complete(PROMPT, True)
        assert back.cached > 0
        assert same(back, broken)
        assert same(ridgefill.complete(other, False), truth_other)
        assert same(ridgefill.complete(PROMPT, False), truth)
        assert same(ridgefill.complete(other, True, n_predict=1), ridgefill.complete(other, True, n_predict=1))
        assert same(ridgefill.complete(PROMPT, False), truth)


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen35"])
def test_slot_files(kit: Kit, family: str) -> None:
    folder = kit.folder / f"slots-{family}"
    folder.mkdir()
    options = ("-np", "2", "-c", "2048", "--cache-ram", "0", "--slot-save-path", f"{folder}/")
    with kit.pair(family, *options) as (ridgefill, plain):
        truth = plain.complete(PROMPT, id_slot=0)
        broken = filled(ridgefill, PROMPT, id_slot=0)
        assert ridgefill.slot_file("save", "filled").status_code == 200
        assert ridgefill.slot_file("restore", "filled", slot=1).status_code == 200
        assert same(ridgefill.complete(PROMPT, False, id_slot=1), truth)

        assert ridgefill.slot_file("restore", "filled", slot=1).status_code == 200
        again = ridgefill.complete(PROMPT, True, id_slot=1)
        assert same(again, broken)

        # a server without the maps that filled the cells does not use them
        assert plain.slot_file("restore", "filled", slot=1).status_code == 200
        after = plain.complete(PROMPT, id_slot=1)
        assert after.cached <= SINK
        assert same(after, truth)

        # an exact slot can be used by anyone
        assert plain.slot_file("save", "exact").status_code == 200
        for server in (ridgefill, plain):
            assert server.slot_file("restore", "exact", slot=1).status_code == 200
            after = server.complete(PROMPT, False, id_slot=1)
            assert same(after, truth)
            assert after.cached > SINK or family != "llama"

    with kit.serve(family, *options, maps=kit.poison(family, 1)) as other:
        assert other.slot_file("restore", "filled", slot=1).status_code == 200
        answer = filled(other, PROMPT, id_slot=1)
        assert answer.cached <= SINK
        assert same(answer, filled(other, PROMPT, id_slot=0))


def test_damaged_slot_file(kit: Kit) -> None:
    folder = kit.folder / "slots-damaged"
    folder.mkdir()
    options = ("-np", "1", "-c", "1024", "--slot-save-path", f"{folder}/")
    with kit.pair("llama", *options) as (ridgefill, plain):
        truth = plain.complete(PROMPT)
        filled(ridgefill, PROMPT)
        assert ridgefill.slot_file("save", "whole").status_code == 200
        assert ridgefill.slot_file("restore", "missing").status_code == 400
        whole = (folder / "whole").read_bytes()
        marks = len(whole) - whole.rfind(b"rfil")
        for cut in (1, 8, 12, 20, len(whole) // 2, marks - 2, marks - 1, marks):
            (folder / "cut").write_bytes(whole[:-cut])
            assert ridgefill.slot_file("restore", "cut").status_code == 400, cut
            assert same(ridgefill.complete(PROMPT, False), truth)
        for name, tail in {"range": b"\xff" * 16, "magic": b"\0" * 40}.items():
            (folder / name).write_bytes(whole[: -len(tail)] + tail)
            assert ridgefill.slot_file("restore", name).status_code == 400, name
            assert same(ridgefill.complete(PROMPT, False), truth)


def test_a_slot_that_is_named_while_it_is_busy(kit: Kit) -> None:
    """The next request waits for the slot, and takes nothing from the answer that is being made in it."""
    other = tokens(200, seed=70)
    long = {"n_predict": 600, "ignore_eos": True, "id_slot": 0, "cache_prompt": False}
    with kit.serve("llama", "-np", "1", "-c", "1024", maps=kit.poison()) as server, ThreadPoolExecutor(1) as pool:
        truth = server.complete(PROMPT, False, **long)
        filled(server, other)
        server.complete(tokens(50, seed=9), False)  # the other prompt is in the cache in memory now
        running = pool.submit(server.complete, PROMPT, False, **long)
        while not server.get("/slots").json()[0]["is_processing"]:
            assert not running.done()
        server.complete(other, True, id_slot=0)
        assert running.result().tokens == truth.tokens


def test_context_shift(kit: Kit) -> None:
    """Cells that were computed from filled cells outlive them in a shift; the slot forgets them all."""
    prompt, n_ctx, long = tokens(400, seed=60), 512, {"n_predict": 450, "ignore_eos": True, "return_tokens": True}
    discarded = (n_ctx - 1) // 2
    with kit.pair("llama", "-np", "1", "-c", str(n_ctx), "--context-shift", "--cache-ram", "0") as (ridgefill, plain):
        for keep in (0, 1):  # the second shift discards the last filled cells
            shifted = filled(ridgefill, prompt, **long, n_keep=keep, cache_prompt=False)
            assert shifted.body["truncated"]
            text = prompt + shifted.body["tokens"]
            for probe in (text[:keep] + text[keep + 2 * discarded :], prompt):
                exact = ridgefill.complete(probe, False)
                assert exact.cached == 0
                assert same(exact, plain.complete(probe, cache_prompt=False))
                filled(ridgefill, prompt, **long, n_keep=keep, cache_prompt=False)


@pytest.mark.parametrize("family", ["llama", "qwen35"])
def test_out_of_cells(kit: Kit, family: str) -> None:
    """Prompts that do not fit together are retried in smaller batches; rows are neither skipped nor filled twice."""
    prompts = [tokens(300, seed=80 + i) for i in range(3)]
    with kit.serve(family, "-np", "3", "-c", "700", "--kv-unified", maps=kit.poison(family)) as server:
        alone = [filled(server, prompt, cache_prompt=False) for prompt in prompts]
        for _ in range(3):
            with ThreadPoolExecutor(3) as pool:
                bodies = [server.request(prompt, True, cache_prompt=False) for prompt in prompts]
                jobs = [pool.submit(server.post, "/completion", body) for body in bodies]
            for job, expected in zip(jobs, alone, strict=True):
                if job.result().status_code == 200:
                    answer = Answer.read(job.result().json())
                    assert answer.rows == expected.rows
                    assert same(answer, expected, 0.1)
                else:
                    assert "Context size has been exceeded" in job.result().text
        assert all(
            same(filled(server, prompt, cache_prompt=False), a) for prompt, a in zip(prompts, alone, strict=True)
        )


@pytest.mark.parametrize("family", ["llama", "qwen35"])
def test_cancelled_prefill(kit: Kit, family: str) -> None:
    prompt = tokens(1200, seed=70)
    with kit.pair(family, "-np", "2", "-c", "4096", "--cache-ram", "0") as (ridgefill, plain):
        truth = plain.complete(prompt)
        broken = filled(ridgefill, prompt, id_slot=0)
        for delay in (0.02, 0.1):
            for switch, expected in ((False, truth), (True, broken), (False, truth)):
                # the cells that it leaves are filled, so that an exact request has to drop them
                _abandon(ridgefill, ridgefill.request(prompt, True, id_slot=1), delay)
                assert same(ridgefill.complete(prompt, switch, id_slot=1), expected)
                ridgefill.complete(tokens(50, seed=71), False, id_slot=1)
        assert same(
            ridgefill.complete(prompt[:500], False, id_slot=1), plain.complete(prompt[:500], cache_prompt=False)
        )


def _abandon(server: Server, body: dict[str, object], delay: float) -> None:
    """Send a request and close the connection after a while."""
    with (
        httpx.Client(base_url=server.url, timeout=60) as client,
        client.stream("POST", "/completion", json={**body, "stream": True, "return_progress": True}),
    ):
        time.sleep(delay)
