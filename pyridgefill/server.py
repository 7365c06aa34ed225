"""The bundled llama-server as a child process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any

import httpx

from pyridgefill._library import installed_folder
from pyridgefill.config import RidgeFillConfig
from pyridgefill.errors import NativeError


def program_path(name: str) -> Path:
    """A bundled program: in `RIDGEFILL_BIN_PATH` if set (for development), else in the package's `bin`.

    Raises
    ------
    NativeError
        If it is not there.
    """
    path = Path(os.environ.get("RIDGEFILL_BIN_PATH") or installed_folder("bin")) / name
    if not path.is_file():
        raise NativeError(f"{path}: no such program", "install the package with pip, or set RIDGEFILL_BIN_PATH")
    return path


def fill_options(config: RidgeFillConfig) -> list[str]:
    """The server's options for settings that are given; settings that are None are the maps file's."""
    options = {
        "maps": config.maps,
        "split": config.split,
        "tail": config.tail,
        "sink": config.sink,
        "min-prompt": config.min_prompt,
        "select": config.select,
    }
    if config.select == "attention":
        options |= {
            "budget": None if config.budget is None else f"{config.budget:g}",
            "heads": ",".join(f"{layer}.{head}" for layer, head in config.heads) or None,
            "pool": config.pool and ",".join(map(str, config.pool)),
        }
    given = {name: str(value) for name, value in options.items() if value is not None}
    return [part for name, value in given.items() for part in (f"--ridgefill-{name}", value)]


_running: set[subprocess.Popen[bytes]] = set()


def stop_servers() -> None:
    """Ask all servers of this process to end; they outlive a process that is killed."""
    for process in _running:
        process.terminate()


class Server:
    """A server on a free loopback port; use as context manager.

    Parameters
    ----------
    arguments
        Of llama-server, without host and port.
    timeout
        Seconds to wait for the model to load.

    Raises
    ------
    NativeError
        If the server ends before it is ready, with the end of its output.
    """

    def __init__(self, arguments: Sequence[str], *, timeout: float = 120.0) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [str(program_path("llama-server")), "--host", "127.0.0.1", "--port", str(port), *arguments]
        self._log = TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)
        _running.add(self._process)
        # the server may close a connection behind a stream just when the next request is sent on it: each has its own
        limits = httpx.Limits(max_keepalive_connections=0)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=None, limits=limits)
        try:
            self._wait(timeout)
        except BaseException:
            self.close()
            raise

    def _wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                if self.client.get("/health").status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise NativeError(f"llama-server is not ready: {self.log()[-500:]}", "run it by hand to see all of its output")

    def log(self) -> str:
        """What the server has printed so far."""
        self._log.seek(0)
        return self._log.read().decode("utf-8", errors="replace")

    def completion(self, **body: Any) -> dict[str, Any]:
        """Post to `/completion` and return the answer; an error status raises `httpx.HTTPStatusError`."""
        answer: dict[str, Any] = self.client.post("/completion", json=body).raise_for_status().json()
        return answer

    def stream(self, **body: Any) -> Iterator[dict[str, Any]]:
        """Post to `/completion` and yield the events of the answer as they come; the last one has `timings`."""
        with self.client.stream("POST", "/completion", json={**body, "stream": True}) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))

    def close(self) -> None:
        """Stop the server; safe to call twice."""
        self.client.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        _running.discard(self._process)
        self._log.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
