"""With nothing switched on, the server answers and saves as the unpatched one of the same pin, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from server.conftest import Kit
from server.test_requests import ROUTES, text_body
from support.server import Server, program, same
from support.tokens import tokens

FAMILIES = ["llama", "gemma3", "qwen35", "gpt-oss"]
PROMPT = tokens(300)
# what differs from answer to answer: times, names made from chance
CHANGING = re.compile(
    r'"(?:id|item_id)": ?"[^"]*"|"(?:created|created_at|completed_at|\w+_ms|\w+_per_second)": ?(?:[\d.e+-]+|null)'
)


class Twins(NamedTuple):
    patched: Server
    stock: Server
    folders: list[Path]  # of slot files

    @property
    def servers(self) -> tuple[Server, Server]:
        return self.patched, self.stock

    def post(self, route: str, body: dict[str, Any]) -> tuple[str, str]:
        """Both answers, without times and random names."""
        texts = [server.post(route, body).text for server in self.servers]
        return CHANGING.sub("", texts[0]), CHANGING.sub("", texts[1])


@pytest.fixture(scope="module", params=FAMILIES)
def twins(request: pytest.FixtureRequest, kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    folders = [tmp_path_factory.mktemp(name) for name in ("patched", "stock")]
    options = ("-np", "2", "-c", "2048", "--slot-save-path")
    with (
        kit.serve(request.param, *options, folders[0]) as patched,
        kit.serve(request.param, *options, folders[1], stock=True) as stock,
    ):
        yield Twins(patched, stock, folders)


def test_the_twin_is_unpatched(twins: Twins) -> None:
    """It has none of our options, and the libllama beside it."""
    loaded = [Path(f"/proc/{s.process.pid}/maps").read_text(encoding="utf-8").splitlines() for s in twins.servers]
    libraries = [{line.split()[-1] for line in lines if "libllama" in line} for lines in loaded]
    assert {Path(name).parent for name in libraries[1]} == {Path(program("llama-server", stock=True)).parent}
    assert libraries[0].isdisjoint(libraries[1])
    assert b"ridgefill" not in Path(program("llama-server", stock=True)).read_bytes()


def test_greedy_text(twins: Twins) -> None:
    for n in (1, 32, 33, 300):
        for fields in ({}, {"cache_prompt": False}, {"n_predict": 40}):
            body = twins.stock.request(tokens(n, seed=n), **fields, id_slot=0)
            patched, stock = twins.post("/completion", body)
            assert patched == stock


@pytest.mark.parametrize("route", ROUTES)
def test_routes(twins: Twins, route: str) -> None:
    patched, stock = twins.post(route, text_body(route))
    assert patched == stock


@pytest.mark.parametrize("route", ROUTES)
def test_streams(twins: Twins, route: str) -> None:
    events = [[list(event) for event in server.stream(route, text_body(route))] for server in twins.servers]
    assert events[0] == events[1]


def test_slot_files(twins: Twins) -> None:
    """A file of either server is the same, and goes back into the other."""
    files = []
    for server, folder in zip(twins.servers, twins.folders, strict=True):
        server.complete(PROMPT, id_slot=0)
        written = server.slot_file("save", "slot.bin").json()["n_written"]
        files.append((folder / "slot.bin").read_bytes())
        assert written == len(files[-1])
    assert files[0] == files[1]
    twins.stock.slot_file("erase", "", slot=1)
    assert twins.stock.slot_file("restore", "slot.bin", slot=1).json()["n_read"] == len(files[0])


def test_requests_side_by_side(twins: Twins) -> None:
    prompts = [tokens(100 + 60 * i, seed=i) for i in range(2)]
    answers = []
    for server in twins.servers:
        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(server.complete, p, id_slot=i, cache_prompt=False) for i, p in enumerate(prompts)]
        answers.append([job.result().tokens for job in jobs])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("family", ["gemma3", "gpt-oss"])
@pytest.mark.parametrize("cache", ["--kv-unified", "--no-kv-unified"])
def test_windows_of_four_slots(kit: Kit, family: str, cache: str) -> None:
    """Fill adds nothing to what four prompts at once change, which without flash attention is rounding alone."""
    options = ("-np", "4", "-c", "4096", "-fa", "off", cache)
    prompts = [tokens(200 + 50 * i, seed=i) for i in range(4)]
    with (
        kit.serve(family, *options, stock=True) as stock,
        kit.serve(family, *options, maps=kit.poison(family)) as ridgefill,
    ):
        for server, field in ((stock, None), (ridgefill, False), (ridgefill, True)):
            jobs = [
                partial(server.complete, prompt, field, cache_prompt=False, id_slot=slot)
                for slot, prompt in enumerate(prompts)
            ]
            alone = [job() for job in jobs]
            with ThreadPoolExecutor(4) as pool:
                together = [job.result() for job in [pool.submit(job) for job in jobs]]
            assert [answer.rows.get("filled", 0) > 0 for answer in together] == [bool(field)] * 4
            assert all(same(*pair) for pair in zip(together, alone, strict=True))
