"""Prompts sent again, schedules without a gain, and noise within a prompt: what is counted, and what is not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from samples import launch, record
from simulated import ARM, OTHER, by_streams, drawn, quiet_truth, study_places
from speclift.core.arm import Arm
from speclift.core.records import Counters, Phase, Record
from speclift.core.speculation import Suffix
from speclift.statistics.noise import _pooled_sd
from speclift.statistics.repeats import check_repeats, is_echo, without_echoes
from speclift.statistics.schedule_gain import schedule_without_gain
from speclift.testing.simulated_study import StudyTruth

SUFFIX = Arm(name="suffix", speculation=Suffix(k=8))


def sent(arm: str, times: int, **changes: Any) -> list[Record]:
    return [
        record(arm=arm, request_id=f"p{n}", repeat=repeat, **changes)
        for n in range(3)
        for repeat in range(times)
    ]


@pytest.mark.parametrize(
    ("settings", "hits", "known", "said"),
    [
        ({}, None, None, "Whether prefix caching was on is unknown"),
        ({}, None, False, "Prefix caching was off"),
        ({}, 0.0, None, "Whether prefix caching was on is unknown"),
        ({}, 10.0, None, "Prefix caching was on"),
        ({"enable_prefix_caching": "False"}, None, None, "Prefix caching was off"),
        ({"enable_prefix_caching": "True"}, None, None, "Prefix caching was on"),
        ({"disable_radix_cache": "True"}, None, None, "Prefix caching was off"),
        ({"disable_radix_cache": "False"}, None, None, "Prefix caching was on"),
        ({"enable_prefix_caching": "False"}, 10.0, False, "Prefix caching was on"),
    ],
)
def test_repeats_are_told_with_whether_the_prefix_cache_was_on(
    settings: dict[str, str], hits: float | None, known: bool | None, said: str
) -> None:
    counters = Counters(values={} if hits is None else {"vllm:prefix_cache_hits_total": hits})
    servers = [launch(settings=settings, counters=counters)]
    (finding,) = check_repeats(sent("baseline", 2), [ARM], launches=servers, reuses_prompts=known)
    assert said in finding.message


def test_prompts_sent_once_or_warm_ups_sent_again_are_no_repeats() -> None:
    records = [*sent("baseline", 1), *sent("baseline", 4, phase=Phase.WARMUP)]
    assert list(check_repeats(records, [SUFFIX])) == []


def test_an_arm_that_remembers_its_answers_is_not_compared_on_their_repeats() -> None:
    records = [*sent(SUFFIX.name, 3), *sent(ARM.name, 3)]
    _, finding = check_repeats(records, [ARM, SUFFIX])
    assert (finding.check, finding.arm) == ("repeats-remembered", "suffix")
    assert "its 6 repeats are not compared" in finding.message
    kept = without_echoes(records, [ARM, SUFFIX])
    assert len(kept) == 9 + 3
    assert not any(is_echo(each, frozenset({"suffix"})) for each in kept)


@pytest.mark.parametrize(("scheduled", "said"), [(1.3, None), (1.0, "does not beat"), (0.8, "does not beat")])
def test_a_schedule_has_to_beat_the_arm_it_was_made_from(scheduled: float, said: str | None) -> None:
    """Both beat the baseline by half."""
    truth = quiet_truth(by_streams({1: 1.5 * scheduled}))
    arms = {**truth.arms, OTHER.name: replace(truth.arms[ARM.name], speedup=by_streams({1: 1.5}))}
    records = drawn(study_places(arms=(ARM, OTHER)), replace(truth, arms=arms))
    finding = schedule_without_gain(ARM, OTHER, records, metric="tpot")
    assert (finding is None) is (said is None)
    assert said is None or (finding is not None and said in finding.message)


def test_a_schedule_that_cannot_be_compared_has_no_gain() -> None:
    records = drawn(study_places(), replace(StudyTruth(), arms=quiet_truth(by_streams({1: 1.5})).arms))
    finding = schedule_without_gain(ARM, OTHER, records, metric="tpot")
    assert finding is not None
    assert "could not be compared" in finding.message


def test_repeats_of_one_prompt_are_spread_around_their_own_mean() -> None:
    """Two groups of two, 1 apart each: one degree of freedom and half a square each."""
    assert _pooled_sd([[1.0, 2.0], [10.0, 11.0], [99.0]]) == pytest.approx(math.sqrt(0.5))
    assert _pooled_sd([[1.0], [2.0]]) is None
