from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulated import ARM, ONE_STREAM, constant, drawn, quiet_truth, study_places
from speclift.core.arm import BASELINE
from speclift.core.records import Outcome, Record, TurnHealth
from speclift.core.results import Finding
from speclift.core.traffic import Concurrency, Load, Rate
from speclift.statistics.checks import check_client, check_records
from speclift.statistics.loops import is_looping


def clean_study(**design: Any) -> tuple[Record, ...]:
    return drawn(study_places(**design), replace(quiet_truth(constant(1.5)), gains_first_token=False))


def checks_of(findings: Iterable[Finding]) -> list[str]:
    return [finding.check for finding in findings]


def turn(load: Load, *, cpu_s: float, wall_s: float = 10.0) -> TurnHealth:
    return TurnHealth(load=load, loop_lag_p99_s=0.004, cpu_s=cpu_s, wall_s=wall_s)


def test_a_clean_study_has_no_findings() -> None:
    assert check_records(clean_study()) == ()


class TestTooFew:
    def test_a_request_at_two_temperatures_is_two_requests_of_a_load(self) -> None:
        records = clean_study(loads=(Concurrency(streams=10),), temperatures=(0.0, 0.7))
        assert checks_of(check_records(records)) == []


class TestClientLag:
    def late(self, lag_s: float, load: Load) -> list[Record]:
        ordinary = clean_study(loads=(load,))
        return [replace(r, intended_s=r.intended_s - lag_s) for r in ordinary]

    def test_is_silent_under_5_percent(self) -> None:
        assert check_records(self.late(0.001, Rate(per_s=5.0))) == ()


class TestDrift:
    @pytest.mark.parametrize(("arm", "fires"), [(BASELINE, True), (ARM.name, False)])
    def test_an_arm_that_drifts_by_itself_is_none(self, arm: str, fires: bool) -> None:
        truth = quiet_truth(constant(1.5))
        steady, drifting = (drawn(study_places(), replace(truth, drift=drift)) for drift in (0.0, 0.3))
        records = [
            moved if moved.place.arm == arm else kept for kept, moved in zip(steady, drifting, strict=True)
        ]
        assert checks_of(check_records(records)) == (["drift"] if fires else [])

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

    def test_is_silent_where_it_does_not(self) -> None:
        assert "saturation" not in checks_of(check_records(self.open_loop(1.2)))

    def test_a_closed_loop_has_no_queue_to_grow(self) -> None:
        records = [replace(r, place=replace(r.place, load=ONE_STREAM[0])) for r in self.open_loop(8.0)]
        assert "saturation" not in checks_of(check_records(records))


class TestOutputLength:
    def test_is_of_requests_that_both_answered(self) -> None:
        """Long answers that the arm cut off would make the rest look short."""
        records = [
            replace(r, output_tokens=200, outcome=r.outcome if r.place.arm == BASELINE else Outcome.CUT)
            if r.place.request_id == "p0"
            else r
            for r in clean_study()
        ]
        assert "output-length" not in checks_of(check_records(records))


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


class TestClientCpu:
    def test_is_silent_on_an_idle_client_and_on_turns_without_time(self) -> None:
        assert list(check_client((turn(Rate(per_s=1.0), cpu_s=7.9),))) == []
        assert list(check_client((turn(Rate(per_s=1.0), cpu_s=0.1, wall_s=0.0),))) == []
