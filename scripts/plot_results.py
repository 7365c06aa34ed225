"""Draw the plots of docs/results.md from the lines of benchmarks/results, for light and dark pages.

pip install 'pyridgefill[plots]'
python scripts/plot_results.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from result_lines import MODELS, RESULTS, ROOT, Line, find, read_lines
from results_tables import lengths, seconds, setting

PLACES = {  # of names that would cover each other, in points
    ("fill", 15, 0.2): (-7, 6, "right"),
    ("fill", 18, 0.2): (5, -13, "left"),
    ("fill", 10, 0.2): (7, 7, "left"),
    ("mean", 10, 0.2): (7, -12, "left"),
}
BLUE, ORANGE, GREEN, GREY = "#4c8bd6", "#d98c1f", "#1f9d6b", "#848d97"
PAGES = {"light": ("#ffffff", "#1f2328", "#d1d9e0"), "dark": ("#0d1117", "#e6edf3", "#3d444d")}


def first_token(lines: list[Line]) -> Figure:
    """Time to first token against prompt length, exact and filled."""
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.4), sharey=True)
    for axis, model in zip(axes, MODELS, strict=True):
        where = lengths(lines, model)
        for key, name, colour in (("exact", "exact", BLUE), ("fill", "filled", ORANGE)):
            runs = [seconds(lines, key, ctx=ctx, **setting(model)) for ctx in where]
            middle = [median(run) for run in runs]
            spread = [[m - min(r) for m, r in zip(middle, runs, strict=True)]]
            spread.append([max(r) - m for m, r in zip(middle, runs, strict=True)])
            axis.errorbar(where, middle, yerr=spread, label=name, color=colour, marker="o", capsize=3)
        budget = 100 * setting(model)["budget"]
        axis.set_title(f"{model.short}, split {setting(model)['split']}, {budget:.0f} % selected", fontsize=10)
        axis.set_xlabel("tokens of the prompt")
        axis.set_xticks(where)
        axis.set_xlim(0, None)
        axis.set_ylim(0, None)
    axes[0].set_ylabel("seconds to the first token")
    axes[0].legend(frameon=False)
    return figure


def speed_and_loss(_lines: list[Line]) -> Figure:
    """Times faster against the change of the loss on far tokens: the settings that `tune` tried, and baselines."""
    report = json.loads((RESULTS / "smollm2-tune.json").read_text(encoding="utf-8"))
    figure, axis = plt.subplots(figsize=(7.6, 4.2))
    speeds: dict[tuple[int, float], float] = {}
    for point in report["points"]:
        if point["role"] not in ("sweep", "baseline"):
            continue
        [length] = point["lengths"]
        where = (point["split"], point["budget"])
        far = {key: 100 * value for key, value in length["losses"]["far"]["relative"].items()}
        time = length.get("ttft")
        if time:
            speeds[where] = time["ratio"]
        name = "all filled" if not point["budget"] else f"{100 * point['budget']:.0f} % selected"
        name = f"split {point['split']}, {name}" if time else f"{point['variant']} at split {point['split']}"
        colour, mark = (GREEN if point["budget"] else ORANGE, "o") if time else (GREY, "s")
        reach = [[speeds[where] - time["low"]], [time["high"] - speeds[where]]] if time else None
        rise = [[far["value"] - far["low"]], [far["high"] - far["value"]]]
        axis.errorbar(speeds[where], far["value"], xerr=reach, yerr=rise, color=colour, marker=mark, capsize=2)
        x, y, align = PLACES.get((point["variant"], *where), (7, 5, "left"))
        axis.annotate(
            f"{name}: {length['needles']['hits']} of {length['needles']['prompts']}",
            (speeds[where], far["value"]),
            xytext=(x, y),
            textcoords="offset points",
            ha=align,
            fontsize=9,
        )
    axis.axhline(0, color=BLUE)
    exact = report["points"][0]["lengths"][0]["needles"]
    axis.annotate(f"exact: {exact['hits']} of {exact['prompts']}", (1.0, 0), xytext=(2, 5), textcoords="offset points")
    axis.set_xlim(1, 1.8)
    axis.set_xlabel("first token, times faster")
    axis.set_ylabel("loss on far tokens, % above exact")
    axis.set_title("SmolLM2-135M, 2048 tokens; behind each name: needles found", fontsize=10)
    return figure


def needle_map(lines: list[Line]) -> Figure:
    """Needles found by depth and length, exact and filled."""
    colours = LinearSegmentedColormap.from_list("found", ["#b3402a", "#e8c06a", "#1f9d6b"])
    figure, axes = plt.subplots(2, 2, figsize=(7.6, 5.6), sharey=True)
    for row, model in zip(axes, MODELS, strict=True):
        for axis, variant in zip(row, ("exact", "fill"), strict=True):
            own = {"model_digest": model.digest} if variant == "exact" else setting(model)
            cells = {"task": "needle", "kind": "multi-key", "needles": 20, "variant": variant, **own}
            found = sorted({line.cell["ctx"] for line in lines if line.matches(**cells)})
            for x, ctx in enumerate(found):
                line = find(lines, **cells, ctx=ctx)
                assert line is not None
                for y, part in enumerate(line.result["by_depth"]):
                    axis.add_patch(
                        mpl.patches.Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, color=colours(part["value"]))
                    )
                    words = f"{round(part['value'] * part['prompts'])}/{part['prompts']}"
                    axis.text(x, y, words, ha="center", va="center", color="#101418", fontsize=10)
            axis.set_xticks(range(len(found)), [str(ctx) for ctx in found])
            axis.set_yticks(range(5), ["0-20 %", "20-40 %", "40-60 %", "60-80 %", "80-100 %"])
            axis.set_xlim(-0.6, max(len(found), 1) - 0.4)
            axis.set_ylim(4.6, -0.6)
            axis.grid(visible=False)
            axis.set_title(f"{model.short}, {'filled' if variant == 'fill' else 'exact'}", fontsize=10)
    for axis in axes[1]:
        axis.set_xlabel("tokens of the prompt")
    for axis in axes[:, 0]:
        axis.set_ylabel("depth in the filled rows")
    return figure


PLOTS: dict[str, Callable[[list[Line]], Figure]] = {
    "first-token": first_token,
    "speed-and-loss": speed_and_loss,
    "needles": needle_map,
}


def style(page: str) -> dict[str, Any]:
    """Colours and fonts of a page; equal lines give equal files."""
    background, ink, grid = PAGES[page]
    names = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
    return {
        **dict.fromkeys(names, ink),
        "figure.facecolor": background,
        "axes.facecolor": background,
        "axes.edgecolor": grid,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": grid,
        "grid.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans", "Segoe UI", "Helvetica", "Arial"],
        "font.size": 10,
        "svg.fonttype": "none",
        "svg.hashsalt": "ridgefill",
    }


def main() -> None:
    """Write all plots, for both pages."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    lines = read_lines()
    for page in PAGES:
        with mpl.rc_context(style(page)):
            for name, draw in PLOTS.items():
                figure = draw(lines)
                figure.tight_layout()
                figure.savefig(folder / f"{name}-{page}.svg", metadata={"Date": None, "Creator": None})
                plt.close(figure)


if __name__ == "__main__":
    mpl.use("svg")
    main()
