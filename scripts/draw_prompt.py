"""Draw how a prompt runs: docs/images/prompt-light.svg and prompt-dark.svg.

python scripts/draw_prompt.py [FOLDER]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

CELL, STEP = 19, 22  # a cell and the distance to the next one
LEFT, TOP = 62, 66
UPPER, LOWER = 5, 4  # layers above and below the split
PROMPT = "s" + "ffff" + "x" + "fff" + "x" + "fff" + "ttt"  # sink, filled, selected, tail
ANSWER = 3
GAP = 20  # between the prompt and the answer
WIDTH = LEFT + STEP * (len(PROMPT) + ANSWER) + GAP + 8
HEIGHT = TOP + STEP * (UPPER + LOWER) + 204


@dataclass(frozen=True)
class Colours:
    """Of one page background."""

    text: str
    line: str
    exact: str
    filled: str
    edge: str  # of filled cells
    selected: str


LIGHT = Colours(text="#1f2328", line="#59636e", exact="#4c8bd6", filled="#fdf3dc", edge="#c98a1b", selected="#1f9d6b")
DARK = Colours(text="#e6edf3", line="#9198a1", exact="#4484d0", filled="#2a2213", edge="#d9a441", selected="#35b97f")


def column(index: int) -> float:
    """Left edge of a row of the prompt or, behind it, of the answer."""
    return LEFT + index * STEP + (GAP if index >= len(PROMPT) else 0)


def cell(x: float, y: float, kind: str, colours: Colours) -> str:
    """One row in one layer: filled ("f"), selected ("x"), or exact."""
    if kind == "f":
        return (
            f'<rect x="{x + 1:g}" y="{y + 1:g}" width="{CELL - 2}" height="{CELL - 2}" rx="3" '
            f'fill="{colours.filled}" stroke="{colours.edge}" stroke-width="1.5"/>'
        )
    fill = colours.selected if kind == "x" else colours.exact
    return f'<rect x="{x:g}" y="{y:g}" width="{CELL}" height="{CELL}" rx="3" fill="{fill}"/>'


def text(x: float, y: float, words: str, *, anchor: str = "middle", weight: str = "normal") -> str:
    """A label."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}">{escape(words)}</text>'


def bracket(first: int, last: int, y: float, colours: Colours) -> str:
    """A line over the rows from first to last."""
    start, end = column(first), column(last) + CELL
    return (
        f'<path d="M{start:g} {y + 5:g}V{y:g}H{end:g}V{y + 5:g}" fill="none" stroke="{colours.line}" '
        'stroke-width="1.5"/>'
    )


def cells(colours: Colours) -> list[str]:
    """All rows in all layers."""
    parts = []
    for index, kind in enumerate(PROMPT + "a" * ANSWER):
        for layer in range(UPPER + LOWER):
            above = layer < UPPER
            y = TOP + layer * STEP + (0 if above else 8)
            parts.append(cell(column(index), y, kind if above else "exact", colours))
    return parts


def labels(colours: Colours) -> list[str]:
    """Names of rows, layers and the split."""
    tail, answer = PROMPT.index("t"), len(PROMPT)
    split = TOP + UPPER * STEP + 2.5
    right = column(answer + ANSWER - 1) + CELL
    centre = (column(0) + column(tail - 1) + CELL) / 2
    parts = [
        text(centre, 22, "the long part of the prompt"),
        text((column(tail) + column(answer - 1) + CELL) / 2, 22, "tail", weight="bold"),
        text((column(answer) + right) / 2, 22, "answer"),
        bracket(0, tail - 1, 32, colours),
        bracket(tail, answer - 1, 32, colours),
        bracket(answer, answer + ANSWER - 1, 32, colours),
        text(column(0) + CELL / 2, 57, "sink", weight="bold"),
    ]
    selected = [index for index, kind in enumerate(PROMPT) if kind == "x"]
    parts.append(text((column(selected[0]) + column(selected[-1]) + CELL) / 2, 57, "↓ selected ↓", weight="bold"))
    parts += [
        f'<path d="M{LEFT - 58} {split:g}H{right:g}" stroke="{colours.line}" stroke-width="2" stroke-dasharray="6 4"/>',
        text(LEFT - 8, split - 7, "split", anchor="end", weight="bold"),
        text(LEFT - 8, TOP + 15, "upper", anchor="end"),
        text(LEFT - 8, TOP + 33, "layers", anchor="end"),
        text(LEFT - 8, split + 40, "lower", anchor="end"),
        text(LEFT - 8, split + 58, "layers", anchor="end"),
    ]
    return parts


def legend(colours: Colours) -> list[str]:
    """What the colours mean."""
    y = TOP + STEP * (UPPER + LOWER) + 26
    lines = (
        ("exact", "computed by the model (exact)", ""),
        ("f", "filled: a map predicts K and V", "from the token's state at the split"),
        ("x", "selected: the lower layers' attention", "points at it, so the model computes it"),
    )
    parts = [text(LEFT, y + 12, "One column is one token, read from left to right.", anchor="start")]
    y += 32
    for kind, first, second in lines:
        parts += [cell(LEFT, y, kind, colours), text(LEFT + 30, y + 15, first, anchor="start")]
        if second:
            parts.append(text(LEFT + 30, y + 34, second, anchor="start"))
        y += 52 if second else 34
    return parts


def draw(colours: Colours) -> str:
    """The picture as SVG."""
    body = "\n".join(cells(colours) + labels(colours) + legend(colours))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="-apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="17" fill="{colours.text}">\n'
        "<title>How a prompt runs: below the split all rows are exact; above it most rows are filled, "
        f"selected rows and the tail are exact</title>\n{body}\n</svg>\n"
    )


def main() -> None:
    """Write both files."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    for name, colours in (("light", LIGHT), ("dark", DARK)):
        (folder / f"prompt-{name}.svg").write_text(draw(colours), encoding="utf-8")


if __name__ == "__main__":
    main()
