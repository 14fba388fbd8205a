from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as reference

from speclift.core.results import Estimate
from speclift.statistics.crossed import merged_strata
from speclift.statistics.stats import SPREAD_MIN, CrossedFit, crossed_fit, crossed_interval, interval_of

SEED = 7
STRATUM_MEANS = np.array([0.0, 0.4, -0.3])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    values: list[float]
    prompts: list[int]
    launches: list[int]
    strata: list[int]

    def fit(self) -> CrossedFit:
        return crossed_fit(self.values, self.prompts, self.launches, self.strata)

    def interval(self, level: float = 0.95) -> Estimate:
        return crossed_interval(self.values, self.prompts, self.launches, self.strata, level=level)

    def kept(self, keep: list[bool]) -> Sample:
        columns = (self.values, self.prompts, self.launches, self.strata)
        values, prompts, launches, strata = (
            [x for x, k in zip(column, keep, strict=True) if k] for column in columns
        )
        return Sample(values=values, prompts=prompts, launches=launches, strata=strata)  # type: ignore[arg-type]


def draw(
    random: np.random.Generator,
    *,
    prompts: int,
    launches: int,
    strata: int = 1,
    launch_sd: float = 0.03,
    prompt_sd: float = 0.1,
    residual_sd: float = 0.05,
) -> Sample:
    """A complete table around 0, plus the stratum means."""
    prompt, launch = np.divmod(np.arange(prompts * launches), launches)
    stratum = prompt % strata
    values = (
        random.normal(0, launch_sd, launches)[launch]
        + random.normal(0, prompt_sd, prompts)[prompt]
        + random.normal(0, residual_sd, len(prompt))
        + STRATUM_MEANS[stratum]
    )
    return Sample(
        values=values.tolist(), prompts=prompt.tolist(), launches=launch.tolist(), strata=stratum.tolist()
    )


def unbalanced(seed: int) -> Sample:
    """About a third of the cells lost; every prompt and launch still there, effects well above the noise."""
    random = np.random.default_rng(seed)
    sample = draw(random, prompts=14, launches=4, strata=3, launch_sd=0.3, prompt_sd=0.3, residual_sd=0.05)
    keep = (random.random(len(sample.values)) > 0.33) | (np.array(sample.launches) == 0)
    return sample.kept(keep.tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    mean: float
    variance: float
    launch: float
    prompt: float
    residual: float


def dense_fit(sample: Sample) -> Dense:
    """The same model with n x n projections and a 3 x 3 system of expectations, nothing absorbed."""
    y = np.array(sample.values)
    prompt, launch, stratum = (
        np.equal.outer(np.array(labels), np.unique(labels)).astype(float)
        for labels in (sample.prompts, sample.launches, sample.strata)
    )

    def onto(*blocks: np.ndarray) -> np.ndarray:
        columns = np.hstack(blocks)
        return np.asarray(columns @ np.linalg.pinv(columns))

    full = onto(prompt, launch)
    forms = [full - onto(prompt), full - onto(launch, stratum), np.eye(len(y)) - full]
    effects = [launch @ launch.T, prompt @ prompt.T, np.eye(len(y))]
    expectations = np.array([[np.trace(form @ effect) for effect in effects] for form in forms])
    components = np.linalg.solve(expectations, [y @ form @ y for form in forms])
    weights = (prompt / prompt.sum(axis=0)).mean(axis=1)
    covariance = sum(c * effect for c, effect in zip(components, effects, strict=True))
    return Dense(
        mean=float(weights @ y),
        variance=float(weights @ covariance @ weights),
        launch=float(components[0]),
        prompt=float(components[1]),
        residual=float(components[2]),
    )


class TestCrossedFit:
    @pytest.mark.parametrize(("prompts", "launches"), [(6, 3), (20, 3), (12, 5)])
    def test_equals_the_textbook_formula_on_a_complete_table(self, prompts: int, launches: int) -> None:
        sample = draw(
            np.random.default_rng(SEED), prompts=prompts, launches=launches, launch_sd=0.2, prompt_sd=0.2
        )
        table = np.array(sample.values).reshape(prompts, launches)
        by_prompt, by_launch, mean = table.mean(axis=1), table.mean(axis=0), table.mean()
        df_l, df_p = launches - 1, prompts - 1
        ms_l = prompts * np.sum((by_launch - mean) ** 2) / df_l
        ms_p = launches * np.sum((by_prompt - mean) ** 2) / df_p
        ms_e = np.sum((table - by_prompt[:, None] - by_launch + mean) ** 2) / (df_l * df_p)
        assert ms_l > ms_e
        assert ms_p > ms_e

        fit = sample.fit()
        combined = ms_l + ms_p - ms_e
        assert fit.mean == pytest.approx(mean)
        assert fit.variance == pytest.approx(combined / (launches * prompts))
        assert fit.df == pytest.approx(
            combined**2 / (ms_l**2 / df_l + ms_p**2 / df_p + ms_e**2 / (df_l * df_p))
        )
        assert fit.residual_variance == pytest.approx(ms_e)

    @pytest.mark.parametrize("seed", range(6))
    def test_equals_a_dense_computation_on_a_table_with_holes(self, seed: int) -> None:
        sample = unbalanced(seed)
        dense, fit = dense_fit(sample), sample.fit()
        assert min(dense.launch, dense.prompt) > 0
        assert fit.mean == pytest.approx(dense.mean)
        assert fit.variance == pytest.approx(dense.variance)
        assert fit.launch_variance == pytest.approx(dense.launch)
        assert fit.prompt_variance == pytest.approx(dense.prompt)
        assert fit.residual_variance == pytest.approx(dense.residual)

    def test_weighs_prompts_equally_however_often_each_was_seen(self) -> None:
        fit = crossed_fit([1.0, 1.0, 1.0, 4.0], ["a", "a", "a", "b"], [0, 1, 2, 0])
        assert fit.mean == pytest.approx(2.5)

    def test_averages_repeats_of_a_cell_first(self) -> None:
        sample = draw(np.random.default_rng(SEED), prompts=8, launches=3)
        first = sample.values[0]
        repeated = Sample(
            values=[first - 0.2, *sample.values[1:], first + 0.2],
            prompts=[*sample.prompts, sample.prompts[0]],
            launches=[*sample.launches, sample.launches[0]],
            strata=[*sample.strata, sample.strata[0]],
        )
        assert_same_fit(repeated.fit(), sample.fit())

    def test_does_not_count_the_spread_between_strata(self) -> None:
        sample = draw(np.random.default_rng(SEED), prompts=30, launches=3, strata=3)
        pooled = crossed_interval(sample.values, sample.prompts, sample.launches)
        stratified = sample.interval()
        assert stratified.high - stratified.low < 0.6 * (pooled.high - pooled.low)
        assert stratified.value == pytest.approx(pooled.value)

    def test_takes_a_launch_variance_below_zero_as_zero(self) -> None:
        # Launch means are equal, so the launch mean square is 0 and its component would be negative.
        values = [0.1, -0.1, 0.3, 0.5, -0.4, -0.4]
        fit = crossed_fit(values, [0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1])
        means = [0.0, 0.4, -0.4]
        assert fit.launch_variance == 0.0
        assert fit.variance == pytest.approx(float(np.var(means, ddof=1)) / 3)
        assert fit.df == pytest.approx(2)


class TestIntervalOf:
    def test_lies_four_tenths_of_the_way_from_satterthwaite_to_cochran(self) -> None:
        fit = draw(np.random.default_rng(SEED), prompts=12, launches=3, launch_sd=0.1).fit()
        interval = interval_of(fit, level=0.9)
        satterthwaite, of_launches, of_prompts = (float(reference.t.ppf(0.95, df)) for df in (fit.df, 2, 11))
        cochran = fit.launch_share * of_launches + (1 - fit.launch_share) * of_prompts
        half_width = (0.6 * satterthwaite + 0.4 * cochran) * math.sqrt(fit.variance)
        assert 0 < fit.launch_share < 1
        assert (interval.low, interval.high) == pytest.approx((fit.mean - half_width, fit.mean + half_width))
        assert (interval.n, interval.method, interval.level) == (12, "crossed-t", 0.9)


def assert_same_fit(fit: CrossedFit, other: CrossedFit) -> None:
    """Equal up to rounding in every field."""
    assert asdict(fit) == pytest.approx(asdict(other), rel=1e-6, abs=1e-12)


class TestDegenerateTables:
    def test_one_launch_gives_an_interval_over_prompts_that_says_so(self) -> None:
        values = [0.1, 0.4, 0.2, 0.3]
        interval = crossed_interval(values, range(4), [0] * 4)
        low, high = reference.t.interval(0.95, 3, loc=0.25, scale=np.std(values, ddof=1) / 2)
        assert (interval.low, interval.high) == pytest.approx((low, high))
        assert interval.method == "prompts-only-t"

    def test_one_launch_keeps_strata_out_of_the_spread(self) -> None:
        fit = crossed_fit([0.0, 0.2, 5.0, 5.2], range(4), [0] * 4, ["a", "a", "b", "b"])
        assert fit.variance == pytest.approx(0.02 / 4)
        assert fit.df == 2

    def test_one_prompt_says_nothing_of_others_however_often_it_is_launched(self) -> None:
        interval = crossed_interval([0.1, 0.4, 0.2, 0.3], ["p"] * 4, range(4))
        assert (interval.low, interval.value, interval.high) == (-math.inf, 0.25, math.inf)
        assert (interval.method, interval.n) == ("not-estimable", 1)

    def test_strata_of_one_prompt_are_merged_and_one_left_over_joins_the_largest(self) -> None:
        assert merged_strata(["a", "b", "c"]) == [0, 0, 0]
        assert merged_strata(["a", "a", "b", "c"]) == [0, 0, 1, 1]
        assert merged_strata(["a", "a", "b", "b", "b", "c"]) == [0, 0, 1, 1, 1, 1]
        assert merged_strata([]) == []

    def test_two_prompts_alike_do_not_speak_for_six_that_stand_alone(self) -> None:
        """A stratum of two near-duplicates beside six strata of one: its tiny spread is not theirs."""
        values = [0.300, 0.301, 0.9, 0.1, 0.5, -0.3, 0.7, 0.2]
        strata = ["twins", "twins", *"abcdef"]
        interval = crossed_interval(values, range(8), [0] * 8, strata)
        assert interval.high - interval.low > 0.3

    @pytest.mark.parametrize(
        ("prompts", "launches"),
        [(["p"], [0]), (["p", "p"], [0, 0]), (["p", "q"], [0, 1]), (["p", "q", "r"], [0, 0, 1])],
        ids=["one value", "one cell twice", "each prompt on a launch of its own", "launches share no prompt"],
    )
    def test_nothing_to_estimate_gives_an_infinite_interval(
        self, prompts: list[str], launches: list[int]
    ) -> None:
        interval = crossed_interval([0.1, 0.2, 0.4][: len(prompts)], prompts, launches)
        assert (interval.low, interval.high) == (-math.inf, math.inf)
        assert interval.method == "not-estimable"
        assert math.isfinite(interval.value)

    @pytest.mark.parametrize("launches", [1, 3])
    def test_one_prompt_per_stratum_counts_their_spread_as_error(self, launches: int) -> None:
        sample = draw(np.random.default_rng(SEED), prompts=8, launches=launches)
        alone = crossed_fit(sample.values, sample.prompts, sample.launches, sample.prompts)
        assert alone == crossed_fit(sample.values, sample.prompts, sample.launches)

    @pytest.mark.parametrize(("prompts", "launches"), [(2, 1), (4, 3), (4, 1), (24, 3)])
    def test_no_spread_at_all_is_taken_as_a_thousandth(self, prompts: int, launches: int) -> None:
        cells = list(product(range(prompts), range(launches)))
        interval = crossed_interval([0.25] * len(cells), [p for p, _ in cells], [w for _, w in cells])
        assert interval.value == pytest.approx(0.25)
        assert interval.high - interval.low > 2 * 1.9 * SPREAD_MIN / math.sqrt(prompts)

    def test_a_table_without_residual_freedom_still_has_a_finite_interval(self) -> None:
        fit = crossed_fit([0.1, 0.3, 0.6, 0.2], [0, 0, 1, 2], [0, 1, 1, 0])
        interval = interval_of(fit)
        assert fit.residual_variance is None
        assert 0 < interval.high - interval.low < math.inf

    def test_refuses_no_values(self) -> None:
        with pytest.raises(ValueError, match="saw none"):
            crossed_fit([], [], [])

    def test_refuses_columns_of_different_length(self) -> None:
        with pytest.raises(ValueError, match="differ in length"):
            crossed_fit([0.1, 0.2], [0, 1], [0])

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_refuses_values_that_are_not_finite(self, value: float) -> None:
        with pytest.raises(ValueError, match="finite"):
            crossed_fit([0.1, value], [0, 1], [0, 0])

    def test_refuses_a_prompt_in_two_strata(self) -> None:
        with pytest.raises(ValueError, match="two strata"):
            crossed_fit([0.1, 0.2], ["p", "p"], [0, 1], ["a", "b"])

    @pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
    def test_refuses_a_level_that_is_no_probability(self, level: float) -> None:
        with pytest.raises(ValueError, match="confidence level"):
            crossed_interval([0.1, 0.2], [0, 1], [0, 0], level=level)


def covered_percent(*, studies: int, launches_seen: int | None = None, **truth: float) -> float:
    random = np.random.default_rng(SEED)
    target = float(STRATUM_MEANS[: int(truth["strata"])].mean())
    covered = 0
    for _ in range(studies):
        sample = draw(random, **truth)  # type: ignore[arg-type]
        if launches_seen is not None:
            sample = sample.kept([launch < launches_seen for launch in sample.launches])
        interval = sample.interval()
        covered += interval.low <= target <= interval.high
    return 100 * covered / studies


class TestCoverage:
    """The whole grid is in `make bench` (benchmarks/coverage.py); these are cells from its edges and its middle."""

    @pytest.mark.parametrize(
        ("launches", "prompts", "strata", "launch_sd", "prompt_sd", "residual_sd"),
        [
            (3, 12, 3, 0.03, 0.20, 0.02),
            (3, 36, 1, 0.05, 0.05, 0.02),
            (3, 36, 3, 0.00, 0.20, 0.10),
            (3, 36, 3, 0.03, 0.05, 0.10),
            (5, 12, 1, 0.05, 0.05, 0.10),
            (5, 36, 3, 0.01, 0.05, 0.02),
        ],
        ids=[
            "few prompts that differ much",
            "launches carry the variance",
            "launches do not differ",
            "everything matters",
            "noise is twice the prompts' spread",
            "launches hardly differ",
        ],
    )
    def test_a_95_percent_interval_holds_the_truth_in_about_that_share_of_studies(
        self,
        launches: int,
        prompts: int,
        strata: int,
        launch_sd: float,
        prompt_sd: float,
        residual_sd: float,
    ) -> None:
        percent = covered_percent(
            studies=400,
            launches=launches,
            prompts=prompts,
            strata=strata,
            launch_sd=launch_sd,
            prompt_sd=prompt_sd,
            residual_sd=residual_sd,
        )
        # Three standard errors about 95: a sound interval leaves them once in 300 tries, one that covers 90 % of
        # studies in 88 % of tries.
        assert 91.7 <= percent <= 98.3

    def test_one_launch_cannot_cover_what_launches_add(self) -> None:
        # Shows that the check above can fail, and why a single launch must be named in the method.
        percent = covered_percent(
            studies=100,
            launches_seen=1,
            launches=3,
            prompts=36,
            strata=1,
            launch_sd=0.05,
            prompt_sd=0.05,
            residual_sd=0.02,
        )
        assert percent < 50


tables = st.integers(0, 2**32 - 1).map(unbalanced)


class TestEquivariance:
    @given(sample=tables, shift=st.floats(-5, 5), scale=st.floats(1, 10))
    def test_shift_and_scale_of_the_values_shift_and_scale_the_interval(
        self, sample: Sample, shift: float, scale: float
    ) -> None:
        before = sample.interval()
        after = replace(sample, values=[shift + scale * value for value in sample.values]).interval()
        assert after.value == pytest.approx(shift + scale * before.value)
        assert after.low == pytest.approx(shift + scale * before.low)
        assert after.high == pytest.approx(shift + scale * before.high)

    @given(sample=tables)
    def test_a_change_of_sign_mirrors_the_interval(self, sample: Sample) -> None:
        before = sample.interval()
        after = replace(sample, values=[-value for value in sample.values]).interval()
        assert (after.low, after.high) == pytest.approx((-before.high, -before.low))

    @given(sample=tables, seed=st.integers(0, 1000))
    def test_the_order_of_rows_does_not_matter(self, sample: Sample, seed: int) -> None:
        order = np.random.default_rng(seed).permutation(len(sample.values))
        columns = (sample.values, sample.prompts, sample.launches, sample.strata)
        values, prompts, launches, strata = ([column[i] for i in order] for column in columns)
        shuffled = crossed_fit(values, prompts, launches, strata)
        assert_same_fit(shuffled, sample.fit())

    @given(sample=tables)
    def test_labels_are_only_names(self, sample: Sample) -> None:
        named = crossed_fit(
            sample.values,
            [f"prompt {p}" for p in sample.prompts],
            [("launch", w) for w in sample.launches],
            [str(s) for s in sample.strata],
        )
        assert named == sample.fit()

    @given(sample=tables)
    def test_a_higher_level_gives_a_wider_interval(self, sample: Sample) -> None:
        narrow, wide = sample.interval(0.9), sample.interval(0.99)
        assert wide.low < narrow.low < narrow.high < wide.high
