"""The page around its tabs: what it says of the service, and what stands in the address."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.browser.conftest import served
from tests.conftest import MakeApp, wait_until
from tests.serving import Server, serving_stub

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect

OpenPage = Callable[..., Any]
KEY, SECRET = "key-0123456789-key", "ZXQsecretZXQ"
TABS = {"Attention": "", "Pronouns": "#tab=pronoun", "KV cache": "#tab=kv"}
UNREACHABLE = "Failed to load resource: net::ERR_CONNECTION_REFUSED|TypeError: Failed to fetch dynamically"


def at(server: Server, path: str = "") -> str:
    return f"http://127.0.0.1:{server.port}/{path}"


def answers(server: Server) -> bool:
    with contextlib.suppress(OSError):
        return server.get("/health/live").status == 200
    return False


def chosen(page: Any) -> str:
    return str(page.get_by_role("tab", selected=True).inner_text())


@pytest.fixture
def guarded(make_app: MakeApp) -> Iterator[str]:
    """The address of the tiny model behind keys and below a prefix."""
    with served(make_app(api_keys=KEY, root_path="/x")) as address:
        yield f"{address}/"


def test_the_weights_are_named_and_axe_finds_nothing(open_page: OpenPage, no_violations: Any) -> None:
    for scheme in ("light", "dark"):
        page = open_page("#tab=kv&models=none", color_scheme=scheme)  # a tab at rest: what is dimmed is pale
        expect(page.locator("#model")).to_contain_text("qwen2.5-coder-0.5b-instruct")
        expect(page.locator("#service")).to_be_hidden()
        expect(page.get_by_text("Pick a model on the list")).to_be_visible()
        no_violations(page)


def test_tabs_by_mouse_stand_in_the_address_and_back_and_forward_go_through_them(
    open_page: OpenPage,
) -> None:
    page = open_page()
    assert chosen(page) == "Attention"
    for name, fragment in reversed(TABS.items()):
        page.get_by_role("tab", name=name).click()
        panel = page.get_by_role("tabpanel", name=name)
        expect(panel).to_be_visible()
        assert page.get_by_role("tabpanel").count() == 1
        assert page.title().startswith(f"{name}: ")
        assert page.url.partition("#")[2] == fragment[1:]
    page.go_back()
    expect(page.get_by_role("tabpanel", name="Pronouns")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("tabpanel", name="KV cache")).to_be_visible()
    page.go_forward()
    expect(page.get_by_role("tabpanel", name="Pronouns")).to_be_visible()
    page.goto(page.url.replace("pronoun", "kv"))  # a fragment typed into the address
    expect(page.get_by_role("tabpanel", name="KV cache")).to_be_visible()
    for none in ("other", "constructor"):
        page.goto(re.sub("#.*", f"#tab={none}", page.url))
        expect(page.get_by_role("tabpanel", name="Attention")).to_be_visible()


def test_tabs_by_keyboard_are_one_stop_and_arrows_go_round(open_page: OpenPage) -> None:
    page = open_page()
    page.keyboard.press("Tab")
    for key, name in (
        ("ArrowLeft", "KV cache"),
        ("ArrowRight", "Attention"),
        ("ArrowRight", "Pronouns"),
        ("End", "KV cache"),
        ("Home", "Attention"),
    ):
        page.keyboard.press(key)
        expect(page.get_by_role("tab", name=name)).to_be_focused()
        assert chosen(page) == name
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="API")).to_be_focused()


def test_a_key_is_asked_for_and_below_a_prefix_everything_is_found(
    guarded: str, open_page: OpenPage, no_violations: Any
) -> None:
    for path in ("", "x/"):  # a proxy that strips the prefix, and one that passes it on
        page = open_page(guarded + path)
        loaded: list[tuple[int, str]] = []
        page.on("response", lambda answer, loaded=loaded: loaded.append((answer.status, answer.url)))
        dialog = page.get_by_role("dialog", name="A key is needed")
        expect(dialog).to_contain_text("Send a key")
        no_violations(page)
        dialog.get_by_label("Key").fill("ключ-0123456789-ключ")  # no header can hold it
        page.keyboard.press("Enter")
        refused = dialog.get_by_label("Key").evaluate("node => node.validationMessage")
        assert refused.startswith("A key has letters without accents")
        dialog.get_by_label("Key").fill("wrong-key-0123456789")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("not one of this instance's")
        assert page.evaluate("sessionStorage.length") == 0
        expect(dialog.get_by_label("Key")).to_have_value("")
        dialog.get_by_label("Key").fill(KEY)
        dialog.get_by_role("button", name="Use it").click()
        expect(page.locator("#model")).to_contain_text("tiny")
        page.reload()  # the tab keeps it
        expect(page.locator("#model")).to_contain_text("tiny")
        assert page.evaluate("localStorage.length") == 0
        for name in TABS:
            page.get_by_role("tab", name=name).click()
            expect(page.get_by_role("tabpanel", name=name)).not_to_be_empty()
        expected = guarded + path
        assert {url for _, url in loaded if not url.startswith((expected, "blob:"))} == set()
        assert {status for status, _ in loaded} <= {200, 304, 401}


def test_where_the_browser_lets_the_page_store_nothing_it_works(guarded: str, open_page: OpenPage) -> None:
    page = open_page(f"{guarded}static/icon.svg")
    page.add_init_script(
        "Object.defineProperty(window, 'sessionStorage', {get() { throw new DOMException('no', 'SecurityError') }})"
    )
    page.goto(guarded)
    page.get_by_label("Key", exact=True).fill(KEY)
    page.keyboard.press("Enter")
    expect(page.locator("#model")).to_contain_text("tiny")


def test_who_gives_no_key_is_told_and_can_try_again(guarded: str, open_page: OpenPage) -> None:
    page = open_page(guarded)
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#service")).to_contain_text("Send a key")
    page.locator("#service").get_by_role("button", name="Try again").click()
    dialog.get_by_label("Key").fill(KEY)
    page.keyboard.press("Enter")
    expect(page.locator("#model")).to_contain_text("tiny")
    expect(page.locator("#service")).to_be_hidden()


def test_loading_is_told_and_waited_out_and_an_unreachable_service_is_told(
    tmp_path: Path, open_page: OpenPage
) -> None:
    loading = tmp_path / "loading"
    loading.touch()
    with serving_stub(tmp_path, ready=False) as server:
        wait_until(lambda: answers(server))
        page = open_page(at(server), allow=UNREACHABLE)
        status = page.locator("#service")
        expect(status).to_contain_text("The model is loading. Asking again in 5 s.")
        status.get_by_role("button", name="Cancel").click()
        expect(status).to_have_text("Cancelled. Try again")
        expect(status.get_by_role("button", name="Try again")).to_be_focused()
        page.keyboard.press("Enter")
        expect(status).to_contain_text("The model is loading.")
        loading.unlink()
        expect(page.locator("#model")).to_contain_text("tiny", timeout=20_000)
        expect(status).to_be_hidden()

        server.process.terminate()
        server.process.wait()
        page.get_by_role("tab", name="KV cache").click()
        panel = page.get_by_role("tabpanel", name="KV cache")
        expect(panel).to_contain_text("The service cannot be reached. Try again")
        panel.get_by_role("button", name="Try again").click()
        expect(panel).to_contain_text("The service cannot be reached. Try again")
        expect(panel.get_by_role("button", name="Try again")).to_be_focused()
        back = "export const mount = panel => { panel.textContent = 'It is back.'; }"
        page.route("**/kv.js", lambda route: route.fulfill(body=back, content_type="text/javascript"))
        page.keyboard.press("Enter")
        expect(panel).to_have_text("It is back.")


def test_a_question_that_is_given_up_while_it_waits_ends_at_once(guarded: str, open_page: OpenPage) -> None:
    page = open_page(guarded)
    page.route(
        "**/v1/busy", lambda route: route.fulfill(status=503, headers={"Retry-After": "3600"}, body="{}")
    )
    ended = page.evaluate(
        """async () => {
          const {ask} = await import("./static/api.js"), given = new AbortController();
          const waiting = () => given.abort();
          return ask("v1/busy", {signal: given.signal, waiting}).catch(error => error.name);
        }"""
    )
    assert ended == "AbortError"


def test_the_text_is_in_no_address_that_is_asked_for_and_not_in_the_log(
    guarded: str, open_page: OpenPage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    page = open_page(f"{guarded}#text={SECRET}")
    addresses: list[str] = []
    page.on("request", lambda asked: addresses.append(f"{asked.url} {asked.headers}"))
    page.get_by_label("Key", exact=True).fill(KEY)
    page.keyboard.press("Enter")
    for name in TABS:
        page.get_by_role("tab", name=name).click()
        expect(page.get_by_role("tabpanel", name=name)).not_to_be_empty()
    expect(page.locator("#model")).to_contain_text("tiny")
    assert addresses
    assert [address for address in addresses if SECRET in address] == []
    told = [str(vars(record)) for record in caplog.records]  # an access line's members are not in its message
    assert any("'/v1/" in one for one in told)
    assert [one for one in told if SECRET in one] == []


def test_it_follows_the_colour_scheme_and_fits_a_phone(guarded: str, open_page: OpenPage) -> None:
    papers = set()
    for scheme in ("light", "dark"):
        page = open_page(guarded, width=390, color_scheme=scheme)
        papers.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert len(papers) == 2


def test_what_is_no_file_of_the_page_is_not_found(make_app: MakeApp) -> None:
    client = make_app(api_keys=KEY).test_client()
    for name in ("none.js", "index.html", "../app.py", quote("../app.py", safe=""), ""):
        answer = client.get(f"/static/{name}", headers={"X-API-Key": KEY})
        assert answer.status_code == 404, name
        assert answer.content_type == "application/problem+json"
    assert client.get("/static/app.js").mimetype == "text/javascript"
