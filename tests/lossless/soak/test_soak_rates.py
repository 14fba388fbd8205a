"""From answers to results: what is a fault of the arm, what is the baseline's too, and what is too little to tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from soaked import observed
from speclift.lossless.gate import FaultRate, SoakFault, SoakResult
from speclift.lossless.soak.faults import SoakObservation
from speclift.lossless.soak.rates import (
    Tally,
    exact_interval,
    exposed_needed,
    faulty_needed,
    judge_faults,
    more_frequent,
    tally_of,
)
from speclift.lossless.soak.values import TURNS_MAX, Stage

FOUND, UNSURE, CLEAN = SoakResult.FOUND, SoakResult.INCONCLUSIVE, SoakResult.CLEAN


def judged(
    arm: list[SoakObservation], control: list[SoakObservation], fault: SoakFault = SoakFault.SPECIAL_TOKEN
) -> FaultRate:
    return next(rate for rate in judge_faults(arm, control) if rate.name is fault)


@pytest.mark.parametrize(
    ("arm", "control", "result"),
    [
        ((0, 0), (0, 0), UNSURE),
        ((0, 1), (0, 300), UNSURE),
        ((0, 148), (0, 300), UNSURE),
        ((0, 149), (0, 300), CLEAN),
        ((0, 300), (0, 0), CLEAN),
        ((1, 1), (0, 300), UNSURE),
        ((2, 2), (0, 300), FOUND),
        ((1, 300), (0, 300), UNSURE),
        ((2, 300), (0, 300), FOUND),
        ((2, 300), (0, 149), UNSURE),
        ((2, 300), (0, 0), UNSURE),
        ((2, 5000), (0, 5000), UNSURE),
        ((300, 300), (0, 300), FOUND),
        ((300, 300), (300, 300), CLEAN),
        ((6, 300), (5, 300), CLEAN),
        ((40, 300), (5, 300), FOUND),
        ((9, 300), (2, 300), CLEAN),
        ((13, 300), (2, 300), UNSURE),
        # Twenty requests of a baseline are no control for three hundred.
        ((6, 300), (1, 20), UNSURE),
        ((0, 300), (30, 300), CLEAN),
    ],
)
def test_a_broken_promise_is_found_where_the_control_keeps_it(
    arm: tuple[int, int], control: tuple[int, int], result: SoakResult
) -> None:
    rate = judged(observed(*arm), observed(*control))

    assert rate.result is result, rate.message


def test_the_users_only_prompt_is_one_observation_however_often_it_is_asked() -> None:
    """At temperature 0 it is answered alike each time: a tie that falls the other way would count a hundred times."""
    own = [replace(each, prompt_id="p1") for each in observed(100, 100, fault=SoakFault.BROKEN_TEXT)]
    theirs = [replace(each, prompt_id="p1") for each in observed(0, 100, fault=SoakFault.BROKEN_TEXT)]

    assert (tally_of(own).faulty, tally_of(own).exposed) == (1, 1)
    assert judged(own, theirs, SoakFault.BROKEN_TEXT).result is UNSURE


def test_one_nonce_of_another_request_is_enough() -> None:
    fault = SoakFault.CROSS_TALK

    assert judged(observed(1, 1000, fault=fault), observed(0, 1000, fault=fault), fault).result is FOUND
    assert judged(observed(1, 3, fault=fault), observed(0, 1, fault=fault), fault).result is FOUND
    assert judged(observed(1, 300, fault=fault), observed(1, 300, fault=fault), fault).result is CLEAN


def test_what_a_model_may_do_itself_has_to_come_more_often() -> None:
    fault = SoakFault.BROKEN_TEXT

    assert judged(observed(3, 300, fault=fault), observed(0, 300, fault=fault), fault).result is CLEAN
    assert judged(observed(25, 300, fault=fault), observed(0, 300, fault=fault), fault).result is FOUND


def test_another_text_than_alone_is_left_to_the_gate() -> None:
    fault = SoakFault.OTHER_TEXT
    rate = judged(observed(150, 300, fault=fault), observed(3, 300, fault=fault), fault)

    assert rate.result is UNSURE
    assert "margins" in rate.message


def test_a_session_with_a_fault_in_every_turn_counts_once() -> None:
    one = observed(1, 1)[0]
    session = [replace(one, index=turn) for turn in range(TURNS_MAX)]

    assert tally_of(session) == Tally(faulty=1, exposed=1, answers=TURNS_MAX, faulty_once=1)
    assert judged([*session, *observed(0, 299, start=1)], observed(0, 300)).result is UNSURE


def test_a_request_asked_more_often_in_one_arm_has_not_more_faults_for_it() -> None:
    """One of four answers wrong, against one of one of a quarter of the requests."""
    often = [each for _ in range(3) for each in observed(0, 40)] + observed(40, 40)

    assert tally_of(often).faulty_once == 10
    assert more_frequent(tally_of(often), tally_of(observed(10, 40))) > 0.5


def test_when_it_was_first_seen_and_what_shows_it() -> None:
    late = [
        replace(each, exposure=replace(each.exposure, ended_s=90.0)) for each in observed(1, 1, start=500)
    ]
    rate = judged([*late, *observed(2, 300)], observed(0, 301))

    assert rate.first_seen_s == 0.0
    assert rate.evidence == ("seen",) * 3


def test_intervals_are_exact_at_the_ends() -> None:
    assert exact_interval(0, 0) == (0.0, 1.0)
    assert exact_interval(0, 149)[0] == 0.0
    assert exact_interval(10, 10)[1] == 1.0
    # Clopper and Pearson's own example, 10 of 100.
    assert exact_interval(10, 100) == pytest.approx((0.0490, 0.1762), abs=1e-4)


def test_fisher_knows_the_lady_who_tasted_tea() -> None:
    told = more_frequent(Tally(faulty=3, exposed=4, faulty_once=3), Tally(faulty=1, exposed=4, faulty_once=1))

    assert told == pytest.approx(17 / 70)


def test_how_much_is_needed() -> None:
    assert exposed_needed() == 149
    assert (faulty_needed(1), faulty_needed(300), faulty_needed(1000), faulty_needed(20_000)) == (2, 2, 2, 5)


class TestPlaces:
    def places(self, faulty: list[SoakObservation], clean: list[SoakObservation]) -> tuple[str, ...]:
        return judged([*faulty, *clean], observed(0, 400)).places

    def test_streams(self) -> None:
        places = self.places(
            observed(8, 100, streams_max=12), observed(0, 200, start=100, streams_max=8, stage=Stage.DURING)
        )
        assert places == ("only from 12 streams on",)

    def test_a_few_more_below_say_nothing(self) -> None:
        assert self.places(observed(3, 100, streams_max=12), observed(0, 20, start=100, streams_max=8)) == ()

    def test_kind(self) -> None:
        assert self.places(observed(9, 60, kind="agent"), observed(0, 240, start=60)) == (
            "only in agent requests",
        )

    def test_launch(self) -> None:
        assert self.places(observed(9, 100, launch=2), observed(0, 200, start=100, launch=1)) == (
            "only on launch 2",
        )

    def test_requests_before(self) -> None:
        assert self.places(observed(9, 100, before=500), observed(0, 200, start=100, before=20)) == (
            "only after 500 requests to one launch",
        )

    def test_prefills_that_join(self) -> None:
        assert self.places(observed(9, 100, joined=3), observed(0, 200, start=100, joined=0)) == (
            "only where another prompt was read meanwhile",
        )

    def test_a_fault_everywhere_has_no_place(self) -> None:
        assert self.places(observed(9, 100, launch=2), observed(9, 200, start=100, launch=1)) == ()
