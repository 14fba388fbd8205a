"""Findings about the load generator itself: what it may cost and how late it may be before it spoils a study."""

from __future__ import annotations

from dataclasses import replace

import pytest

from samples import record
from speclift.core.records import Phase, TurnHealth
from speclift.core.results import Finding
from speclift.core.traffic import Concurrency, Load
from speclift.statistics.checks import check_client

CROWD, ALONE = Concurrency(streams=64), Concurrency(streams=1)


def health(load: Load = CROWD, *, blur_s: float = 0.0, cpu_s: float = 1.0) -> TurnHealth:
    return TurnHealth(load=load, loop_lag_p99_s=0.5, cpu_s=cpu_s, wall_s=10.0, stamp_blur_p99_s=blur_s)


def found(*turns: TurnHealth, phase: Phase = Phase.MEASURED) -> list[Finding]:
    return list(check_client(turns, [record(load=CROWD, phase=phase), record(load=ALONE, phase=phase)]))


class TestReading:
    def test_late_reading_alone_is_no_fault_because_stamps_are_the_kernels(self) -> None:
        assert found(health(), health(ALONE)) == []

    @pytest.mark.parametrize(("blurred", "is_refused"), [(2, False), (3, True)])
    def test_a_turn_or_two_of_twenty_spoil_nothing(self, blurred: int, is_refused: bool) -> None:
        turns = [health(blur_s=0.1) for _ in range(blurred)] + [health() for _ in range(20 - blurred)]
        assert [finding.check for finding in found(*turns)] == ["client-reading"] * is_refused

    @pytest.mark.parametrize(("blur_s", "is_refused"), [(0.0009, False), (0.0011, True)])
    def test_under_a_millisecond_is_nothing_however_quick_the_server(
        self, blur_s: float, is_refused: bool
    ) -> None:
        quick = record(load=CROWD)
        quick = replace(quick, first_token_s=quick.intended_s + 0.002)
        findings = list(check_client([health(blur_s=blur_s)], [quick]))
        assert bool(findings) is is_refused

    def test_warm_ups_are_no_measure_of_ttft(self) -> None:
        assert found(health(blur_s=0.1), phase=Phase.WARMUP) == []
