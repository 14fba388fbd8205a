"""The noise of a machine on synthetic truth, and the number of prompts it costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from speclift.core.doctor import Noise
from speclift.core.records import Outcome, Phase, Place, Record
from speclift.core.results import Estimate
from speclift.core.traffic import Concurrency
from speclift.statistics.noise import PAIRS_MIN, PROMPTS_MIN, noise_of, prompts_needed

PROMPTS = 4


def record(tpot_s: float, *, arm: str, block: int, outcome: Outcome = Outcome.OK) -> Record:
    return Record(
        place=Place(
            arm=arm,
            launch=0,
            round=0,
            block=block,
            load=Concurrency(streams=1),
            request_id=f"p{block % PROMPTS}",
            segment="creative",
            temperature=0.0,
        ),
        outcome=outcome,
        intended_s=0.0,
        sent_s=0.0,
        end_s=1.0 + 10 * tpot_s,
        first_token_s=1.0,
        last_token_s=1.0 + 10 * tpot_s,
        output_tokens=11,
    )


def records(log_tpot: Callable[[int, str], float], *, pairs: int) -> list[Record]:
    return [
        record(0.01 * math.exp(log_tpot(block, arm)), arm=arm, block=block)
        for block in range(pairs)
        for arm in ("first", "second")
    ]


def ratio_of(noise: Noise) -> Estimate:
    assert noise.servers_ratio is not None
    return noise.servers_ratio


def measured(log_tpot: Callable[[int, str], float], *, pairs: int = 400) -> Noise:
    noise = noise_of(records(log_tpot, pairs=pairs))
    assert noise is not None
    return noise


def independent(sd: float, seed: int = 1) -> Callable[[int, str], float]:
    rng = np.random.default_rng(seed)
    return lambda _block, _arm: float(rng.normal(0.0, sd))


def test_a_pair_of_independent_requests_varies_by_the_root_of_two() -> None:
    noise = measured(independent(0.05))
    assert noise.request_log_sd == pytest.approx(0.05, rel=0.1)
    assert noise.paired_log_sd == pytest.approx(0.05 * math.sqrt(2), rel=0.1)


def test_what_hits_both_servers_alike_is_in_a_request_but_not_in_a_pair() -> None:
    own = independent(0.01)
    noise = measured(lambda block, arm: own(block, arm) + 0.3 * math.sin(block / 40))
    assert isinstance(noise.request_log_sd, float)
    assert noise.request_log_sd > 0.15
    assert noise.paired_log_sd == pytest.approx(0.01 * math.sqrt(2), rel=0.15)


def test_prompts_of_unequal_work_are_no_noise() -> None:
    own = independent(0.01)
    noise = measured(lambda block, arm: own(block, arm) + block % PROMPTS)
    assert noise.request_log_sd == pytest.approx(0.01, rel=0.1)


def test_a_server_that_is_slower_as_a_whole_shows_in_the_ratio_alone() -> None:
    own = independent(0.02)
    noise = measured(lambda block, arm: own(block, arm) + (0.1 if arm == "first" else 0.0))
    assert noise.paired_log_sd == pytest.approx(0.02 * math.sqrt(2), rel=0.1)
    assert ratio_of(noise).value == pytest.approx(math.exp(0.1), rel=0.01)
    assert ratio_of(noise).excludes(1.0)


@pytest.mark.slow
def test_the_interval_of_the_ratio_holds_the_truth_as_often_as_it_says() -> None:
    studies = 600
    missed = sum(
        ratio_of(measured(independent(0.1, seed), pairs=20)).excludes(1.0) for seed in range(studies)
    )
    assert stats.binomtest(missed, studies, 0.05).pvalue > 0.001


def test_a_machine_without_noise_still_needs_the_least_number_of_prompts() -> None:
    noise = measured(lambda _block, _arm: 0.0, pairs=PAIRS_MIN)
    assert (noise.request_log_sd, noise.paired_log_sd) == (0.0, 0.0)
    assert 0.99 < ratio_of(noise).low < 1.0 < ratio_of(noise).high < 1.01
    assert [entry.prompts for entry in noise.prompts_needed] == [PROMPTS_MIN] * 4
    assert noise.tpot_s_p50 == pytest.approx(0.01)


@pytest.mark.parametrize("pairs", [0, 1, PAIRS_MIN - 1])
def test_too_few_pairs_say_nothing(pairs: int) -> None:
    assert noise_of(records(independent(0.1), pairs=pairs)) is None


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda record: replace(record, outcome=Outcome.CUT), id="failed"),
        pytest.param(lambda record: replace(record, output_tokens=None), id="without a token count"),
        pytest.param(lambda record: replace(record, output_tokens=1), id="of one token"),
        pytest.param(lambda record: replace(record, last_token_s=record.first_token_s), id="in no time"),
        pytest.param(
            lambda record: replace(record, place=replace(record.place, phase=Phase.WARMUP)), id="for warming up"
        ),
    ],
)  # fmt: skip
def test_a_pair_is_left_out_with_either_request(spoil: Callable[[Record], Record]) -> None:
    first, *rest = records(independent(0.1), pairs=PAIRS_MIN + 1)
    noise = noise_of([spoil(first), *rest])
    assert noise is not None
    assert noise == noise_of(rest[1:])
    assert noise.pairs == PAIRS_MIN


@pytest.mark.parametrize(
    ("sd", "speedup", "prompts"),
    [(0.22, 1.1, 42), (0.22, 1.05, 160), (0.08, 1.02, 128), (0.05, 1.05, PROMPTS_MIN), (0.22, 1 / 1.1, 42)],
)
def test_prompts_needed_follow_the_formula(sd: float, speedup: float, prompts: int) -> None:
    assert prompts_needed(speedup, paired_log_sd=sd) == prompts


@pytest.mark.parametrize("speedup", [1.0, 0.0, -1.0, math.nan])
def test_a_speedup_that_is_none_cannot_be_planned_for(speedup: float) -> None:
    with pytest.raises(ValueError, match="a speedup to be seen"):
        prompts_needed(speedup, paired_log_sd=0.1)


def test_the_prompts_needed_give_the_power_that_was_promised() -> None:
    sd, speedup, studies = 0.15, 1.05, 2000
    count = prompts_needed(speedup, paired_log_sd=sd)
    drawn = np.random.default_rng(3).normal(math.log(speedup), sd, size=(studies, count))
    power = float(np.mean(stats.ttest_1samp(drawn, 0.0, axis=1).pvalue < 0.05))
    assert 0.77 < power < 0.83


@pytest.mark.parametrize("pairs", [PAIRS_MIN, 40])
def test_one_prompt_asked_often_says_nothing_of_two_servers(pairs: int) -> None:
    alike = [
        replace(each, place=replace(each.place, request_id="p"))
        for each in records(independent(0.1), pairs=pairs)
    ]
    assert noise_of(alike) is None


def test_what_lasts_between_prompts_is_in_the_interval_however_often_each_is_asked() -> None:
    """Each prompt has a lasting factor of its own between the servers: four carry the ratio, not 400 pairs."""
    lasting = (0.2, -0.1, 0.15, -0.05)
    own = independent(0.01)
    noise = measured(
        lambda block, arm: own(block, arm) + (lasting[block % PROMPTS] if arm == "first" else 0.0)
    )
    assert ratio_of(noise).n == PROMPTS
    assert ratio_of(noise).low < 1.0 < ratio_of(noise).high


def test_without_a_repeat_the_noise_of_one_request_is_not_known_rather_than_none() -> None:
    once = [
        replace(each, place=replace(each.place, request_id=f"p{each.place.block}"))
        for each in records(independent(0.1), pairs=12)
    ]
    noise = noise_of(once)
    assert noise is not None
    assert noise.request_log_sd is None
