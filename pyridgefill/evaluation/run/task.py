"""A task: what is measured, on which prompts, and how the numbers of all prompts become a result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from pyridgefill import defaults
from pyridgefill.calibration.builtin_corpora import BUILTIN
from pyridgefill.calibration.chunks import ChatFormatter
from pyridgefill.evaluation.prompts.layout import Shape, check_rows
from pyridgefill.evaluation.prompts.text import EVALUATION_CORPUS, text_windows
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.way import Way
from pyridgefill.files import file_name


@dataclass(frozen=True, kw_only=True)
class Params:
    """What a task's results depend on beside model and way; each task adds its own.

    Attributes
    ----------
    ctx
        Tokens of each prompt or text.
    sink, tail
        Exact rows at both ends.
    seed, corpus
        Of generated prompts and intervals, and the text around them: a built-in corpus or a file.

    Raises
    ------
    UsageError
        If prompts have no rows to fill.
    """

    ctx: int = defaults.CTX
    sink: int = defaults.SINK
    tail: int = defaults.TAIL
    seed: int = 0
    corpus: str = EVALUATION_CORPUS

    # fields that do not tell results apart
    unsaid: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_rows(self.ctx, self.sink, self.tail)

    @classmethod
    def at(cls, shape: Params, **own: Any) -> Self:
        """With the shared fields of others."""
        return cls(**{field.name: getattr(shape, field.name) for field in fields(Params)}, **own)

    def shape(self, session: Session, chat: ChatFormatter | None) -> Shape:
        """Of generated prompts."""
        return Shape(session, chat, self.ctx, self.sink, self.tail, self.seed, self.corpus)

    def cell(self) -> dict[str, Any]:
        """As lines of results have them: a file's name stands for its content, what is None is left out."""
        found = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in self.unsaid}
        if found.get("corpus", EVALUATION_CORPUS) not in BUILTIN:
            found["corpus"] = file_name(Path(self.corpus))
        return {name: value for name, value in found.items() if value is not None}


P = TypeVar("P", bound=Params)
Item = TypeVar("Item")
Measured = TypeVar("Measured")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Run(Generic[Item, Measured, Found]):
    """All items of a task, run in one way.

    Attributes
    ----------
    way
        How they ran.
    items, measured
        As `prepare` and `measure` returned them.
    earlier
        Results of the ways before it, the exact one among them.
    """

    way: Way
    items: Sequence[Item]
    measured: Sequence[Measured]
    earlier: Mapping[Way, Found]

    @property
    def exact(self) -> Found | None:
        """The exact model's result, None while it is made."""
        return next((found for way, found in self.earlier.items() if way.config is None), None)


class Task(ABC, Generic[P, Item, Measured, Found]):
    """One task with its parameters: a cell of a table for each way.

    Parameters
    ----------
    params
        What tells its cells apart.
    """

    # in results
    name: ClassVar[str]

    def __init__(self, params: P) -> None:
        self.params = params
        self._items: Sequence[Item] | None = None

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of prompts or texts."""

    @abstractmethod
    def prepare(self, session: Session, chat: ChatFormatter | None) -> Sequence[Item]:
        """Make the prompts or texts; the same parameters give the same ones."""

    @abstractmethod
    def measure(self, session: Session, way: Way, item: Item) -> Measured:
        """Run one of them; the session is started for the way."""

    @abstractmethod
    def summarise(self, run: Run[Item, Measured, Found]) -> Found:
        """The result of a way."""

    def items(self, session: Session, chat: ChatFormatter | None) -> Sequence[Item]:
        """What `prepare` makes, made once."""
        if self._items is None:
            self._items = self.prepare(session, chat)
        return self._items

    def cell(self) -> dict[str, Any]:
        """What tells its results from others of the same model and way."""
        return {"task": self.name, **self.params.cell()}


@dataclass(frozen=True, kw_only=True)
class TextParams(Params):
    """How many texts."""

    texts: int = 8


T = TypeVar("T", bound=TextParams)


class TextTask(Task[T, list[int], Measured, Found]):
    """Base of tasks that run texts of the corpus."""

    @property
    def size(self) -> int:
        """Texts."""
        return self.params.texts

    def prepare(self, session: Session, chat: ChatFormatter | None) -> list[list[int]]:
        """Texts of `ctx` tokens each."""
        return list(islice(text_windows(session, self.params.ctx, corpus=self.params.corpus), self.params.texts))
