"""Renders a document as one HTML file: style, script, plotly and all numbers inside."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from pyridgefill.errors import RidgeFillError
from pyridgefill.files import replacing
from pyridgefill.tuning.contents import Contents


def require_plotly() -> None:
    """Raise, before anything costly is done, where the packages that draw reports are missing."""
    missing = [name for name in ("plotly", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise RidgeFillError(
            f"reports need {' and '.join(missing)}", "pip install 'pyridgefill[report]', or pip install plotly jinja2"
        )


def write_page(path: Path, document: Contents) -> None:
    """Write the report.

    Parameters
    ----------
    path
        The HTML file; replaced when the new one is complete.
    document
        Of `make_document`.
    """
    page = render(document)
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def render(document: Contents) -> str:
    """The page as text."""
    import jinja2
    from plotly.offline import get_plotlyjs

    from pyridgefill import words
    from pyridgefill.report import charts, tables

    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["describe"] = words.describe
    environment.filters["size"] = words.size
    environment.filters["percent"] = words.percent
    return environment.from_string(_asset("page.html.j2")).render(
        doc=document,
        best=document.best,
        headline=tables.headline(document),
        frontier=charts.frontier(document),
        depths=charts.depths(document),
        baselines=charts.baselines(document),
        breakdown=charts.breakdown(document),
        splices=charts.splices(document),
        command=tables.command(document),
        r_squared=charts.r_squared(document),
        variations=tables.variations(document),
        table=tables.table(document),
        style=_asset("style.css"),
        script=_asset("script.js"),
        # "</" would end the script element
        plotly=get_plotlyjs().replace("</script", "<\\/script"),
    )


def _asset(name: str) -> str:
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")
