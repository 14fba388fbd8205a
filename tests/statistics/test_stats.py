from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as reference

from speclift.statistics.stats import (
    PROMPTS_MAX,
    CrossedFit,
    bonferroni,
    crossed_fit,
    interval_of,
    launches_needed,
    prompts_needed,
    quantile_interval,
    ratio_of_totals,
)

SEED = 7


class TestNeeded:
    @staticmethod
    def fit(*, launch_variance: float = 0.0004, launches: int = 3) -> CrossedFit:
        """36 prompts on 3 launches; the half-width is about 0.075."""
        return CrossedFit(
            mean=0.0,
            variance=launch_variance / launches + 0.04 / 36 + 0.0025 / (36 * launches),
            df=20.0,
            launch_variance=launch_variance,
            prompt_variance=0.04,
            residual_variance=0.0025,
            prompts=36,
            launches=launches,
            launch_df=launches - 1,
            prompt_df=35,
            launch_share=0.2,
        )

    def test_enough_already_asks_for_no_more(self) -> None:
        assert prompts_needed(self.fit(), 0.2) == 36
        assert launches_needed(self.fit(), 0.2) == 3

    def test_without_launch_variance_prompts_follow_the_plain_formula(self) -> None:
        fit = replace(self.fit(launch_variance=0.0), residual_variance=0.0)
        needed = prompts_needed(fit, 0.02)
        assert needed is not None
        half_widths = [
            float(reference.t.ppf(0.975, count - 1)) * 0.2 / math.sqrt(count)
            for count in (needed - 1, needed)
        ]
        assert half_widths[1] <= 0.02 < half_widths[0]

    def test_up_to_five_hundred_the_number_is_exact(self) -> None:
        fit = replace(self.fit(launch_variance=0.0), residual_variance=0.0)
        reached = float(reference.t.ppf(0.975, 499)) * 0.2 / math.sqrt(500)
        assert prompts_needed(fit, 1.0001 * reached) == 500

    def test_never_fewer_than_now_are_asked_for(self) -> None:
        fit = replace(self.fit(launch_variance=0.0), residual_variance=0.0, df=1.0)
        assert prompts_needed(fit, 0.1) == 37

    def test_the_largest_study_that_is_thought_of_is_thought_of(self) -> None:
        fit = replace(self.fit(launch_variance=0.0), residual_variance=0.0)
        reached = float(reference.t.ppf(0.975, PROMPTS_MAX - 1)) * 0.2 / math.sqrt(PROMPTS_MAX)
        assert prompts_needed(fit, 1.001 * reached) is not None
        assert prompts_needed(fit, 0.999 * reached) is None

    def test_more_launches_help_where_launches_differ(self) -> None:
        fit = self.fit(launch_variance=0.01)
        needed = launches_needed(fit, 0.1)
        assert needed is not None
        assert 3 < needed < 20

    def test_a_margin_the_launches_forbid_is_not_reached_by_prompts(self) -> None:
        assert prompts_needed(self.fit(launch_variance=0.01), 0.05) is None

    def test_a_margin_the_prompts_forbid_is_not_reached_by_launches(self) -> None:
        assert launches_needed(self.fit(), 0.01) is None

    def test_a_wider_margin_never_needs_more(self) -> None:
        fit = self.fit(launch_variance=0.0001)
        needed = [prompts_needed(fit, margin) for margin in (0.02, 0.03, 0.04, 0.05, 0.06)]
        assert needed[0] is None
        counts = [count for count in needed if count is not None]
        assert len(counts) == 4
        assert counts == sorted(counts, reverse=True)

    def test_one_launch_allows_planning_prompts_but_not_launches(self) -> None:
        fit = crossed_fit(np.random.default_rng(SEED).normal(0, 0.1, 20).tolist(), range(20), [0] * 20)
        needed = prompts_needed(fit, 0.01)
        assert needed is not None
        assert 200 < needed < 1000
        assert launches_needed(fit, 0.01) is None

    def test_nothing_estimated_plans_nothing(self) -> None:
        fit = crossed_fit([0.1, 0.2], ["p", "q"], [0, 1])
        assert prompts_needed(fit, 0.1) is None
        assert launches_needed(fit, 0.1) is None

    def test_what_was_planned_is_what_a_study_of_that_size_shows(self) -> None:
        random = np.random.default_rng(SEED)

        def study(prompts: int) -> CrossedFit:
            values = random.normal(0, 0.2, (prompts, 1)) + random.normal(0, 0.02, (prompts, 3))
            labels = [divmod(cell, 3) for cell in range(3 * prompts)]
            return crossed_fit(values.ravel().tolist(), [p for p, _ in labels], [w for _, w in labels])

        needed = prompts_needed(study(64), 0.03)
        assert needed is not None
        interval = interval_of(study(needed))
        assert (interval.high - interval.low) / 2 == pytest.approx(0.03, rel=0.25)

    @pytest.mark.parametrize("margin", [0.0, -0.1, math.nan])
    def test_refuses_a_margin_that_is_not_positive(self, margin: float) -> None:
        with pytest.raises(ValueError, match="margin"):
            prompts_needed(self.fit(), margin)


class TestQuantileInterval:
    @pytest.mark.parametrize(
        ("count", "q", "ranks"),
        [
            (1000, 0.99, (983, 997)),
            (5000, 0.99, (4936, 4964)),
            (368, 0.99, (360, 368)),
            (367, 0.99, (359, None)),
            (6, 0.5, (1, 6)),
            (5, 0.5, (None, None)),
            (0, 0.5, (None, None)),
        ],
    )
    def test_is_made_of_binomial_ranks(
        self, count: int, q: float, ranks: tuple[int | None, int | None]
    ) -> None:
        sample = np.random.default_rng(SEED).permutation(np.arange(1, count + 1)).tolist()
        assert quantile_interval(sample, q) == ranks

    @pytest.mark.parametrize(("count", "q"), [(60, 0.5), (200, 0.95), (500, 0.99)])
    def test_holds_the_quantile_of_a_skewed_distribution(self, count: int, q: float) -> None:
        random = np.random.default_rng(SEED)
        truth = float(reference.expon.ppf(q))
        covered = 0
        for _ in range(1000):
            low, high = quantile_interval(random.exponential(size=count).tolist(), q)
            assert low is not None
            assert high is not None
            covered += low <= truth <= high
        assert covered / 1000 >= 0.94

    @pytest.mark.parametrize("q", [0.0, 1.0, 99.0])
    def test_refuses_what_is_no_quantile(self, q: float) -> None:
        with pytest.raises(ValueError, match="quantile"):
            quantile_interval([1.0, 2.0], q)


class TestRatioOfTotals:
    def test_is_the_delta_method_clustered_on_requests(self) -> None:
        tokens, steps = [10.0, 30.0, 20.0], [5.0, 10.0, 9.0]
        ratio = ratio_of_totals(tokens, steps)
        se = math.sqrt(3 / 2 * sum((t - 2.5 * n) ** 2 for t, n in zip(tokens, steps, strict=True))) / 24
        assert ratio.value == 2.5
        assert ratio.high - ratio.value == pytest.approx(float(reference.t.ppf(0.975, 2)) * se)
        assert ratio.value - ratio.low == pytest.approx(ratio.high - ratio.value)
        assert (ratio.n, ratio.method) == (3, "ratio-of-totals-t")

    def test_holds_the_truth_where_requests_differ(self) -> None:
        # Requests of different length and acceptance: steps of one request are far from independent.
        random = np.random.default_rng(SEED)
        covered = 0
        for _ in range(2000):
            steps = random.integers(20, 120, 40)
            tokens = steps * (2 + random.normal(0, 0.4, 40))
            ratio = ratio_of_totals(tokens.tolist(), steps.tolist())
            covered += ratio.low <= 2 <= ratio.high
        assert 0.93 <= covered / 2000 <= 0.97

    def test_one_request_has_an_infinite_interval(self) -> None:
        ratio = ratio_of_totals([10], [4])
        assert (ratio.low, ratio.value, ratio.high) == (-math.inf, 2.5, math.inf)

    def test_equal_ratios_have_no_width(self) -> None:
        ratio = ratio_of_totals([10, 20], [5, 10])
        assert (ratio.low, ratio.high) == (2.0, 2.0)

    @pytest.mark.parametrize(("top", "bottom"), [([], []), ([1.0], [0.0])])
    def test_refuses_an_empty_denominator(self, top: list[float], bottom: list[float]) -> None:
        with pytest.raises(ValueError, match="positive denominator"):
            ratio_of_totals(top, bottom)

    def test_refuses_unpaired_terms(self) -> None:
        with pytest.raises(ValueError, match="pairs its terms"):
            ratio_of_totals([1.0, 2.0], [1.0])


class TestBonferroni:
    @pytest.mark.parametrize(("count", "level"), [(1, 0.95), (5, 0.99), (10, 0.995)])
    def test_splits_the_error_evenly(self, count: int, level: float) -> None:
        assert bonferroni(0.95, count) == pytest.approx(level)

    def test_refuses_an_empty_family(self) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            bonferroni(0.95, 0)
