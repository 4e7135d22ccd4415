"""A real browser for pages: from disk with no network, and from a real service."""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from flask import Flask
from werkzeug.serving import make_server

from service.settings import Settings
from service.weights import ModelFiles
from tests.conftest import without
from tests.serving import serving

# Chromium's own line for an answer that the page shows as a problem; of a file that is not there it is a fault
SHOWN = re.compile(
    r"Failed to load resource: the server responded with a status of (400|401|413|422|429|503|504) "
)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if "service" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.weights)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = [
        path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))
    ]
    if not found:
        without("no chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=found[0], args=["--no-sandbox"])
        yield chromium
        chromium.close()


@dataclass
class Tab:
    """A tab that shows pages from disk, itself or in an iframe, and the files it has asked for."""

    page: Any
    folder: Path
    framed: bool = False
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


@pytest.fixture
def tab(browser: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Tab]:
    """No complaint on its console and no request but for the page is let through; see `BOTH_WAYS`."""
    page = browser.new_page(viewport={"width": 420, "height": 640})
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    opened = Tab(page, tmp_path, getattr(request, "param", "from disk") == "in an iframe")
    page.on("request", lambda request: opened.names.append(request.url.rsplit("/", 1)[1].split("#")[0]))
    yield opened
    page.close()
    assert complaints == []
    assert list(dict.fromkeys(opened.names)) == opened.expected


# For what an iframe may change: where a page reads its data and its fragment from, and its size
BOTH_WAYS = pytest.mark.parametrize("tab", ["from disk", "in an iframe"], indirect=True)


@pytest.fixture(scope="session")
def service(files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service on the real weights, which ends with a slash."""
    cached = Settings.model_fields["result_cache_bytes"].default  # as a user has it
    with serving(tmp_path_factory.mktemp("service"), result_cache_bytes=cached) as server:
        yield f"http://127.0.0.1:{server.port}/"


@contextlib.contextmanager
def served(app: Flask) -> Iterator[str]:
    """Serves an app from a thread of this process, where no gunicorn matters; its address, without a slash."""
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


OpenPage = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, request: pytest.FixtureRequest) -> Iterator[OpenPage]:
    """`open_page(path, width=…, height=…, allow=…, **context)`: a page of the service in a browser profile of its own.

    `path` may be an address of another server. `context` is playwright's: color_scheme, reduced_motion, …
    No error on the console, but for those that match `allow`, and no request to another host is let through.
    """
    contexts: list[Any] = []
    complaints: list[str] = []

    def make(
        path: str = "", *, width: int = 1280, height: int = 900, allow: str = "$^", **context: Any
    ) -> Any:
        address = path if urlsplit(path).scheme else urljoin(request.getfixturevalue("service"), path)
        own = urlsplit(address).netloc
        contexts.append(browser.new_context(**{"viewport": {"width": width, "height": height}, **context}))
        page = contexts[-1].new_page()

        def heard(message: Any) -> None:
            if message.type in ("error", "warning") and not re.match(
                f"{SHOWN.pattern}|{allow}", message.text
            ):
                complaints.append(f"{message.text} ({message.location.get('url')})")

        def asked(request: Any) -> None:
            if urlsplit(request.url).netloc not in ("", own):  # data: and blob: have none
                complaints.append(f"asked {request.url}")

        page.on("console", heard)
        page.on("pageerror", lambda error: complaints.append(f"{error}\n{error.stack}"))
        page.on("request", asked)
        page.goto(address)
        return page

    yield make
    for one in contexts:
        one.close()
    assert complaints == []


@pytest.fixture(scope="session")
def no_violations() -> Callable[[Any], None]:
    """`no_violations(page)`: axe-core finds nothing in what is shown, by any of its rules."""
    axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    source = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")

    def check(page: Any) -> None:
        page.evaluate(source)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        told = [
            f"{rule['id']}: {rule['help']}: {node['html']} {node['failureSummary']}"
            for rule in found
            for node in rule["nodes"]
        ]
        assert told == []

    return check
