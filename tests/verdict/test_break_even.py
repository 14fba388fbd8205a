from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulated import ARM, OTHER, QUIET, by_streams, cell, constant, estimate, evidence, quiet_truth
from speclift.core.arm import BASELINE
from speclift.core.errors import StudyError, UsageError
from speclift.core.judged import interpolated, knots_of
from speclift.core.results import Crossover, LoadAxis, Percentiles
from speclift.core.traffic import Concurrency, Load, Rate
from speclift.testing.simulated_study import ArmTruth
from speclift.verbs.judged import break_evens_of, prices_of
from speclift.verdict.break_even import crossover_running, load_break_evens
from written import write_study

ONE, FOUR = Concurrency(streams=1), Concurrency(streams=4)


def tpot(p50: float) -> Percentiles:
    return Percentiles(p50=p50, p95=None, p99=None)


class TestOfCells:
    def test_segments_count_before_the_whole_and_their_median_stands_for_the_load(self) -> None:
        segments = [
            side
            for name, length in (("a", 2.0), ("b", 3.0), ("c", 10.0))
            for side in (
                cell(segment=name, tpot_s=tpot(0.01), accepted_length=estimate(length, 1.0, 11.0).interval),
                cell(segment=name, arm=BASELINE, tpot_s=tpot(0.02), accepted_length=None),
            )
        ]

        (point,) = load_break_evens(evidence(segment_cells=tuple(segments)), {ONE: 1.0})

        assert point.accepted_length == pytest.approx(1.5)

    def test_temperatures_of_a_sweep_count_each(self) -> None:
        swept = [
            side
            for temperature, length in ((0.0, 2.0), (1.0, 1.0))
            for side in (
                cell(
                    temperature=temperature,
                    tpot_s=tpot(0.01),
                    accepted_length=estimate(length, 1, 3).interval,
                ),
                cell(temperature=temperature, arm=BASELINE, tpot_s=tpot(0.01), accepted_length=None),
            )
        ]

        (point,) = load_break_evens(
            evidence(cells=tuple(swept[::2]), baseline_cells=tuple(swept[1::2])), {ONE: 1.0}
        )

        assert point.accepted_length == pytest.approx(1.5)
        assert point.measured is None

    def test_a_load_of_which_nothing_came_back_is_left_out(self) -> None:
        assert load_break_evens(evidence(), {}) == ()


class TestBetweenLoads:
    @pytest.mark.parametrize(
        ("at", "expected"),
        [(0.0, 2.0), (1.0, 2.0), (3.0, 3.0), (5.0, 4.0), (10.0, 3.0), (15.0, 2.0), (99.0, 2.0)],
    )
    def test_straight_lines_inside_and_the_nearest_outside(self, at: float, expected: float) -> None:
        assert interpolated([(1.0, 2.0), (5.0, 4.0), (15.0, 2.0)], at) == pytest.approx(expected)

    def test_one_load_holds_everywhere(self) -> None:
        assert {interpolated([(4.0, 1.7)], at) for at in (0.0, 4.0, 100.0)} == {1.7}

    def test_loads_with_as_many_under_way_are_one_knot(self) -> None:
        points = load_break_evens(
            evidence(
                cells=(cell(), cell(load=FOUR), cell(load=Rate(per_s=2.0))),
                baseline_cells=tuple(
                    cell(arm=BASELINE, load=load, tpot_s=tpot(p50))
                    for load, p50 in ((ONE, 0.1), (FOUR, 0.1), (Rate(per_s=2.0), 0.2))
                ),
            ),
            {ONE: 1.0, FOUR: 4.0, Rate(per_s=2.0): 4.0},
        )

        assert knots_of(points) == ((1.0, 2.0), (4.0, 1.5))


def crossover(axis: LoadAxis = "concurrency", **changes: Any) -> Crossover:
    ordinary = Crossover(metric="e2e", axis=axis, value=8.0, low=4.0, high=None, arm=ARM.name, note="")
    return replace(ordinary, **changes)


class TestCrossover:
    def test_streams_are_requests_under_way(self) -> None:
        found = crossover_running([crossover()], {FOUR: 4.0}, metric="e2e")

        assert found is not None
        assert (found.value, found.low, found.high) == (8.0, 4.0, None)

    def test_a_rate_becomes_what_was_under_way_between_the_measured_rates(self) -> None:
        running: dict[Load, float] = {Rate(per_s=4.0): 2.0, Rate(per_s=16.0): 32.0}

        found = crossover_running([crossover("qps")], running, metric="e2e")

        # Half way between 4 and 16 per second on a log scale is 8, half way between 2 and 32 is 8.
        assert found is not None
        assert found.value == pytest.approx(8.0)
        assert found.low == pytest.approx(2.0)

    @pytest.mark.parametrize("found", [crossover(value=None), crossover(metric="tpot")])
    def test_none_where_it_lies_outside_or_is_of_another_metric(self, found: Crossover) -> None:
        assert crossover_running([found], {FOUR: 4.0}, metric="e2e") is None


class TestOfAStudy:
    def test_the_truth_is_found_at_every_load(self, tmp_path: Path) -> None:
        speedups = {1: 1.6, 4: 1.2, 16: 0.8}
        path = write_study(tmp_path / "study", quiet_truth(by_streams(speedups)))

        found = break_evens_of(prices_of(path))

        # 4 drafted, 0.6 of them accepted: 3.4 tokens a step by the records' whole numbers.
        assert [point.running for point in found.loads] == [1.0, 4.0, 16.0]
        for point, speedup in zip(found.loads, speedups.values(), strict=True):
            assert point.measured is not None
            assert point.accepted_length == pytest.approx(point.measured.value / speedup, rel=0.05)
            assert point.baseline_ttft_s is not None
        assert found.crossover is not None
        assert 4 < found.crossover.value < 16
        assert found.at_running(10.0) == pytest.approx(
            (found.loads[1].accepted_length + found.loads[2].accepted_length) / 2, rel=0.05
        )

    def test_an_open_loop_has_its_rate_times_its_duration_under_way(self, tmp_path: Path) -> None:
        truth = quiet_truth(constant(2.0))
        path = write_study(tmp_path / "study", truth, loads=(Rate(per_s=10.0),))

        (point,) = break_evens_of(prices_of(path)).loads

        # Both times are halved: 25 ms and 63 tokens of 5 ms, prompts 20 % apart.
        assert point.running == pytest.approx(10 * (0.025 + 63 * 0.005), rel=0.15)

    @pytest.mark.slow
    def test_of_several_arms_the_winner_or_the_one_named(self, tmp_path: Path) -> None:
        arms = {
            arm.name: ArmTruth(speedup=constant(speedup), drafted_per_step=4, acceptance=0.6)
            for arm, speedup in ((ARM, 1.5), (OTHER, 2.0))
        }
        path = write_study(tmp_path / "study", replace(QUIET, arms=arms), arms=(ARM, OTHER))

        prices = prices_of(path)
        assert break_evens_of(prices).arm == OTHER
        assert break_evens_of(prices, ARM.name).arm == ARM
        with pytest.raises(UsageError, match=r"unknown arm of this study 'othe'.*'other'"):
            break_evens_of(prices, "othe")

    def test_an_arm_that_loses_everywhere_has_break_evens_and_no_crossover(self, tmp_path: Path) -> None:
        found = break_evens_of(
            prices_of(write_study(tmp_path / "study", quiet_truth(constant(0.5)), prompts=3))
        )

        assert len(found.loads) == 3
        assert found.crossover is None

    def test_an_engine_that_counts_nothing_has_none(self, tmp_path: Path) -> None:
        truth = replace(quiet_truth(constant(1.5)), reports_drafts=False)

        assert break_evens_of(prices_of(write_study(tmp_path / "study", truth))).loads == ()

    def test_no_study_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(StudyError, match="no study at"):
            prices_of(tmp_path)
