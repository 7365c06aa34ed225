"""Write the headline and the tables of README.md and docs/results.md from the lines of benchmarks/results.

python scripts/results_tables.py           replaces what stands between the markers of each table
python scripts/results_tables.py --check   only says whether the pages and the lines agree
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

from result_lines import MODELS, ROOT, Line, Model, find, ratios, read_lines

PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md")
SELECTED = {"e7aad6b7cf76c0f8": {"split": 10, "budget": 0.1}, "bad8a3c4602d479c": {"split": 10, "budget": 0.2}}
LAYERS = {"e7aad6b7cf76c0f8": 24, "bad8a3c4602d479c": 30}
PLAIN = {"e7aad6b7cf76c0f8": 12, "bad8a3c4602d479c": 18}  # splits that were measured without selection
VARIANTS = {
    "exact": "exact",
    "fill": "**ridge maps**",
    "identity": "identity",
    "mean": "mean",
    "neutral-filler": "neutral filler",
    "drop": "drop",
    "zero": "zero",
}


def table(header: list[str], rows: list[list[str]]) -> str:
    """In markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def change(relative: dict[str, float]) -> str:
    """A relative change with its interval, in percent."""
    value, low, high = (100 * relative[key] for key in ("value", "low", "high"))
    return f"{value:+.1f} % ({low:+.1f} to {high:+.1f})"


def percent(relative: dict[str, float]) -> str:
    """The change alone."""
    return f"{100 * relative['value']:+.1f} %"


def hits(line: Line | None) -> str:
    """Needles that were found."""
    return f"{line.result['hits']} of {line.result['prompts']}" if line else "not measured"


def setting(model: Model) -> dict[str, Any]:
    """Of the runs with selected rows."""
    return {"model_digest": model.digest, "select": "attention", **SELECTED[model.digest]}


def lengths(lines: list[Line], model: Model) -> list[int]:
    """Prompts whose first token was timed."""
    return sorted({line.cell["ctx"] for line in lines if line.matches(task="ttft", through=None, **setting(model))})


def first_page(lines: list[Line]) -> str:
    """The README's table."""
    rows = []
    for model in MODELS:
        for ctx in lengths(lines, model):
            where = {"ctx": ctx, "tail": 512}
            loss = find(lines, task="far-loss", variant="fill", **where, **setting(model))
            needles = {"task": "needle", "kind": "multi-key", "needles": 20, **where}
            exact = find(lines, **needles, variant="exact", model_digest=model.digest)
            found = find(lines, **needles, variant="fill", **setting(model))
            rows.append(
                [
                    model.name,
                    f"{ctx} tokens",
                    f"**{median(ratios(lines, **where, **setting(model))):.2f}**",
                    f"{hits(found)} (exact: {hits(exact)})",
                    percent(loss.result["groups"]["far"]["relative"]) if loss else "not measured",
                ]
            )
    return table(["model", "prompt", "first token, times faster", "needles found", "loss on far tokens"], rows)


def headline(lines: list[Line]) -> str:
    """The README's first sentence."""
    model, where = MODELS[0], {"ctx": 4096, "tail": 512}
    needles = {"task": "needle", "kind": "multi-key", "needles": 20, **where}
    exact = find(lines, **needles, variant="exact", model_digest=model.digest)
    found = find(lines, **needles, variant="fill", **setting(model))
    assert exact is not None
    assert found is not None
    times = {key: median(seconds(lines, key, **where, **setting(model))) for key in ("exact", "fill")}
    ratio = median(ratios(lines, **where, **setting(model)))
    return (
        f"**RidgeFill cuts the time to first token of long prompts: {model.short} starts to answer a prompt of 4096 "
        f"tokens {ratio:.1f} times faster ({times['fill']:.0f} instead of {times['exact']:.0f} seconds on two CPU "
        f"cores), and still finds {hits(found)} facts hidden in it ({exact.result['hits']} without RidgeFill).**"
    )


def seconds(lines: list[Line], key: str, **wanted: Any) -> list[float]:
    """To the first token, `exact` or `fill`."""
    found = [line for line in lines if line.matches(task="ttft", through=None, **wanted)]
    return [second for line in found for second in line.result["seconds"][key]]


def speed(lines: list[Line]) -> str:
    """Time to first token of every setting."""
    keys = ("ctx", "tail", "split", "select", "budget", "through")
    rows = []
    for model in MODELS:
        timed = [line for line in lines if line.matches(task="ttft", model_digest=model.digest)]
        settings = {tuple(line.cell.get(key) for key in keys): line for line in timed}
        for values, line in sorted(settings.items(), key=lambda item: str(item[0][0]).zfill(9) + str(item[0])):
            ctx, tail, split, select, budget, through = values
            own = [other for other in timed if other.matches(**dict(zip(keys, values, strict=True)))]
            pairs = sorted(ratio for other in own for ratio in other.result["ratios"])
            exact, fill = (
                median(second for other in own for second in other.result["seconds"][key]) for key in ("exact", "fill")
            )
            selected = "nothing" if select == "none" else f"{100 * budget:.0f} %"
            bound = line.result.get("bound")
            rows.append(
                [
                    model.short,
                    f"{ctx}, {tail}",
                    f"{split} of {LAYERS[model.digest]}, {selected}",
                    "the server" if through else "one process",
                    f"{exact:.1f} s",
                    f"{fill:.1f} s",
                    f"{median(pairs):.2f} ({pairs[0]:.2f} to {pairs[-1]:.2f}; {len(pairs)} pairs)",
                    f"{bound:.2f}" if bound else "",
                ]
            )
    header = ["model", "prompt, tail", "split, selected", "through", "exact", "filled", "times faster (range)"]
    if any(row[-1] for row in rows):
        return table([*header, "bound"], rows)
    return table(header, [row[:-1] for row in rows])


def losses(lines: list[Line]) -> str:
    """Of runs with selected rows."""
    rows = []
    for model in MODELS:
        found: dict[tuple[int, float], Line] = {
            (line.cell["ctx"], line.cell["budget"]): line
            for line in lines
            if line.matches(
                task="far-loss", variant="fill", tail=512, select="attention", model_digest=model.digest,
                split=SELECTED[model.digest]["split"],
            )
        }  # fmt: skip
        for (ctx, budget), line in sorted(found.items()):
            far, both, whole = (line.result["groups"][group] for group in ("far", "far_for_both", "all"))
            rows.append(
                [
                    model.short,
                    str(ctx),
                    f"{100 * budget:.0f} %",
                    f"{far['tokens']} in {far['texts']} of {whole['texts']} texts",
                    f"{far['exact']:.3f}, {far['fill']:.3f}, {far['removed']:.3f}",
                    change(far["relative"]),
                    change(both["relative"]),
                    change(whole["relative"]),
                ]
            )
    header = ["model", "prompt", "selected", "far tokens", "loss: exact, filled, without distant context"]
    return table([*header, "change on far tokens", "on far for both", "on the whole tail"], rows)


def needles(lines: list[Line]) -> str:
    """Of runs with selected rows."""
    rows = []
    for model in MODELS:
        cells = [
            line
            for line in lines
            if line.matches(task="needle", variant="fill", kind="multi-key", needles=20, **setting(model))
        ]
        for ctx, tail in sorted({(line.cell["ctx"], line.cell["tail"]) for line in cells}):
            where = {"task": "needle", "kind": "multi-key", "needles": 20, "ctx": ctx, "tail": tail}
            fill = find(lines, **where, variant="fill", **setting(model))
            exact = find(lines, **where, variant="exact", model_digest=model.digest)
            assert fill is not None
            value = fill.result["accuracy"]
            interval = f"{100 * value['low']:.0f} to {100 * value['high']:.0f} %"
            rows.append([model.short, str(ctx), str(tail), hits(exact), hits(fill), interval])
    return table(["model", "prompt", "tail", "exact", "filled", "95 % interval (filled)"], rows)


def baselines(lines: list[Line], selected: bool) -> str:
    """Ridge maps beside what needs no fit, at 2048 tokens."""
    rows = []
    for model in MODELS:
        where: dict[str, Any] = {"ctx": 2048, "tail": 256, "model_digest": model.digest}
        how = setting(model) if selected else {"split": PLAIN[model.digest], "select": "none"}
        for variant, name in VARIANTS.items():
            own = {**where, "variant": variant} | ({} if variant == "exact" else how)
            found = find(lines, task="needle", kind="multi-key", **own)
            loss = find(lines, task="far-loss", **own)
            if found is None:
                continue
            groups = loss.result.get("groups") if loss else None
            far, whole = (change(groups[group]["relative"]) for group in ("far", "all")) if groups else ("", "")
            rows.append([model.short, name, hits(found), far, whole])
    return table(["model", "filled with", "needles found", "change on far tokens", "on the whole tail"], rows)


def splices(lines: list[Line]) -> str:
    """How much of the loss an exact part of the memory wins back."""
    rows = []
    for model in MODELS:
        for line in lines:
            part = line.cell.get("splice")
            if not line.matches(task="splice", model_digest=model.digest) or not part or part["into"] != "fill":
                continue
            first, last = part["layers"]
            share = line.result["share"]["all"]
            if share["value"] < 0.9999:  # not the whole memory
                value, low, high = (100 * share[key] for key in ("value", "low", "high"))
                parts = " and ".join(part["components"])
                rows.append([model.short, parts, f"{first} to {last}", f"{value:.0f} % ({low:.0f} to {high:.0f})"])
    return table(["model", "computed exactly", "in layers", "share of the added loss that goes away"], rows)


def maps(lines: list[Line]) -> str:
    """How maps of SmolLM2 at split 15 differ, without selection."""
    names = {
        **{f"curve-{n}000": f"{n} thousand tokens" for n in (2, 5, 10, 20, 50, 100, 200)},
        "q8_0": "50 thousand tokens, weights q8_0",
        "q4_0": "50 thousand tokens, weights q4_0",
        "input": "50 thousand tokens, target `input`",
        **{f"rank-{n}": f"50 thousand tokens, rank {n}" for n in (32, 64, 128)},
        "no-norm-20000": "20 thousand tokens, features not normalised",
        "prose-20000": "20 thousand tokens of English prose",
        "mixed-20000": "20 thousand tokens: English, German, Chinese, code",
    }
    found: dict[str, dict[str, dict[str, float]]] = {}
    for line in lines:
        if line.matches(task="perplexity", variant="fill"):
            name = line.info["maps"].removesuffix(".gguf")
            found.setdefault(name, {})[line.cell["corpus"]] = line.result["relative"]
    corpora = sorted({corpus for items in found.values() for corpus in items}, key=lambda name: (name[0] != "s", name))
    rows = [
        [words, *(percent(found[name][corpus]) if corpus in found[name] else "" for corpus in corpora)]
        for name, words in names.items()
    ]
    return table(["maps", *(next(CORPORA[key] for key in CORPORA if name.startswith(key)) for name in corpora)], rows)


CORPORA = {
    "stdlib-packages": "Python code",
    "handbook-en": "English",
    "handbook-de": "German",
    "handbook-zh": "Chinese",
}
TABLES: dict[str, Callable[[list[Line]], str]] = {
    "headline": headline,
    "first-page": first_page,
    "speed": speed,
    "losses": losses,
    "needles": needles,
    "baselines-plain": lambda lines: baselines(lines, False),
    "baselines-selected": lambda lines: baselines(lines, True),
    "splices": splices,
    "maps": maps,
}


def main() -> int:
    """Write the tables, or compare them."""
    lines, differ = read_lines(), []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = re.sub(
            r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)",
            lambda match: f"{match[1]}{TABLES[match[2]](lines)}\n{match[3]}",
            text,
            flags=re.DOTALL,
        )
        if new != text:
            differ.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(new, encoding="utf-8")
    if differ and "--check" in sys.argv:
        print(f"tables are not those of the lines: {', '.join(differ)}; run python scripts/results_tables.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
