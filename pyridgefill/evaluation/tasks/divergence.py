"""KL divergence and top-1 agreement with the exact model on rows that run exact, and on its own greedy continuation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax

from pyridgefill.errors import ModelError
from pyridgefill.evaluation.intervals import mean_difference, paired_bootstrap
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.way import Way
from pyridgefill.evaluation.tasks.loss import next_token_losses

Logits = npt.NDArray[np.float32]


def kl_divergence(exact: Logits, other: Logits) -> npt.NDArray[np.float64]:
    """KL(exact || other) of each row, in nats.

    Parameters
    ----------
    exact, other
        `[rows, n_vocab]`, logits.
    """
    result = np.empty(len(exact))
    for i, (a, b) in enumerate(zip(exact, other, strict=True)):
        log_p = log_softmax(a.astype(np.float64))
        result[i] = np.sum(np.exp(log_p) * (log_p - log_softmax(b.astype(np.float64))))
    return result


class Reference:
    """The exact model's logits on the tails of texts and on what it says next, kept in a file.

    Parameters
    ----------
    texts
        Token sequences.
    tail
        Rows at the end of each text that are compared; they must run exact in all variants.
    n_generated
        Tokens of the greedy continuation that are compared as well, each after the exact model's own tokens.
    folder
        For the file, `(tail + n_generated) * n_vocab * 4` bytes for each text.
    """

    def __init__(self, texts: Sequence[Sequence[int]], tail: int, n_generated: int, folder: Path) -> None:
        self.texts, self.tail, self.n_generated = texts, tail, n_generated
        self._path = folder / "logits.bin"
        self._logits: npt.NDArray[np.float32] | None = None
        self._continuations: list[list[int]] = []

    def record(self, session: Session, advance: Callable[[], None] = lambda: None) -> None:
        """Run all texts with the exact model, once; the session's maps are taken out."""
        if self._logits is not None:
            return
        session.set_maps(None)
        rows = self.tail + self.n_generated
        logits: npt.NDArray[np.float32] | None = None
        for index, text in enumerate(self.texts):
            tail = session.prefill(text, self.tail)
            if logits is None:
                shape = (len(self.texts), rows, tail.shape[1])
                logits = np.memmap(self._path, np.float32, "w+", shape=shape)
            logits[index, : self.tail] = tail
            tokens: list[int] = []
            last = tail[-1]
            for step in range(self.n_generated):
                tokens.append(int(np.argmax(last)))
                last = session.extend(tokens[-1:])[0]
                logits[index, self.tail + step] = last
            self._continuations.append(tokens)
            advance()
        self._logits = logits

    def loss(self) -> dict[str, float]:
        """Mean loss of the tails' tokens, and their perplexity."""
        assert self._logits is not None, "record first"
        losses = [
            next_token_losses(self._logits[i, : self.tail], text[-self.tail :]) for i, text in enumerate(self.texts)
        ]
        return {"loss": float(np.mean(losses)), "perplexity": float(np.exp(np.mean(losses)))}

    def compare(self, session: Session, way: Way, *, seed: int, advance: Callable[[], None]) -> dict[str, Any]:
        """Divergence of a way to run texts; intervals resample texts.

        Parameters
        ----------
        session, way
            The model, started for the way.
        seed
            Of the bootstrap.
        advance
            Called after each text.

        Returns
        -------
        dict
            `tail` and, if tokens are generated, `generated`, each with `kl` in nats, `kl_99` (99th percentile) and
            `top1`, the share of rows with the same most probable token; and the tail's `loss` and `perplexity`.

        Raises
        ------
        ModelError
            If rows of the tail are filled: they have no logits.
        """
        assert self._logits is not None, "record first"
        parts: dict[str, tuple[list[Any], list[Any]]] = {"tail": ([], []), "generated": ([], [])}
        losses = []
        for index, (text, continuation) in enumerate(zip(self.texts, self._continuations, strict=True)):
            if session.exact_tail(len(text)) < self.tail:
                raise ModelError(
                    f"logits of {self.tail} rows, but only the last {session.exact_tail(len(text))} run exact",
                    "ask for a longer tail",
                )
            rows = {"tail": way.prefill(session, text, self.tail)}
            losses.append(next_token_losses(rows["tail"], text[-self.tail :]))
            if continuation:
                rows["generated"] = session.extend(continuation)
            start = 0
            for name, logits in rows.items():
                exact = self._logits[index, start : start + len(logits)]
                parts[name][0].append(kl_divergence(exact, logits))
                parts[name][1].append(exact.argmax(axis=1) == logits.argmax(axis=1))
                start += len(logits)
            advance()
        result: dict[str, Any] = {"loss": float(np.mean(losses)), "perplexity": float(np.exp(np.mean(losses)))}
        for name, (kl, same) in parts.items():
            if kl:
                result[name] = {
                    "rows": sum(map(len, kl)),
                    "kl": asdict(_interval(kl, seed)),
                    "kl_99": float(np.quantile(np.concatenate(kl), 0.99)),
                    "top1": asdict(_interval(same, seed)),
                }
        return result


def _interval(values: Sequence[npt.NDArray[Any]], seed: int) -> Any:
    means = np.asarray([np.mean(item) for item in values], dtype=np.float64)
    return paired_bootstrap(mean_difference, (np.zeros_like(means), means), seed=seed)
