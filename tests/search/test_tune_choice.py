"""What goes on from a search: shares of the traffic, who is beaten, who is ranked, which loads are confirmed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tune_samples import DRAFT, HEAD, LOADS, FormulaEngine, finish, problem_of

from speclift.core.traffic import Concurrency
from speclift.search.conclusion import (
    Confirmation,
    Schedule,
    Segment,
    choose,
    conclude,
    confirmed_loads,
)
from speclift.search.counts import RequestCounts
from speclift.search.problem import CellResult, JobResult, Purpose, SearchJob
from speclift.search.search import Search, start
from speclift.search.space import Elimination

ALONE = Concurrency(streams=1)


@pytest.fixture(scope="module")
def searched() -> Search:
    return finish(
        start(problem_of({"draft": DRAFT, "eagle": HEAD}, ks=(2, 8), loads=LOADS[:2])), FormulaEngine()
    )


def raced(search: Search, slower: dict[str, float], *, turns: int = 2) -> list[JobResult]:
    """A block at one stream in which every arm takes so many times as long as the first, prompt by prompt."""
    return [
        JobResult(
            job=SearchJob(
                id=900 + number,
                candidate=name,
                loads=(ALONE,),
                purpose=Purpose.RACE,
                reason="",
                block=1,
                turn=turn,
            ),
            cells=(
                CellResult(
                    load=ALONE,
                    requests=tuple(
                        RequestCounts(
                            request_id=f"p{n}", tokens=50, steps=50, without_draft=50, tpot_s=0.01 * factor
                        )
                        for n in range(40)
                    ),
                    wall_s=1.0,
                ),
            ),
        )
        for turn in range(turns)
        for number, (name, factor) in enumerate(slower.items())
    ]


def test_an_arm_dropped_everywhere_is_not_the_static_choice_and_one_dropped_somewhere_may_be(
    searched: Search,
) -> None:
    plain = replace(searched, eliminated=())
    first = conclude(plain)
    assert first is not None
    winner = first.static
    everywhere = replace(plain, eliminated=(Elimination(candidate=winner, stage="raced", reason=""),))
    second = conclude(everywhere)
    assert second is not None
    assert second.static != winner


def confirmation(search: Search, *, schedule: Schedule | None, is_run: bool) -> Confirmation:
    chosen = choose(
        search, can_run=lambda _: True, wants_same_method=False, sequences_max=64, schedule_key=None
    )
    return replace(chosen, schedule=schedule, scheduled=chosen.winner.arm if is_run else None)


@pytest.mark.slow
def test_both_sides_of_a_switch_are_confirmed_only_where_the_schedule_runs(searched: Search) -> None:
    schedule = Schedule(
        segments=(Segment(start=1, end=7, k=8), Segment(start=8, end=64, k=2)), loss_mean=0.0, loss_max=0.0
    )
    loads = (ALONE, Concurrency(streams=64))
    assert confirmed_loads(loads, confirmation(searched, schedule=schedule, is_run=False)) == loads
    assert confirmed_loads(loads, confirmation(searched, schedule=None, is_run=True)) == loads
    both = confirmed_loads(loads, confirmation(searched, schedule=schedule, is_run=True))
    assert [load.streams for load in both if isinstance(load, Concurrency)] == [
        1,
        *schedule.thresholds,
        64,
    ]


@pytest.mark.parametrize("can_run", [True, False])
def test_a_schedule_is_confirmed_only_where_the_engine_can_run_it(can_run: bool) -> None:
    search = finish(start(problem_of({"draft": DRAFT}, ks=(1, 8))), FormulaEngine())
    chosen = choose(
        search, can_run=lambda _: can_run, wants_same_method=False, sequences_max=64, schedule_key="by-batch"
    )
    assert chosen.schedule is not None
    assert any(arm.name.endswith("-schedule") for arm in chosen.arms) is can_run
