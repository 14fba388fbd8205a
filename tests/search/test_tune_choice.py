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
    confirmed_loads,
)
from speclift.search.search import Search, start

ALONE = Concurrency(streams=1)


@pytest.fixture(scope="module")
def searched() -> Search:
    return finish(
        start(problem_of({"draft": DRAFT, "eagle": HEAD}, ks=(2, 8), loads=LOADS[:2])), FormulaEngine()
    )


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
