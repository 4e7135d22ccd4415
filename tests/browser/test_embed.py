"""/embed/attention in frames of other pages, in a real browser, on real weights; and the examples that embed."""

from __future__ import annotations

import functools
import http.server
import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from tests.browser.conftest import served
from tests.conftest import MakeApp

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXT = "The cat sat on the mat because it was tired."
QUERY = urlencode({"text": TEXT, "layer": 5, "head": 5})
TINY = urlencode({"text": "the cat sat, it is", "layer": 1, "head": 2})
KEY, SIGNING = "key-0123456789-key", "signing-key-0123456789-0123456789"
PORT = "http://127.0.0.1:8000"  # that the examples name


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address of another origin that shows it."""
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield tmp_path, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def look(browser: Any) -> Iterator[Callable[..., Any]]:
    """`look(address, hosts, width=…)`: a page. No complaint and no request but to `hosts` is let through."""
    opened: list[Any] = []
    complaints: list[str] = []

    def make(address: str, *hosts: str, width: int = 800, **options: Any) -> Any:
        allowed = {"", urlsplit(address).netloc, *(urlsplit(host).netloc for host in hosts)}
        page = browser.new_page(viewport={"width": width, "height": 700}, **options)
        opened.append(page)
        page.on(
            "console",
            lambda message: (
                complaints.append(message.text) if "favicon" not in str(message.location) else None
            ),
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda asked: complaints.append(asked.url) if urlsplit(asked.url).netloc not in allowed else None,
        )
        page.complaints = complaints
        page.goto(address)
        return page

    yield make
    for page in opened:
        page.close()
    assert complaints == []


def framing(folder: Path, source: str, height: int = 300) -> None:
    (folder / "index.html").write_text(
        f"<body style='margin: 0'><iframe src='{source}' width='100%' height={height} style='border: 0'></iframe>"
        "<script>heights = []; addEventListener('message', e => heights.push([e.data.type, e.data.height, e.origin]))"
        "</script>"
    )


def test_a_page_of_another_origin_shows_it_and_learns_its_height(
    service: str, dashboard: tuple[Path, str], look: Callable[..., Any]
) -> None:
    folder, address = dashboard
    framing(folder, f"{service}embed/attention?{QUERY}")
    page = look(f"{address}/", service)
    frame = page.frame_locator("iframe")
    expect(frame.locator("#name")).to_have_text("L5H5")
    for name in ("Text", "Layer", "Head"):
        expect(frame.get_by_label(name, exact=True)).to_be_hidden()
    frame.locator(".tokens button").nth(7).hover()
    expect(frame.locator(".readout li").first).to_contain_text("cat 1")
    expect(frame.locator(".readout li").first).to_contain_text("0.869")
    (kind, height, origin) = page.evaluate("heights.at(-1)")
    assert (kind, origin) == ("attention-service:height", service.rstrip("/"))
    inner = page.frames[-1]
    assert height == inner.evaluate("Math.ceil(document.documentElement.getBoundingClientRect().height)")
    page.evaluate("height => { document.querySelector('iframe').height = height; }", height)
    assert inner.evaluate("document.documentElement.scrollHeight <= innerHeight")
    assert page.evaluate("heights.at(-1)[1]") == height  # it does not grow with its frame


@pytest.mark.parametrize(
    ("theme", "view"),
    [("light", "both"), ("dark", "both"), ("auto", "both"), ("light", "arcs"), ("dark", "map")],
)
def test_theme_and_view_are_as_asked_whatever_the_system_prefers(
    service: str, look: Callable[..., Any], no_violations: Callable[[Any], None], theme: str, view: str
) -> None:
    page = look(f"{service}embed/attention?{QUERY}&theme={theme}&view={view}", width=320, color_scheme="dark")
    assert page.locator(".arcs").is_visible() == (view != "map")
    assert page.locator(".heat-map").is_visible() == (view != "arcs")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (theme == "light")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == (
        "light dark" if theme == "auto" else theme
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    no_violations(page)


def test_the_browser_refuses_the_frame_where_the_setting_says_so(
    dashboard: tuple[Path, str], look: Callable[..., Any], make_app: MakeApp
) -> None:
    folder, address = dashboard
    for ancestors, allowed in ((f"'self',{address}", True), ("https://a.example", False)):
        with served(make_app(frame_ancestors=ancestors)) as service:
            for path in ("embed/attention", "v1/attention.html"):
                framing(folder, f"{service}/{path}?{TINY}")
                page = look(f"{address}/", service)
                if allowed:
                    expect(page.frame_locator("iframe").locator("#name")).to_have_text("L1H2")
                else:
                    assert any("frame-ancestors" in one for one in page.complaints)
                    assert page.frames[-1].locator("#name").count() == 0
                    page.complaints.clear()
                page.close()


def test_a_signed_link_shows_it_without_a_key_below_a_prefix(
    dashboard: tuple[Path, str], look: Callable[..., Any], make_app: MakeApp
) -> None:
    folder, address = dashboard
    app = make_app(api_keys=KEY, signing_key=SIGNING, root_path="/look")
    client = app.test_client()
    assert client.get(f"/embed/attention?{TINY}").status_code == 401
    path = {"path": f"/embed/attention?{TINY}"}
    url = client.post("/v1/links", json=path, headers={"X-API-Key": KEY}).get_json()["url"]
    with served(app) as service:
        for asked in (url, url.removeprefix("/look")):
            framing(folder, f"{service}{asked}")
            page = look(f"{address}/", service)
            expect(page.frame_locator("iframe").locator("#name")).to_have_text("L1H2")
            page.close()


def test_the_page_works_below_a_prefix_whether_or_not_a_proxy_passes_it_on(
    look: Callable[..., Any], make_app: MakeApp
) -> None:
    with served(make_app(root_path="/look/inside")) as service:
        for path in ("/look/inside", "/look/inside/", "/"):
            page = look(f"{service}{path}")
            expect(page.locator("#model")).to_contain_text("tiny")
            assert urlsplit(page.url).path == ("/" if path == "/" else "/look/inside/")
            asked = page.evaluate(
                "performance.getEntriesByType('resource').map(one => new URL(one.name).pathname)"
            )
            assert asked
            assert all(one.startswith("/look/inside/") for one in asked)
            page.close()


# --- examples ---


def test_the_example_from_disk_shows_a_picture_and_a_frame_of_its_full_height(
    service: str, look: Callable[..., Any], tmp_path: Path
) -> None:
    html = (EXAMPLES / "embed.html").read_text(encoding="utf-8")
    assert html.count(PORT) == 2
    (tmp_path / "embed.html").write_text(html.replace(PORT, service.rstrip("/")), encoding="utf-8")
    page = look((tmp_path / "embed.html").as_uri(), service)
    frame = page.frame_locator("iframe")
    expect(frame.locator("#name")).to_have_text("L5H5")
    page.wait_for_function("document.querySelector('img').naturalWidth > 0")
    page.wait_for_function("document.querySelector('iframe').height !== '420'")
    assert page.frames[-1].evaluate("document.documentElement.scrollHeight <= innerHeight")


def test_grafana_is_told_a_url_whose_rows_have_the_columns(service: str) -> None:
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    (url,) = (one.strip("`") for one in readme.split() if one.startswith(f"`{PORT}/v1"))
    columns = {"query_token": str, "key_token": str, "weight": float}
    assert all(f"`{name}`" in readme for name in columns)
    with urllib.request.urlopen(url.replace(PORT, service.rstrip("/"))) as answer:
        rows = json.load(answer)
    assert rows
    assert all(isinstance(row[name], kind) for row in rows for name, kind in columns.items())
    with urllib.request.urlopen(url.replace(PORT, service.rstrip("/")).replace("=rows", "=csv")) as answer:
        assert set(answer.readline().decode().strip().split(",")) >= columns.keys()


def test_the_streamlit_panel_shows_the_weights(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    testing = pytest.importorskip("streamlit.testing.v1", reason="streamlit is not installed")
    monkeypatch.setenv("ATTENTION_URL", service.rstrip("/"))
    panel = testing.AppTest.from_file(str(EXAMPLES / "streamlit_panel.py"), default_timeout=60).run()
    assert not panel.exception
    assert not panel.error
    rows = panel.dataframe[0].value
    found = rows[(rows.query_token == "it") & (rows.key_token == "cat")]
    assert found.weight.item() == pytest.approx(0.869, abs=5e-4)
    panel.slider[0].set_value(8).run()
    assert not panel.dataframe[0].value.equals(rows)
    panel.text_input[0].set_value("").run()
    assert panel.error
