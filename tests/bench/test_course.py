"""Which lap comes next, on which launch, and that an interrupted study takes the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from samples import new_study, plan, request
from speclift.bench.course import LapCourse, lap_rounds, last_lap
from speclift.core.traffic import Concurrency, Load, Rate
from speclift.studies.study import Study
from speclift.workload.laps import interim_plan_for


def study_of(path: Path, *, prompts: int = 30, rounds: int = 3, together: bool = True) -> Study:
    return new_study(
        path,
        plan=plan(
            requests=tuple(request(f"p{number}") for number in range(prompts)),
            rounds=rounds,
            together=together,
            looks=interim_plan_for(rounds, together=together),
        ),
    )


@pytest.mark.parametrize("prompts", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("starts_anew", [True, False])
def test_a_handful_of_prompts_is_sent_as_often_as_planned_and_no_lap_is_empty(
    prompts: int, starts_anew: bool, tmp_path: Path
) -> None:
    with study_of(tmp_path, prompts=prompts) as study:
        course, sent = LapCourse(study), 0
        while (lap := course.next_lap(starts_anew=starts_anew)) is not None:
            assert lap.blocks
            sent += sum(len(block.items) for block in lap.blocks)
        assert 2 * prompts <= sent <= 3 * prompts
        last = last_lap(study)
    assert last is not None
    assert last.blocks


def test_an_interrupted_study_goes_on_as_it_began_whatever_starting_takes_now(tmp_path: Path) -> None:
    with study_of(tmp_path) as study:
        first = LapCourse(study)
        begun = [first.next_lap(starts_anew=False), first.next_lap(starts_anew=False)]
        again = LapCourse(study)
        assert [again.next_lap(starts_anew=True), again.next_lap(starts_anew=True)] == begun
        assert lap_rounds(study) == [0, 0]


@pytest.mark.parametrize("prompts", [1, 2, 3, 7, 8, 9, 10, 11, 12, 13, 19, 20, 33, 50])
@pytest.mark.parametrize("load", [Concurrency(streams=1), Concurrency(streams=4), Rate(per_s=2.0)], ids=str)
def test_servers_of_somebody_else_are_sent_every_request_once(
    prompts: int, load: Load, tmp_path: Path
) -> None:
    asked = plan(
        requests=tuple(request(f"p{number}") for number in range(prompts)),
        loads=(load,),
        rounds=1,
        looks=interim_plan_for(1, together=True),
    )
    with new_study(tmp_path, plan=asked) as study:
        course, sent = LapCourse(study), []
        while (lap := course.next_lap(starts_anew=True)) is not None:
            sent += [item for block in lap.blocks for item in block.items]
    assert sorted(item.request_id for item in sent) == sorted(item.request_id for item in asked.items)
