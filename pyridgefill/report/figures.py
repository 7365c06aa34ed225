"""The figures of a report, as plotly's JSON; colours are names of the page's style sheet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import plotly.graph_objects as go

from pyridgefill.evaluation.intervals import Interval

# names in style.css; the page's script puts the colours of the theme in their place
_INK, _MUTED, _GRID, _BAND = "var(--ink)", "var(--muted)", "var(--grid)", "var(--band)"
_SCALE = [[0, "var(--scale-0)"], [0.5, "var(--scale-1)"], [1, "var(--scale-2)"]]
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
N_SERIES = 6


@dataclass(frozen=True)
class Figure:
    """A figure and what a reader who does not see it is told.

    Attributes
    ----------
    name
        Identifies it in the page.
    title, text
        Its caption, and its content in words.
    spec
        Plotly's data and layout, JSON.
    height
        In pixels.
    legend
        Colours and names of series, where there are several.
    """

    name: str
    title: str
    text: str
    spec: str
    height: int
    legend: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Mark:
    """A point of a frontier: how fast, how good, what is told of it, whether it is as good as exact, or the best."""

    label: str
    x: Interval
    y: Interval
    hover: str
    good: bool
    best: bool


@dataclass(frozen=True)
class Dot:
    """A value in a row of its own; `ours` is drawn in colour."""

    name: str
    value: Interval
    label: str
    ours: bool


def series_color(index: int) -> str:
    """The colour of a series; there are six."""
    return f"var(--series-{index % N_SERIES + 1})"


def frontier(
    name: str,
    title: str,
    axis: str,
    families: Sequence[Sequence[Mark]],
    band: Interval,
    *,
    rising: bool,
) -> Figure:
    """One measure against times to first token.

    Parameters
    ----------
    name, title, axis
        Of the figure and its vertical axis.
    families
        The points of each series.
    band
        The exact model's interval.
    rising
        Whether faster settings stand higher, which is where labels have no room.
    """
    figure = _figure(300)
    values = [value for family in families for point in family for value in point.x.bounds]
    start, end = min([1.0, *values]), max([1.05, *values])
    edge = 0.06 * (end - start)
    low, high = band.bounds
    figure.add_hrect(low, high, fillcolor=_BAND, line_width=0, layer="below")
    figure.add_hline(band.value, line={"color": _MUTED, "width": 1, "dash": "dot"}, layer="below")
    figure.add_annotation(
        x=0, xref="paper", xanchor="left", y=band.value, yanchor="bottom", text="exact", showarrow=False,
        font={"color": _MUTED, "size": 11},
    )  # fmt: skip
    above, below = ("top left", "bottom right") if rising else ("top right", "bottom left")
    for index, family in enumerate(families):
        color = series_color(index)
        figure.add_trace(
            go.Scatter(
                x=[point.x.value for point in family],
                y=[point.y.value for point in family],
                error_x=_bars([point.x for point in family], color),
                error_y=_bars([point.y for point in family], color),
                mode="lines+markers+text",
                text=[point.label for point in family],
                textposition=below if index % 2 else above,
                textfont={"size": 10, "color": color},
                line={"color": color, "width": 1.5},
                marker={
                    "color": [color if point.good else "var(--surface)" for point in family],
                    "size": [11 if point.best else 7 for point in family],
                    "symbol": ["diamond" if point.best else "circle" for point in family],
                    "line": {"color": color, "width": 1.5},
                },
                customdata=[point.hover for point in family],
                hovertemplate="%{customdata}<extra></extra>",
                cliponaxis=False,
            )
        )
    figure.update_xaxes(title_text="times faster", range=[start - edge, end + 2 * edge], tickformat=".1f")
    figure.update_yaxes(title_text=axis)
    best = [point for family in families for point in family if point.best]
    told = f" Recommended: {best[0].hover}." if best else ""
    count = sum(map(len, families))
    return _made(name, title, f"{title}: {count} settings in {len(families)} series.{told}", figure)


def dots(name: str, title: str, axis: str, rows: Sequence[Dot]) -> Figure:
    """Values with intervals, a row for each way to run prompts.

    Parameters
    ----------
    name, title, axis
        Of the figure and its horizontal axis.
    rows
        From the top.
    """
    figure = _figure(60 + 34 * len(rows))
    for row in rows:
        color = "var(--series-1)" if row.ours else _MUTED
        figure.add_trace(
            go.Scatter(
                x=[row.value.value],
                y=[row.name],
                error_x=_bars([row.value], color),
                mode="markers",
                marker={"color": color, "size": 9},
                hovertemplate=f"{row.name}: {row.label}<extra></extra>",
                cliponaxis=False,
            )
        )
        figure.add_annotation(
            x=1, xref="paper", xanchor="left", xshift=8, y=row.name, text=row.label, showarrow=False,
            font={"color": _INK if row.ours else _MUTED, "size": 11},
        )  # fmt: skip
    figure.update_xaxes(title_text=axis, zeroline=True, zerolinecolor=_GRID, nticks=5)
    figure.update_yaxes(autorange="reversed", showgrid=True, ticks="", showline=False)
    figure.update_layout(margin={"r": 96, "t": 8})
    told = "; ".join(f"{row.name} {row.label}" for row in rows)
    return _made(name, title, f"{title}: {told}.", figure)


def heat(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    x_title: str,
    y_title: str,
    texts: Sequence[Sequence[str]] | None = None,
    low: float = 0,
    percent: bool = False,
) -> Figure:
    """A grid of coloured cells, `values[row][column]` from `low` to 1; with `texts` inside the cells."""
    figure = _figure(112 + max(26, 46 - 2 * len(rows)) * len(rows))
    form = ".0%" if percent else ".2f"
    figure.add_trace(
        go.Heatmap(
            x=list(columns),
            y=list(rows),
            z=[list(row) for row in values],
            text=[list(row) for row in texts] if texts else None,
            texttemplate="%{text}" if texts else None,
            zmin=low,
            zmax=1,
            colorscale=_SCALE,
            xgap=2,
            ygap=2,
            colorbar={"thickness": 8, "outlinewidth": 0, "tickformat": form, "nticks": 4, "tickfont": {"size": 10}},
            hovertemplate=f"{y_title} %{{y}}, {x_title} %{{x}}: %{{z:{form}}}<extra></extra>",
            hoverongaps=False,
        )
    )
    figure.update_xaxes(title_text=x_title, type="category", showgrid=False, ticks="", showline=False)
    figure.update_yaxes(
        title_text=y_title, type="category", showgrid=False, autorange="reversed", ticks="", showline=False
    )
    figure.update_layout(margin={"t": 8})
    known = [value for row in values for value in row if value is not None]
    told = f"from {min(known):{form}} to {max(known):{form}}" if known else "no values"
    return _made(name, title, f"{title}: {len(rows)} rows, {len(columns)} columns, {told}.", figure)


def stacked(name: str, title: str, axis: str, bars: Sequence[tuple[str, dict[str, float]]], unit: str) -> Figure:
    """Bars made of parts, for each bar a name and its parts."""
    figure = _figure(64 + 40 * len(bars))
    parts = list(dict.fromkeys(part for _, values in bars for part in values))
    colors = [_MUTED, *(series_color(index) for index in range(len(parts) - 1))]
    for part, color in zip(parts, colors, strict=True):
        figure.add_trace(
            go.Bar(
                orientation="h",
                x=[values.get(part, 0) for _, values in bars],
                y=[bar for bar, _ in bars],
                marker={"color": color, "line": {"width": 0}},
                hovertemplate=f"%{{y}}, {part}: %{{x:.2f}} {unit}<extra></extra>",
            )
        )
    figure.update_layout(barmode="stack", bargap=0.35, margin={"t": 8})
    figure.update_xaxes(title_text=axis)
    figure.update_yaxes(autorange="reversed", showgrid=False, ticks="", showline=False)
    told = "; ".join(
        f"{bar}: " + ", ".join(f"{part} {value:.2f} {unit}" for part, value in values.items()) for bar, values in bars
    )
    made = _made(name, title, f"{title}. {told}.", figure)
    return replace(made, legend=tuple(zip(colors, parts, strict=True)))


def grouped(
    name: str, title: str, axis: str, rows: Sequence[str], series: Mapping[str, Sequence[Interval | None]]
) -> Figure:
    """Bars with intervals, for each row one of each series."""
    figure = _figure(64 + (14 + 16 * len(series)) * len(rows))
    colors = [series_color(index) for index in range(len(series))]
    for color, (label, values) in zip(colors, series.items(), strict=True):
        known = [(row, value) for row, value in zip(rows, values, strict=True) if value is not None]
        figure.add_trace(
            go.Bar(
                orientation="h",
                x=[value.value for _, value in known],
                y=[row for row, _ in known],
                error_x=_bars([value for _, value in known], _MUTED),
                marker={"color": color, "line": {"width": 0}},
                hovertemplate=f"%{{y}}, {label}: %{{x:.0f}} %<extra></extra>",
            )
        )
    figure.update_layout(barmode="group", bargap=0.3, margin={"t": 8})
    figure.update_xaxes(title_text=axis, zeroline=True, zerolinecolor=_MUTED)
    figure.update_yaxes(autorange="reversed", showgrid=False, ticks="", showline=False, type="category")
    told = "; ".join(
        f"{label}: " + ", ".join(f"{row} {v.value:.0f} %" for row, v in zip(rows, values, strict=True) if v)
        for label, values in series.items()
    )
    made = _made(name, title, f"{title}. {told}.", figure)
    return replace(made, legend=tuple(zip(colors, series, strict=True)))


def _figure(height: int) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        template="none",
        height=height,
        autosize=True,
        showlegend=False,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": _FONT, "size": 12, "color": _INK},
        margin={"l": 8, "r": 12, "t": 12, "b": 8},
        hoverlabel={"bgcolor": "var(--surface)", "bordercolor": _GRID, "font": {"color": _INK, "family": _FONT}},
        dragmode=False,
    )
    axis = {
        "gridcolor": _GRID,
        "zeroline": False,
        "linecolor": _GRID,
        "tickfont": {"color": _MUTED, "size": 11},
        "title": {"font": {"color": _MUTED, "size": 11}, "standoff": 8},
        "automargin": True,
        "fixedrange": True,
    }
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    return figure


def _bars(values: Sequence[Interval], color: str) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [value.bounds[1] - value.value for value in values],
        "arrayminus": [value.value - value.bounds[0] for value in values],
        "color": color,
        "thickness": 1,
        "width": 0,
    }


def _made(name: str, title: str, text: str, figure: go.Figure) -> Figure:
    spec = json.loads(figure.to_json())
    spec["layout"].pop("template", None)
    # "</" would end the script element that holds it
    data = json.dumps(spec, ensure_ascii=False).replace("</", "<\\/")
    return Figure(name, title, text, data, int(figure.layout.height))
