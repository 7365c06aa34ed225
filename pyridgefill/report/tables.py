"""The tables of a page, from a document, as words."""

from __future__ import annotations

from typing import Any

from pyridgefill.tuning.contents import Contents
from pyridgefill.words import maps_words, percent, signed_percent, times


def command(document: Contents) -> str:
    """The server's command, an option on each line."""
    return document.recommended.command.replace(" --", " \\\n  --")


def headline(document: Contents) -> list[tuple[str, str, str]]:
    """The recommended setting in numbers: label, value, and a note."""
    best, ctx = document.best, document.longest
    found, timing = best.at(ctx), best.at(ctx).ttft
    needles, all_needles = found.needles, document.exact(best.tail).at(ctx).needles
    assert timing is not None
    assert found.losses is not None
    assert found.top1 is not None
    assert found.kl is not None
    rows = [
        ("First token, times faster", times(timing.ratio), f"{timing.low:.2f} to {timing.high:.2f}"),
        (
            "Needles found",
            f"{needles.hits} of {needles.prompts}",
            f"exact {all_needles.hits} of {all_needles.prompts}",
        ),
        ("Loss on the tail", signed_percent(found.losses["all"].relative.value), "all scored tokens"),
    ]
    if (far := found.far) is not None:
        rows.append(("Loss on far tokens", signed_percent(far.relative.value), f"{far.tokens} tokens"))
    rows.append(("Same top token", percent(found.top1.value), f"KL {found.kl.value:.3f} nats"))
    return rows


def table(document: Contents) -> list[dict[str, Any]]:
    """All settings and lengths, a row for each."""
    rows = []
    best = document.best
    for point in document.points:
        for numbers in point.lengths:
            far, every = numbers.far, (numbers.losses or {}).get("all")
            rows.append({
                "best": point is best,
                "what": point.variant if point.role in ("exact", "baseline") else "ridge",
                "split": "" if point.split is None else point.split,
                "selected": "" if point.budget is None else f"{100 * point.budget:g} %",
                "tail": point.tail,
                "maps": maps_words(point) if point.target else "",
                "ctx": numbers.ctx,
                "ttft": numbers.ttft.interval.show(".2f") if numbers.ttft else "",
                "needles": f"{numbers.needles.hits}/{numbers.needles.prompts}",
                "needle_interval": f"{percent(numbers.needles.low)} to {percent(numbers.needles.high)}",
                "loss": f"{numbers.loss:.3f}",
                "every": every.relative.show("+.1f", 100) if every else "",
                "far": far.relative.show("+.1f", 100) if far else "",
                "kl": numbers.kl.show(".4f") if numbers.kl else "",
                "top1": percent(numbers.top1.value) if numbers.top1 else "",
                "faults": None if point.faults is None else "; ".join(point.faults),
            })  # fmt: skip
    return rows


def variations(document: Contents) -> list[dict[str, Any]]:
    """Other maps at the setting that the sweep found, and its own."""
    ctx = document.longest
    others = [point for point in document.points if point.role in ("target", "rank", "type")]
    if not others:
        return []
    own = next(point for point in document.points if point.role == "sweep" and point.same(others[0]))
    files = {maps.file: maps for maps in document.maps}
    rows = []
    for point in [own, *others]:
        numbers = point.at(ctx)
        maps = files[point.maps or ""]
        assert numbers.losses is not None
        assert numbers.ttft is not None
        assert numbers.kl is not None
        # of a file with several splits, by the number of maps: a lower split has more
        share = sum(item.split == point.split for item in maps.r2) / len(maps.r2)
        rows.append({
            "maps": maps_words(point),
            "megabytes": f"{share * maps.bytes / 1e6:.1f}",
            "parameters": f"{share * maps.parameters / 1e6:.1f}",
            "ttft": numbers.ttft.interval.show(".2f"),
            "needles": f"{numbers.needles.hits} of {numbers.needles.prompts}",
            "far": numbers.far.relative.show("+.1f", 100) if numbers.far else "",
            "every": numbers.losses["all"].relative.show("+.1f", 100),
            "kl": numbers.kl.show(".4f"),
        })  # fmt: skip
    return rows
