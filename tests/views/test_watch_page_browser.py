"""The watch's page in a real browser, as its service serves it: at any width, in every state, and kept up to date."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from browser import Browser, chromium, started_browser
from speclift.core.results import Finding, Level
from speclift.http.pages import HTML, Guard, HttpService, WebAnswer, WebRequest
from speclift.views.watch_page import watch_list
from watch_samples import FRAME, HOSTILE, STATES, one_page, watched

pytestmark = pytest.mark.browser

CHECKS = (Path(__file__).parent / "page_checks.js").read_text(encoding="utf-8")
WIDTHS = (390, 1200)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("no Chromium on this machine")
    with started_browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


class Shown:
    """What the service shows now."""

    def __init__(self) -> None:
        self.page = ""

    def route(self, request: WebRequest) -> WebAnswer:
        # Samples carry a nonce of their own.
        return WebAnswer(body=self.page.replace('nonce="n"', f'nonce="{request.nonce}"').encode(), kind=HTML)


@contextmanager
def served(shown: Shown) -> Iterator[str]:
    loop, ready, addresses = asyncio.new_event_loop(), threading.Event(), []
    service = HttpService({"/": shown.route}, Guard(token=None, is_loopback=True))

    async def opened() -> None:
        addresses.append(await service.open("127.0.0.1", 0))
        ready.set()

    def run() -> None:
        loop.create_task(opened())
        loop.run_forever()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(10)
    try:
        yield addresses[0]
    finally:
        asyncio.run_coroutine_threadsafe(service.close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


PAGES = {name: one_page(make()) for name, make in STATES.items()} | {
    "list": watch_list([replace(make(), url=f"http://{n}") for n, make in STATES.items()], FRAME)
}


@pytest.mark.parametrize("name", PAGES)
def test_nothing_lies_on_another_is_cut_off_or_blocked(name: str, browser: Browser) -> None:
    shown = Shown()
    shown.page = PAGES[name]
    browser.said.clear()
    with served(shown) as address:
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                browser.show(width=width, scheme=scheme)
                browser.go(address)
                browser.ask(CHECKS)
                assert browser.ask("overlaps()")["found"] == [], (width, scheme)
                assert browser.ask("cutOff()") == [], (width, scheme)
                assert (
                    browser.ask("getComputedStyle(document.querySelector('.banner')).borderLeftStyle")
                    == "solid"
                )
    # The policy would have said what it held back.
    assert browser.said == []


def test_it_follows_what_is_seen_and_says_when_it_cannot(browser: Browser) -> None:
    shown = Shown()
    shown.page = one_page(watched()).replace('data-every="15000"', 'data-every="100"')
    browser.show(width=1200)
    with served(shown) as address:
        browser.go(address)
        assert "Speculation pays" in browser.ask("document.querySelector('.sentence').textContent")
        shown.page = PAGES["alarm"]
        browser.ask("new Promise(done => setTimeout(done, 600))")
        assert "does not pay" in browser.ask("document.querySelector('.sentence').textContent")
        assert browser.ask("document.title").startswith("Does not pay")
        assert browser.ask("document.getElementById('stale').hidden")
    browser.ask("new Promise(done => setTimeout(done, 600))")
    assert "Not up to date" in browser.ask("document.getElementById('stale').textContent")
    browser.go("about:blank")


def test_hostile_texts_do_nothing(browser: Browser) -> None:
    finding = Finding(
        check=HOSTILE, level=Level.WARN, message="<img src=x onerror=alert(1)>", next_step=HOSTILE
    )
    shown = Shown()
    shown.page = one_page(watched(model=HOSTILE, url=f"http://{HOSTILE}", findings=(finding,)))
    browser.said.clear()
    browser.show(width=390)
    with served(shown) as address:
        browser.go(address)
        assert browser.ask("[document.scripts.length, document.images.length]") == [1, 0]
        browser.ask(CHECKS)
        assert browser.ask("cutOff()") == []
    assert browser.said == []
