from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulated import ARM, LOADS, by_streams, constant, drawn, judged, quiet_truth, study_places
from speclift.core.arm import BASELINE
from speclift.core.records import Record
from speclift.core.results import Decision, Level
from speclift.statistics.stats import independent_count
from speclift.statistics.tails import (
    SLOWEST_LABEL,
    SLOWEST_PROMPTS_MIN,
    Sample,
    Sides,
    percentile_ratio,
    slowest_ratio,
    tail_ratios,
)

SEED = 20260801
TENFOLD = 10.0


def sample(values: np.ndarray[tuple[int], np.dtype[np.float64]], prompts: int | None = None) -> Sample:
    return values, np.arange(len(values), dtype=np.intp) % (prompts or len(values))


def slowed(records: tuple[Record, ...], *, share: float, times: float) -> tuple[Record, ...]:
    """The arm takes so many times as long on a share of its requests, spread over prompts and launches."""
    random = np.random.default_rng(SEED)

    def slower(record: Record) -> Record:
        assert record.last_token_s is not None
        assert record.first_token_s is not None
        end_s = record.first_token_s + times * (record.last_token_s - record.first_token_s)
        return replace(record, last_token_s=end_s, end_s=end_s)

    return tuple(
        slower(record) if record.place.arm == ARM.name and random.random() < share else record
        for record in records
    )


class TestStatistics:
    @pytest.mark.parametrize(
        ("prompts", "rounds", "statistics"),
        [
            (16, 3, set()),  # 48 requests
            (50, 1, {"P90"}),
            (100, 1, {"P95", SLOWEST_LABEL}),
            (400, 1, {"P95", SLOWEST_LABEL}),
            (450, 1, {"P99", SLOWEST_LABEL}),
        ],
    )
    def test_are_the_highest_that_the_requests_support(
        self, prompts: int, rounds: int, statistics: set[str]
    ) -> None:
        truth = quiet_truth(constant(1.5), prompt_sd=0.0)
        records = drawn(study_places(prompts=prompts, rounds=rounds), truth)
        assert {tail.statistic for tail in tail_ratios(records, ARM.name)} == statistics

    def test_of_many_independent_requests_is_p99(self) -> None:
        values = np.random.default_rng(SEED).lognormal(0, 0.3, 1200)
        assert percentile_ratio(Sides(sample(values), sample(values)), 0.99) is not None

    def test_of_few_requests_there_is_none(self) -> None:
        values = np.random.default_rng(SEED).lognormal(0, 0.3, 40)
        assert percentile_ratio(Sides(sample(values), sample(values)), 0.9) is None

    def test_are_per_load_and_hold_the_truth(self) -> None:
        places = study_places(prompts=150, loads=LOADS[:2])
        truth = quiet_truth(by_streams({1: 2.0, 4: 0.5}), prompt_sd=0.0)
        found = tail_ratios(drawn(places, replace(truth, gains_first_token=False)), ARM.name)
        known = {
            ("at c=1", "ttft"): 1.0,
            ("at c=4", "ttft"): 1.0,
            ("at c=1", "tpot"): 2.0,
            ("at c=4", "tpot"): 0.5,
        }
        for tail in found:
            ratio = known.get((tail.where, tail.metric))
            assert ratio is None or tail.ratio.low <= ratio <= tail.ratio.high
        assert {(tail.where, tail.metric) for tail in found} >= known.keys()

    def test_failed_requests_are_not_in_them(self) -> None:
        truth = quiet_truth(constant(1.5), failed_share=0.5)
        assert tail_ratios(drawn(study_places(prompts=60, rounds=1), truth), ARM.name) == ()


class TestClusters:
    def test_requests_of_one_prompt_are_not_independent(self) -> None:
        by_prompt = np.repeat(np.random.default_rng(SEED).lognormal(0, 0.5, 50), 10)
        prompt = np.repeat(np.arange(50, dtype=np.intp), 10)
        assert independent_count(by_prompt, prompt, 0.9) < 100
        assert independent_count(*sample(by_prompt), 0.9) >= 499

    @pytest.mark.parametrize("prompts", [1, 2, 3])
    def test_few_prompts_support_no_percentile_however_often_they_are_sent(self, prompts: int) -> None:
        values = np.random.default_rng(SEED).lognormal(0, 0.01, 600)
        own = values * np.array([1.0, 2.0, 4.0])[np.arange(600) % prompts]
        side = sample(own, prompts)
        assert percentile_ratio(Sides(side, side), 0.95) is None

    def test_the_error_of_the_slowest_is_that_of_prompts_left_out_one_at_a_time(self) -> None:
        """The jackknife, to within what one more as slow as the slowest adds."""
        values = np.random.default_rng(SEED).lognormal(0, 0.3, (2, 2000))
        sides = Sides(sample(values[0], 500), sample(values[1], 500))
        found = slowest_ratio(sides)
        assert found is not None

        def slowest(side: Sample, without: int) -> float:
            kept = np.sort(side[0][side[1] != without])
            return float(np.log(kept[-100:].mean()))

        left_out = [slowest(sides.baseline, own) - slowest(sides.arm, own) for own in range(500)]
        half = 1.99 * np.sqrt(499 * np.var(left_out))
        assert half < np.log(found.high / found.value) < 2.5 * half
        assert half < np.log(found.value / found.low) < 2.5 * half

    @pytest.mark.parametrize("prompts", [1, 2, 3, 8])
    def test_of_few_prompts_the_slowest_have_no_lower_bound(self, prompts: int) -> None:
        values = np.random.default_rng(SEED).lognormal(0, 0.3, (2, 400))
        found = slowest_ratio(Sides(sample(values[0], prompts), sample(values[1], prompts)))
        assert found is None or found.low == 0.0

    @pytest.mark.parametrize(
        ("prompts", "is_known"), [(SLOWEST_PROMPTS_MIN - 1, False), (SLOWEST_PROMPTS_MIN, True)]
    )
    def test_what_was_not_seen_is_not_ruled_out(self, prompts: int, is_known: bool) -> None:
        values = np.random.default_rng(SEED).lognormal(0, 0.3, (2, prompts))
        found = slowest_ratio(Sides(sample(values[0]), sample(values[1])))
        assert found is not None
        assert (found.low > 0) is is_known

    @pytest.mark.parametrize("count", [50, 100, 400])
    def test_equal_times_have_a_ratio_of_one_and_little_doubt(self, count: int) -> None:
        sides = Sides(sample(np.ones(count)), sample(np.ones(count)))
        for found in (percentile_ratio(sides, 0.9), slowest_ratio(sides)):
            assert found is None or (found.value == 1.0 and 1.0 < found.high < 1.02)

    def test_where_prompts_are_slow_on_both_arms_alike_the_lower_bound_is_nearer(self) -> None:
        random = np.random.default_rng(SEED)
        level, noise = random.normal(0, 0.5, 200), random.normal(0, 0.1, (2, 200))
        alike = Sides(sample(np.exp(level + noise[0])), sample(np.exp(level + noise[1])))
        unlike = Sides(alike.baseline, (alike.arm[0], random.permutation(alike.arm[1])))
        near, far = percentile_ratio(alike, 0.95), percentile_ratio(unlike, 0.95)
        assert near is not None
        assert far is not None
        assert (near.value, near.high) == (far.value, far.high)
        assert near.low > 1.02 * far.low

    @pytest.mark.parametrize("spread", [pytest.param(0.0, marks=pytest.mark.slow), 0.5])
    def test_intervals_hold_the_truth_of_equal_tails(self, spread: float) -> None:
        """96 prompts five times on both arms, prompts alike and unlike."""
        random = np.random.default_rng(SEED)
        held = {"percentile": 0, "slowest": 0}
        known = dict.fromkeys(held, 0)
        for _ in range(200):
            level = np.tile(random.normal(0, spread, 96), 5)
            sides = Sides(*(sample(np.exp(level + random.normal(0, 0.3, 480)), 96) for _ in range(2)))
            found = {"percentile": percentile_ratio(sides, 0.95), "slowest": slowest_ratio(sides)}
            for name, ratio in found.items():
                if ratio is not None:
                    known[name] += 1
                    held[name] += ratio.low <= 1.0 <= ratio.high
        assert min(known.values()) >= 100
        assert all(held[name] >= 0.92 * known[name] for name in held)


class TestPooling:
    """Thirty prompts at each of three loads: no load alone has a percentile."""

    truth = replace(
        quiet_truth(by_streams({1: 2.0, 4: 2.0, 16: 2.0}), prompt_sd=0.0), gains_first_token=False
    )

    def test_loads_that_are_thin_alone_are_compared_together(self) -> None:
        records = drawn(study_places(prompts=45, loads=LOADS, rounds=1), self.truth)
        found = tail_ratios(records, ARM.name)
        assert {(tail.load, tail.statistic) for tail in found} == {(None, "P90"), (None, SLOWEST_LABEL)}
        for tail in found:
            assert tail.where == "over all loads"
            truth = {"ttft": 1.0, "tpot": 2.0}.get(tail.metric)
            assert truth is None or tail.ratio.low <= truth <= tail.ratio.high

    def test_loads_that_differ_in_speed_are_set_level_first(self) -> None:
        """A load at which everything takes ten times as long is not the tail."""
        places = study_places(prompts=45, loads=LOADS, rounds=1)
        slow = replace(self.truth, residual_sd=0.05)
        records = [
            replace(r, first_token_s=r.intended_s + 10 * (r.ttft_s or 0)) if r.place.load == LOADS[2] else r
            for r in drawn(places, slow)
        ]
        (ttft,) = [t for t in tail_ratios(records, ARM.name) if (t.metric, t.statistic) == ("ttft", "P90")]
        assert 0.8 < ttft.ratio.low <= 1.0 <= ttft.ratio.high < 1.3

    def test_one_load_is_never_pooled(self) -> None:
        records = drawn(study_places(prompts=45, rounds=1), self.truth)
        assert tail_ratios(records, ARM.name) == ()

    def test_a_load_that_supports_a_percentile_is_compared_alone(self) -> None:
        places = [
            *study_places(prompts=60, loads=LOADS[:1], rounds=1),
            *study_places(prompts=20, loads=LOADS[1:2], rounds=1),
        ]
        percentiles = [t for t in tail_ratios(drawn(places, self.truth), ARM.name) if t.statistic == "P90"]
        assert {tail.load for tail in percentiles} == {LOADS[0]}


class TestLevel:
    def test_a_higher_level_is_a_wider_interval(self) -> None:
        records = drawn(study_places(prompts=250, rounds=1), quiet_truth(constant(1.5)))
        usual, sure = (tail_ratios(records, ARM.name, level=level) for level in (0.9, 0.99))
        assert len(usual) == len(sure) == 6
        for narrow, wide in zip(usual, sure, strict=True):
            assert wide.ratio.low < narrow.ratio.low
            assert wide.ratio.high >= narrow.ratio.high
            assert (narrow.ratio.level, wide.ratio.level) == (0.9, 0.99)

    def test_the_order_of_records_says_nothing(self) -> None:
        records = drawn(study_places(prompts=120, rounds=2), quiet_truth(constant(1.5)))
        assert {str(t) for t in tail_ratios(records, ARM.name)} == {
            str(t)
            for t in tail_ratios(sorted(records, key=lambda r: (r.place.request_id, r.end_s)), ARM.name)
        }


class TestVerdict:
    """Faster at P50, six times slower on six in a hundred: more prompts or more repeats must not hide it."""

    truth = quiet_truth(constant(2.0))

    @pytest.mark.parametrize(("prompts", "requests", "rounds"), [(96, 400, 1), (96, 96, 3), (400, 400, 1)])
    def test_a_slow_few_do_not_ship(self, prompts: int, requests: int, rounds: int) -> None:
        records = drawn(study_places(prompts=prompts, requests=requests, rounds=rounds), self.truth)
        verdict = judged(slowed(records, share=0.06, times=TENFOLD))
        (tail,) = [reason for reason in verdict.reasons if reason.rule == "tail"]
        assert (verdict.decision, tail.level) != (Decision.SHIP, Level.PASS)
        assert verdict.decision is not Decision.SHIP, tail.message

    def test_the_same_arm_without_them_ships(self) -> None:
        records = drawn(study_places(prompts=96, requests=400, rounds=1), self.truth)
        assert judged(records).decision is Decision.SHIP

    def test_a_slow_baseline_is_no_fault_of_the_arm(self) -> None:
        truth = replace(self.truth, gains_first_token=False)
        records = drawn(study_places(prompts=96, requests=400, rounds=1), truth)
        swapped = tuple(
            replace(r, place=replace(r.place, arm=BASELINE if r.place.arm == ARM.name else ARM.name))
            for r in slowed(records, share=0.06, times=TENFOLD)
        )
        assert all(tail.ratio.high >= 1.0 for tail in tail_ratios(swapped, ARM.name) if tail.metric == "ttft")
