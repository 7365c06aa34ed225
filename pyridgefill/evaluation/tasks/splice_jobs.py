"""The jobs of the splice tests: losses and needles for exact, filled, and each configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np

from pyridgefill.evaluation.intervals import Interval, paired_bootstrap, ratio_of_sums
from pyridgefill.evaluation.run.lab import Advance, Compute, Job, Result
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.spliced import Spliced
from pyridgefill.evaluation.run.way import Way
from pyridgefill.evaluation.tasks.far_loss import FarText, compare, measured_losses
from pyridgefill.evaluation.tasks.jobs import Setting, exact_far_losses, stored_far_texts, text_list

LOSS_TASK = "splice"
NEEDLE_TASK = "splice-needle"

GROUPS = ("all", "far")

_Losses = Sequence[Sequence[float]]


def loss_jobs(
    setting: Setting,
    *,
    lengths: Sequence[int],
    texts: int,
    near: int,
    threshold: float,
    filled: Mapping[int, Result] | None = None,
) -> list[Job]:
    """Losses on the tails of texts for the setting's variants.

    Parameters
    ----------
    setting
        With ways that are `Spliced`.
    lengths, texts, near, threshold
        As for `far_loss_jobs`.
    filled
        The result of the filled variant without a splice, by length; needed for splices.

    Returns
    -------
    list of Job
        Results of variants that are not exact have `losses`, `groups` as in the evaluation of far tokens, and splices
        the `share` of the gap between exact and filled that they close, or open, in each group.
    """
    jobs = []
    for ctx in lengths:
        params = setting.params(ctx, texts=texts, near=near, threshold=threshold)
        windows = cache(lambda ctx=ctx: text_list(setting, ctx, texts))

        def compute(variant: Way, ctx: int = ctx, windows: Callable[[], Any] = windows) -> Compute:
            def run_exact(session: Session, way: Way, advance: Advance, _exact: Result | None) -> Result:
                return exact_far_losses(setting, session, way, windows(), near, advance)

            def run(session: Session, way: Way, advance: Advance, exact: Result | None) -> Result:
                found = stored_far_texts(setting, windows(), near, exact)
                losses = [loss.tolist() for loss in measured_losses(session, found, way, on_progress=advance)]
                arrays = [np.asarray(loss) for loss in losses]
                groups = compare(found, arrays, threshold=threshold, groups=GROUPS, seed=setting.seed)
                result = {"losses": losses, "groups": {group.group: asdict(group) for group in groups}}
                if isinstance(variant, Spliced) and variant.splice is not None:
                    assert filled is not None
                    result["share"] = {
                        group: asdict(
                            share(
                                found,
                                filled[ctx]["losses"],
                                losses,
                                variant.splice.into,
                                group,
                                threshold,
                                setting.seed,
                            )
                        )
                        for group in result["groups"]
                    }
                return result

            return run_exact if variant.name == "exact" else run

        jobs += setting.jobs(LOSS_TASK, params, texts, compute)
    return jobs


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
