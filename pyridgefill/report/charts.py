"""The figures of a page, from a document."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pyridgefill.evaluation.intervals import Interval
from pyridgefill.report import figures
from pyridgefill.report.figures import Dot, Figure, Mark
from pyridgefill.tuning.contents import AtLength, Contents, HitsAtDepth, Row
from pyridgefill.words import describe, selected, times

Measure = Callable[[AtLength], Interval | None]

_ZERO = Interval(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Frontier:
    """The names of the series, and a figure for each measure, at one length."""

    ctx: int
    series: list[str]
    figures: list[Figure]


def frontier(document: Contents) -> Frontier:
    """Quality against time to first token at the longest prompts: the names of the series and a figure by measure."""
    ctx = document.longest
    best = document.best
    sweep = [point for point in document.points if point.role == "sweep"]
    keys = list(dict.fromkeys((point.tail, point.budget or 0.0) for point in sweep))
    several_tails = len({tail for tail, _ in keys}) > 1
    names = [selected(budget) + (f", tail {tail}" if several_tails else "") for tail, budget in keys]
    exact = document.exact(keys[0][0]).at(ctx)

    def series(measure: Measure) -> list[list[Mark]]:
        families = []
        for key in keys:
            family = [point for point in sweep if (point.tail, point.budget or 0.0) == key]
            families.append([
                Mark(
                    label=str(point.split),
                    x=timing.interval,
                    y=value,
                    hover=f"{describe(point)}: {times(timing.ratio)} faster",
                    good=not point.faults,
                    best=point is best,
                )
                for point in family
                if (value := measure(point.at(ctx))) is not None and (timing := point.at(ctx).ttft) is not None
            ])  # fmt: skip
        return families

    measures: list[tuple[str, str, str, Measure, Interval, bool]] = [
        ("needles", "Needles found", "% of needles", _needles, _needles(exact), False),
        ("far", "Loss on far tokens", "% above exact", _far, _ZERO, True),
        ("kl", "KL divergence from exact on the tail", "nats", _kl, _ZERO, True),
    ]
    shown = [
        figures.frontier(f"frontier-{name}", title, axis, families, band, rising=rising)
        for name, title, axis, measure, band, rising in measures
        if any(families := series(measure))
    ]
    return Frontier(ctx, names, shown)


def depths(document: Contents) -> list[Figure]:
    """Needles found by depth and length: exact, and with the recommended setting."""
    best = document.best
    exact = document.exact(best.tail)
    columns = sorted({item.depth for point in (exact, best) for item in _all_depths(point)})
    made = []
    for name, title, point in (("depth-exact", "Exact", exact), ("depth-fill", "Filled, as recommended", best)):
        cells = [{item.depth: item for item in length.depths} for length in point.lengths]
        values = [[row[depth].value if depth in row else None for depth in columns] for row in cells]
        texts = [
            [f"{row[depth].hits}/{row[depth].prompts}" if depth in row else "" for depth in columns] for row in cells
        ]
        rows = [str(length.ctx) for length in point.lengths]
        names = [f"{100 * depth:.0f} %" for depth in columns]
        made.append(
            figures.heat(name, title, names, rows, values, texts=texts, x_title="depth", y_title="tokens", percent=True)
        )
    return made


def baselines(document: Contents) -> list[Figure]:
    """The maps beside what they must beat, at the longest prompts."""
    ctx = document.longest
    others = [point for point in document.points if point.role == "baseline"]
    if not others:
        return []
    exact = document.exact(others[0].tail)
    ridge = next(point for point in document.points if point.role == "sweep" and point.same(others[0]))
    named = [("exact", exact), ("ridge", ridge), *((point.variant, point) for point in others)]
    made = []
    for key, title, axis, measure, form in (
        ("needles", "Needles found", "%", _needles, ".0f"),
        ("far", "Loss on far tokens, above exact", "%", _far, "+.1f"),
        ("kl", "KL divergence from exact on the tail", "nats", _kl, ".3f"),
    ):
        unit = " %" if axis == "%" else ""
        rows = [
            Dot(name, value, f"{value.value:{form}}{unit}", name == "ridge")
            for name, point in named
            if (value := measure(point.at(ctx)) or (_ZERO if point is exact else None)) is not None
        ]
        if len(rows) > 1:
            made.append(figures.dots(f"baseline-{key}", title, axis, rows))
    return made


def breakdown(document: Contents) -> Figure:
    """Seconds of an exact and of a filled prompt, by what they are spent on."""
    bars: list[tuple[str, dict[str, float]]] = []
    for item in document.breakdown:
        bars.append((f"exact, {item.ctx}", {"exact prefill": item.exact}))
        bars.append((f"filled, {item.ctx}", item.parts))
    return figures.stacked("breakdown", "Time to first token by part", "seconds", bars, "s")


def r_squared(document: Contents) -> list[Figure]:
    """R² on held-out text, for each kind of map that was fitted."""
    made = []
    kinds = {(maps.target, maps.rank): maps for maps in reversed(document.maps)}
    for (target, rank), maps in reversed(kinds.items()):
        values = {(item.split, item.site, item.layer): item.r2 for item in maps.r2 if not math.isnan(item.r2)}
        layers = sorted({layer for *_, layer in values})
        pairs = sorted({(split, site) for split, site, _ in values})
        rows = [f"{split} {'' if site == 'input' else site.removeprefix('attn_')}".strip() for split, site in pairs]
        grid = [[values.get((split, site, layer)) for layer in layers] for split, site in pairs]
        known = [value for row in grid for value in row if value is not None]
        if not known:
            continue  # nothing was held out
        low = min(0.0, *known) if min(known) < 0 else int(10 * min(known)) / 10
        title = f"Target {target}{f', rank {rank}' if rank else ''}"
        name = f"r2-{target}-{rank}"
        made.append(
            figures.heat(
                name, title, [str(layer) for layer in layers], rows, grid, x_title="layer", y_title="split", low=low
            )
        )
    return made


def splices(document: Contents) -> list[Figure]:
    """Which parts of the filled cache carry the error, at the longest prompts that splices were made at."""
    found = document.splices
    made = []
    longest = max((item.ctx for item in found), default=0)
    for into, title, axis in (
        ("fill", "Exact parts in the filled cache", "% of the loss that the fill adds, recovered"),
        ("exact", "Filled parts in the exact cache", "% of the loss that the fill adds, caused"),
    ):
        items = [item for item in found if item.into == into and item.ctx == longest]
        if items:
            rows = [f"{' + '.join(item.components)}, {_layers(item.layers)}" for item in items]
            shares = {"all tokens of the tail": "all", "far tokens": "far"}
            series = {
                label: [item.share[key].scaled(100) if key in item.share else None for item in items]
                for label, key in shares.items()
            }
            made.append(figures.grouped(f"splice-{into}", title, axis, rows, series))
    return made


def _all_depths(point: Row) -> Iterable[HitsAtDepth]:
    return (item for length in point.lengths for item in length.depths)


def _needles(numbers: AtLength) -> Interval:
    return numbers.needles.interval.scaled(100)


def _far(numbers: AtLength) -> Interval | None:
    return None if numbers.far is None else numbers.far.relative.scaled(100)


def _kl(numbers: AtLength) -> Interval | None:
    return numbers.kl


def _layers(span: tuple[int, ...]) -> str:
    first, last = span
    return f"layer {first}" if first == last else f"layers {first} to {last}"
