"""One server, look after look: the answer, since when, and what changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from live_pages import INTERVAL_S, WALL_S, Served
from speclift.core.live import BreakEvenSource, Event, MetricsReading, Payoff, Watched
from speclift.live.server_watch import (
    ServerWatch,
    WatchSettings,
    given_break_even,
    planned_break_even,
    studied_break_even,
)

SETTINGS = WatchSettings(break_even=given_break_even(2.0))
WINDOW = int(SETTINGS.window_s / INTERVAL_S)


def watched(pages: Iterable[MetricsReading], settings: WatchSettings = SETTINGS) -> list[Watched]:
    watch = ServerWatch("http://a", settings)
    return [watch.read(page) for page in pages]


def last(pages: Iterable[MetricsReading], settings: WatchSettings = SETTINGS) -> Watched:
    return watched(pages, settings)[-1]


def checks(seen: Watched) -> set[str]:
    return {finding.check for finding in seen.findings}


class TestAnswer:
    @pytest.mark.parametrize(
        ("accepted", "payoff"), [(2.0, Payoff.PAYS), (0.4, Payoff.DOES_NOT_PAY), (1.0, Payoff.UNSURE)]
    )
    def test_against_the_break_even(self, accepted: float, payoff: Payoff) -> None:
        seen = last(Served().intervals(WINDOW, accepted=accepted))

        assert seen.verdict is payoff
        assert seen.accepted_length is not None
        assert seen.accepted_length.value == pytest.approx(1 + accepted, rel=0.01)


class TestChange:
    def test_the_answer_follows_within_three_windows(self) -> None:
        served = Served()
        before = list(served.intervals(2 * WINDOW, accepted=2.4))
        after = list(served.intervals(3 * WINDOW, accepted=0.43))
        seen = watched([*before, *after])

        assert seen[len(before) - 1].verdict is Payoff.PAYS
        assert seen[-1].verdict is Payoff.DOES_NOT_PAY
        assert not any(each.verdict is Payoff.DOES_NOT_PAY for each in seen[: len(before)])

    def test_it_says_since_when_and_what_changed(self) -> None:
        served = Served()
        seen = last(
            [*served.intervals(2 * WINDOW, accepted=2.4), *served.intervals(2 * WINDOW, accepted=0.43)]
        )

        assert seen.verdict is Payoff.DOES_NOT_PAY
        assert "changed-acceptance" in checks(seen)
        # Not before it changed, and not later than there were pages of nothing else.
        changed_s = WALL_S + 2 * WINDOW * INTERVAL_S
        assert changed_s - 120 <= seen.since_s <= changed_s + SETTINGS.window_s

    def test_a_restart_is_no_change(self) -> None:
        old, new = Served(started_s=WALL_S - 100), Served(started_s=WALL_S + 605, at_s=600)
        pages = [*old.intervals(WINDOW, accepted=2), *new.intervals(WINDOW, accepted=2)]
        seen = watched(pages)

        assert [each.events for each in seen if each.events] == [(Event.RESTART,)]
        assert {each.verdict for each in seen} == {Payoff.PAYS, Payoff.UNSURE}
        assert not any(check.startswith("changed") for each in seen for check in checks(each))

    def test_a_counter_reset_is_no_change(self) -> None:
        served = Served(started_s=WALL_S - 100)
        pages = list(served.intervals(WINDOW, accepted=2))
        served.tokens = served.requests = served.drafts = served.accepted = 0.0
        seen = watched([*pages, *served.intervals(WINDOW, accepted=2)])

        assert [each.events for each in seen if each.events] == [(Event.COUNTER_RESET,)]
        assert not any(each.verdict is Payoff.DOES_NOT_PAY for each in seen)

    def test_a_heavier_load_is_named(self) -> None:
        by_load = studied_break_even(lambda running: 1.5 if running < 20 else 4.0, (8.0, 40.0))
        served, settings = Served(), WatchSettings(break_even=by_load)
        calm = list(served.intervals(WINDOW, accepted=2))
        heavy = [replace(page, running=40.0) for page in served.intervals(2 * WINDOW, accepted=2)]
        seen = last([*calm, *heavy], settings)
        assert seen.verdict is Payoff.DOES_NOT_PAY
        assert {"changed-load", "changed-break-even"} <= checks(seen)


class TestTroubles:
    def test_a_server_that_cannot_be_read_is_unsure_and_keeps_its_name(self) -> None:
        watch = ServerWatch("http://a", SETTINGS)
        for page in Served().intervals(3, accepted=2):
            watch.read(page)
        seen = watch.missed("connection refused", wall_s=WALL_S + 99)
        assert (seen.verdict, seen.unreachable, seen.engine) == (Payoff.UNSURE, "connection refused", "vllm")
        assert seen.events == (Event.UNREACHABLE,)

    def test_replicas_give_no_false_answer(self) -> None:
        one, other = Served(started_s=10.0), Served(started_s=20.0)
        one.interval(accepted=0.1, requests=10_000)
        pages = []
        for turn in range(3 * WINDOW):
            served = (one, other)[turn % 2]
            served.at_s = INTERVAL_S * turn
            pages.append(served.interval(accepted=2))
        seen = watched(pages)
        assert {each.verdict for each in seen} == {Payoff.PAYS, Payoff.UNSURE}
        assert "replicas" in checks(seen[-1])

    def test_the_window_forgets(self) -> None:
        served = Served()
        seen = last(served.intervals(5 * WINDOW, accepted=2))
        assert seen.window_s <= SETTINGS.window_s + INTERVAL_S


class TestBreakEven:
    def test_a_guess_is_said_to_be_one_and_decides_only_far_from_it(self) -> None:
        settings = WatchSettings(break_even=planned_break_even)
        near, far = (last(Served().intervals(WINDOW, accepted=a), settings) for a in (0.5, 2.5))
        assert near.verdict is Payoff.UNSURE
        assert far.verdict is Payoff.PAYS
        assert "break-even-guessed" in checks(far)
        assert far.break_even is not None
        assert far.break_even.source is BreakEvenSource.PLANNED

    def test_far_below_is_no_matter_how_heavy(self) -> None:
        studied = studied_break_even(lambda running: 1.9, (1.0,))
        point = studied(8.0, 4)
        assert point is not None
        assert point.high is None
        seen = last(Served().intervals(WINDOW, accepted=0.2), WatchSettings(break_even=studied))
        assert seen.verdict is Payoff.DOES_NOT_PAY
