"""A real llama-server on loopback, and what a test wants to know about its answers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from support import paths

# small batches, so that prompts cross their borders often
SMALL = ("-b", "64", "-ub", "32", "-t", "1", "--no-warmup", "--no-webui", "--fit", "off")
TAIL, SINK, MIN_PROMPT = 64, 4, 128
RIDGEFILL = (
    *("--ridgefill-tail", str(TAIL)),
    *("--ridgefill-sink", str(SINK)),
    *("--ridgefill-min-prompt", str(MIN_PROMPT)),
)
START_SECONDS = 60


@dataclass(frozen=True)
class Answer:
    """What a completion said.

    Attributes
    ----------
    tokens
        The greedy tokens.
    logprobs
        For each generated token the most likely ones with their log probabilities.
    rows
        ``timings.ridgefill``, empty if the server has no maps.
    cached
        Prompt tokens that came from the cache.
    """

    tokens: list[int]
    logprobs: list[dict[int, float]]
    rows: dict[str, Any]
    cached: int
    body: dict[str, Any] = field(repr=False)

    @classmethod
    def read(cls, body: dict[str, Any]) -> Answer:
        probs = body["completion_probabilities"]
        return cls(
            tokens=[entry["id"] for entry in probs],
            logprobs=[{top["id"]: top["logprob"] for top in entry["top_logprobs"]} for entry in probs],
            rows=body["timings"].get("ridgefill", {}),
            cached=body["timings"]["cache_n"],
            body=body,
        )

    def count(self, filled: int, exact: int, reused: int) -> bool:
        """Whether the rows were treated like this."""
        rows = self.rows
        return (rows["filled"], rows["exact"], rows["reused"]) == (filled, exact, reused)

    def same(self, other: Answer, tolerance: float) -> bool:
        """Equal log probabilities and greedy tokens, to rounding.

        Batches of another size round differently, and flash attention on the CPU sums in half precision; one filled
        cell of POISON maps that leaks moves them by far more.
        """
        for i, (a, b) in enumerate(zip(self.logprobs, other.logprobs, strict=True)):
            if any(abs(a[token] - b[token]) > tolerance for token in a.keys() & b.keys()):
                return False
            if self.tokens[i] != other.tokens[i]:
                # a tie, after which the texts go their own ways
                return self.tokens[i] in b and other.tokens[i] in a and max(a.values()) - a[other.tokens[i]] < tolerance
        return True


def same(answer: Answer, other: Answer, tolerance: float = 0.03) -> bool:
    """For assertions: pytest prints both answers."""
    return answer.same(other, tolerance)


class Server:
    """A running llama-server."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.log_path = log
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=120)

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def request(self, prompt: Sequence[int] | str, ridgefill: Any = None, **fields: Any) -> dict[str, Any]:
        """The body of a greedy completion request; ``ridgefill`` None leaves the field out."""
        body: dict[str, Any] = {"prompt": prompt, "n_predict": 6, "temperature": 0, "n_probs": 5, **fields}
        if ridgefill is not None:
            body["ridgefill"] = ridgefill
        return body

    def complete(self, prompt: Sequence[int] | str, ridgefill: Any = None, **fields: Any) -> Answer:
        response = self.post("/completion", self.request(prompt, ridgefill, **fields))
        assert response.status_code == 200, response.text
        return Answer.read(response.json())

    def post(self, route: str, body: Any, **options: Any) -> httpx.Response:
        return self.http.post(route, json=body, **options)

    def get(self, route: str, **options: Any) -> httpx.Response:
        return self.http.get(route, **options)

    def error(self, prompt: Sequence[int], ridgefill: Any = None, route: str = "/completion", **fields: Any) -> str:
        """The message of a request that is refused as invalid."""
        response = self.post(route, self.request(prompt, ridgefill, **fields))
        assert response.status_code == 400, response.text
        return str(response.json()["error"]["message"])

    def stream(self, route: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """All events of a streamed answer."""
        with (
            httpx.Client(base_url=self.url, timeout=120) as client,  # the server ends the connection with the stream
            client.stream("POST", route, json={**body, "stream": True}) as response,
        ):
            assert response.status_code == 200, response.read()
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
        return [json.loads(line) for line in lines]

    def metric(self, name: str) -> int:
        lines = self.get("/metrics").text.splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(f"llamacpp:{name} ")))

    def slot_file(self, action: str, name: str, slot: int = 0) -> httpx.Response:
        return self.post(f"/slots/{slot}?action={action}", {"filename": name})


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def program(name: str, stock: bool = False) -> str:
    """A program of the build, or the unpatched one."""
    return str((paths.stock_programs() if stock else paths.programs()) / name)


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("LLAMA_")}


def run(name: str, *args: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(
        [program(name), *map(str, args)],
        env=_environment() | (env or {}),
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        timeout=START_SECONDS,
        check=False,
    )


@contextmanager
def serve(
    model: Path | None,
    *args: str | Path,
    maps: Path | None = None,
    log: Path,
    env: dict[str, str] | None = None,
    stock: bool = False,
) -> Iterator[Server]:
    """Start a server, with RidgeFill's small settings if there are maps; it must stop cleanly.

    Parameters
    ----------
    model
        None starts a router, which gets its models from the arguments.
    stock
        The unpatched server.
    """
    port = _free_port()
    command: list[str | Path | int] = [
        program("llama-server", stock),
        *(() if model is None else ("-m", model)),
        "--host",
        "127.0.0.1",
        "--port",
        port,
        *SMALL,
        "--metrics",
        "--slots",
    ]
    if maps is not None:
        command += ["--ridgefill-maps", maps, *RIDGEFILL]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(part) for part in [*command, *args]], env=_environment() | (env or {}), stdout=out, stderr=out
        )
    server = Server(process, port, log)
    try:
        _wait(server)
        yield server
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=START_SECONDS) == 0, server.log[-2000:]
    finally:
        server.http.close()
        if process.poll() is None:
            process.kill()
            process.wait()


def _wait(server: Server) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise RuntimeError(f"llama-server exited with {server.process.returncode}:\n{server.log[-2000:]}")
        try:
            if server.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.02)
    raise RuntimeError(f"llama-server did not get ready:\n{server.log[-2000:]}")
