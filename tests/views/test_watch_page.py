"""The watch's page: the answer first, the worst server first, and nothing that a server says acts."""

from __future__ import annotations

import re
from dataclasses import replace as with_fields
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from speclift.core.results import Finding, Level
from speclift.views.watch_page import watch_list
from watch_samples import (
    FRAME,
    HOSTILE,
    STATES,
    alarm,
    one_page,
    unreachable,
    watched,
)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ("calm", "Speculation pays, since"),
        ("alarm", "Speculation does not pay, since"),
        ("no-traffic", "No traffic, since"),
        ("unreachable", "Unreachable: http://10.0.0.7:8000/metrics"),
    ],
)
def test_the_answer_comes_first(state: str, sentence: str) -> None:
    page = one_page(STATES[state]())
    main = page.partition("<main>")[2]
    assert sentence in main
    assert main.index(sentence) < main.index("<dl")
    assert (
        f'class="banner {"pays" if state == "calm" else "does-not-pay" if state == "alarm" else state}"'
        in main
    )


def test_what_changed_and_the_next_command_are_there_in_an_alarm() -> None:
    page = one_page(alarm())
    assert "82% when it paid" in page
    assert "speclift decide --study studies/mine-again" in page
    assert "restart" in page


def test_it_needs_no_network_and_marks_what_may_run() -> None:
    page = one_page(watched())
    assert not re.search(r'(?:src|href)="(?:https?:)?//', page)
    assert re.findall(r"<(?:script|style)[^>]*>", page) == ['<style nonce="n">', '<script nonce="n">']
    assert " on" not in "".join(f" {name}" for name in Tags(page).attributes if name.startswith("on"))


def test_hostile_texts_are_inert() -> None:
    finding = Finding(check=HOSTILE, level=Level.WARN, message=HOSTILE, next_step=HOSTILE)
    calm = watched(findings=(with_fields(finding, check="c", message="m", next_step="n"),))
    hostile = watched(
        model=HOSTILE, version=HOSTILE, engine=HOSTILE, url=f"http://h/{HOSTILE}", findings=(finding,)
    )
    for one, other in (
        (one_page(calm, is_of_several=True), one_page(hostile, is_of_several=True)),
        (
            watch_list([unreachable()], FRAME),
            watch_list([replace(unreachable(), unreachable=HOSTILE, url=HOSTILE)], FRAME),
        ),
    ):
        assert Tags(other).tags == Tags(one).tags
        assert Tags(other).attributes == Tags(one).attributes
        assert "\u202e" not in other
