"""What a report holds; `report.schema.json` describes it as JSON, and a test compares the two."""

from __future__ import annotations

from dataclasses import dataclass

from pyridgefill.evaluation.intervals import Interval
from pyridgefill.evaluation.run.found import GroupLoss


@dataclass(frozen=True)
class ModelFacts:
    """The model: name and size of its file, and its shape."""

    file: str
    bytes: int
    architecture: str
    layers: int
    embedding: int
    vocabulary: int


@dataclass(frozen=True)
class MachineFacts:
    """What it ran on."""

    cpu: str
    threads: int
    system: str


@dataclass(frozen=True)
class Sums:
    """The sums that maps were fitted from."""

    file: str
    tokens: int
    corpora: tuple[str, ...]


@dataclass(frozen=True)
class Tried:
    """What was tried, and on what; the fields of `Grid`, `Effort` and `Plan`, and those of the losses."""

    splits: tuple[int, ...]
    budgets: tuple[float, ...]
    tails: tuple[int, ...]
    targets: tuple[str, ...]
    ranks: tuple[int, ...]
    types: tuple[str, ...]
    ctx: tuple[int, ...]
    kinds: tuple[str, ...]
    needles: int
    keys: int
    texts: int
    repeats: int
    sink: int
    near: dict[str, int]
    threshold: float
    corpus: str
    max_loss_increase: float
    same_speed: float


@dataclass(frozen=True)
class MapFit:
    """R² of one map on held-out text."""

    split: int
    layer: int
    site: str
    r2: float


@dataclass(frozen=True)
class Head:
    """A retrieval head and its recall."""

    split: int
    layer: int
    head: int
    recall: tuple[float, ...]


@dataclass(frozen=True)
class MapsFile:
    """A maps file of the sweep."""

    file: str
    bytes: int
    digest: str
    parameters: int
    target: str
    rank: int
    type: str
    r2: tuple[MapFit, ...]
    heads: tuple[Head, ...]


@dataclass(frozen=True)
class Hits:
    """Needles found: how many, and the share with its interval."""

    hits: int
    prompts: int
    value: float
    low: float
    high: float
    mcnemar_p: float | None = None

    @property
    def interval(self) -> Interval:
        """The share."""
        return Interval(self.value, self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class HitsAtDepth(Hits):
    """Needles around a depth, from 0 to 1."""

    depth: float


@dataclass(frozen=True)
class Times:
    """Time to first token: times faster, with the slowest and the fastest pair, and the seconds of each run."""

    ratio: float
    low: float
    high: float
    pairs: int
    filled_rows: int
    selected_rows: int
    exact_seconds: tuple[float, ...]
    fill_seconds: tuple[float, ...]

    @property
    def interval(self) -> Interval:
        """The median and the range of the pairs."""
        return Interval(self.ratio, self.low, self.high)


@dataclass(frozen=True)
class AtLength:
    """What was measured at one length; what compares with exact is None for the exact model."""

    ctx: int
    needles: Hits
    depths: tuple[HitsAtDepth, ...]
    loss: float
    losses: dict[str, GroupLoss] | None = None
    kl: Interval | None = None
    kl_99: float | None = None
    top1: Interval | None = None
    ttft: Times | None = None

    @property
    def far(self) -> GroupLoss | None:
        """Loss on far tokens, if there are any."""
        return (self.losses or {}).get("far")


@dataclass(frozen=True)
class Row:
    """One way to run prompts.

    Attributes
    ----------
    role
        `exact`, `sweep`, the dimension in which its maps differ (`target`, `rank`, `type`), or `baseline`.
    variant, tail, lengths
        The way, and what was measured.
    split, budget, select
        Its setting; None for the exact model.
    target, rank, type, maps, heads
        Its maps, those of baselines have none.
    faults
        Why it is not as good as exact, or not faster.
    """

    role: str
    variant: str
    tail: int
    lengths: tuple[AtLength, ...]
    split: int | None = None
    budget: float | None = None
    select: str | None = None
    target: str | None = None
    rank: int | None = None
    type: str | None = None
    maps: str | None = None
    heads: tuple[str, ...] | None = None
    faults: tuple[str, ...] | None = None

    def at(self, ctx: int) -> AtLength:
        """The numbers at one length."""
        return next(item for item in self.lengths if item.ctx == ctx)

    def same(self, other: Row) -> bool:
        """Whether two agree in split, tail and budget."""
        return (self.split, self.tail, self.budget) == (other.split, other.tail, other.budget)


@dataclass(frozen=True)
class Stopped:
    """Splits that were not tried, because a higher one of the same tail and budget lost needles."""

    tail: int
    budget: float
    splits: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Breakdown:
    """Seconds of an exact prompt, and of a filled one by part."""

    ctx: int
    exact: float
    fill: float
    parts: dict[str, float]


@dataclass(frozen=True)
class Spliced:
    """A result of `pyridgefill eval splice`: what exact parts recover, or filled ones cause."""

    ctx: int
    tail: int
    split: int
    into: str
    components: tuple[str, ...]
    layers: tuple[int, ...]
    share: dict[str, Interval]


@dataclass(frozen=True)
class Recommended:
    """The row that is recommended, by its index, and the server's command."""

    point: int
    accepted: bool
    reason: str
    command: str


@dataclass(frozen=True)
class Contents:
    """All of a report."""

    format: int
    pyridgefill: str
    created: str
    command: str
    model: ModelFacts
    machine: MachineFacts
    statistics: Sums
    settings: Tried
    seeds: dict[str, int]
    baselines: dict[str, str]
    maps: tuple[MapsFile, ...]
    points: tuple[Row, ...]
    stopped: tuple[Stopped, ...]
    breakdown: tuple[Breakdown, ...]
    splices: tuple[Spliced, ...]
    recommended: Recommended

    @property
    def best(self) -> Row:
        """The row that is recommended; identity tells it from others."""
        return self.points[self.recommended.point]

    @property
    def longest(self) -> int:
        """Tokens of the longest prompts."""
        return max(self.settings.ctx)

    def exact(self, tail: int) -> Row:
        """The exact model with a tail."""
        return next(row for row in self.points if row.role == "exact" and row.tail == tail)
