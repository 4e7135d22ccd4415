"""The page around its tabs: what it says of the service, and what stands in the address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playwright.sync_api import expect

OpenPage = Callable[..., Any]


def test_the_model_is_named_below(open_page: OpenPage, no_violations: Any) -> None:
    page = open_page()
    expect(page.locator("#model")).to_contain_text("qwen2.5-coder-0.5b-instruct")
    no_violations(page)
