"""What a look on the way drops, what it still wants, and when it says that a study is settled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulated import ARM, OTHER, cell, comparison, estimate, evidence, verdict_on
from speclift.core.goals import Goals
from speclift.core.interim import EVERYTHING, InterimDecision, Scope
from speclift.core.results import Conditions, Decision, Evidence, Looping, Part, TailRatio
from speclift.core.speculation import NGram, Synthetic
from speclift.core.traffic import Concurrency
from speclift.verdict.interim import interim_decision

GOALS = Goals()
COPY, CHAT = (Scope(part=Part.SEGMENT, label=name) for name in ("copy", "chat"))


def segment(label: str, low: float, value: float, high: float) -> Any:
    return comparison(low, value, high, part=Part.SEGMENT, label=label)


def tail(low: float, value: float, high: float) -> TailRatio:
    return TailRatio(
        arm=ARM.name,
        load=Concurrency(streams=1),
        metric="e2e",
        statistic="P95",
        ratio=estimate(value, low, high),
    )


def look(*whole: Evidence, may_ship: bool = True, lead: float = 1.0) -> InterimDecision:
    """`lead` is how much faster than the arm that ships any other may be."""
    return interim_decision(
        verdict_on(*whole), whole, GOALS, may_ship=may_ship, faster_at_most=lambda _arm, _other: lead
    )


SHIPS = evidence()
HOPELESS = evidence(overall=comparison(0.9, 1.0, 1.1), parts=(segment("copy", 0.8, 1.0, 1.2),))
OPEN = evidence(overall=comparison(1.2, 1.35, 1.5))


class TestBeforeTheSecondLaunch:
    def test_what_ships_is_measured_on(self) -> None:
        assert look(SHIPS, may_ship=False).wanted == {ARM.name: (EVERYTHING,)}

    def test_what_is_hopeless_everywhere_is_dropped(self) -> None:
        assert look(HOPELESS, may_ship=False).is_settled

    def test_one_part_that_may_pay_keeps_everything(self) -> None:
        part = replace(HOPELESS, parts=(segment("copy", 0.8, 1.1, 1.31),))
        assert look(part, may_ship=False).wanted == {ARM.name: (EVERYTHING,)}


class TestAnArmOnAllTraffic:
    def test_that_ships_is_done_with(self) -> None:
        assert look(SHIPS).is_settled

    def test_that_is_hopeless_is_done_with_and_the_reason_is_said(self) -> None:
        assert look(HOPELESS).is_settled
        assert "1.10x" in look(HOPELESS).because[ARM.name]

    def test_that_is_undecided_is_measured_on(self) -> None:
        found = look(OPEN)
        assert found.wanted == {ARM.name: (EVERYTHING,)}
        assert found.because == {}

    def test_without_a_pair_is_measured_on(self) -> None:
        assert look(evidence(overall=None)).wanted == {ARM.name: (EVERYTHING,)}

    def test_that_only_lacks_a_part_gets_that_part(self) -> None:
        parts = (segment("copy", 1.5, 1.6, 1.7), segment("chat", 0.9, 1.2, 1.5))
        assert look(evidence(parts=parts)).wanted == {ARM.name: (CHAT,)}

    def test_that_is_shown_to_lose_on_a_part_may_pay_on_others(self) -> None:
        parts = (segment("copy", 1.2, 1.6, 1.9), segment("chat", 0.8, 0.9, 0.95))
        assert look(evidence(parts=parts)).wanted == {ARM.name: (COPY,)}

    @pytest.mark.parametrize(
        ("ratio", "wanted"),
        [
            (tail(0.7, 0.9, 1.2), {ARM.name: (EVERYTHING,)}),
            (tail(0.85, 1.1, 1.4), {}),
            (tail(0.5, 0.6, 0.7), {}),
            (replace(tail(0.7, 0.9, 1.2), prompts_min=437), {}),
            (replace(tail(0.3, 0.6, 1.2), prompts_min=437), {ARM.name: (EVERYTHING,)}),
        ],
        ids=["neither", "within the tolerance", "slower", "beyond these prompts", "looks slow"],
    )
    def test_the_tail_has_to_be_known_too(self, ratio: TailRatio, wanted: object) -> None:
        overall = comparison(1.4, 1.5, 1.6, prompts_unsent=300)
        assert look(evidence(overall=overall, tails=(ratio,))).wanted == wanted

    def test_a_sign_of_a_tail_is_followed_up(self) -> None:
        assert look(evidence(slow_pairs=1)).wanted == {ARM.name: (EVERYTHING,)}
        assert look(evidence(slow_pairs=1, tails=(tail(0.85, 1.1, 1.4),))).is_settled

    @pytest.mark.parametrize(
        "changes",
        [
            {"prompts": 7},
            {"cells": (cell(failed=100),)},
        ],
        ids=["few prompts", "failures"],
    )
    def test_what_more_requests_may_mend_is_measured_on(self, changes: dict[str, Any]) -> None:
        assert look(evidence(**changes)).wanted == {ARM.name: (EVERYTHING,)}

    def test_what_they_do_not_mend_is_not(self) -> None:
        looping = Looping(segment="copy", looping=9, answers=10)
        assert look(evidence(degenerate=(looping,))).is_settled
        forced = replace(ARM, speculation=Synthetic(inner=NGram(k=4), rates=(0.5,) * 4))
        assert look(evidence(arm=forced)).is_settled


class TestAnArmThatCannotShipOnAll:
    OUT = evidence(overall=comparison(1.1, 1.15, 1.2))

    def test_gets_the_parts_that_are_open(self) -> None:
        parts = (segment("copy", 1.2, 1.5, 1.8), segment("chat", 0.9, 1.0, 1.1))
        assert look(replace(self.OUT, parts=parts)).wanted == {ARM.name: (COPY,)}

    def test_a_part_of_loops_is_no_part(self) -> None:
        parts = (segment("copy", 1.2, 1.5, 1.8), segment("chat", 0.9, 1.0, 1.1))
        looping = (Looping(segment="copy", looping=9, answers=10),)
        assert look(replace(self.OUT, parts=parts, degenerate=looping)).is_settled

    @pytest.mark.parametrize(
        ("conditions", "part", "is_settled"),
        [
            (Conditions(segments=("copy",)), segment("copy", 1.35, 1.5, 1.8), True),
            (Conditions(segments=("chat",)), segment("copy", 1.35, 1.5, 1.8), False),
            (Conditions(max_concurrency=1), comparison(1.35, 1.5, 1.7, part=Part.LOAD, label="c=1"), True),
            (Conditions(max_concurrency=1), comparison(1.2, 1.5, 1.7, part=Part.LOAD, label="c=8"), False),
            (
                Conditions(max_temperature=0.5),
                comparison(1.35, 1.5, 1.7, part=Part.TEMPERATURE, label="0.2–0.5"),
                True,
            ),
            (
                Conditions(max_temperature=0.5),
                comparison(1.2, 1.5, 1.7, part=Part.TEMPERATURE, label="0.7"),
                False,
            ),
        ],
        ids=["segment", "another segment", "load", "higher load", "temperature", "higher temperature"],
    )
    def test_what_it_ships_on_needs_no_more(
        self, conditions: Conditions, part: Any, is_settled: bool
    ) -> None:
        whole = replace(self.OUT, parts=(part,))
        shipped = replace(SHIPS, conditions=conditions)
        verdict = replace(
            verdict_on(whole),
            decision=Decision.SHIP_ON_CONDITIONS,
            conditions=conditions,
            winner=ARM,
            evidence=shipped,
        )
        found = interim_decision(
            verdict, [whole], GOALS, may_ship=True, faster_at_most=lambda _arm, _other: 1.0
        )
        assert found.is_settled is is_settled


class TestAnotherLaunch:
    @pytest.mark.parametrize(("share", "needs"), [(0.05, False), (0.5, True)])
    def test_is_wanted_where_launches_leave_something_open(self, share: float, needs: bool) -> None:
        overall = comparison(1.2, 1.35, 1.5, launch_share=share)
        assert look(evidence(overall=overall)).needs_launch is needs

    def test_is_always_wanted_before_the_second(self) -> None:
        overall = comparison(1.2, 1.35, 1.5, launch_share=0.0)
        assert look(evidence(overall=overall), may_ship=False).needs_launch

    def test_does_not_matter_for_an_arm_that_is_done_with(self) -> None:
        done = replace(HOPELESS, arm=OTHER, overall=comparison(0.9, 1.0, 1.1, launch_share=0.9))
        assert not look(OPEN, done).needs_launch


class TestSeveralArms:
    def test_one_that_ships_ends_the_slower_ones(self) -> None:
        slower = replace(OPEN, arm=OTHER)
        assert look(SHIPS, slower).is_settled

    def test_one_that_may_be_faster_is_measured_on_beside_it(self) -> None:
        rival = evidence(arm=OTHER, overall=comparison(1.2, 1.45, 1.9))
        assert look(SHIPS, rival, lead=1.1).wanted == dict.fromkeys((ARM.name, OTHER.name), (EVERYTHING,))
        assert look(SHIPS, rival, lead=1.01).is_settled

    def test_one_that_cannot_ship_on_all_is_no_rival(self) -> None:
        assert look(SHIPS, replace(HOPELESS, arm=OTHER), lead=2.0).is_settled
        part = replace(HOPELESS, arm=OTHER, parts=(segment("copy", 1.2, 1.5, 1.8),))
        assert look(SHIPS, part, lead=2.0).is_settled

    def test_hopeless_ones_are_dropped_while_others_go_on(self) -> None:
        found = look(OPEN, replace(HOPELESS, arm=OTHER))
        assert set(found.wanted) == {ARM.name}
        assert "1.10x" in found.because[OTHER.name]
