"""A way to run a prompt: the base of what evaluations compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from pyridgefill.config import RidgeFillConfig
from pyridgefill.evaluation.run.session import Logits, Session
from pyridgefill.evaluation.run.settings import setting_cell


@dataclass(frozen=True)
class Recipe:
    """What ways are made from.

    Attributes
    ----------
    model
        The model's GGUF.
    config
        The fill that is measured, as `resolve` returns it.
    folder
        Takes files that ways need; it must live as long as they do.
    statistics
        Sums that calibration collected; None: a way that needs some collects them from the built-in corpora.
    n_threads, on_progress
        For this collection; `on_progress` is called with tokens done and wanted.
    """

    model: Path
    config: RidgeFillConfig
    folder: Path
    statistics: Path | None = None
    n_threads: int = 0
    on_progress: Callable[[int, int], None] = lambda _done, _total: None


class Way:
    """Prefills prompts on a session, filled with the maps of a configuration as it says, or exact without one.

    The class itself is the way `fill`. Subclasses change `prefill`, or `make` where only the maps differ.

    Parameters
    ----------
    name
        In the table of ways.
    config
        The maps and their settings; None: exact.
    **cell
        What tells its results from those of other ways, beside name and configuration.
    """

    # sequences that the session needs
    n_sequences: ClassVar[int] = 1
    # why parts of its memory cannot be spliced; empty: they can
    no_splice: ClassVar[str] = ""

    def __init__(self, name: str, config: RidgeFillConfig | None, **cell: Any) -> None:
        self.name, self.config = name, config
        self.cell: dict[str, Any] = {"variant": name, **({} if config is None else setting_cell(config)), **cell}

    @classmethod
    def make(cls, name: str, recipe: Recipe) -> Self:
        """The way with the settings of a recipe."""
        return cls(name, recipe.config)

    def start(self, session: Session) -> None:
        """Prepare a session for prompts that are run this way; what it kept of others is forgotten."""
        session.set_maps(self.config)

    def prefill(
        self, session: Session, tokens: Sequence[int], n_logits: int = 1, *, reuse: bool = False
    ) -> Logits:  # fmt: skip
        """Run a prompt on a session for which `start` was called last; see `Session.prefill`."""
        return session.prefill(tokens, n_logits, reuse=reuse)


# whatever is set on a session
PLAIN = Way("plain", None)
