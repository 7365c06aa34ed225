"""Needles: values that are hidden in long texts, in filled rows or elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyridgefill.calibration.chunks import ChatFormatter
from pyridgefill.errors import UsageError
from pyridgefill.evaluation.prompts.layout import GROUPS
from pyridgefill.evaluation.prompts.needle import KINDS, make_keyed_texts
from pyridgefill.evaluation.prompts.needle_absent import ABSENT, make_absent
from pyridgefill.evaluation.prompts.prompt import Prompt
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.task import Params
from pyridgefill.evaluation.tasks.scored import ScoredTask

MULTI_KEY = "multi-key"
ALL_KINDS = (*KINDS, MULTI_KEY)
PLACES = (*GROUPS, ABSENT)


@dataclass(frozen=True, kw_only=True)
class NeedleParams(Params):
    """Of needles.

    Attributes
    ----------
    kind
        One of `ALL_KINDS`; `multi-key` has several needles of digits in each text.
    needles
        How many are asked for.
    keys
        Needles in one text of kind `multi-key`, else None.
    group
        Where they are: None stands for the filled rows, or one of `PLACES`; `absent` asks for what is in no text.
    """

    kind: str = "digits"
    needles: int = 20
    keys: int | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind not in ALL_KINDS:
            raise UsageError(f"needles of kind {self.kind!r} are not known", f"choose among {', '.join(ALL_KINDS)}")
        if self.group not in (None, *PLACES):
            raise UsageError(f"needles of group {self.group!r} are not known", f"choose among {', '.join(PLACES)}")


def needle_tasks(
    shapes: Iterable[Params], *, kinds: Iterable[str], needles: int, keys: int = 4, places: Iterable[str] = ("filled",)
) -> list[Needles]:
    """Needles of each shape, kind and place."""
    return [
        Needles(
            NeedleParams.at(
                shape,
                kind=kind,
                needles=needles,
                keys=keys if kind == MULTI_KEY else None,
                group=None if place == "filled" else place,
            )
        )
        for shape in shapes
        for kind in kinds
        for place in places
    ]


class Needles(ScoredTask[NeedleParams]):
    """Does the answer contain the right value?"""

    name = "needle"

    @property
    def size(self) -> int:
        """Needles."""
        return self.params.needles

    def prepare(self, session: Session, chat: ChatFormatter | None) -> list[Prompt]:
        """One prompt for each needle; those of one text stand together."""
        params = self.params
        shape, kind = params.shape(session, chat), "digits" if params.kind == MULTI_KEY else params.kind
        if params.group == ABSENT:
            return list(make_absent(shape, count=params.needles, others=params.keys or 0, kind=kind))
        keys = params.keys or 1
        count = -(-params.needles // keys)
        texts = make_keyed_texts(shape, count=count, keys=keys, kind=kind, group=params.group or "filled")
        return [item.prompt() for text in texts for item in text.needles][: params.needles]


class SpliceNeedles(Needles):
    """The same on memories with spliced parts."""

    name = "splice-needle"
