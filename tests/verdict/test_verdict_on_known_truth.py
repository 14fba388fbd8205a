from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from simulated import ARM, DRAFTING, by_segment, drawn, judged, study_places
from speclift.core.goals import Goals
from speclift.core.results import Decision
from speclift.testing.simulated_study import ArmTruth, StudyTruth

# The first of the drawn studies of two equal arms in which chance alone makes the second look faster.
WOULD_SHIP = 543


def counted(
    truth: StudyTruth, *, studies: int, first: int = 0, goals: Goals | None = None, **design: Any
) -> Counter[str]:
    """Decisions over studies with realistic noise, and the segments of the conditions."""
    places = study_places(**design)
    seen: Counter[str] = Counter()
    for seed in range(first, first + studies):
        verdict = judged(drawn(places, truth, seed=seed), goals=goals)
        seen[verdict.decision.value] += 1
        if verdict.conditions is not None:
            seen[f"segments {verdict.conditions.segments}"] += 1
    return seen


def realistic(**speedups: float) -> StudyTruth:
    return StudyTruth(arms={ARM.name: replace(DRAFTING, prompt_sd=0.15, speedup=by_segment(**speedups))})


class TestOnKnownTruth:
    """`make bench` has the same at full size (benchmarks/studies.py)."""

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "reports_drafts",
        [True, pytest.param(False, marks=pytest.mark.slow)],
        ids=["engine counts drafts", "engine silent"],
    )
    def test_an_arm_that_is_the_baseline_never_ships_whatever_the_bar(self, reports_drafts: bool) -> None:
        same = StudyTruth(arms={ARM.name: ArmTruth()}, reports_drafts=reports_drafts)
        seen = counted(same, studies=20, goals=Goals(min_speedup=1.0))
        seen += counted(same, studies=1, first=WOULD_SHIP, goals=Goals(min_speedup=1.0))
        assert seen[Decision.SHIP] == seen[Decision.SHIP_ON_CONDITIONS] == 0

    def test_one_of_those_studies_would_ship_by_speed_alone(self) -> None:
        # Shows that the test above can fail: the same studies, told that drafts were accepted.
        same = StudyTruth(arms={ARM.name: ArmTruth(drafted_per_step=4, acceptance=0.5)})
        seen = counted(same, studies=1, first=WOULD_SHIP, goals=Goals(min_speedup=1.0))
        assert seen[Decision.SHIP] == 1

    @pytest.mark.slow
    def test_by_the_default_bar_it_is_told_not_to_ship(self) -> None:
        seen = counted(StudyTruth(arms={ARM.name: ArmTruth()}), studies=15)
        assert seen == {Decision.DO_NOT_SHIP: 15}

    @pytest.mark.parametrize(
        ("speedups", "decision"),
        [
            ({"copy": 1.5, "chat": 1.5, "code": 1.5}, Decision.SHIP),
            pytest.param(
                {"copy": 0.9, "chat": 0.9, "code": 0.9}, Decision.DO_NOT_SHIP, marks=pytest.mark.slow
            ),
            pytest.param(
                {"copy": 1.3, "chat": 1.3, "code": 1.3}, Decision.INCONCLUSIVE, marks=pytest.mark.slow
            ),
        ],
        ids=["1.5x", "0.9x", "1.3x"],
    )
    def test_a_clear_truth_is_mostly_found(self, speedups: dict[str, float], decision: Decision) -> None:
        # Nineteen in twenty of 12 are fewer than 9 once in 450 tries, half of them in 93 % of tries.
        assert counted(realistic(**speedups), studies=12)[decision] >= 9

    @pytest.mark.slow
    def test_a_gain_on_one_segment_alone_is_found_and_named(self) -> None:
        truth = realistic(copy=1.5, chat=0.9, code=0.9)
        seen = counted(truth, studies=10, prompts=72, rounds=5)
        # Nineteen in twenty of 10 are fewer than 7 once in 1,000 tries, half of them in 83 % of tries.
        assert seen["segments ('copy',)"] == seen[Decision.SHIP_ON_CONDITIONS] >= 7
        assert seen[Decision.SHIP] == 0
