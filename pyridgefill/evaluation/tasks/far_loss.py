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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyridgefill import defaults
from pyridgefill.config import RidgeFillConfig
from pyridgefill.errors import ModelError
from pyridgefill.evaluation.intervals import Interval, paired_bootstrap, ratio_of_sums
from pyridgefill.evaluation.run.exact import EXACT
from pyridgefill.evaluation.run.session import Session
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


@dataclass(frozen=True)
class GroupLoss:
    """Losses on one group of tokens, means over tokens in nats; intervals resample texts.

    Attributes
    ----------
    tokens, texts
        Tokens of the group, texts that have any.
    exact, fill, removed
        Mean loss exact, with the maps, and without far context.
    difference
        `fill - exact`.
    relative
        `fill / exact - 1`.
    perplexity
        `exp(difference) - 1`, the relative change of perplexity.
    """

    group: str
    tokens: int
    texts: int
    exact: float
    fill: float
    removed: float
    difference: Interval
    relative: Interval
    perplexity: Interval


def exact_losses(
    session: Session,
    texts: Sequence[Sequence[int]],
    *,
    tail: int,
    sink: int = defaults.SINK,
    near: int | None = None,
    way: Way = EXACT,
    on_progress: Callable[[], None] = lambda: None,
) -> list[FarText]:
    """Score texts with the exact model, with and without far context; the session's maps are taken out.

    Parameters
    ----------
    session
        The model.
    texts
        Token sequences, longer than `sink + tail`.
    tail
        Rows at the end that run exact in all runs.
    sink
        Rows at the start that stay when the far context is removed.
    near
        Tokens of the tail that are not scored; by default 128, or half of a shorter tail.
    way
        How the texts run, exact.
    on_progress
        Called after each text.

    Raises
    ------
    ModelError
        If a text is too short.
    """
    near = default_near(tail) if near is None else near
    if not 1 <= near < tail:
        raise ModelError(f"{near} tokens of a tail of {tail} are not scored", "choose near from 1 to less than tail")
    way.start(session)
    found = []
    for text in texts:
        if len(text) <= sink + tail:
            raise ModelError(f"a text of {len(text)} tokens has no far context", f"give more than {sink + tail} tokens")
        exact = token_losses(session, text, tail, way)[near - 1 :]
        removed = token_losses(session, [*text[:sink], *text[len(text) - tail :]], tail, way)[near - 1 :]
        found.append(FarText(tuple(text), tail, near, exact, removed, repeated_tokens(text, sink, tail, near)))
        on_progress()
    return found


def default_near(tail: int) -> int:
    """Tokens of a tail that are not scored: 128, or half of a shorter tail."""
    return min(128, tail // 2)


def repeated_tokens(text: Sequence[int], sink: int, tail: int, near: int) -> Mask:
    """Which scored tokens follow the same token as somewhere in the far context, `[tail - near]`."""
    start = len(text) - tail
    seen = set(zip(text[sink : start - 1], text[sink + 1 : start], strict=True))
    pairs = zip(text[start + near - 1 : -1], text[start + near :], strict=True)
    return np.fromiter((pair in seen for pair in pairs), dtype=np.bool_)


def fill_losses(
    session: Session,
    texts: Sequence[FarText],
    config: RidgeFillConfig | None,
    *,
    on_progress: Callable[[], None] = lambda: None,
) -> list[Array]:
    """Losses of the same tokens with maps, `[tail - near]` for each text.

    Raises
    ------
    ModelError
        If the configuration fills rows of the tail.
    """
    session.set_maps(config)
    return measured_losses(session, texts, on_progress=on_progress)


def measured_losses(
    session: Session,
    texts: Sequence[FarText],
    way: Way = PLAIN,
    *,
    on_progress: Callable[[], None] = lambda: None,
) -> list[Array]:
    """Like `fill_losses`, run in a way that the session is started for."""
    losses = []
    for text in texts:
        losses.append(token_losses(session, text.tokens, text.tail, way)[text.near - 1 :])
        on_progress()
    return losses


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
        From `exact_losses` and `fill_losses`.
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
