"""The accepted length of a running server over a window of scrapes, whatever the design of the window."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclift.core.live import Increment, LiveEstimate, LiveTotals
from speclift.statistics.live import (
    EXPECTED_DF,
    EXPECTED_SPREAD,
    MIX_S,
    WATCH_LEVEL,
    WAVES,
    Scrape,
    SpreadWatch,
    TrafficSpread,
    accepted_length,
    scrape_of,
    seen_variance,
    together,
    window_sums,
)
from watch_alarms import LENGTH, coverage, learnt_spreads, looks_at
from watch_traffic import simulate, some_servers

ONE_REQUEST = (1.0, 1.0)


def increment(
    tokens: float | None,
    steps: float | None,
    *,
    index: int = 0,
    requests: float | None = None,
    running: float | None = None,
) -> Increment:
    return Increment(
        from_s=15.0 * index,
        to_s=15.0 * (index + 1),
        totals=LiveTotals(requests=requests),
        running=running,
        steps=steps,
        step_tokens=tokens,
    )


def increments(lengths: list[float], *, steps: float = 1000.0, requests: float = 10.0) -> list[Increment]:
    return [
        increment(length * steps, steps, index=index, requests=requests)
        for index, length in enumerate(lengths)
    ]


def estimated(window: list[Increment], *, level: float = 0.95) -> LiveEstimate:
    estimate = accepted_length(window, level=level)
    assert estimate is not None
    return estimate


def half_width(window: list[Increment]) -> float:
    estimate = estimated(window)
    return math.log(estimate.high / estimate.value)


class TestWithoutDecoding:
    @pytest.mark.parametrize(
        "window",
        [[], [increment(0.0, 0.0)], [increment(None, None)], [increment(5.0, None)], [increment(None, 5.0)]],
    )
    def test_there_is_no_estimate(self, window: list[Increment]) -> None:
        assert accepted_length(window, level=0.95) is None

    def test_such_scrapes_change_nothing(self) -> None:
        window = increments([2.0, 2.5, 3.0])
        idle = [increment(0.0, 0.0, index=9, requests=0.0, running=0.0), increment(None, None, index=10)]
        assert estimated([*window, *idle]) == estimated(window)


class TestTheValue:
    def test_is_the_ratio_of_sums(self) -> None:
        window = [increment(300.0, 100.0), increment(1000.0, 1000.0)]
        assert estimated(window).value == pytest.approx(1300 / 1100)

    def test_is_never_under_one(self) -> None:
        estimate = estimated([increment(99.0, 100.0), increment(0.0, 3.0)])
        assert estimate.value == estimate.low == 1.0
        assert estimate.high > 1.0


class TestTheInterval:
    @pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 40, 200])
    def test_is_no_point_where_scrapes_agree(self, count: int) -> None:
        estimate = estimated(increments([2.5] * count))
        assert estimate.low < estimate.value < estimate.high
        assert estimate.scrapes == count

    def test_of_one_scrape_is_what_requests_are_expected_to_differ_by(self) -> None:
        # t(4, 97.5 %) = 2.776, sd = sqrt(0.25^2 / 16 + 0.03^2)
        window = [increment(2500.0, 1000.0, requests=16.0)]
        assert half_width(window) == pytest.approx(2.776 * math.sqrt(0.25**2 / 16 + 0.03**2), rel=1e-3)

    def test_of_many_scrapes_is_what_they_differ_by(self) -> None:
        calm, wild = [2.5] * 20, [1.5, 3.5] * 10
        slow = [1.5] * 10 + [3.5] * 10
        assert half_width(increments(calm)) == pytest.approx(half_width(increments(wild)), rel=0.3)
        assert half_width(increments(slow)) > 4 * half_width(increments(wild))

    def test_shrinks_with_requests_as_far_as_the_mix_allows(self) -> None:
        widths = [half_width([increment(2500.0, 1000.0, requests=count)]) for count in (1, 10, 100, 1e6)]
        assert widths == sorted(widths, reverse=True)
        assert widths[-1] == pytest.approx(2.776 * 0.03, rel=1e-3)

    def test_a_scrape_with_nearly_all_steps_stands_for_itself(self) -> None:
        huge = increment(2_500_000.0, 1_000_000.0, requests=10.0)
        tiny = increments([2.4, 2.6] * 10, steps=1.0, requests=1.0)
        assert half_width([*tiny, huge, *tiny]) == pytest.approx(half_width([huge]), rel=0.02)

    def test_is_wider_at_a_stricter_level(self) -> None:
        window = increments([2.0, 3.0, 2.5])
        strict, plain = estimated(window, level=WATCH_LEVEL), estimated(window)
        assert strict.low < plain.low < plain.high < strict.high
        assert strict.level == WATCH_LEVEL

    def test_is_narrower_where_more_is_known_of_the_server(self) -> None:
        window = increments([2.5] * 40, requests=100.0)
        calm = accepted_length(window, level=WATCH_LEVEL, spread=TrafficSpread(scale=0.2, df=90.0))
        unknown = accepted_length(window, level=WATCH_LEVEL)
        assert calm is not None
        assert unknown is not None
        assert math.log(calm.high / calm.value) < 0.5 * math.log(unknown.high / unknown.value)

    @given(
        st.lists(
            st.tuples(st.floats(0, 1e9), st.floats(0, 1e9), st.one_of(st.none(), st.floats(0, 1e6))),
            max_size=50,
        )
    )
    def test_holds_its_value_whatever_was_counted(
        self, rows: list[tuple[float, float, float | None]]
    ) -> None:
        window = [
            increment(tokens, steps, index=index, requests=requests)
            for index, (tokens, steps, requests) in enumerate(rows)
        ]
        estimate = accepted_length(window, level=0.95)
        if estimate is not None:
            assert 1.0 <= estimate.low <= estimate.value < estimate.high


class TestHowManyRequests:
    @pytest.mark.parametrize(
        ("scrape", "requests"),
        [
            (increment(2560.0, 1000.0), 10.0),  # by tokens, where nothing is counted
            (increment(2560.0, 1000.0, running=32.0), 32.0),
            (increment(2560.0, 1000.0, requests=4.0), 4.0),
            (increment(2560.0, 1000.0, requests=4.0, running=7.0), 7.0),
            (increment(25.0, 10.0), 1.0),
            (increment(25.0, 10.0, requests=0.0), 1.0),
        ],
    )
    def test_one_scrape_rests_on(self, scrape: Increment, requests: float) -> None:
        counted = scrape_of(scrape)
        assert counted is not None
        assert window_sums([counted]).requests == pytest.approx(requests)

    def test_an_answer_that_runs_on_is_one(self) -> None:
        assert (
            window_sums([Scrape(15.0 * i, 15.0, 250.0, 100.0, 0.0, 1.0) for i in range(40)]).requests == 1.0
        )

    def test_answers_that_hardly_began_do_not_count_in_full(self) -> None:
        long, short = Scrape(0.0, 15.0, 2500.0, 1000.0, 1.0, 1.0), Scrape(15.0, 15.0, 2.5, 1.0, 1.0, 1.0)
        assert window_sums([long, short]).requests == pytest.approx(1.0, abs=0.01)


class TestWhatWasSeen:
    @pytest.mark.parametrize(("count", "df"), [(1, 0), (2, 1), (3, 2), (5, 4), (40, WAVES)])
    def test_degrees_of_freedom(self, count: int, df: float) -> None:
        steps = np.full(count, 7.0)
        assert float(seen_variance(2 * steps, steps)[1]) == pytest.approx(df)

    @pytest.mark.parametrize("count", [2, 3, 5, 40])
    def test_is_the_variance_of_the_ratio_where_scrapes_are_independent(self, count: int) -> None:
        random = np.random.default_rng(3)
        steps = np.full((20_000, count), 100.0)
        tokens = steps * 2.5 * np.exp(0.1 * random.standard_normal(steps.shape))
        assert float(seen_variance(tokens, steps)[0].mean()) == pytest.approx(0.1**2 / count, rel=0.05)

    def test_is_never_talked_down_by_what_is_expected(self) -> None:
        variance, df = together(np.array(4.0), np.array(4.0), np.array(1.0), np.array(4.0))
        assert (float(variance), float(df)) == (4.0, 8.0)
        variance, _ = together(np.array(1.0), np.array(4.0), np.array(4.0), np.array(4.0))
        assert float(variance) == 2.5


class TestWhatIsLearnt:
    @staticmethod
    def follow(watch: SpreadWatch, lengths: list[float], *, requests: float = 400.0) -> None:
        """One value for each window of ten minutes."""
        for length in lengths:
            watch.follow(Scrape(0.0, MIX_S, 1000.0 * length, 1000.0, requests, 0.0))

    def test_nothing_at_first(self) -> None:
        assert SpreadWatch().spread == EXPECTED_SPREAD

    def test_a_calm_server_is_known_to_be_calm(self) -> None:
        watch = SpreadWatch()
        self.follow(watch, [2.5] * 100)
        assert watch.spread.scale < 0.1
        assert watch.spread.df > 10 * EXPECTED_DF
        # But not that its requests are all alike.
        assert watch.spread.variance(1.0) > 0.9 * EXPECTED_SPREAD.variance(1.0)

    def test_a_wild_one_to_be_wild(self) -> None:
        watch = SpreadWatch()
        self.follow(watch, [2.2, 2.8] * 50)
        assert watch.spread.scale > 10

    def test_one_change_does_not_make_a_server_wild(self) -> None:
        watch = SpreadWatch()
        self.follow(watch, [3.4] * 50 + [1.4] * 50)
        assert watch.spread.scale < 0.3

    def test_a_slow_rhythm_does_not_either(self) -> None:
        watch = SpreadWatch()
        self.follow(watch, [2.5 * math.exp(0.12 * math.sin(2 * math.pi * i / 144)) for i in range(300)])
        assert watch.spread.scale < 0.1

    def test_across_an_interruption_nothing_is_compared(self) -> None:
        watch = SpreadWatch()
        self.follow(watch, [3.4])
        watch.interrupt()
        self.follow(watch, [1.4])
        assert watch.spread == EXPECTED_SPREAD

    def test_idle_windows_say_nothing(self) -> None:
        watch = SpreadWatch()
        watch.follow(Scrape(0.0, MIX_S, 0.0, 0.0, 0.0, 0.0))
        assert watch.spread == EXPECTED_SPREAD


class TestTheSimulation:
    def test_all_looks_at_once_are_those_at_one_window_each(self) -> None:
        random = np.random.default_rng(4)
        traffic = simulate(some_servers(1, random, rhythm=0.0), LENGTH, random, 400)
        spreads = learnt_spreads(traffic, 0)
        looks = looks_at(traffic, 0, level=WATCH_LEVEL, spreads=spreads)
        columns = zip(traffic.tokens[0], traffic.steps[0], traffic.requests[0], strict=True)
        scrapes = [
            increment(float(tokens), float(steps), index=index, requests=float(requests))
            for index, (tokens, steps, requests) in enumerate(columns)
        ]
        assert len(looks.at) > 100
        for at, log_length, half in zip(
            looks.at[::37], looks.log_length[::37], looks.half_width[::37], strict=True
        ):
            estimate = accepted_length(scrapes[at - 39 : at + 1], level=WATCH_LEVEL, spread=spreads[at])
            assert estimate is not None
            assert math.log(estimate.value) == pytest.approx(log_length)
            assert math.log(estimate.high / estimate.value) == pytest.approx(half)

    @pytest.mark.slow
    @pytest.mark.parametrize("scrapes", [1, 2, 3, 10, 40])
    def test_the_interval_covers(self, scrapes: int) -> None:
        assert coverage(scrapes, 180.0, 40, np.random.default_rng(scrapes)) > 0.92
