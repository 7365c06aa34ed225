"""Splice tests: what exact parts of a filled memory recover of the loss, or filled parts of an exact one cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pyridgefill.evaluation.intervals import Interval, paired_bootstrap, ratio_of_sums
from pyridgefill.evaluation.run.found import FarLosses
from pyridgefill.evaluation.run.spliced import Spliced
from pyridgefill.evaluation.run.task import exact_of
from pyridgefill.evaluation.run.way import Way
from pyridgefill.evaluation.tasks.far_loss import Array, FarLoss, FarText

_Losses = Sequence[Sequence[float]]


class SpliceLoss(FarLoss):
    """Losses on the tails of texts, for ways that are `Spliced`; those without a splice come before theirs."""

    name = "splice"
    groups = ("all", "far")

    def summarise(
        self,
        way: Way,
        items: Sequence[list[int]],
        measured: Sequence[FarText | Array],
        earlier: Mapping[Way, FarLosses],
    ) -> FarLosses:
        """Losses by token and group; of splices the share of the gap between exact and filled."""
        found = super().summarise(way, items, measured, earlier)
        if found.groups is None:
            return found
        losses = tuple(tuple(item.tolist()) for item in measured if not isinstance(item, FarText))
        groups, found = found.groups, replace(found, losses=losses)
        if not isinstance(way, Spliced) or way.splice is None:
            return found
        filled = earlier[way.plain].losses
        assert filled is not None
        texts, into, params = self.scored(items, exact_of(earlier)), way.splice.into, self.params
        shares = {group: share(texts, filled, losses, into, group, params.threshold, params.seed) for group in groups}
        return replace(found, share=shares)


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
