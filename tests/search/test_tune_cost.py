"""The step-time surface: fitted to a few cells of a known truth, with experts, budgets, residuals and bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest

from speclift.core.drafting import Drafting
from speclift.search.cost import (
    CELL_SD,
    EXPERTS_MISFIT,
    RUN_REQUESTS,
    SMALL_TILES,
    CostFit,
    Experts,
    Point,
    Surface,
    Tiles,
    TimedPoint,
    fit_cost,
    left_over,
)

DRAFTERS = (("draft", Drafting.PASSES), ("lookup", Drafting.LOOK_UP))
UNIT_S = 0.008


def point(drafter: str | None, k: int, batch: float, **more: object) -> Point:
    return Point(
        target="",
        drafter=drafter,
        k=k,
        batch=batch,
        context=512.0,
        drafted=float(k),
        **more,  # type: ignore[arg-type]
    )


def surface_of(*, experts: Experts | None = None, targets: tuple[str, ...] = ("",)) -> Surface:
    return Surface(targets=targets, drafters=DRAFTERS, experts=experts)


def truth_s(surface: Surface, points: list[Point], *, seed: int = 3) -> list[float]:
    """A surface of the same family whose parameters lie about as far from the priors' centres as they may."""
    parameters = 0.7 * surface.prior_sd * np.random.default_rng(seed).standard_normal(len(surface.priors))
    return [UNIT_S * math.exp(value) for value in surface.log_time(parameters, surface.points(points))]


CALIBRATION = [
    point(drafter, k, batch)
    for drafter, k in ((None, 0), ("draft", 8), ("draft", 2), ("lookup", 8))
    for batch in (1.0, 16.0, 128.0)
]
ELSEWHERE = [
    point(drafter, k, batch)
    for drafter, k in ((None, 0), ("draft", 4), ("draft", 6), ("lookup", 3))
    for batch in (4.0, 32.0, 64.0)
]


def fitted(surface: Surface, points: list[Point], seconds: list[float]) -> CostFit:
    cells = [
        TimedPoint(point=each, step_s=second, launch=place // 3)
        for place, (each, second) in enumerate(zip(points, seconds, strict=True))
    ]
    return fit_cost(surface, cells)


@pytest.mark.parametrize("experts", [None, Experts(count=64, per_token=8)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_known_surface_is_recovered_within_a_few_percent(experts: Experts | None, seed: int) -> None:
    surface = surface_of(experts=experts)
    everything = truth_s(surface, [*CALIBRATION, *ELSEWHERE], seed=seed)
    fit = fitted(surface, CALIBRATION, everything[: len(CALIBRATION)])
    errors = np.abs(fit.predict(ELSEWHERE).log_s - np.log(everything[len(CALIBRATION) :]))
    assert errors.mean() < 0.025
    assert errors.max() < 0.08


def test_what_was_measured_in_the_same_hour_is_compared_more_closely_than_what_was_not() -> None:
    surface = surface_of()
    seconds = truth_s(surface, CALIBRATION)

    def sd_between(gap_s: float) -> float:
        """Of the two drafters at one load, of a launch each."""
        cells = [
            TimedPoint(point=each, step_s=second, launch=place // 3, at_s=gap_s * (place // 3))
            for place, (each, second) in enumerate(zip(CALIBRATION, seconds, strict=True))
        ]
        asked = [point("draft", 8, 16.0), point("lookup", 8, 16.0)]
        covariance = fit_cost(surface, cells).predict(asked).covariance
        return math.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])

    assert sd_between(60.0) < 0.95 * sd_between(24 * 3600.0)


def test_with_experts_a_step_of_few_tokens_grows_faster_than_a_dense_one() -> None:
    dense, mixed = surface_of(), surface_of(experts=Experts(count=128, per_token=8))
    points = [point(None, 0, 1.0), point("draft", 3, 1.0)]

    def growth(surface: Surface) -> float:
        log_time = surface.log_time(np.zeros(len(surface.priors)), surface.points(points))
        return float(log_time[1] - log_time[0])

    assert growth(mixed) > growth(dense) + 0.3


def test_tokens_beyond_the_budget_of_a_step_take_further_passes() -> None:
    surface = surface_of()
    points = surface.points([point("draft", 7, 64.0), point("draft", 7, 64.0, token_budget=256)])
    assert points.passes.tolist() == [1.0, 2.0]
    free, bound = surface.log_time(np.zeros(len(surface.priors)), points)
    assert bound > free


def test_prompt_tokens_of_a_step_are_paid_for() -> None:
    surface = surface_of()
    alone, beside = surface.log_time(
        np.zeros(len(surface.priors)),
        surface.points([point(None, 0, 64.0), point(None, 0, 64.0, prefill=400.0)]),
    )
    assert beside > alone


def test_the_first_token_of_a_further_tile_costs_more_than_the_last_of_the_one_before() -> None:
    surface = surface_of()
    before, full, opened = surface.log_time(
        np.zeros(len(surface.priors)),
        surface.points([point(None, 0, batch) for batch in (127.0, 128.0, 129.0)]),
    )
    assert opened - full > 3 * (full - before)


def test_a_pass_per_token_costs_more_with_k_and_one_pass_for_all_does_not() -> None:
    surface = Surface(targets=("",), drafters=(("passes", Drafting.PASSES), ("one", Drafting.ONE_PASS)))

    def rise(drafter: str) -> float:
        # The same tokens to verify, so that only drafting differs.
        points = [
            Point(target="", drafter=drafter, k=k, batch=1.0, context=512.0, drafted=2.0) for k in (2, 8)
        ]
        low, high = surface.log_time(np.zeros(len(surface.priors)), surface.points(points))
        return float(high - low)

    assert rise("passes") > 0.1
    assert rise("one") == 0.0


def test_two_cells_are_enough_for_a_prediction_between_them() -> None:
    surface = Surface(targets=("",), drafters=(("draft", Drafting.PASSES),))
    cells = [point(None, 0, 1.0), point("draft", 4, 1.0)]
    fit = fitted(surface, cells, [0.010, 0.016])
    predicted = np.exp(fit.predict([point("draft", 2, 1.0)]).log_s[0])
    assert 0.0105 < predicted < 0.0155


def test_a_measured_cell_is_predicted_as_measured_up_to_noise_and_its_spread_is_smaller() -> None:
    surface = surface_of()
    seconds = truth_s(surface, CALIBRATION)
    # One cell is a tenth slower than the form can say.
    seconds[4] *= 1.10
    fit = fitted(surface, CALIBRATION, seconds)
    there, unseen = CALIBRATION[4], point("draft", 5, 40.0)
    predicted = fit.predict([there, unseen])
    assert abs(predicted.log_s[0] - math.log(seconds[4])) < 0.05
    assert predicted.covariance[0, 0] < predicted.covariance[1, 1]


def test_residuals_show_the_cell_that_the_form_misses() -> None:
    surface = surface_of()
    seconds = truth_s(surface, CALIBRATION)
    seconds[7] *= 1.15
    residuals = fitted(surface, CALIBRATION, seconds).residuals()
    worst = max(residuals, key=lambda each: each.log_ratio)
    assert worst.point == CALIBRATION[7]
    assert worst.log_ratio > 0.02


def test_noisy_cells_widen_what_is_predicted() -> None:
    surface = surface_of()
    points = [*CALIBRATION, *ELSEWHERE]
    quiet = truth_s(surface, points)
    noise = np.random.default_rng(0).standard_normal(len(points))
    noisy = [second * math.exp(0.15 * float(shift)) for second, shift in zip(quiet, noise, strict=True)]
    asked = [point("draft", 5, 8.0)]
    assert fitted(surface, points, noisy).predict(asked).covariance[0, 0] > (
        4 * fitted(surface, points, quiet).predict(asked).covariance[0, 0]
    )


def test_experts_that_happen_to_fit_are_still_taken_to_stray_further_than_a_dense_model() -> None:
    def misfit(experts: Experts | None) -> float:
        surface = surface_of(experts=experts)
        return fitted(surface, CALIBRATION, truth_s(surface, CALIBRATION)).misfit_scale

    assert misfit(None) == 1.0
    assert misfit(Experts(count=64, per_token=8)) == EXPERTS_MISFIT > 1.0


def test_what_the_form_misses_on_one_target_is_not_carried_over_to_another() -> None:
    """One cell of target `a` is a tenth slower than its form: `b` learns of it through the form they share."""
    surface = surface_of(targets=("a", "b"))
    points = [
        Point(target=target, drafter=None, k=0, batch=batch, context=512.0, drafted=0.0)
        for target in ("a", "b")
        for batch in (1.0, 4.0, 16.0, 64.0)
    ]
    seconds = truth_s(surface, points)
    seconds[2] *= 1.1
    fit = fitted(surface, points, seconds)
    carried = fit.predict(points).log_s - np.log(fit.form_s(points))
    assert carried[2] > 0.03
    assert abs(carried[6]) < 0.6 * carried[2]


def test_arms_that_differ_in_their_token_budget_alone_each_stray_on_their_own() -> None:
    """Budgets that no step reaches make the same form; what is one cell's own is still each one's."""
    surface = surface_of()
    fit = fitted(surface, CALIBRATION, truth_s(surface, CALIBRATION))

    def sd_between(first: int | None, second: int | None) -> float:
        asked = [point("draft", 4, 8.0, token_budget=budget) for budget in (first, second)]
        covariance = fit.predict(asked).covariance
        return math.sqrt(max(0.0, covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]))

    own = math.sqrt(2) * CELL_SD * fit.misfit_scale
    assert sd_between(8192, 8192) == pytest.approx(0.0, abs=1e-6)
    for budgets in ((8192, 16384), (None, 8192)):
        assert sd_between(*budgets) == pytest.approx(own, rel=0.01)


def test_a_cell_of_few_requests_is_believed_less() -> None:
    surface = surface_of()
    seconds = truth_s(surface, CALIBRATION)

    def sd(requests: int) -> float:
        cells = [
            TimedPoint(point=each, step_s=second, launch=place // 3, requests=requests)
            for place, (each, second) in enumerate(zip(CALIBRATION, seconds, strict=True))
        ]
        return math.sqrt(float(fit_cost(surface, cells).predict([CALIBRATION[4]]).covariance[0, 0]))

    assert sd(1) > 1.3 * sd(RUN_REQUESTS)
    assert sd(10 * RUN_REQUESTS) == pytest.approx(sd(RUN_REQUESTS))


# Verified tokens 1 to 10 of one stream, in order and with none left out.
STAIRS = [point(None, 0, 1.0), *(point("draft", k, 1.0) for k in range(1, 10))]


def on_cpu() -> Surface:
    return Surface(targets=("",), drafters=DRAFTERS, is_on_cpu=True)


def stairs_s(tiles: Tiles | None, points: list[Point], *, extra: float = 0.6) -> list[float]:
    """A CPU: half of the plain step for every token, and what is left over of the tiles at a higher price."""
    return [
        UNIT_S * (0.5 + 0.5 * (each.tokens + extra * left_over(tiles, each)) + 0.1 * each.k)
        for each in points
    ]


class TestSmallTiles:
    @pytest.mark.parametrize(
        ("tiles", "k", "expected"),
        [
            (Tiles(width=4, pads=False), 0, 1.0),
            (Tiles(width=4, pads=False), 2, 3.0),
            (Tiles(width=4, pads=False), 3, 0.0),
            (Tiles(width=4, pads=False), 4, 1.0),
            (Tiles(width=4, pads=True), 0, 3.0),
            (Tiles(width=4, pads=True), 2, 1.0),
            (Tiles(width=8, pads=True), 7, 0.0),
            (None, 2, 0.0),
        ],
    )
    def test_what_is_left_over_of_one_stream(self, tiles: Tiles | None, k: int, expected: float) -> None:
        assert left_over(tiles, point("draft", k, 1.0)) == pytest.approx(expected)

    def test_steps_without_a_draft_leave_over_what_one_token_does(self) -> None:
        """k = 3 in a quarter of the steps: those fill a tile of four, the others leave one token."""
        copied = Point(
            target="", drafter="lookup", k=3, batch=1.0, context=512.0, drafted=0.75, drafting=0.25
        )
        assert left_over(Tiles(width=4, pads=False), copied) == pytest.approx(0.75)

    def test_two_streams_that_draft_in_half_of_their_steps_fill_tiles_together(self) -> None:
        """2, 5 and 8 tokens with chances 1/4, 1/2, 1/4 leave 2, 1 and 0 over."""
        copied = Point(target="", drafter="lookup", k=3, batch=2.0, context=512.0, drafted=1.5, drafting=0.5)
        assert left_over(Tiles(width=4, pads=False), copied) == pytest.approx(1.0)

    def test_of_many_streams_half_a_tile_is_left_over(self) -> None:
        assert left_over(Tiles(width=8, pads=False), point("draft", 3, 100.0)) == 3.5

    @pytest.mark.parametrize("tiles", SMALL_TILES)
    def test_they_are_found_where_the_cells_show_them(self, tiles: Tiles) -> None:
        fit = fitted(on_cpu(), STAIRS, stairs_s(tiles, STAIRS))
        assert fit.surface.tiles == tiles
        unseen = [point("draft", k, 1.0) for k in (10, 11, 12)]
        errors = fit.predict(unseen).log_s - np.log(stairs_s(tiles, unseen))
        assert np.abs(errors).max() < 0.06

    @pytest.mark.parametrize("seed", [1, 2, 3, 4])
    def test_none_is_seen_where_there_is_none(self, seed: int) -> None:
        surface = surface_of()
        points = [*CALIBRATION, *STAIRS]
        fit = fitted(surface, points, truth_s(surface, points, seed=seed))
        assert fit.surface.tiles is None

    def test_a_few_cells_do_not_show_any_unless_the_engine_is_known_to_have_them(self) -> None:
        points = [STAIRS[0], STAIRS[7]]
        cells = [
            TimedPoint(point=each, step_s=second, launch=place)
            for place, (each, second) in enumerate(zip(points, stairs_s(SMALL_TILES[0], points), strict=True))
        ]
        surface = on_cpu()
        assert fit_cost(surface, cells).surface.tiles is None
        known = fit_cost(surface, cells, tile_width=4)
        assert known.surface.tiles == Tiles(width=4, pads=False)
        three, four = np.exp(known.predict([point("draft", 2, 1.0), point("draft", 3, 1.0)]).log_s)
        assert three > 0.9 * four

    def test_forms_that_explain_the_cells_alike_leave_open_what_they_say_of_others(self) -> None:
        """Of 2 and 6 tokens a tile of four leaves over 2, and pads 2; of 3 tokens it leaves over 3 and pads 1."""
        tiles = Tiles(width=4, pads=False)
        seen = [point(drafter, k, 2.0) for drafter, k in ((None, 0), *(("draft", k) for k in range(1, 8)))]
        fit = fitted(on_cpu(), seen, stairs_s(tiles, seen))
        forms = {fit.surface.tiles, *(rival.surface.tiles for _, rival in fit.rivals)}
        assert forms == {Tiles(width=4, pads=False), Tiles(width=4, pads=True)}
        sd_seen, sd_unseen = np.sqrt(
            np.diag(fit.predict([point("draft", 3, 2.0), point("draft", 2, 1.0)]).covariance)
        )
        assert sd_unseen > 2 * sd_seen
        assert 0 < math.fsum(weight for weight, _ in fit.rivals) < 1
