#!/usr/bin/env python3
"""Plain text of the Debian Administrator's Handbook, to calibrate or evaluate on prose in many languages.

    handbook_text.py LANGUAGE PART OUTPUT [--folder FOLDER]

Debian's package `debian-handbook` has one HTML page for each section and language. PART is `calibrate` or `evaluate`:
each has half of the sections, and a section is in the same half in all languages. Paragraphs that are not translated
are left out, and so is what a paragraph before them has said.
"""

from __future__ import annotations

import argparse
import hashlib
from html.parser import HTMLParser
from pathlib import Path

FOLDER = Path("/usr/share/doc/debian-handbook/html")
ENGLISH = "en-US"
PARTS = ("calibrate", "evaluate")
PROSE = {"p", "h1", "h2", "h3", "h4", "li", "dt", "dd"}
LEFT_OUT = {"script", "style", "pre", "head"}


class Paragraphs(HTMLParser):
    """Collects the text of prose elements, one string each, without navigation."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._open: list[str] = []
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "ul" and "docnav" in (dict(attrs).get("class") or ""):
            self._open.append("nav")
        elif tag in LEFT_OUT or tag == "ul":
            self._open.append(tag)
        if tag in PROSE:
            self._finish()

    def handle_endtag(self, tag: str) -> None:
        if tag in PROSE:
            self._finish()
        if self._open and tag == ("ul" if self._open[-1] == "nav" else self._open[-1]):
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if not {"nav", *LEFT_OUT} & set(self._open):
            self._text += data

    def _finish(self) -> None:
        text = " ".join(self._text.split())
        if len(text) > 1:
            self.found.append(text)
        self._text = ""


def part_of(page: Path) -> str:
    """The half that a section belongs to."""
    return PARTS[hashlib.blake2b(page.name.encode(), digest_size=1).digest()[0] % 2]


def paragraphs(page: Path) -> list[str]:
    """The paragraphs of a page."""
    reader = Paragraphs()
    reader.feed(page.read_text(encoding="utf-8"))
    return reader.found


def main() -> None:
    """Write the text of one half in one language."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("language", metavar="LANGUAGE", help="a folder of the package, such as en-US, de-DE or zh-CN")
    parser.add_argument("part", metavar="PART", choices=PARTS)
    parser.add_argument("output", metavar="OUTPUT", type=Path)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the languages are [%(default)s]")
    options = parser.parse_args()
    pages = sorted((options.folder / options.language).glob("sect.*.html"))
    if not pages:
        parser.error(f"{options.folder / options.language}: no sections, install the package debian-handbook")
    texts: dict[str, None] = {}
    for page in pages:
        if part_of(page) == options.part:
            english = [] if options.language == ENGLISH else paragraphs(options.folder / ENGLISH / page.name)
            texts |= dict.fromkeys(text for text in paragraphs(page) if text not in english)
    options.output.write_text("\n\n".join(texts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
