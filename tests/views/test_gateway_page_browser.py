"""The gateway's page in a real browser, under the policy of its service: at any width, in every state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from test_watch_page_browser import CHECKS, WIDTHS, Shown, served

from browser import Browser, chromium, started_browser
from gateway_samples import BOARDS
from speclift.views.gateway_page import gateway_document, gateway_page
from watch_samples import FRAME

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("no Chromium on this machine")
    with started_browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.mark.parametrize("name", BOARDS)
def test_nothing_lies_on_another_is_cut_off_or_blocked(name: str, browser: Browser) -> None:
    shown = Shown()
    shown.page = gateway_page(gateway_document(BOARDS[name]()), FRAME, up_s=7200.0)
    browser.said.clear()
    with served(shown) as address:
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                browser.show(width=width, scheme=scheme)
                browser.go(address)
                browser.ask(CHECKS)
                assert browser.ask("overlaps()")["found"] == [], (width, scheme)
                assert browser.ask("cutOff()") == [], (width, scheme)
                assert browser.ask("[document.scripts.length, document.images.length]") == [1, 0]
    assert browser.said == []
