"""Mirrored order and the confidence sequence: drift cancels, and peeking at any time stays below alpha."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclift.search.selection import ALPHA, Pass, mirrored, radius, standings


@given(arms=st.lists(st.integers(), min_size=1, max_size=6, unique=True), slope=st.floats(-1, 1))
def test_linear_drift_falls_equally_on_every_arm_of_a_mirrored_block(arms: list[int], slope: float) -> None:
    order = mirrored(arms)
    drift = {arm: sum(slope * place for place, each in enumerate(order) if each == arm) for arm in arms}
    assert max(drift.values()) - min(drift.values()) < 1e-9


def test_looking_after_every_prompt_raises_a_false_alarm_less_often_than_alpha() -> None:
    random = np.random.default_rng(0)
    alarms = 0
    for _ in range(400):
        draws = random.standard_normal(400)
        counts = np.arange(1, 401)
        means = np.cumsum(draws) / counts
        spread = np.sqrt(np.cumsum(draws**2) / counts - means**2)
        alarms += any(
            abs(means[n - 1]) > radius(n, float(spread[n - 1]) * math.sqrt(n / (n - 1)))
            for n in range(10, 401)
        )
    assert alarms / 400 <= ALPHA


def test_a_real_difference_is_seen_after_enough_prompts() -> None:
    assert radius(200, 0.07) < 0.02 < radius(20, 0.07)


@given(n=st.integers(1, 500), sd=st.floats(0.001, 1))
def test_the_radius_shrinks_with_prompts_and_grows_as_alpha_falls(n: int, sd: float) -> None:
    assert radius(n + 1, sd) < radius(n, sd) < radius(n, sd, alpha=ALPHA / 4)


def test_no_prompt_leaves_everything_open() -> None:
    assert radius(0, 1.0) == math.inf


@pytest.mark.parametrize("wrong", [{"alpha": 0.0}, {"alpha": 1.0}, {"ratio": 0.0}, {"sd": -1.0}])
def test_a_radius_of_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a radius needs"):
        radius(5, **({"sd": 1.0} | wrong))


def passes_of(
    random: np.random.Generator, slower: dict[str, float], *, blocks: int, prompts: int, launch_sd: float
) -> dict[str, dict[Pass, dict[str, float]]]:
    found: dict[str, dict[Pass, dict[str, float]]] = {}
    for arm, shift in slower.items():
        for block in range(1, blocks + 1):
            for turn in (0, 1):
                launch = launch_sd * random.standard_normal()
                noise = 0.03 * random.standard_normal(prompts)
                found.setdefault(arm, {})[block, turn] = {
                    f"p{place}": shift + launch + float(each) for place, each in enumerate(noise)
                }
    return found


def test_equal_arms_of_noisy_launches_are_beaten_less_often_than_alpha() -> None:
    """Asked after every block, with the leader picked by the same data."""
    random = np.random.default_rng(1)
    wrong = 0
    for _ in range(150):
        passes = passes_of(random, {"a": 0.0, "b": 0.0, "c": 0.0}, blocks=3, prompts=24, launch_sd=0.012)
        beaten = set()
        for block in (1, 2, 3):
            so_far = {
                arm: {each: logs for each, logs in own.items() if each[0] <= block}
                for arm, own in passes.items()
            }
            mean = {
                arm: np.mean([list(logs.values()) for logs in own.values()]) for arm, own in so_far.items()
            }
            leader = min(mean, key=lambda arm: mean[arm])
            beaten |= {each.arm for each in standings(so_far, leader, pass_sd=0.012) if each.is_beaten}
        wrong += "a" in beaten
    assert wrong / 150 <= ALPHA


def test_an_arm_that_is_a_tenth_slower_is_beaten_and_one_that_is_a_thousandth_slower_is_not() -> None:
    passes = passes_of(
        np.random.default_rng(2),
        {"fast": 0.0, "near": 0.001, "slow": 0.1},
        blocks=1,
        prompts=40,
        launch_sd=0.0,
    )
    found = {each.arm: each for each in standings(passes, "fast", pass_sd=0.012)}
    assert found["slow"].is_beaten
    assert not found["near"].is_beaten
    assert (found["slow"].prompts, found["slow"].passes) == (40, 2)


def test_many_prompts_do_not_outvote_one_noisy_launch() -> None:
    passes = passes_of(np.random.default_rng(3), {"a": 0.0, "b": 0.03}, blocks=1, prompts=2000, launch_sd=0.0)
    (standing,) = standings(passes, "a", pass_sd=0.02)
    assert not standing.is_beaten


def test_only_passes_of_the_same_block_are_compared() -> None:
    early = {(1, 0): {"p": 0.0, "q": 0.0}, (1, 1): {"p": 0.0, "q": 0.0}}
    late = {(2, 0): {"p": 5.0, "q": 5.0}}
    (standing,) = standings({"a": early, "b": late}, "a", pass_sd=0.01)
    assert (standing.prompts, standing.radius) == (0, math.inf)
    assert not standing.is_beaten


def test_one_common_prompt_settles_nothing() -> None:
    (standing,) = standings({"a": {(1, 0): {"p": 0.0}}, "b": {(1, 0): {"p": 9.0}}}, "a", pass_sd=0.01)
    assert not standing.is_beaten
