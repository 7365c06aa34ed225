"""Splice tests: what exact parts of a filled memory recover of the loss, or filled parts of an exact one cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pyridgefill.evaluation.intervals import Interval, paired_bootstrap, ratio_of_sums
from pyridgefill.evaluation.run.found import FarLosses
from pyridgefill.evaluation.run.spliced import Spliced
from pyridgefill.evaluation.run.task import Run
from pyridgefill.evaluation.tasks.far_loss import FarLoss, FarText, Losses, losses_of

_Losses = Sequence[Sequence[float]]


class SpliceLoss(FarLoss):
    """Losses on the tails of texts, for ways that are `Spliced`; those without a splice come before theirs."""

    name = "splice"
    groups = ("all", "far")

    def summarise(self, run: Run[list[int], Losses, FarLosses]) -> FarLosses:
        """Losses by token and group; of splices the share of the gap between exact and filled."""
        found, way = super().summarise(run), run.way
        if found.groups is None:
            return found
        found = replace(found, losses=tuple(tuple(losses.tolist()) for losses in losses_of(run)))
        if not isinstance(way, Spliced) or way.splice is None:
            return found
        filled, texts, params = run.earlier[way.plain].losses, self.scored(run), self.params
        assert filled is not None
        assert found.losses is not None
        return replace(
            found,
            share={
                group: share(texts, filled, found.losses, way.splice.into, group, params.threshold, params.seed)
                for group in found.groups or ()
            },
        )


def share(
    texts: Sequence[FarText],
    filled: _Losses,
    spliced: _Losses,
    into: str,
    group: str,
    threshold: float,
    seed: int,
) -> Interval:
    """The part of the loss between exact and filled that a splice closes, or opens; the interval resamples texts.

    Parameters
    ----------
    texts
        With the exact losses.
    filled, spliced
        By text, `[tail - near]`: losses without and with the splice, nats.
    into
        `fill`: (filled - spliced) / (filled - exact); `exact`: (spliced - exact) / (filled - exact).
    group, threshold
        The tokens that count, see `FarText.mask`.
    seed
        Of the bootstrap.

    Returns
    -------
    Interval
        NaN where filled is as good as exact.
    """
    sums = []
    for text, fill_loss, loss in zip(texts, filled, spliced, strict=True):
        mask = text.mask(group, threshold)
        exact, before, after = (float(np.sum(np.asarray(x)[mask])) for x in (text.exact, fill_loss, loss))
        sums.append((before - exact, before - after if into == "fill" else after - exact))
    gap, part = np.asarray(sums, dtype=np.float64).T
    if np.sum(gap) == 0:
        return Interval(float("nan"), float("nan"), float("nan"))
    return paired_bootstrap(ratio_of_sums, (gap, part), seed=seed)
