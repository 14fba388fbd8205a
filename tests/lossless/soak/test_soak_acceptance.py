"""Acceptance under fire: an alarm where it turns extreme, none where the traffic explains it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from soaked import EXPOSURE, said
from speclift.lossless.soak.rates import ANSWERS_MIN, AcceptanceWindow, acceptance_alarms, step_alarms
from speclift.lossless.soak.values import SoakAnswer, Stage

Asked = list[tuple[str, SoakAnswer]]


def answers(
    count: int, rate: float, *, start_s: float = 0.0, kind: str = "copy", drafted: int = 20, **place: object
) -> Asked:
    return [
        (
            kind,
            said(
                drafted=drafted,
                accepted=round(drafted * rate),
                exposure=replace(EXPOSURE, sent_s=start_s + i, ended_s=start_s + i + 1, **place),  # type: ignore[arg-type]
            ),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize(("rate", "word"), [(0.0, "almost nothing"), (1.0, "almost everything")])
def test_a_verifier_that_breaks_in_mid_load_is_an_alarm(rate: float, word: str) -> None:
    (alarm,) = acceptance_alarms([*answers(80, 0.6), *answers(40, rate, start_s=100)])

    assert alarm.since_s == 100
    assert alarm.usual == pytest.approx(0.6)
    assert word in alarm.message


def test_a_launch_that_is_extreme_from_its_start_is_an_alarm_against_the_others() -> None:
    alarms = acceptance_alarms([*answers(80, 0.0, launch=1), *answers(80, 0.6, launch=2, start_s=100)])

    assert [(alarm.launch, alarm.stage) for alarm in alarms] == [(1, Stage.DURING)]


def test_before_and_after_the_load_are_told_apart() -> None:
    alarms = acceptance_alarms(
        [
            *answers(20, 0.6, stage=Stage.BEFORE),
            *answers(40, 0.6, start_s=50),
            *answers(20, 0.0, start_s=100, stage=Stage.AFTER),
        ]
    )

    assert [alarm.stage for alarm in alarms] == [Stage.AFTER]


def test_copies_that_are_accepted_whole_are_no_alarm() -> None:
    """The load has other kinds than what was asked before it."""
    mixed = [*answers(60, 0.3, kind="own", stage=Stage.BEFORE), *answers(60, 1.0, kind="copy", start_s=100)]

    assert acceptance_alarms(mixed) == ()


@pytest.mark.parametrize("rate", [0.0, 1.0, 0.5])
def test_what_never_changes_is_no_alarm_of_the_soak(rate: float) -> None:
    assert acceptance_alarms(answers(200, rate)) == ()


def test_a_few_drafts_say_nothing() -> None:
    assert acceptance_alarms([*answers(80, 0.6), *answers(40, 0.0, drafted=1, start_s=100, launch=2)]) == ()
    assert acceptance_alarms([*answers(80, 0.6), *answers(4, 0.0, drafted=90, start_s=100, launch=2)]) == ()


def test_a_server_that_drafts_nothing_or_does_not_say_is_no_alarm() -> None:
    assert acceptance_alarms([]) == ()
    assert acceptance_alarms([("copy", said())]) == ()


def step(launch: int, rate: float, *, drafted: int = 4000, stage: Stage = Stage.DURING) -> AcceptanceWindow:
    kinds = {"": (drafted, round(rate * drafted))}
    return AcceptanceWindow(
        launch=launch, stage=stage, since_s=9.0 * launch, answers=ANSWERS_MIN, kinds=kinds
    )


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_counters_of_the_server_tell_it_too(rate: float) -> None:
    (alarm,) = step_alarms([step(1, 0.6), step(2, rate), step(3, 0.7)])

    assert alarm.launch == 2
    assert alarm.usual == pytest.approx(0.65)


def test_counters_that_are_alike_or_small_are_no_alarm() -> None:
    assert step_alarms([step(1, 0.6), step(2, 0.4)]) == ()
    assert step_alarms([step(1, 0.6), step(1, 1.0, drafted=900, stage=Stage.BEFORE)]) == ()
    assert step_alarms([step(1, 0.0), step(2, 0.0)]) == ()
    assert step_alarms([]) == ()
