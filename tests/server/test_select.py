"""Selected rows and heal: what POISON maps filled becomes exact again, before the tail or while nothing runs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import pytest
from server.conftest import Kit, Pair
from support.families import FAMILIES
from support.raw_gguf import RawGGUF, RawKey
from support.server import SINK, TAIL, Answer, Server, run, same
from support.tokens import tokens

PROMPT = tokens(330)
FILLED = len(PROMPT) - TAIL - SINK
FRESH = {"cache_prompt": False}
HEADS = ("--ridgefill-heads", "0.0,1.1,2.0")
SELECT = ("--ridgefill-select", "attention", *HEADS)
ALL = {"budget": 1}


@pytest.fixture(scope="module")
def plain(kit: Kit) -> Iterator[Server]:
    with kit.serve("llama", "-np", "1", "-c", "2048") as running:
        yield running


@pytest.fixture(scope="module")
def selecting(kit: Kit) -> Iterator[Server]:
    with kit.serve("llama", "-np", "1", "-c", "2048", *SELECT, maps=kit.poison()) as running:
        yield running


@pytest.fixture(scope="module")
def pair(selecting: Server, plain: Server) -> Pair:
    return Pair(selecting, plain)


#
# selected rows
#


@pytest.mark.parametrize("select", ["stride", "attention"])
def test_all_rows_are_exact(pair: Pair, select: str) -> None:
    truth = pair.plain.complete(PROMPT)
    answer = pair.ridgefill.complete(PROMPT, ALL | {"select": select}, **FRESH)
    assert answer.count(filled=FILLED, exact=TAIL + SINK, reused=0)
    assert answer.rows["selected"] == FILLED
    assert same(answer, truth)

    again = pair.ridgefill.complete(PROMPT, False)
    assert again.cached == len(PROMPT) - 1
    assert same(again, truth)


@pytest.mark.parametrize(("tail", "n"), [(1, 150), (31, 330), (65, 330), (150, 330), (64, 128), (64, 129), (64, 193)])
def test_tails_over_several_batches(pair: Pair, tail: int, n: int) -> None:
    prompt = tokens(n, seed=1)
    answer = pair.ridgefill.complete(prompt, ALL | {"tail": tail}, **FRESH)
    assert answer.rows["selected"] == answer.rows["filled"] == n - tail - SINK
    assert same(answer, pair.plain.complete(prompt, **FRESH))


def test_windowed_model(kit: Kit) -> None:
    options = ("-np", "1", "-c", "2048", "--swa-full")
    select = ("--ridgefill-select", "attention", "--ridgefill-heads", "0.0,2.0", "--ridgefill-heal")
    with (
        kit.serve("gemma3", *options, *select, maps=kit.poison("gemma3")) as server,
        kit.serve("gemma3", *options) as plain,
    ):
        truth = plain.complete(PROMPT)
        assert same(server.complete(PROMPT, ALL), truth)
        other = tokens(330, seed=2)
        assert not same(server.complete(other, True), plain.complete(other))
        wait_for_heal(server, len(other) + 5 - SINK)
        assert same(server.complete(other, False), plain.complete(other, **FRESH))


@pytest.mark.parametrize(
    ("ridgefill", "selected"),
    [
        (True, round(0.05 * FILLED)),
        ({"budget": 0.5}, FILLED // 2),
        ({"budget": 0.08}, round(0.08 * FILLED)),
        ({"budget": 0.08, "select": "stride"}, round(0.08 * FILLED)),
        ({"budget": 1}, FILLED),
        ({"select": "none"}, 0),
        ({"tail": 330}, 0),
        (False, 0),
    ],
)
def test_rows_are_counted(selecting: Server, ridgefill: object, selected: int) -> None:
    before = selecting.metric("ridgefill_rows_selected_total")
    answer = selecting.complete(PROMPT, ridgefill, **FRESH)
    assert answer.rows["selected"] == selected
    assert selecting.metric("ridgefill_rows_selected_total") - before == selected
    assert answer.rows["filled"] == (FILLED if selected or ridgefill == {"select": "none"} else 0)


def test_reused_rows(pair: Pair) -> None:
    """Filled ones can be selected, exact ones need not be."""
    longer = PROMPT + tokens(100, seed=3)
    pair.ridgefill.complete(PROMPT, ALL, **FRESH)
    exact = pair.ridgefill.complete(longer, ALL)
    assert exact.count(filled=100 - TAIL, exact=TAIL, reused=len(PROMPT))
    assert exact.rows["selected"] == 100 - TAIL
    assert same(exact, pair.plain.complete(longer, **FRESH))

    pair.ridgefill.complete(PROMPT, {"budget": 20 / FILLED}, **FRESH)
    again = pair.ridgefill.complete(PROMPT, {"budget": 21 / (FILLED - 20)})
    assert again.count(filled=0, exact=1, reused=len(PROMPT) - 1)
    assert again.rows["selected"] == 21
    mixed = pair.ridgefill.complete(longer, ALL)
    assert mixed.rows["selected"] == FILLED - 41 + 100 - TAIL
    assert same(pair.ridgefill.complete(longer, False), pair.plain.complete(longer, **FRESH))


def test_rows_that_saw_filled_ones_are_not_exact(pair: Pair) -> None:
    """Exact spans ran before the rows in front of them were selected."""
    for spans, cached in (([[150, 160]], 150), ([[0, 40], [200, 201]], 200), ([[0, 40]], len(PROMPT) - 1)):
        pair.ridgefill.complete(PROMPT, ALL | {"spans": spans}, **FRESH)
        answer = pair.ridgefill.complete(PROMPT, False)
        assert answer.cached == cached
        assert same(answer, pair.plain.complete(PROMPT))


def test_prompts_side_by_side(kit: Kit) -> None:
    prompts = [tokens(250 + 30 * i, seed=10 + i) for i in range(4)]
    with kit.serve("llama", "-np", "4", "-c", "4096", *SELECT, maps=kit.poison()) as server:
        alone = [server.complete(prompt, {"budget": 0.15}, **FRESH, id_slot=0) for prompt in prompts]
        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(server.complete, prompt, {"budget": 0.15}, **FRESH) for prompt in prompts]
        for job, expected in zip(jobs, alone, strict=True):
            assert job.result().rows == expected.rows
            assert same(job.result(), expected, 0.1)

        both = server.post("/completion", server.request(prompts[0], {"budget": 0.15}, n_cmpl=2, **FRESH)).json()
        assert all(same(Answer.read(body), alone[0], 0.1) for body in both)
        assert all(Answer.read(body).rows["selected"] == alone[0].rows["selected"] > 0 for body in both)


def test_restored_rows_can_run_again(kit: Kit) -> None:
    """Split states travel in slot files: restored rows are selected and healed."""
    folder = kit.folder / "slots-select"
    folder.mkdir()
    longer = PROMPT + tokens(100, seed=3)
    options = ("-np", "1", "-c", "1024", "--cache-ram", "0", "--slot-save-path", f"{folder}/")
    with kit.serve("llama", *options, *SELECT, maps=kit.poison()) as server:
        truth = server.complete(PROMPT, False)
        server.complete(PROMPT, {"select": "none"}, **FRESH)
        assert server.slot_file("save", "filled").status_code == 200
        assert server.slot_file("restore", "filled").status_code == 200
        answer = server.complete(longer, ALL)
        assert answer.count(filled=100 - TAIL, exact=TAIL, reused=len(PROMPT))
        assert answer.rows["selected"] == FILLED + 100 - TAIL
        assert same(server.complete(PROMPT, False), truth)
    with kit.serve("llama", *options, "--ridgefill-heal", maps=kit.poison()) as server:
        assert server.slot_file("restore", "filled").status_code == 200
        assert server.complete(longer, True).cached == len(PROMPT)
        wait_until(lambda: server.metric("ridgefill_rows_healed_total") >= len(longer) - SINK)
        assert same(server.complete(PROMPT, False), truth)
    with kit.serve("llama", *options, "--ridgefill-heal", maps=kit.poison()) as server:
        assert server.slot_file("restore", "filled").status_code == 200
        wait_until(lambda: server.metric("ridgefill_rows_healed_total") >= len(PROMPT) - SINK)  # before any request
        answer = server.complete(PROMPT, False)
        assert same(answer, truth)
        assert answer.cached == len(PROMPT) - 1


def test_repeated_prompts_keep_their_selection(kit: Kit) -> None:
    """The last row alone would ask for other rows; another selection than the last one still runs."""
    with kit.serve("llama", "-np", "1", "-c", "1024", "--cache-ram", "0", *SELECT, maps=kit.poison()) as server:
        half = {"budget": 0.5}
        first = server.complete(PROMPT, half)
        assert first.rows["selected"] == FILLED // 2
        again = server.complete(PROMPT, half)
        assert again.cached == len(PROMPT) - 1
        assert again.rows["selected"] == 0
        assert same(again, first)
        assert server.complete(PROMPT, {"budget": 0.75}).rows["selected"] > 0
        assert server.complete(PROMPT, {"select": "none"}).rows["selected"] == 0
        assert server.complete(PROMPT, half).rows["selected"] > 0
        assert server.complete(PROMPT, half, **FRESH).rows["selected"] == FILLED // 2


def test_settings_are_told(selecting: Server) -> None:
    maps = selecting.get("/ridgefill").json()
    assert maps["defaults"]["select"] == "attention"
    assert maps["defaults"]["budget"] == 0.05
    assert maps["heads"] == ["0.0", "1.1", "2.0"]
    assert maps["heal"] is False


def test_environment(kit: Kit) -> None:
    names = {"SELECT": "stride", "BUDGET": "0.5", "HEADS": "0.1,2.0", "POOL": "1,3", "QUERIES": "8", "HEAL": "1"}
    env = {f"LLAMA_ARG_RIDGEFILL_{name}": value for name, value in names.items()}
    with kit.serve("llama", "-np", "1", "-c", "1024", maps=kit.poison(), env=env) as server:
        maps = server.get("/ridgefill").json()
        assert (maps["defaults"]["select"], maps["defaults"]["budget"]) == ("stride", 0.5)
        assert (maps["heads"], maps["heal"]) == (["0.1", "2.0"], True)
        assert "select stride, budget 0.5, 2 retrieval heads, pool 1,3, queries 8, heal on" in server.log


#
# heal
#


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_heal(server: Server, n: int) -> None:
    wait_until(lambda: server.metric("ridgefill_rows_healed_total") >= n)


def cpu_seconds(server: Server) -> float:
    user, system = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(") ", 1)[1].split()[11:13]
    return (int(user) + int(system)) / 100


@pytest.fixture(scope="module")
def healing(kit: Kit) -> Iterator[Server]:
    options = ("-np", "2", "-c", "4096", "--cache-ram", "0", "--no-kv-unified")
    with kit.serve("llama", *options, *HEADS, "--ridgefill-heal", maps=kit.poison()) as running:
        yield running


def test_healed_prompt_is_exact(healing: Server, plain: Server) -> None:
    truth = plain.complete(PROMPT, **FRESH)
    before = healing.metric("ridgefill_rows_healed_total")
    assert not same(healing.complete(PROMPT, True, **FRESH), truth)
    wait_for_heal(healing, before + len(PROMPT) + 5 - SINK)  # the last generated token has no cell

    start = cpu_seconds(healing)
    time.sleep(0.5)
    assert cpu_seconds(healing) - start < 0.2  # nothing is left to do
    assert healing.metric("ridgefill_rows_healed_total") == before + len(PROMPT) + 5 - SINK

    answer = healing.complete(PROMPT, False)
    assert answer.count(filled=0, exact=1, reused=len(PROMPT) - 1)
    assert same(answer, truth)


def test_interrupted_heal(healing: Server, plain: Server) -> None:
    """Requests at random moments: none sees a filled cell that it did not ask for."""
    dice = random.Random(0)
    prompts = [tokens(900, seed=30 + i) for i in range(2)]
    truth = {(i, n): plain.complete(prompts[i][:n], **FRESH) for i in range(2) for n in (300, 700, 900)}
    for _ in range(12):
        i, slot = dice.randrange(2), dice.randrange(2)
        filled = dice.choice([True, {"select": "attention", "budget": 0.2}])
        healing.complete(prompts[i], filled, cache_prompt=dice.random() < 0.7, id_slot=slot)
        time.sleep(dice.uniform(0, 0.15))
        i, n = dice.choice([(i, 900), (i, 700), (i, 300), (1 - i, 900)])
        assert same(healing.complete(prompts[i][:n], False, id_slot=slot), truth[i, n])


#
# what the maps recommend
#


def recommended(kit: Kit, family: str = "llama", heads: bool = True, **settings: Any) -> Path:
    """POISON maps that recommend a selection."""
    raw, split = RawGGUF.read(kit.poison(family)), FAMILIES[family].split
    places = [(0, 0), (2, 0)] if heads else []
    for name, values in (
        ("splits", [split] * len(places)),
        ("layers", [layer for layer, _ in places]),
        ("heads", [head for _, head in places]),
    ):
        raw.keys.append(RawKey(f"ridgefill.heads.{name}", gguf.GGUFValueType.INT32, values))
    raw.keys.append(RawKey("ridgefill.recommended.split", gguf.GGUFValueType.INT32, split))
    kinds = {str: gguf.GGUFValueType.STRING, float: gguf.GGUFValueType.FLOAT32, int: gguf.GGUFValueType.UINT32}
    for name, value in ({"select": "attention"} | settings).items():
        raw.keys.append(RawKey(f"ridgefill.recommended.{name}", kinds[type(value)], value))
    path = kit.folder / f"{family}.recommended{len(list(kit.folder.iterdir()))}.gguf"
    return raw.write(path)


def test_maps_recommend_a_selection(kit: Kit) -> None:
    path = recommended(kit, budget=0.25, pool_before=2, pool_after=3, queries=5)
    options = ("-np", "1", "-c", "1024")
    with kit.serve("llama", *options, maps=path) as server:
        defaults = server.get("/ridgefill").json()["defaults"]
        found = {key: defaults[key] for key in ("select", "budget", "pool", "queries")}
        assert found == {"select": "attention", "budget": 0.25, "pool": [2, 3], "queries": 5}
        assert server.complete(PROMPT, **FRESH).rows["selected"] == round(0.25 * FILLED)
        assert server.complete(PROMPT, {"select": "none"}, **FRESH).rows["selected"] == 0
        assert same(server.complete(PROMPT, ALL, **FRESH), server.complete(PROMPT, False, **FRESH))
    with kit.serve("llama", *options, "--ridgefill-budget", "0.15", maps=path) as server:
        assert server.complete(PROMPT, **FRESH).rows["selected"] == round(0.15 * FILLED)
    with kit.serve("llama", *options, "--ridgefill-select", "none", maps=path) as server:
        assert server.complete(PROMPT, **FRESH).rows["selected"] == 0
        assert "select needs a server that keeps split states" in server.error(PROMPT, {"select": "attention"})


@pytest.mark.parametrize(
    ("family", "options", "reason"),
    [
        ("gemma3", [], "sliding windows have dropped them (hint: keep their cells with swa_full or --swa-full)"),
        ("qwen35", [], "cannot run filled rows again"),
        ("llama", ["--backend-sampling"], "--backend-sampling samples before rows are selected"),
    ],
)
def test_recommended_selection_that_cannot_be(kit: Kit, family: str, options: list[str], reason: str) -> None:
    """A warning at the start, and a reason where a request asks for it."""
    with kit.serve(family, "-np", "1", "-c", "1024", *options, maps=recommended(kit, family)) as server:
        assert server.log.count("runs without the selection that the maps recommend: ") == 1
        assert reason in server.log
        assert server.get("/ridgefill").json()["defaults"]["select"] == "none"
        answer = server.complete(PROMPT, **FRESH)
        assert (answer.rows["filled"], answer.rows["selected"]) == (FILLED, 0)
        error = server.error(PROMPT, {"select": "attention"})
        assert error.startswith("Field 'ridgefill': select is not possible: ")
        assert reason in error
        assert server.complete(PROMPT, {"spans": [[100, 150]]}, **FRESH).rows["filled"] == FILLED - 50


def test_windowed_model_selects_what_its_maps_recommend(kit: Kit) -> None:
    path = recommended(kit, "gemma3")
    with kit.serve("gemma3", "-np", "1", "-c", "1024", "--swa-full", maps=path) as server:
        assert server.complete(PROMPT, **FRESH).rows["selected"] == round(0.05 * FILLED)


def test_recommended_selection_needs_heads(kit: Kit) -> None:
    path = recommended(kit, heads=False)
    result = run("llama-server", "-m", kit.model(), "--ridgefill-maps", path)
    assert result.returncode == 1
    assert "ridgefill.recommended.select': expected retrieval heads for split 3" in result.stderr + result.stdout


#
# errors
#

STARTS = [
    (["--ridgefill-select", "best"], "must be none, stride or attention, but got 'best'"),
    (["--ridgefill-select", "attention"], "needs retrieval heads, and the maps name none (hint: --ridgefill-heads"),
    ([*SELECT[:2], "--ridgefill-heads", "3.0"], "expected heads that exist in layers below the split 3, found 3.0"),
    ([*SELECT[:2], "--ridgefill-heads", "0.9"], "expected heads that exist in layers below the split 3, found 0.9"),
    ([*SELECT[:2], "--ridgefill-heads", "1,2"], "must be a list like 9.6,11.1 (layer.head), but got '1,2'"),
    ([*SELECT, "--ridgefill-budget", "0"], "must be a share of the filled rows, above 0 and up to 1, but got"),
    ([*SELECT, "--ridgefill-budget", "1.5"], "must be a share of the filled rows, above 0 and up to 1, but got"),
    ([*SELECT, "--ridgefill-budget", "20"], "must be a share of the filled rows, above 0 and up to 1, but got 20"),
    ([*SELECT, "--ridgefill-budget", "nan"], "must be a share of the filled rows"),
    ([*SELECT, "--ridgefill-budget", "5%"], "must be a number, but got '5%'"),
    ([*SELECT, "--ridgefill-pool", "4"], "must be two numbers of rows like 5,5, but got '4'"),
    ([*SELECT, "--ridgefill-queries", "0"], "must be at least 1, but got 0"),
    ([*SELECT, "--backend-sampling"], "--ridgefill-select cannot be used with --backend-sampling"),
    (["--ridgefill-budget", "0.1"], "have no effect without --ridgefill-select or --ridgefill-heal"),
]


@pytest.mark.parametrize(("options", "message"), STARTS, ids=lambda value: " ".join(value)[:60])
def test_bad_options(kit: Kit, options: list[str], message: str) -> None:
    result = run("llama-server", "-m", kit.model(), "--ridgefill-maps", kit.poison(), *options)
    assert result.returncode == 1
    assert message in result.stderr + result.stdout


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("gemma3", "sliding windows have dropped them (hint: keep their cells with swa_full or --swa-full)"),
        ("qwen35", "cannot run filled rows again"),
    ],
)
@pytest.mark.parametrize("option", ["--ridgefill-select=stride", "--ridgefill-heal"])
def test_models_that_cannot(kit: Kit, family: str, message: str, option: str) -> None:
    options = option.split("=")
    result = run("llama-server", "-m", kit.model(family), "--ridgefill-maps", kit.poison(family), *options)
    assert result.returncode == 1
    assert message in result.stderr + result.stdout


def test_options_need_maps(kit: Kit) -> None:
    for options in (["--ridgefill-heal"], ["--ridgefill-select", "stride"], list(HEADS)):
        result = run("llama-server", "-m", kit.model(), *options)
        assert result.returncode == 1
        assert "no effect without --ridgefill-maps" in result.stderr


@pytest.mark.parametrize(
    ("ridgefill", "message"),
    [
        ({"select": "best"}, 'select must be none, spans, stride or attention, but got "best"'),
        ({"select": True}, "select must be none, spans, stride or attention, but got true"),
        ({"budget": 0}, "budget must be a share of the filled rows, above 0 and up to 1"),
        ({"budget": -0.1}, "budget must be a share"),
        ({"budget": 2.5}, "budget must be a share"),
        ({"budget": 20}, "budget must be a share"),
        ({"budget": 2**40}, "budget must be a share"),
        ({"budget": "5%"}, "budget must be a number"),
        ({"budget": True}, "budget must be a number"),
        ({"select": "none", "budget": 0.1}, "budget has no effect without select"),
    ],
    ids=str,
)
def test_bad_field(selecting: Server, ridgefill: object, message: str) -> None:
    error = selecting.error(PROMPT, ridgefill)
    assert error.startswith("Field 'ridgefill': ")
    assert message in error


def test_backend_sampling_is_refused(selecting: Server) -> None:
    assert "not possible with selected rows" in selecting.error(PROMPT, True, backend_sampling=True)
    body = selecting.request(PROMPT, {"select": "none"}, backend_sampling=True)
    assert selecting.post("/completion", body).status_code == 200


def test_server_that_keeps_no_split_states(server: Server) -> None:
    assert "select needs a server that keeps split states" in server.error(PROMPT, {"select": "stride"})
    assert server.complete(PROMPT, {"select": "none"}).rows["selected"] == 0


def test_server_without_heads(kit: Kit) -> None:
    with kit.serve("llama", "-np", "1", "-c", "1024", "--ridgefill-heal", maps=kit.poison()) as server:
        assert "select attention needs retrieval heads" in server.error(PROMPT, {"select": "attention"})
        assert server.complete(PROMPT, {"select": "stride", "budget": 0.1}).rows["selected"] == round(0.1 * FILLED)
