"""The task families of RULER: retrieval, variable tracking, word counts, question answering."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyridgefill.calibration.chunks import ChatFormatter
from pyridgefill.errors import UsageError
from pyridgefill.evaluation.prompts.families import FAMILIES, Family
from pyridgefill.evaluation.prompts.prompt import Prompt
from pyridgefill.evaluation.prompts.squad import SquadTask
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.task import Params
from pyridgefill.evaluation.tasks.scored import ScoredTask
from pyridgefill.files import file_name


@dataclass(frozen=True, kw_only=True)
class RulerParams(Params):
    """A family (`kind`), how many prompts, and for `qa` the name of its file of questions."""

    kind: str
    prompts: int = 20
    data: str | None = None


def find_families(names: Iterable[str], squad: Path | None = None) -> dict[str, Family]:
    """Families by name, all of them if none is named; `qa` needs a file in SQuAD's format.

    Raises
    ------
    UsageError
        If one is not known.
    """
    known: dict[str, Family] = dict(FAMILIES)
    if squad is not None:
        known["qa"] = SquadTask(squad)
    for name in names:
        if name not in known:
            hint = "give --squad" if name == "qa" else f"choose among {', '.join(known)}"
            raise UsageError(f"task {name!r} is not known", hint)
    return {name: known[name] for name in names} or known


def ruler_tasks(
    shapes: Iterable[Params], families: Mapping[str, Family], *, prompts: int, squad: Path | None = None
) -> list[Ruler]:
    """Prompts of each shape and family; the file of questions is told with those that come from it."""
    data = {} if squad is None else {"qa": file_name(squad)}
    return [
        Ruler(RulerParams.at(shape, kind=name, prompts=prompts, data=data.get(name)), family)
        for shape in shapes
        for name, family in families.items()
    ]


class Ruler(ScoredTask[RulerParams]):
    """Prompts of one family."""

    name = "ruler"

    def __init__(self, params: RulerParams, family: Family) -> None:
        super().__init__(params)
        self._family = family

    @property
    def size(self) -> int:
        """Prompts."""
        return self.params.prompts

    def prepare(self, session: Session, chat: ChatFormatter | None) -> list[Prompt]:
        """Make them."""
        return list(self._family(self.params.shape(session, chat), self.params.prompts))
