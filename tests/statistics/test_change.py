"""Whether the accepted length of a running server changed: noticed, placed in time, and not where nothing did."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pytest

from speclift.core.document import read
from speclift.core.live import Increment, LiveTotals
from speclift.statistics.live import Change, ChangeWatch
from watch_alarms import accepted_length_at, edge_week, episodes, false_alarms, noticed

BEFORE, AFTER = accepted_length_at(0.8), accepted_length_at(0.3)
HOUR = 240  # scrapes


def follow(
    watch: ChangeWatch,
    lengths: Sequence[float],
    *,
    start: int = 0,
    noise: float = 0.02,
    requests: float = 5.0,
) -> list[tuple[int, Change]]:
    random = np.random.default_rng(start)
    changes = []
    for index, length in enumerate(lengths, start):
        tokens = 1000.0 * max(1.0, length * math.exp(noise * random.standard_normal()))
        change = watch.follow(scrape(index, tokens, 1000.0 if length else 0.0, requests if length else 0.0))
        if change is not None:
            changes.append((index, change))
    return changes


def scrape(index: int, tokens: float | None, steps: float | None, requests: float | None) -> Increment:
    return Increment(
        from_s=15.0 * index,
        to_s=15.0 * (index + 1),
        totals=LiveTotals(requests=requests),
        steps=steps,
        step_tokens=tokens,
    )


class TestAChange:
    def test_is_noticed_in_minutes_and_placed(self) -> None:
        [(index, change)] = follow(ChangeWatch(), [BEFORE] * HOUR + [AFTER] * HOUR)
        assert index - HOUR < 12  # three minutes
        assert change.at_s == pytest.approx(15.0 * HOUR, abs=15.0)
        assert change.before == pytest.approx(BEFORE, rel=0.02)
        assert change.after == pytest.approx(AFTER, rel=0.02)

    def test_for_the_better_too(self) -> None:
        [(_, change)] = follow(ChangeWatch(), [AFTER] * HOUR + [BEFORE] * HOUR)
        assert change.before < change.after

    def test_is_noticed_again_after_what_is_new_was_learnt(self) -> None:
        changes = follow(ChangeWatch(), ([BEFORE] * HOUR + [AFTER] * HOUR) * 2)
        assert [index // HOUR for index, _ in changes] == [1, 2, 3]

    def test_takes_more_than_one_scrape(self) -> None:
        assert follow(ChangeWatch(), [BEFORE] * HOUR + [1.0] + [BEFORE] * HOUR) == []

    def test_of_less_than_a_tenth_is_none(self) -> None:
        assert follow(ChangeWatch(), [2.5] * HOUR + [2.3] * 20 * HOUR) == []

    def test_is_none_where_there_was_nothing_before(self) -> None:
        assert follow(ChangeWatch(), [BEFORE] * 3 + [AFTER] * HOUR) == []

    def test_after_an_idle_night_is_none(self) -> None:
        """Nobody knows then how it was."""
        assert follow(ChangeWatch(), [BEFORE] * HOUR + [0.0] * 8 * HOUR + [AFTER] * HOUR) == []

    def test_is_not_said_of_a_daily_rhythm(self) -> None:
        rhythm = [
            2.5 * math.exp(0.12 * math.sin(2 * math.pi * index / (24 * HOUR))) for index in range(48 * HOUR)
        ]
        assert follow(ChangeWatch(), rhythm[:: HOUR // 60], requests=1.0) == []
        assert follow(ChangeWatch(), rhythm[: 24 * HOUR]) == []


class TestWhatIsForgotten:
    def test_is_not_compared_with(self) -> None:
        watch = ChangeWatch()
        follow(watch, [BEFORE] * HOUR)
        watch.forget()
        assert follow(watch, [AFTER] * HOUR, start=HOUR) == []

    def test_how_much_a_server_varies_stays_known(self) -> None:
        watch = ChangeWatch()
        follow(watch, [BEFORE] * 10 * HOUR)
        spread = watch.spread
        assert spread.df > 20
        watch.forget()
        assert watch.spread == spread


class TestScrapes:
    @pytest.mark.parametrize(
        "nothing",
        [
            scrape(0, None, None, None),
            scrape(0, 5.0, None, 1.0),
            scrape(0, 0.0, 0.0, 0.0),
            Increment(from_s=3.0, to_s=3.0, totals=LiveTotals(), steps=10.0, step_tokens=20.0),
        ],
    )
    def test_that_say_nothing_change_nothing(self, nothing: Increment) -> None:
        watch = ChangeWatch()
        assert watch.follow(nothing) is None
        assert watch.information == 0.0

    def test_with_fewer_tokens_than_steps_count_as_one_token_a_step(self) -> None:
        watch = ChangeWatch()
        watch.follow(scrape(0, 0.0, 100.0, 1.0))
        assert watch.reference == 0.0
        assert watch.information > 0.0

    def test_of_unequal_length_weigh_as_much_as_they_last(self) -> None:
        short, long = ChangeWatch(), ChangeWatch()
        for index in range(4):
            short.follow(scrape(index, 2500.0, 1000.0, 5.0))
        long.follow(
            Increment(from_s=0.0, to_s=60.0, totals=LiveTotals(requests=20), steps=4e3, step_tokens=1e4)
        )
        assert short.information == pytest.approx(long.information, rel=0.02)


def test_the_state_is_kept_as_json_and_goes_on() -> None:
    kept, whole = ChangeWatch(), ChangeWatch()
    first, then = [BEFORE] * HOUR + [AFTER] * 2, [AFTER] * HOUR
    follow(kept, first)
    follow(whole, first)
    restored = read(ChangeWatch, json.loads(json.dumps(asdict(kept))))
    assert restored == kept
    assert follow(restored, then, start=len(first)) == follow(whole, then, start=len(first)) != []


def test_false_answers_within_a_window_are_one() -> None:
    assert [episodes(np.array(at, dtype=np.intp)) for at in ([], [7], [7, 8, 47], [7, 48, 90])] == [
        0,
        1,
        1,
        3,
    ]


@pytest.mark.slow
class TestOnSimulatedWeeks:
    def test_false_alarms_are_rarer_than_one_a_week(self) -> None:
        assert np.mean(false_alarms(8, np.random.default_rng(1))) <= 0.5

    def test_a_server_at_its_break_even_is_hardly_ever_said_not_to_pay(self) -> None:
        random = np.random.default_rng(2)
        weeks = [edge_week(random, (0.0, 0.1)).not_paying for _ in range(5)]
        at_edge, above = np.mean(weeks, axis=0)
        assert at_edge <= 1.5
        assert above <= 0.3

    def test_a_fall_from_08_to_03_is_noticed_within_three_windows(self) -> None:
        random = np.random.default_rng(3)
        busy = [
            each for each in (noticed(0.8, 0.3, random) for _ in range(20)) if each.requests_per_minute >= 1
        ]
        assert len(busy) > 5
        assert all(each.delay <= 30 for each in busy)
        assert np.median([each.error for each in busy]) <= 2
