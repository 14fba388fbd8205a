"""What goes on from a search: shares of the traffic, who is beaten, who is ranked, which loads are confirmed."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from tune_samples import DRAFT, HEAD, LOADS, FormulaEngine, finish, problem_of

from speclift.core.arm import BASELINE
from speclift.core.traffic import Concurrency
from speclift.search.conclusion import (
    Confirmation,
    Schedule,
    Segment,
    choose,
    conclude,
    confirmed_loads,
    ranked,
)
from speclift.search.counts import RequestCounts
from speclift.search.posterior import Posterior
from speclift.search.problem import CellResult, JobResult, Purpose, SearchJob
from speclift.search.search import Search, start
from speclift.search.selection import beaten
from speclift.search.space import Elimination

ALONE = Concurrency(streams=1)


@pytest.fixture(scope="module")
def searched() -> Search:
    return finish(
        start(problem_of({"draft": DRAFT, "eagle": HEAD}, ks=(2, 8), loads=LOADS[:2])), FormulaEngine()
    )


def posterior_of(search: Search) -> Posterior:
    posterior = search.posterior()
    assert posterior is not None
    return posterior


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


class TestBeaten:
    def test_says_by_how_much_and_by_how_much_at_least(self, searched: Search) -> None:
        posterior = posterior_of(searched)
        leader = posterior.candidates[posterior.best(0)].name
        other = next(name for name in ("draft-k2", "eagle-k8") if name != leader)
        (found,) = beaten(posterior, raced(searched, {leader: 1.0, other: 1.5}))
        assert (found.candidate, found.stage, found.load) == (other, "raced", "c=1")
        much, least = (float(figure) for figure in re.findall(r"([\d.]+) %", found.reason)[:2])
        assert much == pytest.approx(50.0)
        assert 0 < least < much

    def test_nobody_who_ran_alone_or_is_not_known_or_only_as_fast(self, searched: Search) -> None:
        posterior = posterior_of(searched)
        leader = posterior.candidates[posterior.best(0)].name
        other = next(name for name in ("draft-k2", "eagle-k8") if name != leader)
        assert beaten(posterior, raced(searched, {other: 1.5})) == []
        assert beaten(posterior, raced(searched, {leader: 1.0, "unknown": 1.5})) == []
        assert beaten(posterior, raced(searched, {leader: 1.0, other: 1.0})) == []
        unraced = [
            replace(result, job=replace(result.job, purpose=Purpose.PROBE))
            for result in raced(searched, {leader: 1.0, other: 1.5})
        ]
        assert beaten(posterior, unraced) == []


class TestRanked:
    def test_speculative_arms_best_over_the_traffic_first(self, searched: Search) -> None:
        posterior = posterior_of(searched)
        names = [candidate.name for candidate in ranked(searched, posterior)]
        assert sorted(names) == ["draft-k2", "draft-k8", "eagle-k2", "eagle-k8"]
        means = [posterior.mean[posterior.row(name)].mean() for name in names]
        assert means == sorted(means, reverse=True)

    def test_neither_what_failed_nor_what_lies_beyond_every_run(self, searched: Search) -> None:
        posterior = posterior_of(searched)
        out = [
            Elimination(candidate="draft-k2", stage="failed", reason=""),
            Elimination(candidate="draft-k8", stage="predicted", reason=""),
        ]
        censored = np.array([float(each.name == "eagle-k8") for each in posterior.candidates])
        names = [
            candidate.name
            for candidate in ranked(
                replace(searched, eliminated=tuple(out)), replace(posterior, is_censored=censored)
            )
        ]
        assert sorted(names) == ["draft-k8", "eagle-k2"]

    def test_of_equals_the_smaller_k_comes_first(self, searched: Search) -> None:
        posterior = posterior_of(searched)
        level = replace(posterior, mean=np.zeros_like(posterior.mean))
        assert [candidate.k for candidate in ranked(searched, level)] == [2, 2, 8, 8]


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


def test_a_schedule_runs_before_the_arm_it_was_made_from_and_a_runner_up_last(searched: Search) -> None:
    chosen = confirmation(searched, schedule=None, is_run=False)
    winner, other = ranked(searched, posterior_of(searched))[:2]
    alone = replace(chosen, winner=winner, runner_up=None)
    assert [arm.name for arm in alone.arms] == [BASELINE, winner.name]
    beside = replace(alone, runner_up=other, scheduled=replace(winner.arm, name="schedule"))
    assert [arm.name for arm in beside.arms] == [BASELINE, "schedule", winner.name, other.name]


@pytest.mark.parametrize(
    ("ks", "wants_same_method", "arms"), [((2, 8), True, 3), ((2, 8), False, 2), ((2,), True, 2)]
)
def test_beside_the_winner_of_the_only_method_stands_the_next_of_it_where_that_is_wanted(
    ks: tuple[int, ...], wants_same_method: bool, arms: int
) -> None:
    search = finish(start(problem_of({"draft": DRAFT}, ks=ks, loads=LOADS[:2])), FormulaEngine())
    chosen = choose(
        search,
        can_run=lambda _: True,
        wants_same_method=wants_same_method,
        sequences_max=64,
        schedule_key=None,
    )
    assert len({arm.name for arm in chosen.arms}) == len(chosen.arms) == arms


@pytest.mark.parametrize("can_run", [True, False])
def test_a_schedule_is_confirmed_only_where_the_engine_can_run_it(can_run: bool) -> None:
    search = finish(start(problem_of({"draft": DRAFT}, ks=(1, 8))), FormulaEngine())
    chosen = choose(
        search, can_run=lambda _: can_run, wants_same_method=False, sequences_max=64, schedule_key="by-batch"
    )
    assert chosen.schedule is not None
    assert any(arm.name.endswith("-schedule") for arm in chosen.arms) is can_run


class TestAskedFor:
    """An arm that the user named is confirmed whatever the search thinks of it."""

    @staticmethod
    def choice(search: Search, always: str | None) -> Confirmation:
        return choose(
            search,
            can_run=lambda _: True,
            wants_same_method=True,
            sequences_max=64,
            schedule_key=None,
            always=always,
        )

    @pytest.mark.slow
    def test_it_is_among_the_arms_once(self, searched: Search) -> None:
        plain = self.choice(searched, None).arms
        names = [candidate.name for candidate in searched.problem.candidates if not candidate.is_baseline]
        for name in (names[0], names[-1]):
            arms = [arm.name for arm in self.choice(searched, name).arms]
            assert arms.count(name) == 1
            assert arms[:2] == [arm.name for arm in plain[:2]]
            assert len(arms) == (len(plain) if name == arms[1] else 3)

    def test_not_where_it_failed_or_is_unknown(self, searched: Search) -> None:
        worst = ranked(searched, posterior_of(searched))[-1].name
        out = Elimination(candidate=worst, stage="failed", reason="it died")
        failed = replace(searched, eliminated=(*searched.eliminated, out))
        assert self.choice(failed, worst).asked_for is None
        assert self.choice(searched, "no-such-arm").asked_for is None
