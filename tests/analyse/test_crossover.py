from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclift.analyse.crossed import Floats
from speclift.analyse.crossover import crossing_of, crossovers, isotonic
from speclift.analyse.load_curve import Curve, paired_curve, quantile_of_draws, shared_curve
from speclift.core.arm import BASELINE
from speclift.core.records import Outcome, Phase, Place, Record
from speclift.core.results import Crossover, Estimate
from speclift.core.traffic import Concurrency, Load, Rate

ARM = "draft"
DOUBLING = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def known_curve(loads: Sequence[float], log_speedups: Sequence[float], half: float = 0.0) -> Curve:
    """As sure of any weighted sum as of one load: loads that move as one."""

    def estimate(weights: Floats, level: float) -> Estimate:
        value = float(weights @ np.array(log_speedups))
        return Estimate(value=value, low=value - half, high=value + half, n=9, method="known", level=level)

    return Curve(loads=tuple(loads), estimate=estimate)


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
            gains = np.exp(log_speedup(size) + own + random.normal(0.0, noise_sd, prompts))
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


@pytest.mark.parametrize(
    ("values", "weights", "fitted"),
    [
        pytest.param([3.0, 2.0, 1.0], [1.0, 1.0, 1.0], [3.0, 2.0, 1.0], id="falling stays"),
        pytest.param([1.0, 2.0], [1.0, 1.0], [1.5, 1.5], id="a rise is levelled"),
        pytest.param([1.0, 2.0], [3.0, 1.0], [1.25, 1.25], id="by weight"),
        pytest.param([5.0, 1.0, 2.0, 3.0], [1.0] * 4, [5.0, 2.0, 2.0, 2.0], id="over several loads"),
        pytest.param([2.0, 1.0, 4.0], [1.0] * 3, [7 / 3] * 3, id="a late rise reaches back"),
        pytest.param([1.0], [2.0], [1.0], id="one load"),
    ],
)
def test_the_isotonic_fit_levels_what_rises(
    values: list[float], weights: list[float], fitted: list[float]
) -> None:
    assert isotonic(values, weights).tolist() == pytest.approx(fitted)


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(0.1, 10)), min_size=1, max_size=12))
def test_the_isotonic_fit_never_rises_and_keeps_the_weighted_mean(points: list[tuple[float, float]]) -> None:
    values, weights = ([point[side] for point in points] for side in (0, 1))
    fitted = isotonic(values, weights)
    assert (np.diff(fitted) <= 1e-12).all()
    assert np.average(fitted, weights=weights) == pytest.approx(np.average(values, weights=weights), abs=1e-9)


@pytest.mark.parametrize("loads", [DOUBLING, (1.0, 4.0, 16.0, 64.0), (1.0, 64.0)])
def test_a_straight_curve_is_crossed_where_it_crosses(loads: tuple[float, ...]) -> None:
    crossing = crossing_of(known_curve(loads, [falling(11.0, 0.2)(load) for load in loads]))
    assert crossing.value == pytest.approx(11.0, rel=1e-6)
    assert crossing.low == pytest.approx(11.0, rel=1e-6)
    assert crossing.high == pytest.approx(11.0, rel=1e-6)


@pytest.mark.parametrize(
    ("loads", "error_max"),
    [
        pytest.param(DOUBLING, 0.01, id="loads that double"),
        pytest.param((1.0, 4.0, 16.0, 64.0), 0.08, id="loads that quadruple"),
    ],
)
def test_the_cost_model_is_crossed_close_to_its_break_even(
    loads: tuple[float, ...], error_max: float
) -> None:
    weights_s, token_s, length, drafted = 1.0, 0.02, 2.5, 4
    break_even = (length - 1) * weights_s / (token_s * (drafted + 1 - length))

    def log_speedup(load: float) -> float:
        slow, fast = weights_s + token_s * load, weights_s + token_s * load * (drafted + 1)
        return math.log(length * slow / fast)

    crossing = crossing_of(known_curve(loads, [log_speedup(load) for load in loads]))
    assert crossing.value == pytest.approx(break_even, rel=error_max)


def test_the_interval_is_where_the_band_holds_a_speedup_of_one() -> None:
    crossing = crossing_of(known_curve(DOUBLING, [falling(8.0, 0.2)(load) for load in DOUBLING], half=0.1))
    # 0.1 on the log speedup is exp(0.1 / 0.2) on the load.
    assert crossing.low == pytest.approx(8.0 * math.exp(-0.5), rel=1e-3)
    assert crossing.high == pytest.approx(8.0 * math.exp(0.5), rel=1e-3)
    assert crossing.notes == ()


@pytest.mark.parametrize(
    ("crossing_at", "half", "low", "high", "note"),
    [
        pytest.param(
            500.0, 0.05, 64.0, None, "pays up to the largest load measured", id="surely pays everywhere"
        ),
        pytest.param(0.1, 0.05, None, 1.0, "pays at no load measured", id="surely pays nowhere"),
        pytest.param(
            70.0,
            0.2,
            70 / math.e,
            None,
            "no slower at any load measured, surely faster up to 25.8",
            id="pays everywhere, unsure of the largest",
        ),
        pytest.param(
            0.9,
            0.2,
            None,
            0.9 * math.e,
            "no faster at any load measured, surely slower from 2.45 on",
            id="pays nowhere, unsure of the smallest",
        ),
        pytest.param(
            70.0,
            9.0,
            None,
            None,
            "no slower at any load measured, surely faster at none",
            id="pays everywhere, sure of nothing",
        ),
    ],
)
def test_a_curve_that_does_not_cross_has_no_value_but_a_bound(
    crossing_at: float, half: float, low: float | None, high: float | None, note: str
) -> None:
    log_speedups = [falling(crossing_at, 0.2)(load) for load in DOUBLING]
    crossing = crossing_of(known_curve(DOUBLING, log_speedups, half=half))
    assert crossing.value is None
    assert crossing.low == (None if low is None else pytest.approx(low, rel=1e-3))
    assert crossing.high == (None if high is None else pytest.approx(high, rel=1e-3))
    assert crossing.notes == (note,)


@pytest.mark.parametrize(
    ("crossing_at", "half", "is_open", "note"),
    [
        pytest.param(1.5, 0.2, (True, False), "beyond the smallest load", id="below"),
        pytest.param(50.0, 0.2, (False, True), "beyond the largest load", id="above"),
        pytest.param(8.0, 2.0, (True, True), "beyond the smallest and the largest load", id="both"),
        pytest.param(8.0, math.inf, (True, True), "no interval", id="no spread known"),
    ],
)
def test_a_bound_beyond_the_loads_measured_is_not_invented(
    crossing_at: float, half: float, is_open: tuple[bool, bool], note: str
) -> None:
    log_speedups = [falling(crossing_at, 0.2)(load) for load in DOUBLING]
    crossing = crossing_of(known_curve(DOUBLING, log_speedups, half=half))
    assert crossing.value == pytest.approx(crossing_at, rel=1e-6)
    assert (crossing.low is None, crossing.high is None) == is_open
    assert note in crossing.notes[0]


def test_a_speedup_that_surely_rises_is_said_and_judged_from_its_peak_on() -> None:
    mixture_of_experts = [-0.2, 0.1, 0.3, 0.2, 0.1, -0.1, -0.3]
    crossing = crossing_of(known_curve(DOUBLING, mixture_of_experts, half=0.02))
    assert crossing.value == pytest.approx(math.sqrt(16 * 32), rel=0.05)
    assert "not monotone: the speedup rises from 0.82x at 1 to 1.35x at 4" in "; ".join(crossing.notes)
    assert "only loads from 4 on" in "; ".join(crossing.notes)


def test_a_speedup_that_rises_to_the_end_pays_up_to_the_end() -> None:
    crossing = crossing_of(known_curve((1.0, 4.0, 16.0), [-0.3, 0.0, 0.3], half=0.02))
    assert (crossing.value, crossing.low, crossing.high) == (None, 16.0, None)
    assert crossing.notes[0] == "pays up to the largest load measured"


def test_a_rise_within_the_noise_is_not_called_one() -> None:
    crossing = crossing_of(known_curve((1.0, 4.0, 16.0, 64.0), [0.2, 0.25, -0.1, -0.4], half=0.06))
    assert not any("monotone" in note for note in crossing.notes)
    assert crossing.value is not None


def test_what_is_sure_at_a_larger_load_is_sure_at_the_smaller_ones() -> None:
    """One load measured badly between two that surely pay does not open the interval there."""

    def estimate(weights: Floats, level: float) -> Estimate:
        value = float(weights @ np.array([0.5, 0.4, 0.3, -0.3]))
        half = float(np.abs(weights) @ np.array([0.01, 0.6, 0.01, 0.01]))
        return Estimate(value=value, low=value - half, high=value + half, n=9, method="known", level=level)

    crossing = crossing_of(Curve(loads=(1.0, 4.0, 16.0, 64.0), estimate=estimate))
    assert crossing.low is not None
    assert crossing.low > 16.0


def test_a_shape_that_nobody_measured_widens_the_interval_and_asks_for_a_load() -> None:
    knee = [0.5, 0.5, 0.5, -0.6]
    crossing = crossing_of(known_curve((1.0, 4.0, 16.0, 64.0), knee, half=0.005))
    assert crossing.low is not None
    assert crossing.high is not None
    assert crossing.high / crossing.low > 1.1
    assert any("between 16 and 64 is a guess: measure a load in between" in note for note in crossing.notes)


@given(log_speedups=st.lists(st.floats(-1, 1), min_size=2, max_size=7), half=st.floats(0.0, 0.5))
def test_a_value_lies_in_its_interval_and_both_among_the_loads(
    log_speedups: list[float], half: float
) -> None:
    loads = DOUBLING[: len(log_speedups)]
    crossing = crossing_of(known_curve(loads, log_speedups, half=half))
    found = [bound for bound in (crossing.low, crossing.value, crossing.high) if bound is not None]
    assert found == pytest.approx(sorted(found))
    assert all(loads[0] <= bound * (1 + 1e-9) and bound <= loads[-1] * (1 + 1e-9) for bound in found)


@pytest.mark.parametrize("scale", [0.01, 3.0, 250.0])
def test_the_unit_of_load_does_not_matter(scale: float) -> None:
    log_speedups = [0.5, 0.45, 0.47, 0.2, -0.1, -0.05, -0.6]
    plain = crossing_of(known_curve(DOUBLING, log_speedups, half=0.07))
    scaled = crossing_of(known_curve([scale * load for load in DOUBLING], log_speedups, half=0.07))
    assert plain.value is not None
    assert plain.low is not None
    assert plain.high is not None
    assert scaled.value == pytest.approx(scale * plain.value)
    assert scaled.low == pytest.approx(scale * plain.low)
    assert scaled.high == pytest.approx(scale * plain.high)


def test_the_interval_covers_the_true_load_about_as_often_as_it_says() -> None:
    """300 studies with 3 launches; 93-97 % on the grid of benchmarks/crossover.py, +- 3.8 points here."""
    random = np.random.default_rng(3)
    loads, prompts, launches, crossing_at = (1.0, 4.0, 16.0, 64.0), 32, 3, 11.0
    launch_of, prompt_of = np.divmod(np.arange(prompts * launches), prompts)
    truth = np.array([falling(crossing_at, 0.25)(load) for load in loads])[:, None, None]
    covered = 0
    for _ in range(300):
        launch = random.normal(0.0, 0.02, (launches, 1))
        prompt = random.normal(0.0, 0.1, (1, prompts))
        residual = random.normal(0.0, 0.06, (len(loads), launches, prompts))
        table = (truth + launch + prompt + residual).reshape(len(loads), -1)
        found = crossing_of(shared_curve(loads, table, units=prompt_of.tolist(), launches=launch_of.tolist()))
        covered += (found.low is None or found.low <= crossing_at) and (
            found.high is None or crossing_at <= found.high
        )
    assert 0.912 <= covered / 300 <= 0.99


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
    return Record(
        place=record.place,
        outcome=record.outcome,
        intended_s=record.intended_s,
        sent_s=record.sent_s,
        end_s=record.end_s + late_s,
        first_token_s=record.intended_s + record.ttft_s + late_s,
        last_token_s=record.last_token_s + late_s,
        output_tokens=record.output_tokens,
    )


def test_an_open_loop_is_an_axis_of_its_own() -> None:
    loads: list[Load] = [Rate(per_s=0.5), Rate(per_s=2.0), Rate(per_s=8.0)]
    found = by_metric(study(loads, falling(2.5, 0.2), noise_sd=0.02))
    assert {one.axis for one in found.values()} == {"qps"}
    assert found["tpot"].value == pytest.approx(2.5, rel=0.1)
    assert "rate offered until an arm saturates" in found["throughput"].note


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


@pytest.mark.parametrize(("prompts", "is_there"), [(33, False), (34, True)])
def test_a_p99_needs_a_hundred_requests_at_each_load(prompts: int, *, is_there: bool) -> None:
    found = by_metric(study(streams(1, 16), falling(5.0, 0.3), prompts=prompts, noise_sd=0.02))
    assert ("ttft_p99" in found) is is_there
    if is_there:
        assert "rests on P99s" in found["ttft_p99"].note


def test_a_p99_whose_ratio_is_the_same_on_every_draw_is_crossed_exactly() -> None:
    found = by_metric(study(streams(1, 4, 16, 64), falling(9.0, 0.25), prompts=40))["ttft_p99"]
    assert found.value == pytest.approx(9.0, rel=1e-3)
    assert found.low == pytest.approx(9.0, rel=1e-3)


def test_warm_up_requests_are_not_a_load() -> None:
    warm_up = [
        answered(
            Place(
                arm=arm,
                launch=0,
                round=0,
                block=0,
                load=Concurrency(streams=64),
                request_id="p0",
                segment="code",
                temperature=None,
                phase=Phase.WARMUP,
            ),
            0.0,
            0.1,
        )
        for arm in (BASELINE, ARM)
    ]
    assert crossovers([*study(streams(4), falling(9.0, 0.2)), *warm_up], ARM, seed=1) == ()


def test_one_launch_is_noted_for_every_metric() -> None:
    records = study(streams(1, 4, 16, 64), falling(9.0, 0.25), prompts=110, launches=1, noise_sd=0.05)
    assert all("one launch only" in found.note for found in crossovers(records, ARM, seed=1))


def test_throughput_counts_the_prompts_although_every_launch_has_the_same() -> None:
    alike = by_metric(study(streams(1, 4, 16, 64), falling(9.0, 0.25)))["throughput"]
    unlike = by_metric(study(streams(1, 4, 16, 64), falling(9.0, 0.25), prompt_sd=0.2))["throughput"]
    assert alike.low == pytest.approx(alike.high, rel=1e-6)
    assert unlike.low is not None
    assert unlike.high is not None
    assert unlike.high / unlike.low > 1.2


def test_requests_that_failed_at_one_load_are_left_out_of_all() -> None:
    records = study(streams(1, 4, 16, 64), falling(9.0, 0.25), noise_sd=0.02)
    holed = [
        record
        for record in records
        if not (record.place.request_id in ("p0", "p1") and record.place.load == Concurrency(streams=4))
    ]
    found = by_metric(holed)["tpot"]
    assert found.value == pytest.approx(9.0, rel=0.1)
    assert "on the 92 % of pairs that every load has" in found.note


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
    halves = [
        estimate.high - estimate.value
        for weights in ([0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.5, 0.5, 0.0])
        for estimate in [curve.estimate(np.array(weights), 0.95)]
    ]
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
