"""Which requests a server is asked: an arm what the baseline was asked, some beyond, and none again when resumed."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice

import pytest

from soaked import EXPOSURE, said
from speclift.bench.soak_run import (
    BASELINE_WEIGHT,
    BEYOND_SHARE,
    answering_s,
    brief,
    slots_for,
    steps_of,
)
from speclift.bench.soak_study import Kept, SoakRecord, SoakStep
from speclift.core.arm import BASELINE
from speclift.lossless.soak.prompts import SoakDialect
from speclift.lossless.soak.traffic import SoakKind, soak_traffic
from speclift.lossless.soak.values import TURNS_MAX

LEVELS = (1, 4)
BEFORE, ALONE, TOGETHER, AFTER = steps_of(LEVELS)


def record_of(*asked: tuple[str, int, SoakStep, range]) -> SoakRecord:
    record = SoakRecord()
    for arm, launch, step, slots in asked:
        exposure = replace(EXPOSURE, arm=arm, launch=launch, stage=step.stage)
        for slot in slots:
            answer = replace(said(), index=slot * TURNS_MAX, exposure=exposure)
            record.take(Kept(step=step, kind="copy", answer=answer))
    return record


def slots(record: SoakRecord, arm: str, launch: int, step: SoakStep) -> list[int]:
    return list(islice(slots_for(record, LEVELS, arm, launch, step), 40))


CONTROL = (
    (BASELINE, 1, BEFORE, range(3)),
    (BASELINE, 1, ALONE, range(3, 5)),
    (BASELINE, 1, TOGETHER, range(13)),
    (BASELINE, 1, AFTER, range(3)),
)


def test_the_baseline_is_asked_fresh_requests_and_those_from_before_again_at_full_load() -> None:
    assert slots(SoakRecord(), BASELINE, 1, BEFORE)[:3] == [0, 1, 2]
    record = record_of(*CONTROL[:2])
    assert slots(record, BASELINE, 1, ALONE)[:2] == [5, 6]
    assert slots(record, BASELINE, 1, TOGETHER)[:5] == [0, 1, 2, 5, 6]
    assert slots(record, BASELINE, 1, AFTER) == [0, 1, 2]


def test_an_arm_is_asked_what_the_baseline_was_and_half_as_much_beyond() -> None:
    record = record_of(*CONTROL)
    beyond = int(BEYOND_SHARE * 13)
    assert slots(record, "spec", 1, TOGETHER) == [*range(13), *range(13, 13 + beyond)]


def test_an_arm_without_a_control_in_a_step_is_asked_nothing_there() -> None:
    assert slots(record_of(CONTROL[0]), "spec", 1, TOGETHER) == []


def test_the_next_launch_repeats_nothing_of_the_one_before() -> None:
    record = record_of(*CONTROL, ("spec", 1, TOGETHER, range(19)))
    assert slots(record, BASELINE, 2, BEFORE)[0] == 19


def test_a_resumed_step_goes_on_where_it_was() -> None:
    record = record_of(*CONTROL, ("spec", 1, BEFORE, range(3)), ("spec", 1, TOGETHER, range(5)))
    whole = slots(record_of(*CONTROL, ("spec", 1, BEFORE, range(3))), "spec", 1, TOGETHER)
    assert slots(record, "spec", 1, TOGETHER) == whole[5:]
    assert slots(record, BASELINE, 1, TOGETHER)[0] == 13


def test_one_stream_alone_asks_nothing_twice_but_after_the_load() -> None:
    alone = (1,)
    before, during, after = steps_of(alone)
    record = record_of((BASELINE, 1, before, range(3)))
    assert list(islice(slots_for(record, alone, BASELINE, 1, during), 3)) == [3, 4, 5]
    assert list(slots_for(record, alone, BASELINE, 1, after)) == [0, 1, 2]


@pytest.mark.parametrize("arms", [1, 2, 5])
@pytest.mark.parametrize("launch_s", [0.0, 8.0, 35.0])
def test_launches_to_come_are_nobodys_time_and_every_arm_answers_as_long(arms: int, launch_s: float) -> None:
    left_s, shares = 1000.0, []
    for later in reversed(range(arms + 1)):
        name = BASELINE if later == arms else f"arm-{later}"
        shares.append(answering_s(left_s, name, later=later, launch_s=launch_s))
        left_s -= shares[-1] + launch_s * bool(later)

    baseline, *own = shares
    assert left_s == pytest.approx(0.0)
    assert own == pytest.approx([own[0]] * arms)
    assert baseline == pytest.approx(BASELINE_WEIGHT * own[0])


def test_a_round_that_launching_takes_up_leaves_no_time_and_owes_none() -> None:
    assert answering_s(30.0, BASELINE, later=2, launch_s=60.0) == 0.0


@pytest.mark.parametrize("dialect", SoakDialect)
def test_a_brief_request_asks_for_nothing_that_contradicts_itself(dialect: SoakDialect) -> None:
    """vLLM refuses more tokens at least than at most, and would have been taken for one that knows no minimum."""
    traffic = soak_traffic(seed=1, dialect=dialect)
    least = replace(traffic, kinds=frozenset({SoakKind.MINIMUM})).opening(0)
    body = json.loads(brief(least).body)
    assert 0 < body["min_tokens"] <= body["max_tokens"]
