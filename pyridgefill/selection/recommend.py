"""The rules behind every recommendation: what is as good as exact, what is tried in which order, and what is chosen.

`pyridgefill calibrate` and `pyridgefill tune` follow the same rules. They differ in the effort only: the first tries
settings from the least work on and stops at a good one (`walk_up`), the second wants to show what all of them cost,
and goes down from the highest split until retrieval breaks (`walk_down`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pyridgefill import defaults
from pyridgefill.evaluation.intervals import least_hits
from pyridgefill.evaluation.prompts.kinds import KINDS
from pyridgefill.selection.point import Point
from pyridgefill.words import signed_percent

# ratios of times to first token that differ by less are the same
SAME_SPEED = 0.02


@dataclass(frozen=True)
class Effort:
    """On how much each setting is tried.

    Attributes
    ----------
    lengths
        Tokens of the prompts.
    kinds, needles, keys
        Of needles; `needles` of each kind and length, `keys` of them in one text.
    texts
        Running texts of each length, for the loss.
    repeats
        Pairs of timing runs; 0: nothing is timed, the work decides.
    """

    lengths: tuple[int, ...]
    kinds: tuple[str, ...]
    needles: int
    keys: int
    texts: int
    repeats: int


# a calibration's: a few needles of each kind
QUICK = Effort((defaults.CTX,), tuple(KINDS), 4, 4, 4, 0)
THOROUGH = Effort((defaults.CTX,), ("multi-key",), 20, 4, 8, 3)


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
        On all scored tokens of the tail, over the exact loss; None where the needles have decided already.
    far_increase
        On far tokens; None if there are none, or they were not looked for.
    ratio
        How much faster the first token comes; where nothing was timed, how much more work an exact prompt is.
    """

    ctx: int
    hits: int
    prompts: int
    exact_hits: int
    loss_increase: float | None
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
            if item.loss_increase is not None and item.loss_increase > max_loss_increase:
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
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else 0.0


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


def walk_down(family: Sequence[Point], measure: Callable[[Point], Trial]) -> tuple[list[Trial], list[Point], str]:
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


def walk_up(
    points: Iterable[Point],
    measure: Callable[[Point], Trial],
    *,
    n_layer: int,
    n_prompt: int,
    max_loss_increase: float = defaults.MAX_LOSS_INCREASE,
) -> list[Trial]:
    """Measure settings from the least work on, until one is as good as exact, and those that are as fast as that one.

    Parameters
    ----------
    points
        In any order.
    measure
        Called for one after another.
    n_layer, n_prompt
        Of the model and of its prompts; the work depends on them.
    max_loss_increase
        As for `recommend`, which chooses among what was measured.
    """
    trials: list[Trial] = []
    enough = float("inf")
    for work, point in sorted(((point.work(n_layer, n_prompt), point) for point in points), key=lambda pair: pair[0]):
        if work > enough:
            break
        trials.append(measure(point))
        if not trials[-1].faults(max_loss_increase):
            enough = min(enough, work / (1 - SAME_SPEED))
    return trials


def recommend(trials: Sequence[Trial], max_loss_increase: float = defaults.MAX_LOSS_INCREASE) -> Recommendation:
    """The fastest setting that is as good as exact; among equally fast ones the lowest loss on far tokens.

    If none is, the one that finds most needles, then that with the lowest loss on far tokens. Where the exact model
    finds no needle, none is.

    Parameters
    ----------
    trials
        At least one.
    max_loss_increase
        On the tail's tokens.
    """
    good = [trial for trial in trials if not trial.faults(max_loss_increase)]
    blind = [item for trial in trials for item in trial.outcomes if not item.exact_hits]
    if blind:
        # as many as none tells nothing of what fill loses
        reason = f"The exact model itself finds none of {blind[0].prompts} needles at {blind[0].ctx} tokens"
        chosen = max(good or trials, key=lambda trial: trial.ratio)
        return Recommendation(chosen, False, f"{reason}, so no setting can be recommended.")
    if not good:
        best = max(trials, key=lambda trial: (sum(item.hits for item in trial.outcomes), -trial.far))
        faults = "; ".join(best.faults(max_loss_increase))
        return Recommendation(best, False, f"No setting was as good as exact. This one came closest: {faults}.")
    fastest = max(trial.ratio for trial in good)
    equal = [trial for trial in good if trial.ratio >= fastest * (1 - SAME_SPEED)]
    chosen = min(equal, key=lambda trial: (trial.far, -trial.ratio))
    found = ", ".join(f"{item.hits} of {item.prompts} needles ({item.exact_hits} exact)" for item in chosen.outcomes)
    loss = max(item.loss_increase or 0.0 for item in chosen.outcomes)
    choice = (
        f"The fastest of {len(good)} settings that are as good as exact"
        if len(equal) == 1
        else f"Of {len(equal)} equally fast settings that are as good as exact, the one that loses least on far tokens"
    )
    return Recommendation(chosen, True, f"{choice}: {found}, loss on the tail {signed_percent(loss)}.")
