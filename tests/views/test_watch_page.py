"""The watch's page: the answer first, the worst server first, and nothing that a server says acts."""

from __future__ import annotations

import re
from dataclasses import replace as with_fields
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from speclift.core.live import Payoff
from speclift.core.results import Finding, Level
from speclift.views.charts import Scale
from speclift.views.watch_page import watch_charts, watch_list
from watch_samples import (
    BASELINE,
    FRAME,
    HOSTILE,
    NOW_S,
    STATES,
    alarm,
    looks,
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


class TestTheList:
    def test_the_worst_come_first(self) -> None:
        servers = [replace(make(), url=f"http://{name}") for name, make in STATES.items()]
        page = watch_list(servers, FRAME)
        places = [page.index(f"http://{name}<") for name in ("unreachable", "alarm", "no-traffic", "calm")]
        assert places == sorted(places)
        assert "1 of 4 servers cannot be reached" in page

    @pytest.mark.parametrize(
        ("count", "payoff", "sentence"),
        [
            (3, Payoff.PAYS, "Speculation pays on all 3 servers"),
            (2, Payoff.DOES_NOT_PAY, "Speculation does not pay on all 2 servers"),
        ],
    )
    def test_all_alike(self, count: int, payoff: Payoff, sentence: str) -> None:
        servers = [watched(url=f"http://{number}", verdict=payoff) for number in range(count)]
        assert sentence in watch_list(servers, FRAME)

    def test_before_the_second_look(self) -> None:
        assert "No look taken yet" in watch_list([], FRAME)


class TestCharts:
    SPAN = Scale(low=NOW_S - 3600, high=NOW_S)

    def test_what_is_not_known_has_no_chart(self) -> None:
        titles = [chart.title for chart in watch_charts(looks(unreachable())[-10:], self.SPAN, BASELINE)]
        assert titles == []

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_few_looks(self, count: int) -> None:
        charts = watch_charts(looks(watched())[-count:], self.SPAN, None)
        assert len(charts) == 6
        assert all(line.lines for chart in charts for line in chart.lines if line.name != "break-even")

    def test_nothing_is_drawn_over_a_gap(self) -> None:
        seen = looks(watched())
        charts = watch_charts([*seen[:100], *seen[150:]], self.SPAN, None)
        assert [len(line.lines) for line in charts[0].lines] == [2, 2]

    def test_the_studys_times_are_lines_to_be_held_against(self) -> None:
        charts = {chart.title: chart for chart in watch_charts(looks(watched()), self.SPAN, BASELINE)}
        limits = [line.name for line in charts["Time to first token"].lines if line.is_limit]
        assert limits == ["p50 without speculation", "p95 without speculation"]

    @pytest.mark.parametrize("value", [0.0, 1e-9, 1.0, 12345.6, 9.9e14])
    def test_any_size_has_a_scale(self, value: float) -> None:
        seen = [replace(look, tokens_s=value) for look in looks(watched())[:3]]
        chart = next(
            each for each in watch_charts(seen, self.SPAN, None) if each.title == "Tokens per second"
        )
        assert len(chart.y_ticks) >= 2
        points = [
            tuple(map(float, point.split(","))) for line in chart.lines[0].lines for point in line.split()
        ]
        assert all(0 <= y <= 100 for _, y in points)

    @pytest.mark.parametrize("hours", [1, 6, 24, 168, 720])
    def test_times_under_it_at_every_length(self, hours: int) -> None:
        span = Scale(low=NOW_S - hours * 3600, high=NOW_S)
        chart = watch_charts(looks(watched(), hours=hours), span, None)[0]
        assert 2 <= len(chart.x_ticks) <= 7
