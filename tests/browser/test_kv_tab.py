"""The KV cache tab, on a service whose model is still loading: sizes need none."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attention_core.kv_cache import DTYPES, ENGINES
from tests.conftest import wait_until
from tests.serving import Server, serving_stub

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect

OpenPage = Callable[..., Any]
LLAMA, GEMMA, QWEN = "meta-llama/Llama-2-7b-hf", "google/gemma-3-4b-it", "Qwen/Qwen3-Next-80B-A3B-Instruct"
CONFIG = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its model never finishes loading."""
    folder = tmp_path_factory.mktemp("kv")
    (folder / "loading").touch()

    def answers(running: Server) -> bool:
        with contextlib.suppress(OSError):
            return running.get("/health/live").status == 200
        return False

    with serving_stub(folder, ready=False) as running:
        wait_until(lambda: answers(running))
        yield running
        (folder / "loading").unlink()


@pytest.fixture
def open_tab(server: Server, open_page: OpenPage) -> OpenPage:
    def open_it(fragment: str = "", **options: Any) -> Any:
        page = open_page(f"http://127.0.0.1:{server.port}/#tab=kv{fragment}", **options)
        expect(page.get_by_role("listbox", name="Models").get_by_role("option")).not_to_have_count(0)
        return page

    return open_it


def sized(server: Server, **request: Any) -> Any:
    answer = server.post("/v1/kv-cache", request)
    assert answer.status == 200, answer.data
    return answer.json


def row(page: Any, model: str) -> Any:
    return page.get_by_role("region", name=re.compile("^Sizes")).get_by_role("row").filter(has_text=model)


def fill(page: Any, label: str, text: str) -> None:
    page.get_by_label(label, exact=True).fill(text)
    page.keyboard.press("Enter")


def paste(page: Any, text: str) -> Any:
    """The problem's place."""
    if not page.get_by_label("A Hugging Face config.json").is_visible():
        page.get_by_text("Paste a config.json", exact=True).click()
    page.get_by_label("A Hugging Face config.json").fill(text)
    page.get_by_role("button", name="Use it").click()
    return page.locator("#kv-config-problem")


def test_llama_2_keeps_half_a_mebibyte_a_token_and_two_gibibytes_at_4096(open_tab: OpenPage) -> None:
    page = open_tab("&models=llama-2-7b")  # by an alias
    for told in ("512 KiB", "524.29 kB", "524,288 bytes", "2 GiB", "2.15 GB", "2,147,483,648 bytes", "MHA"):
        expect(row(page, LLAMA)).to_contain_text(told)
    expect(page.locator(".legend")).to_contain_text("2 GiB")
    expect(page.locator("#service")).to_contain_text("The model is loading.")  # and needs not be waited for


@pytest.mark.parametrize(
    ("fragment", "request_"),
    [
        (f"&models={GEMMA}&tokens=100000&sequences=3", {"model": GEMMA, "tokens": 100000, "batch": 3}),
        (
            f"&models={QWEN}&tokens=5000&dtype=fp8_e4m3&engine=vllm&budget=24+GB",
            {
                "model": QWEN,
                "tokens": 5000,
                "dtype": "fp8_e4m3",
                "engine": "vllm",
                "memory_budget_bytes": 24 * 10**9,
            },
        ),
    ],
)
def test_what_is_shown_is_what_the_api_answers(
    server: Server, open_tab: OpenPage, fragment: str, request_: dict[str, Any]
) -> None:
    answer = sized(server, **request_, detail="layers")
    page = open_tab(fragment)
    shown = row(page, request_["model"])
    size = answer["sizes"][0]
    expect(shown).to_contain_text(size["human"])
    expect(shown).to_contain_text(f"{size['batch_bytes']:,} bytes")
    expect(shown).to_contain_text(f"{answer['bytes_per_token']:,} bytes")
    if answer["bytes_per_token_beyond_window"] != answer["bytes_per_token"]:
        expect(shown).to_contain_text(f"{answer['bytes_per_token_beyond_window']:,} bytes")
    if answer["fixed_bytes_per_sequence"]:
        expect(shown).to_contain_text(f"{answer['fixed_bytes_per_sequence']:,} bytes")
    if answer["max_tokens"]:
        expect(shown).to_contain_text(f"{answer['max_tokens']['per_sequence']:,}")
        expect(shown.get_by_role("cell").last).to_have_text(f"{answer['capacity']['max_sequences'][0]:,}")
    kinds: dict[str, int] = {}
    for layer in answer["layers"]:
        kinds[layer["kind"]] = kinds.get(layer["kind"], 0) + layer["sizes_bytes"][0]
    by_kind = page.get_by_role("region", name=re.compile("^By kind of layer"))
    expect(by_kind.locator("tbody tr")).to_have_count(len(kinds))
    for total in kinds.values():
        expect(by_kind).to_contain_text(f"{total:,} bytes")
    others = page.get_by_role("region", name="The same layers, arranged otherwise")
    for rate in answer["compare"].values():
        expect(others).to_contain_text(f"{rate['bytes_per_token']:,} bytes")
    for text in [answer["formula"], *answer["assumptions"], *answer["warnings"]]:
        expect(page.locator(".answers")).to_contain_text(text)
    known = server.get(f"/v1/kv-cache/models/{request_['model']}").json
    for fact in (known["status"], known["source"], known["checked"], known["released"]):
        expect(page.locator(".answers")).to_contain_text(fact)


def test_models_are_searched_and_picked_by_mouse_and_stand_in_the_address(open_tab: OpenPage) -> None:
    page = open_tab("&models=none")
    expect(page.get_by_text("Pick a model on the list")).to_be_visible()
    names = page.get_by_role("listbox", name="Models").get_by_role("option")
    page.get_by_label("Find a model").fill("gemma 27b")
    expect(names).to_have_count(2)
    page.get_by_role("option", name="google/gemma-3-27b-it").click()
    page.get_by_label("Find a model").fill("LLAMA-2-7b")
    page.get_by_role("option", name=LLAMA).click()
    expect(row(page, LLAMA)).to_be_visible()
    expect(page.locator(".legend li")).to_have_count(2)
    assert f"models=google%2Fgemma-3-27b-it%2C{LLAMA.replace('/', '%2F')}" in page.url
    page.get_by_role("button", name="Remove google/gemma-3-27b-it").click()
    expect(page.locator(".legend li")).to_have_count(1)
    page.go_back()
    expect(page.locator(".legend li")).to_have_count(2)
    page.get_by_label("Find a model").fill("no such model")
    expect(names).to_have_count(0)


def test_everything_can_be_done_by_keyboard(server: Server, open_tab: OpenPage) -> None:
    page = open_tab(f"&models={LLAMA}&scale=linear")
    expect(row(page, LLAMA)).to_be_visible()
    page.get_by_label("Find a model").focus()
    page.keyboard.type("gemma-3-4b")
    page.keyboard.press("ArrowDown")
    page.keyboard.press(" ")
    expect(page.get_by_role("option", name=GEMMA)).to_be_focused()
    expect(page.locator(".legend li")).to_have_count(2)
    slider = page.get_by_role("slider")
    expect(slider).to_have_attribute("aria-valuetext", re.compile("^4,096 tokens; Llama-2-7b-hf 2 GiB"))
    for _ in range(40):
        page.keyboard.press("Tab")
        if slider.evaluate("node => node === document.activeElement"):
            break
    page.keyboard.press("ArrowRight")
    size = sized(server, model=GEMMA, tokens=5120)["sizes"][0]["human"]
    expect(slider).to_have_attribute("aria-valuetext", re.compile(f"^5,120 tokens; .*gemma-3-4b-it {size}$"))
    expect(page.locator(".read")).to_have_text("At 5,120 tokens:")
    page.keyboard.press("Escape")
    expect(page.locator(".read")).to_have_text("At 4,096 tokens:")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Tokens", exact=True)).to_have_value("131072")
    assert "tokens=131072" in page.url
    expect(row(page, LLAMA)).to_contain_text("64 GiB")
    page.keyboard.press("Tab")
    expect(page.locator(".line-name").first).to_be_focused()
    expect(page.locator("svg .weak")).not_to_have_count(0)
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator(".line-name").first).to_have_attribute("aria-pressed", "true")
    expect(page.locator("svg .weak")).not_to_have_count(0)


def test_the_chart_is_read_off_by_the_pointer_and_its_points_are_the_apis(
    server: Server, open_tab: OpenPage
) -> None:
    page = open_tab(f"&models={LLAMA},{GEMMA}&budget=1+GiB")
    plot = page.get_by_role("slider")
    expect(plot.locator("svg")).to_be_visible()
    box = plot.bounding_box()
    for share in (0.2, 0.5, 0.7):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + 100)
        tokens = int(re.sub(r"\D", "", page.locator(".read").inner_text()))
        for place, model in enumerate((LLAMA, GEMMA)):
            expected = sized(server, model=model, tokens=tokens)["sizes"][0]
            size = page.locator(".legend .size").nth(place)
            expect(size).to_contain_text(expected["human"])
            expect(size).to_have_attribute("title", f"{expected['batch_bytes']:,} bytes")
    page.mouse.move(0, 0)
    expect(page.locator(".read")).to_have_text("At 4,096 tokens:")
    fits = [
        sized(server, model=model, tokens=1, memory_budget_bytes=2**30)["max_tokens"]["per_sequence"]
        for model in (LLAMA, GEMMA)
    ]
    expect(plot.locator(".crossing")).to_have_count(2)
    for one in fits:
        expect(plot.locator("text", has_text=f"{one:,}")).not_to_have_count(0)
    lines = plot.locator("path.line").evaluate_all("nodes => nodes.map(node => node.getAttribute('d'))")
    page.get_by_role("radio", name="linear").check()
    expect(plot.locator("text", has_text=re.compile("^0 B$"))).to_have_count(1)
    assert "scale=linear" in page.url
    assert (
        plot.locator("path.line").evaluate_all("nodes => nodes.map(node => node.getAttribute('d'))") != lines
    )


def test_a_shared_link_shows_the_same_in_a_fresh_profile(open_tab: OpenPage, open_page: OpenPage) -> None:
    page = open_tab()
    fill(page, "Tokens", "20000")
    fill(page, "Sequences", "2")
    fill(page, "Memory budget", "24 GiB")
    page.get_by_label("Type of keys and values").select_option("q8_0")
    page.get_by_label("Engine").select_option("llama.cpp")
    page.get_by_role("option", name=QWEN).click()
    page.get_by_role("radio", name="linear").check()
    expect(page.locator(".read")).to_have_text("At 20,000 tokens × 2 sequences:")
    expect(page.get_by_text("= 25,769,803,776 bytes, 25.77 GB")).to_be_visible()
    expect(row(page, QWEN)).to_be_visible()
    other = open_page(page.url)
    expect(row(other, QWEN)).to_be_visible()
    for selector in (".numbers", ".in-detail", ".legend", ".plot svg"):
        assert other.locator(selector).inner_html() == page.locator(selector).inner_html()
    for label in ("Tokens", "Sequences", "Memory budget", "Type of keys and values", "Engine"):
        box = page.get_by_label(label, exact=True).input_value()
        assert other.get_by_label(label, exact=True).input_value() == box


def test_a_pasted_config_is_drawn_and_stays_out_of_the_address(server: Server, open_tab: OpenPage) -> None:
    page = open_tab(f"&models={LLAMA}")
    before = page.url
    problem = paste(page, json.dumps(CONFIG))
    size = sized(server, config=CONFIG, tokens=4096)["sizes"][0]
    expect(row(page, "your config: mistral")).to_contain_text(f"{size['batch_bytes']:,} bytes")
    expect(problem).to_have_text("")
    assert page.url == before
    expect(page.get_by_text("not in the link")).to_be_visible()
    page.get_by_role("button", name="Remove your config: mistral").click()
    expect(page.locator(".legend li")).to_have_count(1)


def test_hostile_configs_are_told_at_the_field_and_nothing_breaks(open_tab: OpenPage) -> None:
    page = open_tab(f"&models={LLAMA}")
    for text, told in (
        ("", "Nothing is pasted yet."),
        ("{not json", "This is not JSON"),
        ('{"hidden_size": NaN}', "This is not JSON"),
        ('{"model_type": "x", "hidden_size": 1e400}', "The number at hidden_size is too large"),
        ("[1]", "A config.json is a JSON object"),
        (json.dumps({**CONFIG, "num_attention_heads": 0}), "/config/num_attention_heads: "),
        (json.dumps({**CONFIG, "num_hidden_layers": "<b>32"}), "/config/num_hidden_layers: "),
        (json.dumps({"model_type": "llama"}), "/config/num_hidden_layers: "),
        ('{"model_type": "x", "a": ' + "[" * 5000 + "]" * 5000 + "}", "nested too deeply"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        (json.dumps({**CONFIG, "filler": "x" * 1_100_000}), "1048576"),
    ):
        problem = paste(page, text)
        expect(problem).to_contain_text(told)
        expect(page.get_by_label("A Hugging Face config.json")).to_have_attribute("aria-invalid", "true")
        expect(row(page, LLAMA)).to_contain_text("2 GiB")
    for config in (
        {**CONFIG, "model_type": "<img src=x onerror=alert(1)>" * 9999, "max_position_embeddings": 10**9},
        CONFIG,
    ):
        problem = paste(page, json.dumps(config))
        expect(problem).to_have_text("")
        expect(row(page, "your config")).to_contain_text("512 MiB")
        expect(page.get_by_role("slider").locator("path.line")).not_to_have_count(0)
        assert page.locator(".kv img").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_what_cannot_be_read_or_answered_is_told_at_its_field(open_tab: OpenPage) -> None:
    page = open_tab(f"&models={LLAMA},google-t5/t5-small")
    expect(page.locator("#kv-encoder_tokens-problem")).to_contain_text("is required")
    expect(row(page, LLAMA)).to_contain_text("2 GiB")
    fill(page, "Encoder tokens", "512")
    expect(row(page, "t5-small")).to_contain_text("bytes")
    for label, text, told in (
        ("Tokens", "many", "A whole number"),
        ("Tokens", "0", "at least 1"),
        ("Sequences", "9999999", "1000000"),
        ("Memory budget", "24 gigs", "as 24 GiB"),
        ("Memory budget", "0", "More than 0"),
    ):
        field = page.get_by_label(label, exact=True)
        fill(page, label, text)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(page.locator(f"#{field.get_attribute('id')}-problem")).to_contain_text(told)
        fill(page, label, "")
        expect(field).to_have_attribute("aria-invalid", "false")
    page.goto(re.sub("#.*", f"#tab=kv&models={LLAMA},no-such-model&dtype=nvfp4", page.url))
    expect(row(page, "no-such-model")).to_contain_text("No model of this name is known")
    expect(row(page, LLAMA)).to_contain_text("bytes")
    page.get_by_role("button", name="Remove no-such-model").click()
    expect(page.locator(".legend li")).to_have_count(1)


def test_exports_are_the_apis_bytes_and_the_curl_command_runs(server: Server, open_tab: OpenPage) -> None:
    page = open_tab(f"&models={LLAMA},{GEMMA}&budget=24+GiB&scale=linear")
    request = {
        "model": LLAMA,
        "tokens": 4096,
        "memory_budget_bytes": 24 * 2**30,
        "compare_models": [GEMMA],
    }
    chart = "?width=960&scale=linear"
    for name, accept, query in (
        ("Sizes as CSV", "text/csv", ""),
        ("Sizes as JSON", "application/json", ""),
        ("Chart as SVG", "image/svg+xml", chart),
        ("Chart as PNG", "image/png", chart),
    ):
        with page.expect_download() as download:
            page.get_by_role("button", name=name).click()
        saved = Path(download.value.path()).read_bytes()
        assert download.value.suggested_filename == f"kv-cache.{name[-3:].lower().replace('son', 'json')}"
        assert saved == server.post(f"/v1/kv-cache{query}", request, Accept=accept).data
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy curl command").click()
    expect(page.get_by_text("Copied.")).to_be_visible()
    command = page.evaluate("navigator.clipboard.readText()")
    run = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60)
    assert json.loads(run.stdout) == server.post("/v1/kv-cache", request).json


def test_busy_is_told_and_waited_out(open_tab: OpenPage) -> None:
    page = open_tab(f"&models={LLAMA}")
    expect(row(page, LLAMA)).to_be_visible()
    problem = {"type": "/problems/overloaded", "title": "Overloaded", "status": 429, "detail": "Too many."}

    refused: list[str] = []

    def busy(route: Any) -> None:
        if refused:
            route.continue_()
            return
        refused.append(route.request.url)
        route.fulfill(status=429, headers={"Retry-After": "1"}, json=problem)

    page.route("**/v1/kv-cache", busy)
    fill(page, "Tokens", "8192")
    expect(page.get_by_text("Too many. Asking again in 1 s.")).to_be_visible()
    expect(row(page, LLAMA)).to_contain_text("4 GiB")


def test_a_question_given_up_leaves_the_old_answer_dimmed(open_tab: OpenPage) -> None:
    page = open_tab(f"&models={LLAMA}")
    expect(row(page, LLAMA)).to_be_visible()
    problem = {"type": "/problems/overloaded", "title": "Overloaded", "status": 429, "detail": "Too many."}
    busy = {"status": 429, "headers": {"Retry-After": "60"}, "json": problem}
    page.route("**/v1/kv-cache", lambda route: route.fulfill(**busy))
    fill(page, "Tokens", "8192")
    status = page.locator("#kv .main > .status")
    status.get_by_role("button", name="Cancel").click()
    expect(status).to_contain_text("Cancelled.")
    expect(page.locator(".answers")).to_have_attribute("aria-busy", "true")
    page.unroute("**/v1/kv-cache")
    status.get_by_role("button", name="Try again").click()
    expect(row(page, LLAMA)).to_contain_text("4 GiB")
    expect(page.locator(".answers")).to_have_attribute("aria-busy", "false")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing_and_nothing_is_cut_off(
    open_tab: OpenPage, no_violations: Any, scheme: str, width: int
) -> None:
    page = open_tab("&budget=24+GiB&tokens=32768", width=width, color_scheme=scheme)
    expect(row(page, LLAMA)).to_be_visible()
    for summary in page.locator(".kv summary").all():
        summary.click()
    no_violations(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    small = "nodes => nodes.filter(node => { const box = node.getBoundingClientRect(); \
        return box.width && (box.width < 24 || box.height < 24) }).map(node => node.outerHTML)"
    assert (
        page.locator(".kv button, .kv select, .kv input:not([type=radio]), .kv summary").evaluate_all(small)
        == []
    )


def test_names_of_types_and_engines_are_the_cores(open_tab: OpenPage) -> None:
    page = open_tab()
    for label, names in (("Type of keys and values", ["auto", *DTYPES]), ("Engine", list(ENGINES))):
        options = page.get_by_label(label).locator("option")
        assert options.evaluate_all("nodes => nodes.map(node => node.value)") == names


def test_a_question_takes_less_than_a_tenth_of_a_second(server: Server) -> None:
    """Of the service's own time; the least of some, as the machine does other things too."""
    stops = [2**octave * part // 4 for octave in range(9, 17) for part in (4, 5, 6, 7)]
    for body in (
        {"model": QWEN, "tokens": stops},
        {"model": QWEN, "tokens": 4096, "detail": "layers", "memory_budget_bytes": 2**30},
    ):
        times = []
        for _ in range(7):
            answer = server.post("/v1/kv-cache", body)
            parts = re.findall(r"dur=([\d.]+)", answer.headers["Server-Timing"])
            times.append(sum(map(float, parts)))
        assert min(times) < 100


def test_the_list_and_the_sizes_have_each_their_own_status(server: Server, open_page: OpenPage) -> None:
    page = open_page(f"http://127.0.0.1:{server.port}/static/icon.svg")
    held: list[Any] = []
    page.route("**/v1/kv-cache", lambda route: held.append(route))
    page.goto(f"http://127.0.0.1:{server.port}/#tab=kv&models=llama-2-7b")
    expect(page.locator("#kv .main > .status")).to_have_text("Asking …")  # though the list is there
    expect(page.locator("#kv .answers")).to_have_attribute("aria-busy", "true")
    expect(page.get_by_role("listbox", name="Models")).to_have_attribute("aria-busy", "false")
    for route in held:
        route.continue_()
    expect(row(page, LLAMA)).to_be_visible()
    expect(page.locator("#kv .main > .status")).to_have_text("")


def test_a_config_beside_eight_models_says_which_is_left_out(server: Server, open_tab: OpenPage) -> None:
    ids = [one["id"] for one in server.get("/v1/kv-cache/models").json["models"]][:8]
    page = open_tab(f"&models={','.join(ids)}")
    count = page.locator("#kv .picker > .hint")
    expect(count).to_contain_text("8 picked. No more than 8 at once.")
    paste(page, json.dumps(CONFIG))
    expect(row(page, "your config")).to_be_visible()
    expect(count).to_contain_text(f"8 picked, and your config. No more than 8 at once: left out is {ids[7]}.")
    expect(row(page, ids[7])).to_have_count(0)
    page.get_by_role("button", name=f"Remove {ids[0]}").click()
    expect(count).to_contain_text("7 picked, and your config. No more than 8 at once.")
    expect(row(page, ids[7])).to_be_visible()


def test_a_field_that_is_wrong_leaves_the_last_answer_dimmed_and_itself_in_its_place(
    open_tab: OpenPage,
) -> None:
    page = open_tab(f"&models={LLAMA}")
    expect(row(page, LLAMA)).to_be_visible()
    field = page.get_by_label("Memory budget", exact=True)
    before = field.bounding_box()
    for label, text in (("Memory budget", "lots"), ("Tokens", "0")):
        fill(page, label, text)
        expect(page.get_by_label(label, exact=True)).to_have_attribute("aria-invalid", "true")
        expect(page.locator(".answers")).to_have_attribute("aria-busy", "true")
        expect(row(page, LLAMA)).to_contain_text("2 GiB")
        assert field.bounding_box() == before
        fill(page, label, "")
        expect(page.locator(".answers")).to_have_attribute("aria-busy", "false")
