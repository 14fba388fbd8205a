"""How launches vary, told by all arms together, and whether another one is worth its time: against known truths."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from speclift.statistics.launches import (
    LaunchCost,
    LaunchEffects,
    launch_effects,
    launches_worth,
    pooled_spread,
)
from speclift.statistics.stats import CrossedFit, LaunchSpread, crossed_fit, interval_of, launches_needed

TRUTH = 0.2
MINUTE = LaunchCost(launch_s=40.0, prompt_s=1.0, prompts_left=500)


def ratios(
    *,
    arms: int = 3,
    launches: int = 2,
    prompts: int = 24,
    launch_sd: float,
    prompt_sd: float = 0.2,
    seed: int,
) -> np.ndarray:
    """Of every arm against one baseline: arms x prompts x launches."""
    random = np.random.default_rng(seed)
    time = random.normal(0.0, launch_sd, (arms + 1, 1, launches))
    time = time + random.normal(0.0, 0.03, (arms + 1, prompts, launches))
    found: np.ndarray = TRUTH + time[0] - time[1:] + random.normal(0.0, prompt_sd, (arms, prompts, 1))
    return found


def labels(ratio: np.ndarray) -> tuple[list[float], list[int], list[int]]:
    prompt, launch = np.divmod(np.arange(ratio.size), ratio.shape[1])
    return ratio.ravel().tolist(), prompt.tolist(), launch.tolist()


def fit_of(table: np.ndarray, *, pools: bool = True) -> CrossedFit:
    """Of the first arm."""
    spread = pooled_spread([launch_effects(*labels(ratio)) for ratio in table]) if pools else None
    return crossed_fit(*labels(table[0]), spread=spread)


# The launch effects


def test_in_a_whole_table_an_effect_is_the_launchs_mean_less_that_of_all() -> None:
    values = [1.0, 3.0, 2.0, 6.0]
    found = launch_effects(values, ["p", "p", "q", "q"], [0, 1, 0, 1])
    assert found.by_launch == pytest.approx({0: -1.5, 1: 1.5})
    # Four residuals of 0.5 with one degree of freedom, two to a launch.
    assert found.noise == pytest.approx(0.5)


def test_prompts_that_a_launch_lacks_do_not_move_it() -> None:
    """Prompt q is slow everywhere and was measured once: the second launch is 1 above, whoever is in it."""
    values = [1.0, 2.0, 11.0, 3.0, 4.0]
    found = launch_effects(values, ["p", "p", "q", "r", "r"], [0, 1, 0, 0, 1])
    assert found.by_launch == pytest.approx({0: -0.5, 1: 0.5})
    assert found.noise == pytest.approx(0.0)


def test_repeats_of_a_prompt_are_one_and_a_single_launch_has_no_effect() -> None:
    repeated = launch_effects([1.0, 3.0, 4.0], ["p", "p", "p"], [0, 0, 1])
    assert repeated == LaunchEffects(by_launch=repeated.by_launch)
    assert repeated.by_launch == pytest.approx({0: -1.0, 1: 1.0})
    assert launch_effects([1.0, 3.0], ["p", "q"], [7, 7]).by_launch == pytest.approx({7: 0.0})


# The spread of all arms


def effects(*values: float, noise: float = 0.0) -> LaunchEffects:
    return LaunchEffects(by_launch=dict(enumerate(values)), noise=noise)


def test_one_arm_tells_its_own_variance_and_no_more() -> None:
    spread = pooled_spread([effects(-0.1, 0.1)])
    assert spread is not None
    assert spread.variance == pytest.approx(0.02)
    assert spread.df == 1.0


def test_a_launch_of_the_baseline_moves_all_arms_and_is_counted_once() -> None:
    """Only the baseline varied: 0.2 between its launches. Of four servers that is a quarter of the squares."""
    spread = pooled_spread([effects(-0.1, 0.1)] * 3)
    assert spread is not None
    assert spread.df == 3.0
    of_one_server = (0.2**2 / 2) * (1 - 1 / 4) / 3
    assert spread.variance == pytest.approx(2 * of_one_server)


def test_what_requests_alone_would_give_is_no_launchs() -> None:
    spread = pooled_spread([effects(-0.1, 0.1, noise=0.015)])
    assert spread is not None
    assert spread.variance == pytest.approx(0.005)
    assert pooled_spread([effects(-0.1, 0.1, noise=0.03)]) == LaunchSpread(variance=0.0, df=1.0)


def test_launches_that_an_arm_lacks_tell_nothing_and_one_alone_neither() -> None:
    both = pooled_spread([effects(-0.1, 0.1), effects(-0.1, 0.1)])
    assert pooled_spread([effects(-0.1, 0.1, 0.5), effects(-0.1, 0.1)]) == both
    assert pooled_spread([effects(0.0), effects(0.0)]) is None
    assert pooled_spread([LaunchEffects(by_launch={0: 0.1}), LaunchEffects(by_launch={1: 0.1})]) is None
    assert pooled_spread([]) is None


@pytest.mark.parametrize(("arms", "launches"), [(1, 3), (2, 2), (3, 2), (5, 3)])
def test_its_mean_over_studies_is_the_truth(arms: int, launches: int) -> None:
    """Of a ratio: two servers' launches."""
    spreads = [
        pooled_spread(
            [
                launch_effects(*labels(ratio))
                for ratio in ratios(arms=arms, launches=launches, launch_sd=0.1, seed=s)
            ]
        )
        for s in range(60)
    ]
    variances = [spread.variance for spread in spreads if spread is not None]
    truth = 2 * 0.1**2
    error = truth * math.sqrt(2 / (arms * (launches - 1)) / len(variances))
    assert abs(np.mean(variances) - truth) < 4 * error


# The interval


def test_pooled_launches_narrow_an_interval_of_two_launches() -> None:
    widths = []
    for seed in range(20):
        table = ratios(launch_sd=0.05, seed=seed)
        both = [interval_of(fit_of(table, pools=pools)) for pools in (False, True)]
        assert both[0].value == both[1].value
        widths.append([estimate.high - estimate.low for estimate in both])
    own, pooled = np.mean(widths, axis=0)
    assert pooled < 0.7 * own


def test_an_arm_whose_launches_differ_more_than_the_others_is_judged_by_its_own() -> None:
    table = ratios(launch_sd=0.001, seed=1)
    table[0, :, 1] += 0.5
    fit = fit_of(table)
    assert fit.launch_variance == pytest.approx(0.5**2 / 2, rel=0.1)
    assert fit.launch_df == 3.0


@pytest.mark.parametrize("df", [0.5, 1.0])
def test_a_spread_that_is_known_no_better_changes_nothing(df: float) -> None:
    values = labels(ratios(arms=1, launch_sd=0.05, seed=3)[0])
    plain = crossed_fit(*values)
    assert crossed_fit(*values, spread=LaunchSpread(variance=9.0, df=df)) == plain


def test_one_launch_and_one_prompt_stay_what_they_are() -> None:
    spread = LaunchSpread(variance=0.01, df=6.0)
    for prompts, launches in (([0, 1, 2], [0, 0, 0]), ([0, 0, 0], [0, 1, 2])):
        assert crossed_fit([0.1, 0.2, 0.4], prompts, launches, spread=spread) == crossed_fit(
            [0.1, 0.2, 0.4], prompts, launches
        )


@pytest.mark.slow
@pytest.mark.parametrize("launch_sd", [0.0, 0.03, 0.1])
def test_pooled_intervals_of_two_launches_cover(launch_sd: float) -> None:
    estimates = [interval_of(fit_of(ratios(launch_sd=launch_sd, seed=seed))) for seed in range(600)]
    covered = sum(each.low <= TRUTH <= each.high for each in estimates)
    assert covered / 600 > 0.93 - 2 * math.sqrt(0.07 * 0.93 / 600)


def test_launches_that_are_still_needed_know_that_other_arms_tell_of_them() -> None:
    table = ratios(launch_sd=0.05, prompt_sd=0.02, seed=5)
    own, pooled = (launches_needed(fit_of(table, pools=pools), 0.06) for pools in (False, True))
    assert own is not None
    assert pooled is not None
    assert pooled < own


# Whether another is worth it


def worth_share(*, launch_sd: float, prompt_sd: float, cost: LaunchCost = MINUTE) -> float:
    tables = (ratios(launch_sd=launch_sd, prompt_sd=prompt_sd, seed=seed) for seed in range(40))
    return float(np.mean([launches_worth(fit_of(table), cost).is_worth for table in tables]))


def test_where_launches_hardly_differ_prompts_are_the_better_use_of_the_time() -> None:
    assert worth_share(launch_sd=0.002, prompt_sd=0.2) <= 0.05


def test_where_launches_are_what_differs_another_is_worth_it() -> None:
    assert worth_share(launch_sd=0.1, prompt_sd=0.05) >= 0.9


def test_the_share_rises_with_what_launches_add() -> None:
    shares = [worth_share(launch_sd=sd, prompt_sd=0.1) for sd in (0.0, 0.03, 0.2)]
    assert all(low <= high for low, high in pairwise(shares))


def test_without_prompts_that_were_not_sent_a_launch_need_only_gain_something() -> None:
    table = ratios(launch_sd=0.03, prompt_sd=0.05, seed=2)
    none_left = LaunchCost(launch_s=40.0, prompt_s=1.0, prompts_left=0)
    found = launches_worth(fit_of(table), none_left)
    assert found.is_worth
    assert "further prompts" not in found.reason


def test_launches_that_agree_gain_nothing_by_one_more() -> None:
    table = ratios(launch_sd=0.0, prompt_sd=0.3, seed=4)
    found = launches_worth(fit_of(table), LaunchCost(launch_s=40.0, prompt_s=1.0, prompts_left=0))
    assert not found.is_worth
    assert found.reason.endswith("launches hardly differ")


def test_a_slow_start_is_worth_less_often() -> None:
    quick, slow = (
        worth_share(
            launch_sd=0.01,
            prompt_sd=0.05,
            cost=LaunchCost(launch_s=launch_s, prompt_s=1.0, prompts_left=10_000),
        )
        for launch_s in (1.0, 3600.0)
    )
    assert slow < quick


def test_one_launch_is_always_followed_by_another() -> None:
    fit = crossed_fit([0.1, 0.2, 0.3], [0, 1, 2], [0, 0, 0])
    found = launches_worth(fit, MINUTE)
    assert found.is_worth
    assert "1 launch says nothing" in found.reason


def test_the_reason_names_both_uses_of_the_time() -> None:
    found = launches_worth(fit_of(ratios(launch_sd=0.002, prompt_sd=0.2, seed=1)), MINUTE)
    assert not found.is_worth
    assert found.reason.startswith("launch 3 would narrow the interval by ")
