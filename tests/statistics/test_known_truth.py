from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulated import ARM, LOADS, ONE_STREAM, by_segment, by_streams, comparer, constant, drawn, study_places
from speclift.core.records import Record
from speclift.core.results import ALL_TRAFFIC, Comparison, Evidence
from speclift.core.traffic import Load
from speclift.testing.simulated_study import ArmTruth, StudyTruth, true_speedup


def on_all(records: tuple[Record, ...], **settings: Any) -> Evidence:
    return comparer(records, **settings).evidence(ARM, ALL_TRAFFIC)


def overall(records: tuple[Record, ...], **settings: Any) -> Comparison:
    found = on_all(records, **settings).overall
    assert found is not None
    return found


def realistic(speedup: Callable[[str, Load, float | None], float], *, prompt_sd: float = 0.15) -> StudyTruth:
    """Server starts differ by 2 %, prompts gain by 15 % more or less, requests scatter by 6 %."""
    return StudyTruth(arms={ARM.name: ArmTruth(speedup=speedup, prompt_sd=prompt_sd)})


class TestOnKnownTruth:
    """benchmarks/studies.py has the same at full size and in more settings."""

    @pytest.mark.parametrize(
        ("truth", "loads", "studies"),
        [
            (realistic(by_segment(copy=1.6, chat=0.95, code=1.2)), ONE_STREAM, 300),
            (replace(realistic(constant(1.3)), launch_sd=0.04), ONE_STREAM, 150),
            (replace(realistic(constant(1.3)), drift=0.2), ONE_STREAM, 150),
            (realistic(by_streams({1: 1.5, 4: 0.9})), LOADS[:2], 150),
        ],
        ids=["segments differ", "server starts differ by 4 %", "the machine drifts", "loads differ"],
    )
    def test_the_headline_interval_covers_in_93_to_97_percent_of_studies(
        self, truth: StudyTruth, loads: tuple[Load, ...], studies: int
    ) -> None:
        places = study_places(loads=loads)
        target = true_speedup(places, truth, ARM.name)
        found = [overall(drawn(places, truth, seed=seed)).simultaneous for seed in range(studies)]
        percent = 100 * sum(each.low <= target <= each.high for each in found) / studies
        # So few studies tell the share to within two standard errors only.
        slack = 2 * math.sqrt(95 * 5 / studies)
        assert 93 - slack <= percent <= 97 + slack

    def test_a_study_without_a_difference_claims_one_in_at_most_6_percent(self) -> None:
        places, truth = study_places(), realistic(constant(1.0), prompt_sd=0.0)
        claims, studies = 0, 300
        for seed in range(studies):
            evidence = on_all(drawn(places, truth, seed=seed))
            compared = [c for c in (evidence.overall, *evidence.parts) if c is not None]
            claims += any(comparison.simultaneous.excludes(1.0) for comparison in compared)
        assert 100 * claims / studies <= 6 + 2 * math.sqrt(6 * 94 / studies)

    def test_a_study_with_a_difference_of_15_percent_mostly_claims_it(self) -> None:
        places, truth = study_places(), realistic(constant(1.15))
        shown = [overall(drawn(places, truth, seed=seed)).simultaneous.excludes(1.0) for seed in range(40)]
        assert np.mean(shown) > 0.8
