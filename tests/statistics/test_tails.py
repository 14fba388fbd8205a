from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as reference

from simulated import ARM, LOADS, by_streams, constant, drawn, judged, quiet_truth, study_places
from speclift.core.arm import BASELINE
from speclift.core.records import Record
from speclift.core.results import Decision, Level
from speclift.core.traffic import load_label
from speclift.statistics.stats import independent_count
from speclift.statistics.tails import (
    SLOWEST_LABEL,
    Sample,
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
        assert percentile_ratio(sample(values), sample(values), 0.99) is not None

    def test_of_few_requests_there_is_none(self) -> None:
        values = np.random.default_rng(SEED).lognormal(0, 0.3, 40)
        assert percentile_ratio(sample(values), sample(values), 0.9) is None

    def test_are_per_load_and_hold_the_truth(self) -> None:
        places = study_places(prompts=150, loads=LOADS[:2])
        truth = quiet_truth(by_streams({1: 2.0, 4: 0.5}), prompt_sd=0.0)
        found = tail_ratios(drawn(places, replace(truth, gains_first_token=False)), ARM.name)
        known = {("c=1", "ttft"): 1.0, ("c=4", "ttft"): 1.0, ("c=1", "tpot"): 2.0, ("c=4", "tpot"): 0.5}
        for tail in found:
            ratio = known.get((load_label(tail.load), tail.metric))
            assert ratio is None or tail.ratio.low <= ratio <= tail.ratio.high
        assert {(load_label(tail.load), tail.metric) for tail in found} >= known.keys()

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
        assert percentile_ratio(side, side, 0.95) is None

    def test_two_prompts_leave_as_much_doubt_as_the_t_interval_of_two_values(self) -> None:
        values = np.random.default_rng(SEED).lognormal(0, 0.3, (2, 200))
        found = slowest_ratio(sample(values[0], 2), sample(values[1], 2))
        assert found is not None
        # The five slowest of each prompt's hundred.
        first, second = (
            np.log(np.sort(values[0][own::2])[-5:].mean() / np.sort(values[1][own::2])[-5:].mean())
            for own in (0, 1)
        )
        half = reference.t.ppf(0.975, 1) * abs(first - second) / 2
        assert np.log(found.high / found.value) == pytest.approx(half)

    @pytest.mark.parametrize("spread", [pytest.param(0.0, marks=pytest.mark.slow), 0.5])
    def test_intervals_hold_the_truth_of_equal_tails(self, spread: float) -> None:
        """96 prompts five times on both arms, prompts alike and unlike."""
        random = np.random.default_rng(SEED)
        held = {"percentile": 0, "slowest": 0}
        known = dict.fromkeys(held, 0)
        for _ in range(200):
            level = np.tile(random.normal(0, spread, 96), 5)
            sides = [sample(np.exp(level + random.normal(0, 0.3, 480)), 96) for _ in range(2)]
            found = {
                "percentile": percentile_ratio(sides[0], sides[1], 0.95),
                "slowest": slowest_ratio(sides[0], sides[1]),
            }
            for name, ratio in found.items():
                if ratio is not None:
                    known[name] += 1
                    held[name] += ratio.low <= 1.0 <= ratio.high
        assert min(known.values()) >= 100
        assert all(held[name] >= 0.92 * known[name] for name in held)


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
