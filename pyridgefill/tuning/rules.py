"""When a setting is as good as exact, when lower splits are not worth a try, and which setting to recommend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyridgefill import defaults
from pyridgefill.evaluation.intervals import least_hits
from pyridgefill.tuning.grid import Point
from pyridgefill.words import signed_percent

# ratios of times to first token that differ by less are the same
SAME_SPEED = 0.02


@dataclass(frozen=True)
class Outcome:
    """What rules look at: one setting at one length.

    Attributes
    ----------
    ctx
        Tokens of the prompts.
    hits, prompts, exact_hits
        Needles found with the maps, asked for, and found by the exact model.
    loss_increase
        On all scored tokens of the tail, over the exact loss.
    far_increase
        On far tokens; None if there are none.
    ratio
        How many times sooner the first token comes.
    """

    ctx: int
    hits: int
    prompts: int
    exact_hits: int
    loss_increase: float
    far_increase: float | None
    ratio: float

    @property
    def finds_enough(self) -> bool:
        """Whether the hits are not below the exact model's interval."""
        return self.hits >= least_hits(self.exact_hits, self.prompts)


@dataclass(frozen=True)
class Trial:
    """A setting and what was measured, at each length."""

    point: Point
    outcomes: tuple[Outcome, ...]

    @property
    def ratio(self) -> float:
        """Of the longest prompts, which fill is for."""
        return max(self.outcomes, key=lambda item: item.ctx).ratio

    def faults(self, max_loss_increase: float = defaults.MAX_LOSS_INCREASE) -> list[str]:
        """Why the setting is not as good as exact, or not faster; empty if it is both."""
        found = []
        for item in self.outcomes:
            at = f" at {item.ctx} tokens"
            if not item.finds_enough:
                least = least_hits(item.exact_hits, item.prompts)
                found.append(f"{item.hits} of {item.prompts} needles{at}, at least {least} wanted")
            if item.loss_increase > max_loss_increase:
                found.append(
                    f"loss {signed_percent(item.loss_increase)}{at}, at most {signed_percent(max_loss_increase)} wanted"
                )
        if self.ratio <= 1:
            found.append(f"first token {self.ratio:.2f} times as fast as exact")
        return found

    @property
    def far(self) -> float:
        """Mean increase of the loss on far tokens, on all tokens where a length has no far ones."""
        values = [item.loss_increase if item.far_increase is None else item.far_increase for item in self.outcomes]
        return sum(values) / len(values)


@dataclass(frozen=True)
class Recommendation:
    """A setting, whether it is as good as exact, and why it was chosen."""

    trial: Trial
    accepted: bool
    reason: str


def stops(trial: Trial) -> str:
    """Why lower splits of the same family are not tried; empty if they are.

    The rule: a setting that finds fewer needles than the lower end of the exact model's 95 % Wilson interval, at any
    length, stops the splits below it. Retrieval breaks before the loss does and does not come back further down.
    """
    faults = [
        f"split {trial.point.split} found {item.hits} of {item.prompts} needles at {item.ctx} tokens, exact "
        f"{item.exact_hits}"
        for item in trial.outcomes
        if not item.finds_enough
    ]
    return "; ".join(faults)


def walk(family: Sequence[Point], measure: Callable[[Point], Trial]) -> tuple[list[Trial], list[Point], str]:
    """Measure a family from its first point on, until one stops those below it.

    Parameters
    ----------
    family
        Points that differ in the split only, the highest split first.
    measure
        Called for one after another.

    Returns
    -------
    trials, left, reason
        What was measured, the points that were not, and why.
    """
    trials: list[Trial] = []
    for index, point in enumerate(family):
        trials.append(measure(point))
        reason = stops(trials[-1])
        if reason and index + 1 < len(family):
            return trials, list(family[index + 1 :]), reason
    return trials, [], ""


def recommend(trials: Sequence[Trial], max_loss_increase: float = defaults.MAX_LOSS_INCREASE) -> Recommendation:
    """The fastest setting that is as good as exact; among equally fast ones the lowest loss on far tokens.

    If none is, the one that finds most needles, then that with the lowest loss on far tokens.

    Parameters
    ----------
    trials
        At least one.
    max_loss_increase
        On the tail's tokens.
    """
    good = [trial for trial in trials if not trial.faults(max_loss_increase)]
    if not good:
        best = max(trials, key=lambda trial: (sum(item.hits for item in trial.outcomes), -trial.far))
        faults = "; ".join(best.faults(max_loss_increase))
        return Recommendation(best, False, f"No setting was as good as exact. This one came closest: {faults}.")
    fastest = max(trial.ratio for trial in good)
    chosen = min((trial for trial in good if trial.ratio >= fastest * (1 - SAME_SPEED)), key=lambda trial: trial.far)
    found = ", ".join(f"{item.hits} of {item.prompts} needles ({item.exact_hits} exact)" for item in chosen.outcomes)
    loss = max(item.loss_increase for item in chosen.outcomes)
    equal = sum(trial.ratio >= fastest * (1 - SAME_SPEED) for trial in good)
    choice = (
        f"The fastest of {len(good)} settings that are as good as exact"
        if equal == 1
        else f"Of {equal} equally fast settings that are as good as exact, the one that loses least on far tokens"
    )
    return Recommendation(chosen, True, f"{choice}: {found}, loss on the tail {signed_percent(loss)}.")
