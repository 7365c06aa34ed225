"""One calibration run: where it stands, what it has summed up, and the file that it can be resumed from."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pyridgefill.calibration.chunks import Chunk, Digest
from pyridgefill.calibration.statistics import Statistics
from pyridgefill.calibration.statistics_file import read_statistics, write_statistics
from pyridgefill.engine import Engine
from pyridgefill.errors import StatisticsError
from pyridgefill.maps.base import BaseModel, difference


@dataclass(frozen=True)
class Step:
    """Where a calibration stands, for display.

    Attributes
    ----------
    name
        `collect` (tokens), `fit` (maps), `heads` (prompts), `settings` (trials).
    done, total
        In these units; None: not known.
    note
        For people.
    """

    name: str
    done: int
    total: int | None
    note: str = ""


OnStep = Callable[[Step], None]


@dataclass
class Position:
    """Where a run stands: chunks and rows of the next chunk that are in the sums, and the text that they came from.

    `key` are the options that must be equal in a resumed run, `digest` is over the tokens of the chunks so far.
    """

    key: dict[str, Any]
    chunks: int = 0
    rows: int = 0
    tokens: int = 0
    document: int = -1
    digest: str = ""


class CollectRun:
    """Adds chunks to statistics and saves them.

    Parameters
    ----------
    statistics
        Sums so far.
    position
        Where they end.
    output
        The statistics file.
    """

    def __init__(self, statistics: Statistics, position: Position, output: str | os.PathLike[str]) -> None:
        self.statistics = statistics
        self.position = position
        self.output = os.fspath(output)
        self.interrupted = threading.Event()

    @classmethod
    def resume(cls, output: str | os.PathLike[str], base: BaseModel, key: dict[str, Any]) -> CollectRun:
        """Continue from a checkpoint.

        Raises
        ------
        StatisticsError
            If the file is no checkpoint, or was made from another model or with other options.
        """
        if not os.path.lexists(output):
            raise StatisticsError(f"{os.fspath(output)}: there is nothing to resume", "leave out --resume")
        statistics = read_statistics(output)
        if statistics.progress is None:
            raise StatisticsError(f"{os.fspath(output)}: a merged file cannot be resumed", "collect to a new file")
        if statistics.base != base:
            raise StatisticsError(
                f"{os.fspath(output)}: collected from another model: {difference(base, statistics.base)}",
                "resume with the same model, or collect to a new file",
            )
        try:
            position = Position(**statistics.progress)
            found = {name: position.key.get(name) for name in key}
        except (TypeError, AttributeError) as error:
            raise StatisticsError(f"{os.fspath(output)}: no checkpoint of a run", "collect to a new file") from error
        for name, value in key.items():
            if found[name] != value:
                raise StatisticsError(
                    f"{os.fspath(output)}: {name} differs: the checkpoint has {found[name]}, this run {value}",
                    "resume with the same options",
                )
        return cls(statistics, position, output)

    def save(self) -> None:
        """Write the sums and where they end."""
        self.statistics.progress = asdict(self.position)
        write_statistics(self.output, self.statistics)

    def stream(
        self,
        engine: Engine,
        chunks: Iterable[Chunk],
        *,
        tokens: int | None,
        nonfinite: Literal["skip", "error"],
        checkpoint_seconds: float,
        on_step: OnStep,
    ) -> None:
        """Add chunks until the text ends, `tokens` are reached or the run is interrupted.

        Chunks and rows that are in the sums already are passed over.
        """
        position, digest = self.position, Digest()
        started = saved = time.monotonic()
        before = position.tokens
        for chunk in chunks:
            if self.interrupted.is_set() or (tokens is not None and position.tokens >= tokens and not position.rows):
                return
            digest.add(chunk)
            if chunk.index < position.chunks:
                continue
            self._check_text(chunk, digest)
            self._count_document(chunk)
            for n_rows in self._add(engine, chunk, nonfinite):
                position.tokens += n_rows
                self.statistics.provenance["tokens"] = position.tokens
                rate = (position.tokens - before) / max(time.monotonic() - started, 1e-9)
                done = position.tokens if tokens is None else min(position.tokens, tokens)
                on_step(Step("collect", done, tokens, f"{rate:.0f} tokens/s"))
            if position.rows:
                return  # interrupted within the chunk
            if time.monotonic() - saved > checkpoint_seconds:
                self.save()
                saved = time.monotonic()
        if position.chunks and digest.hex() != position.digest:
            self._text_differs()

    def _add(self, engine: Engine, chunk: Chunk, nonfinite: Literal["skip", "error"]) -> Iterator[int]:
        position, n_tokens = self.position, len(chunk.tokens)
        done = position.rows
        for start, values in engine.run(chunk.tokens):
            if start < done:
                continue  # in the sums already, decoded again for the memory
            self.statistics.add_block(
                values, position=start, held_out=chunk.held_out, chunk=chunk.index, nonfinite=nonfinite
            )
            position.rows = min(start + engine.n_ubatch, n_tokens)
            if position.rows == n_tokens:
                position.chunks, position.rows = chunk.index + 1, 0
            yield min(engine.n_ubatch, n_tokens - start)
            if self.interrupted.is_set():
                return

    def _check_text(self, chunk: Chunk, digest: Digest) -> None:
        """The chunks before this one, and this one if it is begun, must be those that the sums were made of."""
        position = self.position
        seen = digest.hex() if position.rows else digest.before
        if position.digest and chunk.index == position.chunks and seen != position.digest:
            self._text_differs()
        position.digest = digest.hex()

    def _count_document(self, chunk: Chunk) -> None:
        if chunk.document != self.position.document:
            self.position.document = chunk.document
            self.statistics.provenance["documents"] += 1
            self.statistics.provenance["documents_held_out"] += chunk.held_out

    def _text_differs(self) -> None:
        raise StatisticsError(f"{self.output}: the corpora differ from the checkpoint's", "collect from the start")

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM end the run after the current decode; a second one works as ever."""

        def stop(number: int, _frame: Any) -> None:
            self.interrupted.set()
            signal.signal(number, previous[signal.Signals(number)])

        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread can have a handler
            return
        previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
