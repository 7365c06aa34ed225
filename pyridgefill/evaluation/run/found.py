"""What lines of results hold: the cell that tells lines apart, and what each task found.

`results.schema.json` is made from these classes. Fields that are None by default are left out of a line where they say
nothing: an exact result has no difference from exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyridgefill.evaluation.intervals import Interval
from pyridgefill.evaluation.run.typed import schema


@dataclass(frozen=True)
class SpliceCell:
    """What of a memory was replaced: `into` `fill` by exact parts, or `exact` by filled ones; first and last layer."""

    into: str
    components: tuple[str, ...]
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Cell:
    """What readers of results ask of a cell: task, model, prompts (`ctx` to `group`), way and its settings.

    Lines have more, see the tasks' parameters. Those of `ttft` name no way: they compare `fill` with exact.
    """

    task: str
    model: str
    model_bytes: int
    model_digest: str
    ctx: int = 0
    sink: int = 0
    tail: int = 0
    seed: int = 0
    corpus: str = ""
    kind: str = ""
    group: str = ""
    variant: str = "fill"
    maps: str = ""
    split: int | None = None
    select: str = "none"
    budget: float = 0.0
    statistics: str = ""
    splice: SpliceCell | None = None


@dataclass(frozen=True)
class Share:
    """A share of hits among prompts, with its Wilson interval."""

    prompts: int
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class DepthShare:
    """A `Share` of the prompts whose needles are around a depth, from 0 to 1."""

    depth: float
    prompts: int
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Scores:
    """Prompts whose answers were scored by the values in them: needle, ruler.

    Attributes
    ----------
    scores, depths, answers
        By prompt: from 0 to 1, where what it asks for is (None: nowhere), and the text.
    filled, selected
        Rows, means.
    prompts, hits, accuracy
        Hits have all values.
    score, by_depth
        The mean, and hits by depth.
    difference, mcnemar_p
        Against exact: of scores in points, and for the hits.
    false_answers, false_rate, false_difference, false_mcnemar_p
        Where nothing can be found: by prompt whether a value was named all the same, the share, and as above.
    """

    scores: tuple[float, ...]
    depths: tuple[float | None, ...]
    answers: tuple[str, ...]
    filled: float
    selected: float
    prompts: int
    hits: int
    accuracy: Interval
    score: Interval
    by_depth: tuple[DepthShare, ...]
    difference: Interval | None = None
    mcnemar_p: float | None = None
    false_answers: tuple[bool, ...] | None = None
    false_rate: Interval | None = None
    false_difference: Interval | None = None
    false_mcnemar_p: float | None = None


@dataclass(frozen=True)
class GroupLoss:
    """Losses on one group of tokens, means over tokens in nats; intervals resample texts.

    Attributes
    ----------
    group
        One of `far_loss.GROUPS`.
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


@dataclass(frozen=True)
class FarLosses:
    """Losses on the tails of texts: far-loss, splice.

    Attributes
    ----------
    exact, removed
        Of the exact model: by text, the loss of each scored token with and without far context.
    groups
        Of others: by group of tokens, groups without a token left out.
    losses, share
        Of splices: by text, the loss of each token; by group, the share of the gap between exact and filled that the
        splice closes, or opens.
    """

    exact: tuple[tuple[float, ...], ...] | None = None
    removed: tuple[tuple[float, ...], ...] | None = None
    groups: dict[str, GroupLoss] | None = None
    losses: tuple[tuple[float, ...], ...] | None = None
    share: dict[str, Interval] | None = None


@dataclass(frozen=True)
class Perplexity:
    """Perplexity of scored rows: mean loss of each text and of all in nats; `difference` and `relative` from exact."""

    losses: tuple[float, ...]
    tokens: int
    loss: float
    perplexity: Interval
    difference: Interval | None = None
    relative: Interval | None = None


@dataclass(frozen=True)
class Agreement:
    """Rows compared with exact: KL divergence in nats, its 99th percentile, share with the same most probable token."""

    rows: int
    kl: Interval
    kl_99: float
    top1: Interval


@dataclass(frozen=True)
class Divergence:
    """Loss and perplexity of tails; against exact the agreement on them, and on the exact model's continuation."""

    loss: float
    perplexity: float
    tail: Agreement | None = None
    generated: Agreement | None = None


@dataclass(frozen=True)
class Choices:
    """Multiple choice: longbench.

    Attributes
    ----------
    ids, chosen, right, dropped, filled
        By prompt: the record, the letter, whether it is right, tokens cut out of the text, rows filled.
    prompts, hits, accuracy
        Right ones, with a Wilson interval.
    groups
        The same by difficulty, length and domain.
    difference, mcnemar_p, same_choice
        Against exact: in points, and the share of equal letters.
    """

    ids: tuple[str, ...]
    chosen: tuple[str, ...]
    right: tuple[bool, ...]
    dropped: tuple[int, ...]
    filled: tuple[int, ...]
    prompts: int
    hits: int
    accuracy: Interval
    groups: dict[str, dict[str, Share]]
    difference: Interval | None = None
    mcnemar_p: float | None = None
    same_choice: Interval | None = None


@dataclass(frozen=True)
class Speed:
    """Time to first token: ttft.

    Attributes
    ----------
    ratio, ratios
        How many times faster it comes filled: the median over pairs, and each pair.
    selection_overhead
        Share of a filled run that selection takes beside the selected rows; None where nothing selects.
    n_filled, n_selected
        Rows of the filled run.
    seconds
        By way, each run: `exact` and `fill`; `plain` without selection, and `empty` with a selection of no rows, where
        these were run.
    filled_seconds
        Of each `plain` run, or `fill` run where nothing selects, the part in which rows were filled; empty where a
        device may work on while the program goes on.
    bound
        How many times more multiply-adds an exact prompt is than a filled one; None where they cannot be counted.
    cached
        Prompt tokens that were not run: 0, or the run ends with an error; None in lines of earlier releases.
    """

    ratio: float
    ratios: tuple[float, ...]
    selection_overhead: float | None
    n_filled: int
    n_selected: int
    seconds: dict[str, tuple[float, ...]]
    filled_seconds: tuple[float, ...] = ()
    bound: float | None = None
    cached: int | None = None


RESULTS: dict[str, type] = {
    "needle": Scores,
    "ruler": Scores,
    "far-loss": FarLosses,
    "perplexity": Perplexity,
    "kld": Divergence,
    "longbench": Choices,
    "splice": FarLosses,
    "splice-needle": Scores,
    "ttft": Speed,
}

# notes of `tune`: retrieval heads that were found, maps that were made
NOTES = ("heads", "maps")


def results_schema() -> dict[str, Any]:
    """The JSON schema of a line."""
    definitions: dict[str, Any] = {}
    cell = schema(Cell, definitions)
    found = [
        {
            "if": {"properties": {"cell": {"properties": {"task": {"const": task}}}}},
            "then": {"properties": {"result": schema(kind, definitions)}},
        }
        for task, kind in RESULTS.items()
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "results.schema.json",
        "title": "A line of results of pyridgefill eval, bench and tune",
        "type": "object",
        "required": ["cell", "result", "info"],
        "additionalProperties": False,
        "properties": {
            "cell": {
                **cell,
                "description": "all that the result depends on",
                "properties": {"task": {"enum": [*RESULTS, *NOTES]}},
            },
            "result": {"type": "object"},
            "info": {"type": "object", "description": "does not tell cells apart"},
        },
        "allOf": found,
        "$defs": definitions,
    }
