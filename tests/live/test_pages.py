"""What lies between two pages of one address."""

from __future__ import annotations

from typing import Any

import pytest

from live_pages import INTERVAL_S, Served, reading
from speclift.core.live import Event, Increment, LiveTotals, MetricsReading
from speclift.live.readings import Pages, decoded, since_start


def turned(*pages: MetricsReading) -> list[tuple[Increment | None, tuple[Event, ...]]]:
    kept = Pages(interval_s=INTERVAL_S)
    return [kept.turn(page) for page in pages]


def last_events(*pages: MetricsReading) -> tuple[Event, ...]:
    return turned(*pages)[-1][1]


class TestIncrements:
    def test_what_was_counted_is_the_difference(self) -> None:
        increment = turned(reading(0, tokens=100.0, running=2.0), reading(15, tokens=160.0, running=4.0))[-1][
            0
        ]

        assert increment is not None
        assert (increment.totals.tokens, increment.seconds, increment.running) == (60.0, 15.0, 3.0)

    def test_a_counter_that_one_page_lacks_is_not_known(self) -> None:
        increment = turned(reading(0, tokens=1.0, drafts=5.0), reading(15, tokens=2.0))[-1][0]

        assert increment is not None
        assert increment.totals.drafts is None


class TestSteps:
    def test_what_was_accepted_beyond_the_end_of_an_answer_makes_no_step_vanish(self) -> None:
        # vLLM 0.32: 22 tokens in 6 steps of which the counters say 18 accepted.
        assert decoded(LiveTotals(tokens=22, requests=1, drafts=6, accepted=18), length=None) == (6, 21)

    def test_one_page_is_all_since_its_start(self) -> None:
        page = Served(started_s=1_800_000_000.0 - 60)
        increment = since_start(page.interval(accepted=1.5, seconds=40))

        assert increment.seconds == 100
        assert increment.steps is not None
        assert increment.step_tokens == pytest.approx(2.5 * increment.steps)


class TestEvents:
    def test_a_new_start_time_is_a_restart(self) -> None:
        old, new = Served(started_s=1_799_999_000.0), Served(started_s=1_800_000_010.0, at_s=15)
        pages = (old.interval(accepted=2), new.interval(accepted=2))

        assert last_events(*pages) == (Event.RESTART,)
        assert turned(*pages)[-1][0] is None

    def test_of_another_version_it_is_an_upgrade(self) -> None:
        before, after = reading(0, tokens=9.0, version="1"), reading(15, tokens=1.0, version="2")
        assert last_events(before, after) == (Event.RESTART, Event.UPGRADE)

    def test_counters_that_fall_in_the_same_process_are_a_reset(self) -> None:
        before, after = reading(0, tokens=9.0, started_s=5.0), reading(15, tokens=1.0, started_s=5.0)
        assert last_events(before, after) == (Event.COUNTER_RESET,)

    def test_another_k(self) -> None:
        before, after = Served(k=4), Served(k=2)
        after.at_s, after.tokens = 15, 10.0
        assert last_events(before.page(), after.page()) == (Event.K_CHANGED,)

    def test_a_successor_that_overtakes_is_no_replica(self) -> None:
        """llama.cpp does not say when it began: its counters pass those that the process before it had."""
        pages = [reading(15.0 * turn, tokens=100.0 * turn) for turn in range(10)]
        pages += [reading(150 + 15.0 * turn, tokens=100.0 * turn) for turn in range(20)]
        events = [events for _, events in turned(*pages) if events]
        assert events == [(Event.RESTART,)]

    def test_positions_that_appear_with_the_first_draft_are_no_other_k(self) -> None:
        served = Served()
        first = reading(0, tokens=0.0, drafts=0.0, drafted=0.0, accepted=0.0, requests=0.0)
        assert last_events(first, served.interval(accepted=2)) == ()

    def test_a_clock_that_jumps_changes_no_rate(self) -> None:
        before, after = reading(0, tokens=1.0), reading(15, tokens=31.0, wall_s=1_900_000_000.0)
        seen = turned(before, after)[-1]
        assert seen[1] == (Event.CLOCK_JUMP,)
        assert seen[0] is not None
        assert seen[0].seconds == 15

    @pytest.mark.parametrize(
        "after",
        [
            {"tokens": 50.0, "drafted": 4.0, "accepted": 5.0},
            {"tokens": 50.0, "accepted_at": (1.0, 3.0)},
            {"tokens": 1e15},
        ],
    )
    def test_what_cannot_be_is_left_out(self, after: dict[str, Any]) -> None:
        before: dict[str, Any] = {"tokens": 0.0, "drafted": 0.0, "accepted": 0.0, "accepted_at": (0.0, 0.0)}
        seen = turned(reading(0, **before), reading(15, **{**before, **after}))[-1]
        assert seen == (None, (Event.IMPOSSIBLE,))


class TestReplicas:
    """Two servers behind one address: neither is a restart of the other."""

    def test_told_apart_by_their_starts(self) -> None:
        one, other = Served(started_s=10.0), Served(started_s=20.0)
        one.interval(accepted=2, requests=1000)
        pages = []
        for at_s in range(15, 15 * 9, 15):
            served = one if at_s % 30 else other
            served.at_s = at_s - INTERVAL_S
            pages.append(served.interval(accepted=2, requests=10))
        seen = turned(*pages)

        assert all(Event.RESTART not in events for _, events in seen)
        assert all(Event.REPLICAS in events for _, events in seen[1:])
        counted = [increment.totals.requests for increment, _ in seen if increment is not None]
        assert counted == [10.0] * 6

    def test_that_began_within_the_same_second(self) -> None:
        one, other = Served(started_s=10.0), Served(started_s=10.4)
        pages = []
        for turn in range(1, 7):
            served = (one, other)[turn % 2]
            served.at_s = INTERVAL_S * (turn - 1)
            pages.append(served.interval(accepted=2))
        assert all(Event.REPLICAS in events for _, events in turned(*pages)[1:])

    def test_told_apart_by_their_counters(self) -> None:
        pages = [reading(15.0 * turn, tokens=(1e6 if turn % 2 else 1e3) + 10 * turn) for turn in range(10)]
        counted = [increment.totals.tokens for increment, _ in turned(*pages) if increment is not None]

        # The first page of the second one is taken for traffic that cannot be told from it; no other is.
        assert counted[1:] == [20.0] * (len(counted) - 1)
        assert Event.REPLICAS in turned(*pages)[-1][1]
