"""Loss on tokens that depend on distant context, found with the exact model.

A token of the exact tail is a *far token* if its loss drops by more than a threshold when the far context is there,
compared with a run in which it is removed: the sink, then the tail, with positions that go on without a gap. So the
tail's rows keep their distances to each other, as RoPE sees them, and the prompt looks like an ordinary short one;
only the distance to the sink changes.

The first `near` tokens of the tail are not scored: without the far context they have nothing before them, and any text
would help. Far tokens are selected by the exact model's own loss, which makes the comparison harder for everything
that is not exact; among approximations it is fair. Tokens that are *far for both* are selected by the mean of the two
losses that are compared, so that neither side's luck counts: two models that differ in luck only come out equal. A
model that loses much is treated too mildly by it, as it has a say in the choice.

The method is that of published long-context perplexity measures (LongPPL, Fang et al. 2024), with a plain threshold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from pyridgefill.errors import ModelError, UsageError
from pyridgefill.evaluation.intervals import Interval, paired_bootstrap, ratio_of_sums
from pyridgefill.evaluation.run.found import FarLosses, GroupLoss
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.task import Params, Run, TextParams, TextTask
from pyridgefill.evaluation.run.way import PLAIN, Way
from pyridgefill.evaluation.tasks.loss import token_losses

# one bit: the far context at least doubles the token's probability
DEFAULT_THRESHOLD = math.log(2)

GROUPS = ("far", "far_for_both", "all", "not_far", "novel", "repeated")

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class FarText:
    """A text with the exact model's losses on its scored tokens, the last ones.

    Attributes
    ----------
    tokens
        All of the text.
    tail, near
        Rows at the end that run exact, and how many of these are not scored.
    exact, removed
        `[tail - near]`, nats: with the far context, and without.
    repeated
        `[tail - near]`: the token follows the same token as somewhere in the far context.
    """

    tokens: tuple[int, ...]
    tail: int
    near: int
    exact: Array
    removed: Array
    repeated: Mask

    def mask(self, group: str, threshold: float = DEFAULT_THRESHOLD, fill: Array | None = None) -> Mask:
        """Which scored tokens belong to one of `GROUPS`; `fill`, `[tail - near]`: the losses that are compared."""
        far: Mask = self.exact < self.removed - threshold
        masks = {
            "far": far,
            "far_for_both": far if fill is None else (self.exact + fill) / 2 < self.removed - threshold,
            "all": np.ones_like(far),
            "not_far": ~far,
            "novel": ~self.repeated,
            "repeated": self.repeated,
        }
        return masks[group]


def score_text(
    session: Session, text: Sequence[int], *, tail: int, sink: int = 4, near: int | None = None, way: Way = PLAIN
) -> FarText:
    """Score a text with and without far context.

    Parameters
    ----------
    session
        The model, without maps.
    text
        Longer than `sink + tail`.
    tail
        Rows at the end that run exact in all runs.
    sink
        Rows at the start that stay when the far context is removed.
    near
        Tokens of the tail that are not scored; by default 128, or half of a shorter tail.
    way
        How it runs, exact; the session is started for it.

    Raises
    ------
    ModelError
        If the text is too short.
    """
    near = default_near(tail) if near is None else near
    check_near(near, tail)
    if len(text) <= sink + tail:
        raise ModelError(f"a text of {len(text)} tokens has no far context", f"give more than {sink + tail} tokens")
    exact = token_losses(session, text, tail, way)[near - 1 :]
    removed = token_losses(session, [*text[:sink], *text[len(text) - tail :]], tail, way)[near - 1 :]
    return FarText(tuple(text), tail, near, exact, removed, repeated_tokens(text, sink, tail, near))


def check_near(near: int, tail: int) -> None:
    """Raise a UsageError if not at least one token of a tail is left out, and at least one scored."""
    if not 1 <= near < tail:
        raise UsageError(f"{near} tokens of a tail of {tail} are not scored", "choose near from 1 to less than tail")


def default_near(tail: int) -> int:
    """Tokens of a tail that are not scored: 128, or half of a shorter tail."""
    return min(128, tail // 2)


def repeated_tokens(text: Sequence[int], sink: int, tail: int, near: int) -> Mask:
    """Which scored tokens follow the same token as somewhere in the far context, `[tail - near]`."""
    start = len(text) - tail
    seen = set(zip(text[sink : start - 1], text[sink + 1 : start], strict=True))
    pairs = zip(text[start + near - 1 : -1], text[start + near :], strict=True)
    return np.fromiter((pair in seen for pair in pairs), dtype=np.bool_)


def compare(
    texts: Sequence[FarText],
    losses: Sequence[Array],
    *,
    threshold: float = DEFAULT_THRESHOLD,
    groups: Sequence[str] = GROUPS,
    seed: int = 0,
) -> list[GroupLoss]:
    """Exact against filled losses by group of tokens; groups without a token are left out.

    Tokens of one text are not independent, so the bootstrap draws texts, each with all its tokens of the group.

    Parameters
    ----------
    texts, losses
        From `score_text`, and of the same tokens run in another way, `[tail - near]` for each text.
    threshold
        Nats that the far context must be worth to a far token; the default is one bit.
    groups
        Some of `GROUPS`.
    seed
        Of the bootstrap.
    """
    return [
        found
        for group in groups
        if (found := _compare_group(group, texts, losses, threshold, seed)) is not None
    ]  # fmt: skip


def _compare_group(
    group: str, texts: Sequence[FarText], losses: Sequence[Array], threshold: float, seed: int
) -> GroupLoss | None:
    sums = []
    for text, loss in zip(texts, losses, strict=True):
        mask = text.mask(group, threshold, loss)
        if mask.any():
            sums.append((mask.sum(), text.exact[mask].sum(), loss[mask].sum(), text.removed[mask].sum()))
    if not sums:
        return None
    count, exact, fill, removed = np.asarray(sums, dtype=np.float64).T
    difference = paired_bootstrap(ratio_of_sums, (count, fill - exact), seed=seed)
    ratio = paired_bootstrap(ratio_of_sums, (exact, fill), seed=seed)
    return GroupLoss(
        group=group,
        tokens=int(count.sum()),
        texts=len(sums),
        exact=float(exact.sum() / count.sum()),
        fill=float(fill.sum() / count.sum()),
        removed=float(removed.sum() / count.sum()),
        difference=difference,
        relative=Interval(ratio.value - 1, ratio.low - 1, ratio.high - 1),
        perplexity=Interval(*(math.expm1(x) for x in (difference.value, difference.low, difference.high))),
    )


@dataclass(frozen=True, kw_only=True)
class FarLossParams(TextParams):
    """Tokens of tails that are not scored, and the nats that make a token a far one."""

    near: int = 128
    threshold: float = DEFAULT_THRESHOLD

    def __post_init__(self) -> None:
        super().__post_init__()
        check_near(self.near, self.tail)

    @classmethod
    def of(cls, shape: Params, texts: int, near: int | None = None, threshold: float = DEFAULT_THRESHOLD) -> Self:
        """With the default number of tokens that are not scored where none is given."""
        skipped = default_near(shape.tail) if near is None else near
        return cls.at(shape, texts=texts, near=skipped, threshold=threshold)


# of a text in the exact way, and the scored tokens' losses in others
Losses = FarText | Array


class FarLoss(TextTask[FarLossParams, Losses, FarLosses]):
    """Loss on tokens that depend on distant context."""

    name = "far-loss"
    groups: ClassVar[tuple[str, ...]] = GROUPS

    def measure(self, session: Session, way: Way, item: list[int]) -> Losses:
        """Losses of the scored tokens; exact, also without far context.

        Raises
        ------
        ModelError
            If the way fills rows of the tail.
        """
        params = self.params
        if way.config is None:
            return score_text(session, item, tail=params.tail, sink=params.sink, near=params.near, way=way)
        return token_losses(session, item, params.tail, way)[params.near - 1 :]

    def summarise(self, run: Run[list[int], Losses, FarLosses]) -> FarLosses:
        """The exact losses, or those of a way by groups of tokens."""
        if run.way.config is None:
            texts = [item for item in run.measured if isinstance(item, FarText)]
            return FarLosses(
                exact=tuple(tuple(text.exact.tolist()) for text in texts),
                removed=tuple(tuple(text.removed.tolist()) for text in texts),
            )
        params = self.params
        found = compare(
            self.scored(run), losses_of(run), threshold=params.threshold, groups=self.groups, seed=params.seed
        )
        return FarLosses(groups={group.group: group for group in found})

    def scored(self, run: Run[list[int], Losses, FarLosses]) -> list[FarText]:
        """Texts with the losses that the exact model's result has."""
        assert run.exact is not None
        pairs = zip(run.items, run.exact.exact or (), run.exact.removed or (), strict=True)
        sink, tail, near = self.params.sink, self.params.tail, self.params.near
        return [
            FarText(
                tuple(text), tail, near, np.asarray(kept), np.asarray(removed), repeated_tokens(text, sink, tail, near)
            )
            for text, kept, removed in pairs
        ]


def losses_of(run: Run[list[int], Losses, FarLosses]) -> list[Array]:
    """What was measured in a way that is not exact."""
    return [item for item in run.measured if not isinstance(item, FarText)]
