"""The system's Chromium, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from support.paths import MissingPart

NAMES = ("chromium", "chromium-headless-shell", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync")  # fmt: skip
# a machine that is busy takes its time
TIMEOUT_MS = 240_000


@dataclass
class View:
    """A page, and what it complained about or asked the network for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def evaluate(self, script: str) -> Any:
        return self.page.evaluate(script)


@contextmanager
def browser() -> Iterator[Browser]:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise MissingPart(f"no browser found (tried {', '.join(NAMES)}); run `make browser`, or install chromium")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=list(FLAGS), timeout=TIMEOUT_MS)
        try:
            yield running
        finally:
            running.close()


@contextmanager
def view(running: Browser, path: Path, *, width: int, dark: bool) -> Iterator[View]:
    """A local file, loaded."""
    scheme: Any = "dark" if dark else "light"
    context = running.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    seen = View(page)
    page.on("console", lambda message: seen.complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on("request", lambda request: seen.requests.append(request.url))
    try:
        page.goto(path.as_uri())
        yield seen
    finally:
        context.close()
