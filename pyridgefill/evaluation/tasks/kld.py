"""KL divergence and top-1 agreement with the exact model on rows that run exact, and on its own greedy continuation."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax

from pyridgefill.errors import ModelError, UsageError
from pyridgefill.evaluation.intervals import Interval, mean_difference, paired_bootstrap
from pyridgefill.evaluation.run.found import Agreement, Divergence
from pyridgefill.evaluation.run.session import Logits, Session
from pyridgefill.evaluation.run.task import Run, TextParams, TextTask
from pyridgefill.evaluation.run.way import Way
from pyridgefill.evaluation.tasks.loss import next_token_losses

Array = npt.NDArray[np.float64]


def kl_divergence(exact: Logits, other: Logits) -> Array:
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


@dataclass(frozen=True, kw_only=True)
class KldParams(TextParams):
    """Tokens of the exact model's greedy continuation that are compared as well.

    Raises
    ------
    UsageError
        If nothing is left to compare.
    """

    generated: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tail < 2 and not self.generated:
            raise UsageError("a tail of 1 row and no generated tokens leave nothing to compare", "give a longer --tail")


@dataclass(frozen=True)
class Rows:
    """One text: losses of its tail's tokens, and for each part that is compared the rows' divergence and agreement."""

    losses: Array
    kl: dict[str, Array]
    same: dict[str, npt.NDArray[np.bool_]]


class Kld(TextTask[KldParams, Rows, Divergence]):
    """How far logits are from the exact model's.

    The exact logits are kept in a file without a name, `(tail + generated) * n_vocab * 4` bytes for each text.
    """

    name = "kld"

    def __init__(self, params: KldParams) -> None:
        super().__init__(params)
        self._logits: npt.NDArray[np.float32] | None = None
        # by text: where its logits are, and what the exact model says next
        self._continuations: dict[tuple[int, ...], tuple[int, list[int]]] = {}

    def measure(self, session: Session, way: Way, item: list[int]) -> Rows:
        """Compare a text's tail and continuation with what the exact model says, which is found out once.

        Raises
        ------
        ModelError
            If rows of the tail are filled: they have no logits.
        """
        text, tail, key = item, self.params.tail, tuple(item)
        if key not in self._continuations:
            session.set_maps(None)
            self._record(session, text)
            way.start(session)
        assert self._logits is not None
        index, continuation = self._continuations[key]
        exact = {"tail": self._logits[index, :tail], "generated": self._logits[index, tail:]}
        if way.config is None:
            return Rows(next_token_losses(exact["tail"], text[-tail:]), {}, {})
        if session.exact_tail(len(text)) < tail:
            raise ModelError(
                f"logits of {tail} rows, but only the last {session.exact_tail(len(text))} run exact",
                "ask for a longer tail",
            )
        found = {"tail": way.prefill(session, text, tail)}
        if continuation:
            found["generated"] = session.extend(continuation)
        return Rows(
            next_token_losses(found["tail"], text[-tail:]),
            {name: kl_divergence(exact[name], logits) for name, logits in found.items()},
            {name: exact[name].argmax(axis=1) == logits.argmax(axis=1) for name, logits in found.items()},
        )

    def _record(self, session: Session, text: list[int]) -> None:
        """Keep the exact model's logits of a text's tail and of what it says next."""
        tail = session.prefill(text, self.params.tail)
        if self._logits is None:
            shape = self.params.texts, self.params.tail + self.params.generated, tail.shape[1]
            with tempfile.TemporaryFile() as file:
                self._logits = np.memmap(file, np.float32, "w+", shape=shape)
        index = len(self._continuations)
        self._logits[index, : self.params.tail] = tail
        tokens: list[int] = []
        last = tail[-1]
        for step in range(self.params.generated):
            tokens.append(int(np.argmax(last)))
            last = session.extend(tokens[-1:])[0]
            self._logits[index, self.params.tail + step] = last
        self._continuations[tuple(text)] = index, tokens

    def summarise(self, run: Run[list[int], Rows, Divergence]) -> Divergence:
        """Means over rows; intervals resample texts."""
        loss = float(np.mean([rows.losses for rows in run.measured]))
        parts = {name: self._agreement(name, run.measured) for name in run.measured[0].kl}
        return Divergence(loss, float(np.exp(loss)), parts.get("tail"), parts.get("generated"))

    def _agreement(self, name: str, measured: Sequence[Rows]) -> Agreement:
        kl = [rows.kl[name] for rows in measured]
        return Agreement(
            rows=sum(map(len, kl)),
            kl=self._interval(kl),
            kl_99=float(np.quantile(np.concatenate(kl), 0.99)),
            top1=self._interval([rows.same[name] for rows in measured]),
        )

    def _interval(self, values: Sequence[npt.NDArray[Any]]) -> Interval:
        means = np.asarray([np.mean(item) for item in values], dtype=np.float64)
        return paired_bootstrap(mean_difference, (np.zeros_like(means), means), seed=self.params.seed)
