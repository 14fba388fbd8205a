from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as reference

from speclift.core.arm import BASELINE
from speclift.core.records import Outcome, Phase, Place, Record
from speclift.core.results import Crossover
from speclift.core.traffic import Concurrency, Load, Rate
from speclift.statistics.crossover import crossovers
from speclift.statistics.load_curve import paired_curve, quantile_of_draws, throughput_curve
from speclift.statistics.pairs import pairs

ARM = "draft"


def falling(crossing: float, slope: float) -> Callable[[float], float]:
    """Log speedup, linear in log load."""
    return lambda load: -slope * math.log(load / crossing)


def study(
    loads: Sequence[Load],
    log_speedup: Callable[[float], float],
    *,
    prompts: int = 24,
    launches: int = 3,
    prompt_sd: float = 0.0,
    launch_sd: float = 0.0,
    noise_sd: float = 0.0,
    seed: int = 1,
) -> list[Record]:
    """Every time of the arm is the baseline's / its speedup; one block per load, one stream's worth each."""
    random = np.random.default_rng(seed)
    levels = 0.1 * np.exp(random.normal(0.0, 0.3, prompts))
    own = random.normal(0.0, prompt_sd, prompts)
    records = []
    for block, load in enumerate(loads):
        size = load.streams if isinstance(load, Concurrency) else load.per_s
        for launch in range(launches):
            shift = log_speedup(size) + random.normal(0.0, launch_sd)
            gains = np.exp(shift + own + random.normal(0.0, noise_sd, prompts))
            for arm, seconds in ((BASELINE, levels), (ARM, levels / gains)):
                start = 0.0
                for prompt, ttft_s in enumerate(seconds.tolist()):
                    place = Place(
                        arm=arm,
                        launch=launch,
                        round=launch,
                        block=block,
                        load=load,
                        request_id=f"p{prompt}",
                        segment="chat" if prompt % 2 else "code",
                        temperature=None,
                    )
                    records.append(answered(place, start, ttft_s))
                    start += 10 * ttft_s
    return records


def answered(place: Place, start_s: float, ttft_s: float) -> Record:
    return Record(
        place=place,
        outcome=Outcome.OK,
        intended_s=start_s,
        sent_s=start_s,
        end_s=start_s + 10 * ttft_s,
        first_token_s=start_s + ttft_s,
        last_token_s=start_s + 10 * ttft_s,
        output_tokens=50,
    )


def streams(*counts: int) -> list[Load]:
    return [Concurrency(streams=count) for count in counts]


def by_metric(records: Sequence[Record]) -> dict[str, Crossover]:
    return {found.metric: found for found in crossovers(records, ARM, seed=1)}


def test_every_metric_of_a_study_gets_its_crossover() -> None:
    records = study(streams(1, 4, 16, 64), falling(9.0, 0.25), prompts=40, prompt_sd=0.05, noise_sd=0.03)
    found = crossovers(records, ARM, seed=1)
    assert [one.metric for one in found] == ["tpot", "e2e", "throughput", "ttft", "ttft_p99"]
    for one in found:
        assert (one.axis, one.arm) == ("concurrency", ARM)
        assert one.value is not None
        assert one.low is not None
        assert one.high is not None
        assert one.low < 9.0 < one.high
    assert crossovers(records, ARM, seed=1) == found


def test_metrics_may_cross_at_different_loads() -> None:
    records = study(streams(1, 4, 16, 64), falling(16.0, 0.25), noise_sd=0.01)
    waiting_longer = [
        record
        if record.place.arm == BASELINE or record.first_token_s is None
        else answered_later(record, 1.3)
        for record in records
    ]
    found = by_metric(waiting_longer)
    ttft, tpot = found["ttft"].value, found["tpot"].value
    assert ttft == pytest.approx(16.0 * math.exp(-math.log(1.3) / 0.25), rel=0.1)
    assert tpot is not None
    assert tpot > 14.0


def answered_later(record: Record, factor: float) -> Record:
    """The first token late by a factor, the rest as fast as before."""
    assert record.ttft_s is not None
    assert record.last_token_s is not None
    late_s = record.ttft_s * (factor - 1)
    return replace(
        record,
        end_s=record.end_s + late_s,
        first_token_s=record.intended_s + record.ttft_s + late_s,
        last_token_s=record.last_token_s + late_s,
    )


def test_an_open_loop_is_an_axis_of_its_own() -> None:
    loads: list[Load] = [Rate(per_s=0.5), Rate(per_s=2.0), Rate(per_s=8.0)]
    found = by_metric(study(loads, falling(2.5, 0.2), noise_sd=0.02))
    assert {one.axis for one in found.values()} == {"qps"}
    assert found["tpot"].value == pytest.approx(2.5, rel=0.1)
    assert "request rate until an arm saturates" in found["throughput"].note


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([], id="nothing measured"),
        pytest.param(study(streams(4), falling(9.0, 0.2)), id="one load"),
        pytest.param(study([*streams(4), Rate(per_s=2.0)], falling(9.0, 0.2)), id="one load on each axis"),
        pytest.param(
            [record for record in study(streams(1, 4), falling(9.0, 0.2)) if record.place.arm == BASELINE],
            id="the baseline alone",
        ),
    ],
)
def test_without_two_loads_of_one_axis_there_is_no_crossover(records: list[Record]) -> None:
    assert crossovers(records, ARM, seed=1) == ()


@pytest.mark.parametrize(("prompts", "launches", "is_there"), [(33, 3, False), (25, 4, True)])
def test_a_p99_needs_a_hundred_requests_at_each_load(prompts: int, launches: int, *, is_there: bool) -> None:
    found = by_metric(study(streams(1, 16), falling(5.0, 0.3), prompts=prompts, launches=launches))
    assert ("ttft_p99" in found) is is_there
    if is_there:
        assert "uses P99" in found["ttft_p99"].note


def test_a_p99_whose_ratio_is_the_same_on_every_draw_is_crossed_exactly() -> None:
    found = by_metric(study(streams(1, 4, 16, 64), falling(9.0, 0.25), prompts=40))["ttft_p99"]
    assert found.value == pytest.approx(9.0, rel=1e-3)
    assert found.low == pytest.approx(9.0, rel=1e-2)
    assert found.low is not None
    assert found.low < 9.0


def test_warm_up_requests_are_not_a_load() -> None:
    records = study(streams(4, 16), falling(9.0, 0.2))
    warmed_up = [
        record
        if record.place.load == Concurrency(streams=4)
        else replace(record, place=replace(record.place, phase=Phase.WARMUP))
        for record in records
    ]
    assert crossovers(records, ARM, seed=1) != ()
    assert crossovers(warmed_up, ARM, seed=1) == ()


def test_one_launch_is_noted_for_every_metric() -> None:
    records = study(streams(1, 4, 16, 64), falling(9.0, 0.25), prompts=110, launches=1, noise_sd=0.05)
    assert all("one launch only" in found.note for found in crossovers(records, ARM, seed=1))


def test_throughput_counts_the_prompts_although_every_launch_has_the_same() -> None:
    alike = by_metric(study(streams(1, 4, 16, 64), falling(9.0, 0.25)))["throughput"]
    unlike = by_metric(study(streams(1, 4, 16, 64), falling(9.0, 0.25), prompt_sd=0.2))["throughput"]
    assert alike.low == pytest.approx(alike.high, rel=1e-2)
    assert alike.low != alike.high
    assert unlike.low is not None
    assert unlike.high is not None
    assert unlike.high / unlike.low > 1.2


def test_three_prompts_leave_as_much_doubt_as_the_t_interval_of_three_values() -> None:
    records = study(streams(1, 4), falling(2.0, 0.25), prompts=3, launches=1, prompt_sd=0.05)
    curve = throughput_curve(records, ARM, seed=1)
    assert curve is not None
    found = curve.estimate(np.array([1.0, 0.0]), 0.95)
    logs = [pair.log_speedup for pair in pairs(records, ARM, "throughput") if pair.load == streams(1)[0]]
    half = reference.t.ppf(0.975, 2) * np.std(logs, ddof=1) / math.sqrt(3)
    assert found.high - found.value == pytest.approx(half, rel=0.1)


@pytest.mark.parametrize(
    ("loads", "prompts", "launches", "is_known"),
    [
        (streams(1, 4), 1, 3, False),
        (streams(1, 4), 2, 1, True),
        ([Rate(per_s=1.0), Rate(per_s=4.0)], 8, 1, False),
        ([Rate(per_s=1.0), Rate(per_s=4.0)], 8, 2, True),
    ],
    ids=["one prompt", "two prompts", "an open loop in one launch", "an open loop in two"],
)
def test_a_rate_is_unknown_where_nothing_shows_its_spread(
    loads: list[Load], prompts: int, launches: int, is_known: bool
) -> None:
    curve = throughput_curve(
        study(loads, falling(2.0, 0.25), prompts=prompts, launches=launches), ARM, seed=1
    )
    assert curve is not None
    assert math.isfinite(curve.estimate(np.array([1.0, 0.0]), 0.95).high) is is_known


def test_in_an_open_loop_launches_are_the_values_of_the_t_interval() -> None:
    loads: list[Load] = [Rate(per_s=1.0), Rate(per_s=4.0)]
    records = study(loads, falling(2.0, 0.25), prompts=8, launch_sd=0.2)
    curve = throughput_curve(records, ARM, seed=1)
    assert curve is not None
    found = curve.estimate(np.array([1.0, 0.0]), 0.95)
    logs = {
        pair.round: pair.log_speedup for pair in pairs(records, ARM, "throughput") if pair.load == loads[0]
    }
    half = reference.t.ppf(0.975, 2) * np.std(list(logs.values()), ddof=1) / math.sqrt(3)
    assert found.high - found.value == pytest.approx(half, rel=0.01)


@pytest.mark.parametrize("metric", ["throughput", "ttft_p99"])
def test_launches_that_differ_widen_what_is_resampled_over_prompts(metric: str) -> None:
    records = study(streams(1, 4, 16, 64), falling(9.0, 0.25), prompts=40, launch_sd=0.02)
    found = by_metric(records)[metric]
    assert found.low is not None
    assert found.high is not None
    assert found.high / found.low > 1.1


def test_requests_that_failed_at_one_load_are_left_out_of_all() -> None:
    records = study(streams(1, 4, 16, 64), falling(9.0, 0.25), noise_sd=0.02)
    holed = [
        record
        for record in records
        if not (record.place.request_id in ("p0", "p1") and record.place.load == Concurrency(streams=4))
    ]
    found = by_metric(holed)["tpot"]
    assert found.value == pytest.approx(9.0, rel=0.1)
    assert "uses the 92 % of pairs that every load has" in found.note


def test_loads_measured_on_different_prompts_assume_the_worst() -> None:
    records = study(streams(1, 4, 16, 64), falling(9.0, 0.25), prompt_sd=0.1, noise_sd=0.05)
    split = [
        record
        for record in records
        if (record.place.load in streams(1, 4)) == (int(record.place.request_id[1:]) < 12)
    ]
    curve = paired_curve(split, ARM, "tpot")
    assert curve is not None
    assert "share too few prompts" in curve.notes[0]
    found = [
        curve.estimate(np.array(weights), 0.95)
        for weights in ([0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.5, 0.5, 0.0])
    ]
    for estimate, load in zip(found, (4.0, 16.0, 8.0), strict=True):
        assert estimate.value == pytest.approx(falling(9.0, 0.25)(load), abs=0.1)
        assert estimate.high - estimate.low < 0.3
    halves = [estimate.high - estimate.value for estimate in found]
    assert halves[2] == pytest.approx((halves[0] + halves[1]) / 2)


@given(
    values=st.lists(st.floats(0.01, 10), min_size=2, max_size=20),
    q=st.floats(0.01, 0.99),
    seed=st.integers(0, 1000),
)
def test_a_quantile_of_a_draw_is_that_of_the_repeated_values(
    values: list[float], q: float, seed: int
) -> None:
    count = len(values)
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=3)
    found = quantile_of_draws(np.array(values), draws, q)
    assert found.tolist() == pytest.approx([np.quantile(np.repeat(values, row), q) for row in draws])


def test_a_draw_that_meets_none_of_the_values_still_has_one_of_them() -> None:
    (found,) = quantile_of_draws(np.array([0.3, 0.1, 0.2]), np.zeros((1, 3), dtype=np.int64), 0.99)
    assert found in (0.1, 0.2, 0.3)
