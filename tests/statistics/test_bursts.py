"""Answers that came in one burst, and numbers that cannot be: marked at the edge, counted per arm, never used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from samples import record
from speclift.core.arm import BASELINE
from speclift.core.records import NO_TEXT_FOR_IT, Phase, Record, Refused
from speclift.core.results import Level
from speclift.core.traffic import Concurrency
from speclift.statistics.answer_checks import check_answers
from speclift.statistics.bursts import BURST_TOKENS_MIN, check_bursts, mark_bursts

STEADY = [record(tpot_s=0.01)] * 9
HELD = record(tpot_s=0.0)


def marks(*records: Record) -> list[bool]:
    return [marked.is_in_one_burst for marked in mark_bursts(records)]


@pytest.mark.parametrize(("tpot_s", "is_burst"), [(0.95e-5, True), (1.05e-5, False)])
def test_faster_than_any_engine_is_a_burst_though_nothing_stands_beside_it(
    tpot_s: float, is_burst: bool
) -> None:
    assert marks(record(tpot_s=tpot_s)) == [is_burst]


@pytest.mark.parametrize(("tpot_s", "is_burst"), [(0.0001, True), (0.0003, False)])
def test_steps_of_a_fiftieth_of_the_usual_are_a_burst(tpot_s: float, is_burst: bool) -> None:
    assert marks(*STEADY, record(tpot_s=tpot_s)) == [False] * 9 + [is_burst]


@pytest.mark.parametrize("changes", [{"phase": Phase.WARMUP}, {"load": Concurrency(streams=64)}])
def test_neither_warm_ups_nor_other_loads_tell_what_is_usual(changes: dict[str, Any]) -> None:
    slow = [record(tpot_s=1.0, **changes)] * 9
    assert marks(*slow, record(tpot_s=0.01)) == [False] * 10


def test_an_arm_that_is_held_back_altogether_is_told_by_the_others() -> None:
    held = [record(arm="ngram-k8", tpot_s=0.0001)] * 9
    assert marks(*STEADY, *held) == [False] * 9 + [True] * 9


@pytest.mark.parametrize(
    "changes",
    [
        {"output_tokens": BURST_TOKENS_MIN - 1},
        {"output_tokens": None},
        {"first_token_s": None},
        {"last_token_s": None},
    ],
)
def test_what_is_too_short_or_unknown_is_no_burst(changes: dict[str, Any]) -> None:
    assert marks(*STEADY, replace(HELD, **changes)) == [False] * 10
    assert marks(*STEADY, replace(HELD, output_tokens=BURST_TOKENS_MIN))[-1]


@pytest.mark.parametrize(("bursts", "level"), [(0, None), (3, Level.INFO), (4, Level.WARN)])
def test_more_than_three_in_a_hundred_are_worth_a_warning(bursts: int, level: Level | None) -> None:
    short = replace(record(), output_tokens=2)
    warm = replace(record(phase=Phase.WARMUP), is_in_one_burst=True)
    answers = [replace(record(), is_in_one_burst=number < bursts) for number in range(100)]
    findings = list(check_bursts([*answers, short, warm]))
    assert [finding.level for finding in findings] == ([] if level is None else [level])
    assert all(finding.message.startswith(f"{BASELINE}: {bursts} of 100 answers") for finding in findings)


def answers_with(rule: str, concerned: int, *, of: int) -> list[Record]:
    refused = (Refused(rule=rule, said="what was said"),)
    return [replace(record(), refused=refused if number < concerned else ()) for number in range(of)]


@pytest.mark.parametrize(("concerned", "level"), [(5, Level.WARN), (6, Level.FAIL)])
def test_tokens_that_are_not_sent_are_a_habit_above_one_in_twenty(concerned: int, level: Level) -> None:
    (finding,) = check_answers(answers_with(NO_TEXT_FOR_IT, concerned, of=100))
    assert (finding.check, finding.level) == ("unseen-tokens", level)
    assert (finding.arm is None) is (level is Level.FAIL)
