"""What a page shows of a document: figures, tables and the sentences between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyridgefill.report import figures
from pyridgefill.report.figures import Figure
from pyridgefill.report.words import describe, interval, maps_words, percent, signed_percent, times

Document = dict[str, Any]
Point = dict[str, Any]


def frontier(document: Document) -> dict[str, Any]:
    """Quality against time to first token at the longest prompts: the names of the series and a figure by measure."""
    ctx = max(document["settings"]["ctx"])
    best = _best(document)
    sweep = [point for point in document["points"] if point["role"] == "sweep"]
    keys = list(dict.fromkeys((point["tail"], point["budget"]) for point in sweep))
    several_tails = len({tail for tail, _ in keys}) > 1
    names = [
        (f"{100 * budget:g} % selected" if budget else "nothing selected") + (f", tail {tail}" if several_tails else "")
        for tail, budget in keys
    ]
    exact = {point["tail"]: at(point, ctx) for point in document["points"] if point["role"] == "exact"}
    first = exact[keys[0][0]]

    def series(measure: Any) -> list[list[Point]]:
        families = []
        for key in keys:
            family = [point for point in sweep if (point["tail"], point["budget"]) == key]
            families.append([
                {
                    "label": str(point["split"]),
                    "x": _ratio(at(point, ctx)),
                    "y": value,
                    "hover": f"{describe(point)}: {times(at(point, ctx)['ttft']['ratio'])} sooner",
                    "good": not point["faults"],
                    "best": point is best,
                }
                for point in family
                if (value := measure(at(point, ctx))) is not None
            ])  # fmt: skip
        return families

    zero = {"value": 0.0, "low": 0.0, "high": 0.0}
    shown = [
        figures.frontier(
            "frontier-needles", "Needles found", "% of needles", series(lambda n: scaled(n["needles"], 100)),
            scaled(first["needles"], 100), rising=False,
        ),
        figures.frontier(
            "frontier-far", "Loss on far tokens", "% above exact", series(lambda n: _loss(n, "far")), zero, rising=True,
        ),
        figures.frontier(
            "frontier-kl", "KL divergence from exact on the tail", "nats", series(lambda n: n["kl"]), zero, rising=True,
        ),
    ]  # fmt: skip
    return {"ctx": ctx, "series": names, "figures": shown}


def depths(document: Document) -> list[Figure]:
    """Needles found by depth and length: exact, and with the recommended setting."""
    best = _best(document)
    exact = next(point for point in document["points"] if point["role"] == "exact" and point["tail"] == best["tail"])
    columns = sorted({item["depth"] for point in (exact, best) for item in _all_depths(point)})
    made = []
    for name, title, point in (("depth-exact", "Exact", exact), ("depth-fill", "Filled, as recommended", best)):
        cells = [{item["depth"]: item for item in length["depths"]} for length in point["lengths"]]
        values = [[row[depth]["value"] if depth in row else None for depth in columns] for row in cells]
        texts = [
            [f"{row[depth]['hits']}/{row[depth]['prompts']}" if depth in row else "" for depth in columns]
            for row in cells
        ]
        rows = [str(length["ctx"]) for length in point["lengths"]]
        names = [f"{100 * depth:.0f} %" for depth in columns]
        made.append(
            figures.heat(name, title, names, rows, values, texts=texts, x_title="depth", y_title="tokens", percent=True)
        )
    return made


def baselines(document: Document) -> list[Figure]:
    """The maps beside what they must beat, at the longest prompts."""
    ctx = max(document["settings"]["ctx"])
    best = _best(document)
    reference = next((point for point in document["points"] if point["role"] == "baseline"), None)
    if reference is None:
        return []
    ridge = next(
        point
        for point in document["points"]
        if point["role"] == "sweep" and same(point, reference)
    )  # fmt: skip
    exact = next(point for point in document["points"] if point["role"] == "exact" and point["tail"] == best["tail"])
    others = [point for point in document["points"] if point["role"] == "baseline"]
    named = [("exact", exact), ("ridge", ridge), *((point["variant"], point) for point in others)]

    zero = {"value": 0.0, "low": 0.0, "high": 0.0}

    def rows(measure: Any, form: Any) -> list[Point]:
        return [
            {"name": name, "value": value, "label": form(value), "ours": name == "ridge"}
            for name, point in named
            if (value := measure(at(point, ctx)) or (zero if point is exact else None)) is not None
        ]

    return [
        figures.dots(
            "baseline-needles", "Needles found", "%", rows(lambda n: scaled(n["needles"], 100),
            lambda v: f"{v['value']:.0f} %"),
        ),
        figures.dots(
            "baseline-far", "Loss on far tokens, above exact", "%",
            rows(lambda n: _loss(n, "far"), lambda v: f"{v['value']:+.1f} %"),
        ),
        figures.dots(
            "baseline-kl", "KL divergence from exact on the tail", "nats",
            rows(lambda n: n.get("kl"), lambda v: f"{v['value']:.3f}"),
        ),
    ]  # fmt: skip


def breakdown(document: Document) -> Figure:
    """Seconds of an exact and of a filled prompt, by what they are spent on."""
    bars: list[tuple[str, dict[str, float]]] = []
    for item in document["breakdown"]:
        bars.append((f"exact, {item['ctx']}", {"exact prefill": item["exact"]}))
        bars.append((f"filled, {item['ctx']}", item["parts"]))
    return figures.stacked("breakdown", "Time to first token by part", "seconds", bars, "s")


def r_squared(document: Document) -> list[Figure]:
    """R² on held-out text, for each kind of map that was fitted."""
    made = []
    kinds = {(maps["target"], maps["rank"]): maps for maps in reversed(document["maps"])}
    for (target, rank), maps in reversed(kinds.items()):
        values = {(item["split"], item["site"], item["layer"]): item["r2"] for item in maps["r2"]}
        layers = sorted({layer for *_, layer in values})
        pairs = sorted({(split, site) for split, site, _ in values})
        rows = [f"{split} {'' if site == 'input' else site.removeprefix('attn_')}".strip() for split, site in pairs]
        grid = [[values.get((split, site, layer)) for layer in layers] for split, site in pairs]
        known = [value for row in grid for value in row if value is not None]
        low = min(0.0, *known) if min(known) < 0 else int(10 * min(known)) / 10
        title = f"Target {target}{f', rank {rank}' if rank else ''}"
        name = f"r2-{target}-{rank}"
        made.append(
            figures.heat(
                name, title, [str(layer) for layer in layers], rows, grid, x_title="layer", y_title="split", low=low
            )
        )
    return made


def splices(document: Document) -> list[Figure]:
    """Which parts of the filled cache carry the error, at the longest prompts that splices were made at."""
    found = document.get("splices", [])
    made = []
    longest = max((item["ctx"] for item in found), default=0)
    for into, title, axis in (
        ("fill", "Exact parts in the filled cache", "% of the loss that the fill adds, recovered"),
        ("exact", "Filled parts in the exact cache", "% of the loss that the fill adds, caused"),
    ):
        items = [item for item in found if item["into"] == into and item["ctx"] == longest]
        if items:
            rows = [f"{' + '.join(item['components'])}, {_layers(item['layers'])}" for item in items]
            shares = {"all tokens of the tail": "all", "far tokens": "far"}
            series = {
                label: [scaled(item["share"][key], 100) if item["share"].get(key) else None for item in items]
                for label, key in shares.items()
            }
            made.append(figures.grouped(f"splice-{into}", title, axis, rows, series))
    return made


def command(document: Document) -> str:
    """The server's command, an option on each line."""
    return str(document["recommended"]["command"]).replace(" --", " \\\n  --")


def headline(document: Document) -> list[tuple[str, str, str]]:
    """The recommended setting in numbers: label, value, and a note."""
    best, settings = _best(document), document["settings"]
    ctx = max(settings["ctx"])
    exact = next(point for point in document["points"] if point["role"] == "exact" and point["tail"] == best["tail"])
    found, reference = at(best, ctx), at(exact, ctx)
    timing = found["ttft"]
    needles, all_needles = found["needles"], reference["needles"]
    rows = [
        ("First token sooner", times(timing["ratio"]), f"{timing['low']:.2f} to {timing['high']:.2f}"),
        (
            "Needles found",
            f"{needles['hits']} of {needles['prompts']}",
            f"exact {all_needles['hits']} of {all_needles['prompts']}",
        ),
        ("Loss on the tail", signed_percent(found["losses"]["all"]["relative"]["value"]), "all scored tokens"),
    ]
    if "far" in found["losses"]:
        far = found["losses"]["far"]
        rows.append(("Loss on far tokens", signed_percent(far["relative"]["value"]), f"{far['tokens']} tokens"))
    rows.append(("Same top token", percent(found["top1"]["value"]), f"KL {found['kl']['value']:.3f} nats"))
    return rows


def table(document: Document) -> list[dict[str, Any]]:
    """All settings and lengths, a row for each."""
    rows = []
    best = _best(document)
    for point in document["points"]:
        for numbers in point["lengths"]:
            losses = numbers.get("losses", {})
            far, every = losses.get("far"), losses.get("all")
            rows.append({
                "best": point is best,
                "what": point["variant"] if point["role"] in ("exact", "baseline") else "ridge",
                "split": point.get("split", ""),
                "selected": f"{100 * point['budget']:g} %" if "budget" in point else "",
                "tail": point["tail"],
                "maps": maps_words(point) if "target" in point else "",
                "ctx": numbers["ctx"],
                "ttft": interval(numbers["ttft"], ".2f", key="ratio") if "ttft" in numbers else "",
                "needles": f"{numbers['needles']['hits']}/{numbers['needles']['prompts']}",
                "needle_interval": f"{percent(numbers['needles']['low'])} to {percent(numbers['needles']['high'])}",
                "loss": f"{numbers['loss']:.3f}",
                "every": interval(scaled(every["relative"], 100), "+.1f") if every else "",
                "far": interval(scaled(far["relative"], 100), "+.1f") if far else "",
                "kl": interval(numbers["kl"], ".4f") if "kl" in numbers else "",
                "top1": percent(numbers["top1"]["value"]) if "top1" in numbers else "",
                "faults": "; ".join(point["faults"]) if "faults" in point else None,
            })  # fmt: skip
    return rows


def variations(document: Document) -> list[dict[str, Any]]:
    """Other maps at the setting that the sweep found, and its own."""
    ctx = max(document["settings"]["ctx"])
    others = [point for point in document["points"] if point["role"] in ("target", "rank", "type")]
    if not others:
        return []
    own = next(point for point in document["points"] if point["role"] == "sweep" and same(point, others[0]))
    sizes = {maps["file"]: maps["parameters"] for maps in document["maps"]}
    splits = {maps["file"]: len({item["split"] for item in maps["r2"]}) for maps in document["maps"]}
    files = {maps["file"]: maps["bytes"] for maps in document["maps"]}
    rows = []
    for point in [own, *others]:
        numbers = at(point, ctx)
        losses = numbers["losses"]
        rows.append({
            "maps": maps_words(point),
            "megabytes": f"{files[point['maps']] / splits[point['maps']] / 1e6:.1f}",
            "parameters": f"{sizes[point['maps']] / splits[point['maps']] / 1e6:.1f}",
            "ttft": interval(numbers["ttft"], ".2f", key="ratio"),
            "needles": f"{numbers['needles']['hits']} of {numbers['needles']['prompts']}",
            "far": interval(scaled(losses["far"]["relative"], 100), "+.1f") if "far" in losses else "",
            "every": interval(scaled(losses["all"]["relative"], 100), "+.1f"),
            "kl": interval(numbers["kl"], ".4f"),
        })  # fmt: skip
    return rows


def at(point: Point, ctx: int) -> dict[str, Any]:
    """The numbers of a setting at one length."""
    return dict(next(item for item in point["lengths"] if item["ctx"] == ctx))


def same(point: Point, other: Point) -> bool:
    """Whether two settings agree in split, tail and budget."""
    return all(point[key] == other[key] for key in ("split", "tail", "budget"))


def scaled(value: dict[str, Any], factor: float) -> dict[str, Any]:
    """An interval in another unit."""
    return {key: None if value[key] is None else factor * value[key] for key in ("value", "low", "high")}


def _best(document: Document) -> Point:
    found: Point = document["points"][document["recommended"]["point"]]
    return found


def _all_depths(point: Point) -> Iterable[dict[str, Any]]:
    return (item for length in point["lengths"] for item in length["depths"])


def _ratio(numbers: dict[str, Any]) -> dict[str, Any]:
    timing = numbers["ttft"]
    return {"value": timing["ratio"], "low": timing["low"], "high": timing["high"]}


def _loss(numbers: dict[str, Any], group: str) -> dict[str, Any] | None:
    found = numbers.get("losses", {}).get(group)
    return None if found is None else scaled(found["relative"], 100)


def _layers(span: list[int]) -> str:
    first, last = span
    return f"layer {first}" if first == last else f"layers {first} to {last}"
