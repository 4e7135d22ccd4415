"""A real browser for pages, from disk and in an iframe, with no network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = [
        path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))
    ]
    if not found:
        pytest.skip("no chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=found[0], args=["--no-sandbox"])
        yield chromium
        chromium.close()


@dataclass
class Tab:
    """A tab that shows pages, itself or in an iframe, and the files it has asked for."""

    page: Any
    folder: Path
    framed: bool
    names: list[str] = field(default_factory=list)

    def show(self, html: bytes, fragment: str = "") -> Any:
        """The frame that holds the page."""
        (self.folder / "page.html").write_bytes(html)
        frame = f"<iframe src='page.html{fragment}' width=360 height=600></iframe>"
        (self.folder / "frame.html").write_text(frame)
        address = (self.folder / ("frame.html" if self.framed else "page.html")).as_uri()
        self.page.goto(address if self.framed else address + fragment)
        return self.page.frames[-1]

    @property
    def expected(self) -> list[str]:
        """The only files that it may ask for."""
        return (["frame.html"] if self.framed else []) + ["page.html"]


@pytest.fixture(params=["from disk", "in an iframe"])
def tab(browser: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Tab]:
    """No complaint on its console is let through."""
    page = browser.new_page(viewport={"width": 420, "height": 640})
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    opened = Tab(page, tmp_path, request.param == "in an iframe")
    page.on("request", lambda request: opened.names.append(request.url.rsplit("/", 1)[1].split("#")[0]))
    yield opened
    page.close()
    assert complaints == []
