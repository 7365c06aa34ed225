"""The card of a maps file: what is in it, and what evaluations measured with it, as markdown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from pyridgefill.evaluation.run.found import Cell, Divergence, FarLosses, Scores, Speed
from pyridgefill.evaluation.run.results import SETTING, Record
from pyridgefill.files import digest
from pyridgefill.maps import MapSet, read_maps
from pyridgefill.words import percent, selected, size

_RECALL = (
    "Recall is the share of a needle's rows that the head finds, on needles of kinds that it was not chosen by.\n"
    "Heads are chosen by what they find together: needles, and passages that the end of a text repeats; "
    "a head that finds no needles is there for these."
)

_WAYS = ("exact", "fill", "identity", "mean", "zero", "drop", "neutral-filler")

Row = Sequence[str]
T = TypeVar("T")


def make_card(path: Path, records: Iterable[Record], title: str) -> str:
    """Describe a maps file.

    Parameters
    ----------
    path
        The maps file.
    records
        Results of `pyridgefill eval` and `bench`; those of other maps files are left out.
    title
        What the card is headed by, such as the model's name.

    Returns
    -------
    str
        Markdown.
    """
    maps = read_maps(path)
    found = measured(records, digest(path))
    parts = [f"# Maps for {title}", _contents(path, maps), _settings(maps), _fit(maps)]
    parts += [text for make in (_needles, _far_loss, _splices, _divergence, _speed) if (text := make(found))]
    parts.append(_commands(found))
    return "\n\n".join(part for part in parts if part) + "\n"


def measured(records: Iterable[Record], maps: str) -> list[Record]:
    """The results that were made with one maps file, and the exact ones of the same prompts."""
    everything = list(records)
    own = [record for record in everything if record.cell.get("maps") == maps]
    places = {_place(record) for record in own}
    exact = [record for record in everything if record.cell.get("variant") == "exact" and _place(record) in places]
    return [*exact, *own]


def table(head: Row, rows: Iterable[Row]) -> str:
    """A markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _place(record: Record) -> str:
    return json.dumps({key: value for key, value in record.cell.items() if key not in SETTING}, sort_keys=True)


def _contents(path: Path, maps: MapSet) -> str:
    base, calibration = maps.base, maps.calibration
    splits = ", ".join(
        f"{split.layer} of {base.block_count} (target {split.target}, rank {split.rank or 'full'})"
        for split in maps.splits
    )
    types = sorted({item.weight_type or "" for item in maps.maps})
    rows = [
        ("file", f"`{path.name}`, {size(path.stat().st_size)}, weights {', '.join(types)}"),
        ("model", f"{base.architecture}, {base.block_count} layers, width {base.embedding_length}"),
        ("fingerprint", f"vocabulary `{base.vocab_hash}`, weights `{base.weights_hash}`"),
        ("splits", splits),
        ("features", maps.feature_norm),
        ("calibration", f"{calibration.tokens} rows of {', '.join(calibration.corpora) or 'no text'}"),
    ]
    return table(("", ""), rows)


def _settings(maps: MapSet) -> str:
    best = maps.recommended
    rows = [
        (name, str(value))
        for name in ("split", "select", "budget", "tail", "sink", "min_prompt")
        if (value := getattr(best, name)) is not None
    ]
    heads = [
        (str(head.split), f"{head.layer}.{head.head}", " / ".join(f"{value:.2f}" for value in head.recall))
        for head in maps.heads
    ]
    text = "## Recommended settings\n\n" + table(("setting", "value"), rows)
    if best.split is None:
        text += (
            f"\n\nNo setting is known to be as good as exact: used at split {maps.defaults().split}, without selection."
        )
    if not heads:
        return text
    found = table(("split", "retrieval head", "recall at 2, 5 and 10 %"), heads)
    return f"{text}\n\n{found}\n\n{_RECALL}"


def _fit(maps: MapSet) -> str:
    rows = []
    for split in maps.splits:
        for site in dict.fromkeys(item.site for item in maps.maps if item.split == split.layer):
            values = [item.r2 for item in maps.maps if (item.split, item.site) == (split.layer, site)]
            rows.append((str(split.layer), site, f"{max(values):.3f}", f"{median(values):.3f}", f"{min(values):.3f}"))
    return "## R² on held-out text\n\n" + table(("split", "value", "best layer", "median", "worst layer"), rows)


def _rows(records: Sequence[Record], task: str, kind: type[T], cells: Callable[[Cell, T], Iterator[Row]]) -> list[Row]:
    chosen = [(record.about, record.found(kind)) for record in records if record.cell["task"] == task]
    chosen.sort(key=lambda item: (item[0].ctx, item[0].kind, _order(item[0])))
    return [row for cell, found in chosen for row in cells(cell, found)]


def _order(cell: Cell) -> tuple[Any, ...]:
    setting = -1 if cell.split is None else cell.split, cell.select, cell.budget
    place = _WAYS.index(cell.variant) if cell.variant in _WAYS else len(_WAYS)
    return (cell.variant != "exact", *setting, place)


def _way(cell: Cell) -> tuple[str, str]:
    """Way and setting, as a table shows them."""
    if cell.variant == "exact":
        return "exact", ""
    chosen = selected(cell.budget if cell.select == "attention" else 0)
    return "ridge" if cell.variant == "fill" else cell.variant, f"{cell.split}, {chosen}"


def _needles(records: Sequence[Record]) -> str:
    def cells(cell: Cell, found: Scores) -> Iterator[Row]:
        kind = ", ".join(name for name in (cell.kind, cell.group) if name)
        change = "" if found.difference is None else found.difference.show("+.0f")
        hits = f"{found.hits} of {found.prompts}"
        yield str(cell.ctx), str(cell.tail), kind, *_way(cell), hits, found.accuracy.percent(), change

    head = ("tokens", "tail", "kind", "memory", "split, selected", "found", "%", "against exact, points")
    rows = _rows(records, "needle", Scores, cells)
    return "## Needles in the filled rows\n\n" + table(head, rows) if rows else ""


def _far_loss(records: Sequence[Record]) -> str:
    def cells(cell: Cell, found: FarLosses) -> Iterator[Row]:
        groups = found.groups
        if groups is None:
            return
        changes = [
            groups[name].relative.percent("+.1f") if name in groups else "" for name in ("far", "far_for_both", "all")
        ]
        far = groups.get("far")
        losses = ["0", "", ""] if far is None else [str(far.tokens), f"{far.exact:.3f}", f"{far.fill:.3f}"]
        yield str(cell.ctx), str(cell.tail), *_way(cell), *losses, *changes

    head = (
        "tokens", "tail", "memory", "split, selected", "far tokens", "exact", "loss", "far, %", "far for both, %",
        "tail, %",
    )  # fmt: skip
    rows = _rows(records, "far-loss", FarLosses, cells)
    return "## Loss on far tokens\n\n" + table(head, rows) if rows else ""


def _divergence(records: Sequence[Record]) -> str:
    def cells(cell: Cell, found: Divergence) -> Iterator[Row]:
        for name, part in (("tail", found.tail), ("generated", found.generated)):
            if part is not None:
                numbers = part.kl.show(".4f"), percent(part.top1.value)
                yield str(cell.ctx), *_way(cell), name, str(part.rows), *numbers

    head = ("tokens", "memory", "split, selected", "rows of", "n", "KL, nats", "same top token")
    rows = _rows(records, "kld", Divergence, cells)
    return "## Divergence from exact\n\n" + table(head, rows) if rows else ""


def _splices(records: Sequence[Record]) -> str:
    """What exact parts of the memory recover, and what filled ones cause."""
    hits = {
        (cell.ctx, cell.splice): str(record.found(Scores).hits)
        for record in records
        if record.cell["task"] == "splice-needle" and (cell := record.about).splice is not None
    }

    def cells(cell: Cell, found: FarLosses) -> Iterator[Row]:
        splice, share = cell.splice, found.share or {}
        if splice is None or cell.variant != "fill":
            return
        shares = [share[name].percent() if name in share else "" for name in ("all", "far")]
        direction = "exact into filled" if splice.into == "fill" else "filled into exact"
        layers = "-".join(map(str, splice.layers))
        place = str(cell.ctx), str(cell.split), direction, "+".join(splice.components), layers
        yield *place, *shares, hits.get((cell.ctx, splice), "")

    rows = _rows(records, "splice", FarLosses, cells)
    head = ("tokens", "split", "spliced", "part", "layers", "share of the loss, %", "on far tokens, %", "needles")
    return "## Where exact and filled memory differ\n\n" + table(head, rows) if rows else ""


def _speed(records: Sequence[Record]) -> str:
    def cells(cell: Cell, found: Speed) -> Iterator[Row]:
        ratios = ", ".join(f"{ratio:.2f}" for ratio in found.ratios)
        yield str(cell.ctx), str(cell.tail), _way(cell)[1], f"{found.ratio:.2f}", ratios

    rows = _rows(records, "ttft", Speed, cells)
    head = ("tokens", "tail", "split, selected", "times faster", "pairs")
    return "## Time to first token\n\n" + table(head, rows) if rows else ""


def _commands(records: Sequence[Record]) -> str:
    """What was run, and on which machines."""
    commands = dict.fromkeys(record.info["command"] for record in records if "command" in record.info)
    machines = dict.fromkeys(
        f"{machine['cpu']}, {machine['threads']} threads"
        for record in records
        if (machine := record.info.get("machine"))
    )
    if not commands:
        return ""
    listed = "\n".join(commands)
    return f"## How it was measured\n\nMachine: {'; '.join(machines)}.\nIntervals are for 95 %.\n\n```\n{listed}\n```"
