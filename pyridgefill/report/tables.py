"""The tables of a page, from a document, as words."""

from __future__ import annotations

from typing import Any

from pyridgefill.report.points import at, recommended, same, scaled
from pyridgefill.words import interval, maps_words, percent, signed_percent, times

Document = dict[str, Any]


def command(document: Document) -> str:
    """The server's command, an option on each line."""
    return str(document["recommended"]["command"]).replace(" --", " \\\n  --")


def headline(document: Document) -> list[tuple[str, str, str]]:
    """The recommended setting in numbers: label, value, and a note."""
    best, settings = recommended(document), document["settings"]
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
    best = recommended(document)
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
    files = {maps["file"]: maps for maps in document["maps"]}
    rows = []
    for point in [own, *others]:
        numbers = at(point, ctx)
        losses = numbers["losses"]
        maps = files[point["maps"]]
        # of a file with several splits, by the number of maps: a lower split has more
        share = sum(item["split"] == point["split"] for item in maps["r2"]) / len(maps["r2"])
        rows.append({
            "maps": maps_words(point),
            "megabytes": f"{share * maps['bytes'] / 1e6:.1f}",
            "parameters": f"{share * maps['parameters'] / 1e6:.1f}",
            "ttft": interval(numbers["ttft"], ".2f", key="ratio"),
            "needles": f"{numbers['needles']['hits']} of {numbers['needles']['prompts']}",
            "far": interval(scaled(losses["far"]["relative"], 100), "+.1f") if "far" in losses else "",
            "every": interval(scaled(losses["all"]["relative"], 100), "+.1f"),
            "kl": interval(numbers["kl"], ".4f"),
        })  # fmt: skip
    return rows
