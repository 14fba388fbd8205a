"""The report in a real browser: no text on another, nothing cut off, at any width and on paper; and what one can do."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from browser import Browser, chromium, started_browser
from page_samples import DOCUMENTS
from speclift.verdict.document import VerdictDocument
from speclift.views.page import page

pytestmark = pytest.mark.browser

# Width in px, medium. A4 between its margins is 718 px wide.
VIEWS = [(1280, "screen"), (800, "screen"), (360, "screen"), (718, "print")]
# Defines overlaps() and cutOff(): which texts lie on each other or on a dot, and what sticks out of page or cell.
CHECKS = (Path(__file__).parent / "page_checks.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("no Chromium on this machine")
    with started_browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


def opened(browser: Browser, document: VerdictDocument, folder: Path, **view: Any) -> None:
    path = folder / "report.html"
    path.write_text(page(document), encoding="utf-8")
    browser.show(**{"width": 1280, **view})
    browser.open(path)
    browser.ask(CHECKS)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_text_lies_on_another_and_nothing_is_cut_off(name: str, browser: Browser, tmp_path: Path) -> None:
    opened(browser, DOCUMENTS[name], tmp_path)
    for width, medium in VIEWS:
        browser.show(width=width, media=medium)
        overlaps = browser.ask("overlaps()")

        assert overlaps["found"] == [], (width, medium)
        assert browser.ask("cutOff()") == [], (width, medium)
        assert overlaps["count"] > 20


def test_an_overlap_and_a_cut_are_seen(browser: Browser, tmp_path: Path) -> None:
    opened(browser, DOCUMENTS["ship"], tmp_path, width=360)
    labels = "<span class=label>one</span><span class=label>two</span>"
    browser.ask(f"document.querySelector('.xs').innerHTML = '{labels}'")
    browser.ask("""document.querySelector("h2").style.cssText = "width:500px" """)

    assert ["one", "two"] in browser.ask("overlaps()")["found"]
    assert "the page is" in browser.ask("cutOff()")[0]


def test_it_opens_without_an_error_or_a_request(browser: Browser, tmp_path: Path) -> None:
    browser.said.clear()
    browser.asked.clear()
    opened(browser, DOCUMENTS["tune"], tmp_path)

    assert browser.said == []
    assert [url for url in browser.asked if not url.startswith(("file:", "data:"))] == []


def column(browser: Browser, number: int) -> list[str]:
    rows = 'document.querySelectorAll("#every-cell tbody tr:not([hidden])")'
    cells: list[str] = browser.ask(f"[...{rows}].map(row => row.cells[{number}].textContent)")
    return cells


def press(browser: Browser, selector: str) -> None:
    browser.ask(f"document.querySelector({json.dumps(selector)}).click()")


def test_cells_sort_by_number_and_by_name_and_unknown_ones_stay_last(
    browser: Browser, tmp_path: Path
) -> None:
    opened(browser, DOCUMENTS["many-loads"], tmp_path)
    by_load = "#every-cell th:nth-child(2) button"
    press(browser, by_load)
    assert list(dict.fromkeys(column(browser, 1)))[:6] == ["c=1", "c=2", "c=3", "c=4", "c=5", "c=6"]
    press(browser, by_load)
    assert column(browser, 1)[0] == "c=64"
    assert (
        browser.ask(f"document.querySelector({json.dumps(by_load)}).parentElement.ariaSort") == "descending"
    )

    rate = "#every-cell th[data-key=acceptance_rate_mean] button"
    for _ in range(2):
        press(browser, rate)
        rates = column(browser, 14)
        known = [float(text.strip("%")) for text in rates if text != "–"]
        assert rates[: len(known)] == [text for text in rates if text != "–"]
    assert known == sorted(known, reverse=True)


def choose(browser: Browser, selector: str, value: str) -> None:
    browser.ask(
        f"""(() => {{ const field = document.querySelector({json.dumps(selector)}); field.value = {json.dumps(value)};
        field.dispatchEvent(new Event("input", {{ bubbles: true }})); }})()"""
    )


def test_cells_are_filtered_by_name_and_by_words_and_taken_away_as_shown(
    browser: Browser, tmp_path: Path
) -> None:
    cells = tuple(
        replace(cell, segment=cell.segment.replace("chat", '=cmd,"chat"')) for cell in DOCUMENTS["ship"].cells
    )
    document = structs.replace(DOCUMENTS["ship"], cells=cells)
    opened(browser, document, tmp_path)
    choose(browser, ".filters select[data-column='0']", "ngram-k4")
    choose(browser, ".filters select[data-column='2']", '=cmd,"chat"')
    assert column(browser, 0) == ["ngram-k4"] * 3
    assert browser.ask("document.querySelector('.filters output').textContent") == "3 of 24 cells"
    choose(browser, ".filters input", "c=16")
    assert column(browser, 1) == ["c=16"]

    browser.allow_downloads(tmp_path)
    for kind in ("csv", "json"):
        press(browser, f"[data-download={kind}]")
    cell = next(
        cell
        for cell in cells
        if (cell.arm, cell.load.label, cell.segment) == ("ngram-k4", "c=16", '=cmd,"chat"')
    )
    (taken,) = json.loads(awaited(tmp_path / "speclift-cells.json"))
    assert (taken["arm"], taken["load"], taken["segment"]) == ("ngram-k4", "c=16", '=cmd,"chat"')
    assert cell.tpot_s is not None
    assert taken["tpot_s_p95"] == cell.tpot_s.p95
    (row,) = csv.DictReader(awaited(tmp_path / "speclift-cells.csv").splitlines())
    # A spreadsheet must not take it for a formula.
    assert row["segment"] == '\'=cmd,"chat"'
    assert float(row["throughput_tok_s"]) == cell.throughput_tok_s


def awaited(path: Path) -> str:
    """A download is written after the click has returned."""
    until_s = time.monotonic() + 20
    while not path.exists() and time.monotonic() < until_s:
        time.sleep(0.02)
    return path.read_text(encoding="utf-8")


def test_the_figures_of_a_mark_are_shown_under_the_pointer(browser: Browser, tmp_path: Path) -> None:
    opened(browser, DOCUMENTS["ship"], tmp_path)
    # The page hears of having been scrolled with its next frame.
    box = browser.ask(
        """(async () => { const dot = document.querySelector(".area .dot"); dot.scrollIntoView({ block: "center" });
        await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
        const box = dot.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"""
    )
    browser.move_to(*box)

    assert browser.ask("document.getElementById('tip').textContent") == "ngram-k4 at c=1: 2.27x [2.15, 2.38]"
    assert browser.ask("!document.getElementById('tip').hidden")
    browser.move_to(2, 2)
    assert browser.ask("document.getElementById('tip').hidden")


def test_on_paper_everything_is_open_and_afterwards_as_before(browser: Browser, tmp_path: Path) -> None:
    opened(browser, DOCUMENTS["tune"], tmp_path)
    closed = "document.querySelectorAll('details:not([open])').length"
    before = browser.ask(closed)
    assert before > 3
    browser.show(width=718, media="print")
    assert browser.ask(closed) == 0
    browser.show(width=1280)
    assert browser.ask(closed) == before


@pytest.mark.parametrize(("media", "is_dark"), [("screen", True), ("print", False)])
def test_it_is_dark_where_the_reader_wants_it_and_never_on_paper(
    media: str, is_dark: bool, browser: Browser, tmp_path: Path
) -> None:
    opened(browser, DOCUMENTS["ship"], tmp_path, scheme="dark", media=media)
    colour = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert (colour != "rgb(255, 255, 255)") == is_dark
