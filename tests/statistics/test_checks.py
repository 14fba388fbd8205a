from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samples import record
from simulated import ARM, ONE_STREAM, OTHER, QUIET, constant, drawn, judged, quiet_truth, study_places
from speclift.core.arm import BASELINE
from speclift.core.records import Outcome, Phase, Record, TurnHealth
from speclift.core.results import Decision, Finding, Level
from speclift.core.traffic import Concurrency, Load, Rate
from speclift.lossless.result import Result
from speclift.statistics.checks import check_client, check_records
from speclift.statistics.loops import is_looping
from speclift.verdict.gate_word import GateWord


def clean_study(**design: Any) -> tuple[Record, ...]:
    return drawn(study_places(**design), replace(quiet_truth(constant(1.5)), gains_first_token=False))


def checks_of(findings: Iterable[Finding]) -> list[str]:
    return [finding.check for finding in findings]


def the_finding(records: Iterable[Record], check: str) -> Finding:
    found = [finding for finding in check_records(tuple(records)) if finding.check == check]
    assert len(found) == 1, f"{len(found)} findings are {check}"
    return found[0]


def changed(records: Iterable[Record], *, arm: str, **changes: Any) -> list[Record]:
    return [replace(r, **changes) if r.place.arm == arm else r for r in records]


def turn(load: Load, *, cpu_s: float, wall_s: float = 10.0) -> TurnHealth:
    return TurnHealth(load=load, loop_lag_p99_s=0.004, cpu_s=cpu_s, wall_s=wall_s)


def test_a_clean_study_has_no_findings() -> None:
    assert check_records(clean_study()) == ()


def test_nothing_measured_has_no_findings() -> None:
    assert check_records(()) == ()
    assert check_records((record(phase=Phase.WARMUP),)) == ()


class TestTooFew:
    @pytest.mark.parametrize(("prompts", "fires"), [(19, True), (20, False)])
    def test_prompts(self, prompts: int, fires: bool) -> None:
        records = clean_study(prompts=prompts, segments=("chat",))
        assert checks_of(check_records(records)) == (["few-prompts"] if fires else [])

    @pytest.mark.parametrize(("prompts", "thin"), [(29, "code"), (30, "")])
    def test_prompts_per_segment(self, prompts: int, thin: str) -> None:
        records = clean_study(prompts=prompts)
        assert checks_of(check_records(records)) == (["few-prompts-per-segment"] if thin else [])
        if thin:
            assert f"in: {thin};" in the_finding(records, "few-prompts-per-segment").message

    @pytest.mark.parametrize(
        ("rounds", "check"), [(1, ["single-launch"]), (2, ["few-launches"]), (3, []), (5, [])]
    )
    def test_launches(self, rounds: int, check: list[str]) -> None:
        assert checks_of(check_records(clean_study(rounds=rounds))) == check

    def test_the_arm_with_the_fewest_launches_counts(self) -> None:
        records = [r for r in clean_study() if r.place.arm == BASELINE or r.place.round == 0]
        assert checks_of(check_records(records)) == ["single-launch"]

    @pytest.mark.parametrize(("streams", "fires"), [(9, False), (10, True)])
    def test_requests_per_stream(self, streams: int, fires: bool) -> None:
        records = clean_study(loads=(*ONE_STREAM, Concurrency(streams=streams)))
        assert checks_of(check_records(records)) == (["short-load"] if fires else [])
        if fires:
            assert the_finding(records, "short-load").next_step == "use at least 40 requests at this load"

    def test_a_request_at_two_temperatures_is_two_requests_of_a_load(self) -> None:
        records = clean_study(loads=(Concurrency(streams=10),), temperatures=(0.0, 0.7))
        assert checks_of(check_records(records)) == []


class TestClientLag:
    def late(self, lag_s: float, load: Load) -> list[Record]:
        ordinary = clean_study(loads=(load,))
        return [replace(r, intended_s=r.intended_s - lag_s) for r in ordinary]

    @pytest.mark.parametrize("load", [Rate(per_s=5.0), *ONE_STREAM])
    def test_fires_where_p99_is_over_5_percent_of_the_ttft(self, load: Load) -> None:
        # TTFT is 50 ms plus the lag itself.
        finding = the_finding(self.late(0.010, load), "client-lag")
        assert (finding.level, finding.arm) == (Level.FAIL, None)

    def test_says_both_times_in_milliseconds(self) -> None:
        message = the_finding(self.late(0.010, *ONE_STREAM), "client-lag").message
        lag_ms, ttft_ms = (float(figure) for figure in re.findall(r"([\d.]+) ms", message))
        assert lag_ms == pytest.approx(10.0, abs=0.1)
        assert ttft_ms == pytest.approx(60.0, rel=0.1)

    def test_is_silent_under_5_percent(self) -> None:
        assert check_records(self.late(0.001, Rate(per_s=5.0))) == ()

    def test_blocks_every_verdict_but_output_changed(self) -> None:
        records = clean_study()
        lag = the_finding(self.late(0.010, Rate(per_s=5.0)), "client-lag")
        assert judged(records).decision is Decision.SHIP
        blocked = judged(records, findings=(lag,))
        assert blocked.decision is Decision.INCONCLUSIVE
        assert blocked.winner is None
        reason = next(reason for reason in blocked.reasons if reason.rule == "client-lag")
        assert lag.next_step in reason.message
        assert (
            judged(records, findings=(lag,), gate=GateWord(result=Result.FAIL)).decision
            is Decision.OUTPUT_CHANGED
        )


class TestDrift:
    @pytest.mark.parametrize(("drift", "fires"), [(0.2, True), (-0.2, True), (0.05, False), (0.0, False)])
    def test_is_of_the_baseline_over_the_study(self, drift: float, fires: bool) -> None:
        truth = replace(quiet_truth(constant(1.5)), drift=drift)
        found = check_records(drawn(study_places(), truth))
        assert checks_of(found) == (["drift"] if fires else [])

    @pytest.mark.parametrize(("arm", "fires"), [(BASELINE, True), (ARM.name, False)])
    def test_an_arm_that_drifts_by_itself_is_none(self, arm: str, fires: bool) -> None:
        truth = quiet_truth(constant(1.5))
        steady, drifting = (drawn(study_places(), replace(truth, drift=drift)) for drift in (0.0, 0.3))
        records = [
            moved if moved.place.arm == arm else kept for kept, moved in zip(steady, drifting, strict=True)
        ]
        assert checks_of(check_records(records)) == (["drift"] if fires else [])

    def test_says_how_large_it_was(self) -> None:
        truth = replace(quiet_truth(constant(1.5)), drift=float(np.log(1.3)))
        said = re.search(r"changed by \+(\d+)%", the_finding(drawn(study_places(), truth), "drift").message)
        assert said is not None
        assert int(said[1]) == pytest.approx(30, abs=2)

    def test_prompts_of_unlike_speed_are_no_drift(self) -> None:
        # Slower prompts come later in every round: a trend within each round, none over the study.
        records = [
            replace(r, last_token_s=(r.last_token_s or 0.0) + 0.05 * int(r.place.request_id[1:]))
            for r in clean_study()
        ]
        assert check_records(records) == ()


class TestSaturation:
    def open_loop(self, growth: float) -> list[Record]:
        """TTFT grows linearly to `growth` times its start within each turn of 36 requests."""
        records = clean_study(loads=(Rate(per_s=5.0),))
        return [
            replace(
                r,
                intended_s=float(number),
                sent_s=float(number),
                first_token_s=number + 0.05 * (1 + (growth - 1) * number / 36),
            )
            for r in records
            for number in [int(r.place.request_id[1:])]
        ]

    def test_fires_where_ttft_grows_within_a_turn(self) -> None:
        found = check_records(self.open_loop(8.0))
        assert {finding.arm for finding in found if finding.check == "saturation"} == {BASELINE, ARM.name}

    def test_is_silent_where_it_does_not(self) -> None:
        assert "saturation" not in checks_of(check_records(self.open_loop(1.2)))

    def test_a_closed_loop_has_no_queue_to_grow(self) -> None:
        records = [replace(r, place=replace(r.place, load=ONE_STREAM[0])) for r in self.open_loop(8.0)]
        assert "saturation" not in checks_of(check_records(records))


class TestOutputLength:
    @pytest.mark.parametrize(("tokens", "fires"), [(60, True), (62, False), (64, False), (68, True)])
    def test_of_an_arm_against_the_baseline(self, tokens: int, fires: bool) -> None:
        records = changed(clean_study(), arm=ARM.name, output_tokens=tokens)
        assert checks_of(check_records(records)) == (["output-length"] if fires else [])

    def test_names_the_arm_that_differs(self) -> None:
        places = study_places(arms=(ARM, OTHER))
        records = changed(drawn(places, QUIET), arm=OTHER.name, output_tokens=32)
        assert the_finding(records, "output-length").arm == OTHER.name

    def test_says_which_ratio_to_look_at(self) -> None:
        message = the_finding(changed(clean_study(), arm=ARM.name, output_tokens=32), "output-length").message
        assert "look at the e2e speedup" in message
        assert "e2e_raw mixes speed with length" in message

    def test_is_of_requests_that_both_answered(self) -> None:
        """Long answers that the arm cut off would make the rest look short."""
        records = [
            replace(r, output_tokens=200, outcome=r.outcome if r.place.arm == BASELINE else Outcome.CUT)
            if r.place.request_id == "p0"
            else r
            for r in clean_study()
        ]
        assert "output-length" not in checks_of(check_records(records))

    @pytest.mark.parametrize("tokens", [None, 0])
    def test_is_silent_without_counts(self, tokens: int | None) -> None:
        records = changed(clean_study(), arm=ARM.name, output_tokens=tokens)
        assert "output-length" not in checks_of(check_records(records))


class TestDegenerate:
    @pytest.mark.parametrize(("looping", "fires"), [(2, False), (3, True)])
    def test_fires_on_a_segment_of_which_a_fifth_loops(self, looping: int, fires: bool) -> None:
        # Of 12 prompts in copy.
        ids = {f"p{3 * number}" for number in range(looping)}
        records = [
            replace(r, text="round and " * 20 if r.place.request_id in ids else "an answer that ends.")
            for r in clean_study()
        ]
        assert checks_of(check_records(records)) == (["degenerate-output"] if fires else [])
        if fires:
            assert "18 of 72 answers in copy" in the_finding(records, "degenerate-output").message


class TestIsLooping:
    @given(st.text(min_size=1, max_size=80), st.text(max_size=100))
    def test_a_piece_repeated_to_the_end_is_a_loop_whatever_came_before(
        self, piece: str, before: str
    ) -> None:
        times = max(5, -(-60 // len(piece)) + 1)
        assert is_looping(before + piece * times)

    @given(st.text(max_size=59))
    def test_a_short_answer_is_never_a_loop(self, text: str) -> None:
        assert not is_looping(text)

    @given(st.integers(min_value=0, max_value=10**6))
    def test_text_without_a_period_is_no_loop(self, seed: int) -> None:
        letters = np.random.default_rng(seed).choice(list("abcdefghijklmnopqrstuvwxyz "), 300)
        assert not is_looping("".join(letters))

    @pytest.mark.parametrize(
        ("text", "loops"),
        [
            ("", False),
            ("no " * 20, True),
            ("no " * 19, False),  # 57 characters
            ("The same line of twenty-five.\n" * 3, False),  # three times is a refrain
            ("The same line of twenty-five.\n" * 4, True),
            ("round and " * 20 + "and that was that.", False),
            ("=" * 80, True),
        ],
    )
    def test_needs_four_periods_and_sixty_characters_at_the_end(self, text: str, loops: bool) -> None:
        assert is_looping(text) is loops


class TestFailed:
    def test_counts_names_and_quotes_the_failures_of_an_arm(self) -> None:
        records = list(clean_study())
        for index, outcome in ((1, Outcome.TIMEOUT), (7, Outcome.CUT)):
            place = replace(records[index].place, arm=ARM.name)
            records[index] = replace(records[index], place=place, outcome=outcome, error=f"{outcome} it was")
        finding = the_finding(records, "failed-requests")
        assert finding.arm == ARM.name
        assert finding.level is Level.WARN
        assert f"2 of {sum(r.place.arm == ARM.name for r in records)} requests failed" in finding.message
        assert finding.message.endswith("\n  1 x timeout: timeout it was\n  1 x cut: cut it was")


class TestNoTokenCounts:
    def test_fires_where_no_success_carries_one(self) -> None:
        records = changed(clean_study(), arm=ARM.name, output_tokens=None)
        assert the_finding(records, "no-token-counts").arm == ARM.name

    def test_an_arm_that_failed_altogether_says_nothing_about_counts(self) -> None:
        failed = changed(clean_study(), arm=ARM.name, outcome=Outcome.CUT, output_tokens=None)
        assert "no-token-counts" not in checks_of(check_records(failed))


class TestClientCpu:
    def test_fires_at_the_load_where_the_client_used_most_of_a_core(self) -> None:
        busy, idle = Concurrency(streams=32), Concurrency(streams=1)
        turns = (turn(busy, cpu_s=9.0), turn(busy, cpu_s=8.0), turn(idle, cpu_s=1.0))
        (finding,) = check_client(turns)
        assert finding.check == "client-cpu"
        assert "c=32" in finding.message
        assert "85%" in finding.message

    def test_is_silent_on_an_idle_client_and_on_turns_without_time(self) -> None:
        assert list(check_client((turn(Rate(per_s=1.0), cpu_s=7.9),))) == []
        assert list(check_client((turn(Rate(per_s=1.0), cpu_s=0.1, wall_s=0.0),))) == []
