"""Studies in laps with a known truth, from records to the look that ends them (hundreds in benchmarks/looks.py)."""

from __future__ import annotations

from statistics import fmean, median

import numpy as np
import pytest

from looks import Outcome, Simulated, truths
from speclift.workload.laps import interim_plan_for

pytestmark = pytest.mark.slow

TRUTHS = {truth.name: truth for truth in truths()}


def outcomes(name: str, *, studies: int = 8, prompts: int = 36) -> list[Outcome]:
    looks = interim_plan_for(3, together=True)
    assert looks is not None
    simulated = Simulated(TRUTHS[name], prompts, looks)
    return [simulated.run(np.random.default_rng(seed)) for seed in range(studies)]


@pytest.mark.parametrize("name", ["A/A", "0.9x", "2x"])
def test_what_is_clear_is_settled_on_a_third_of_the_requests_as_the_fixed_design_would(name: str) -> None:
    found = outcomes(name)
    assert median(one.share for one in found) <= 1 / 3
    assert all(one.agrees for one in found)


@pytest.mark.parametrize("name", sorted(TRUTHS))
def test_no_truth_is_told_wrong_or_takes_more_than_the_fixed_design(name: str) -> None:
    found = outcomes(name, studies=4)
    assert not any(one.is_wrong for one in found)
    assert max(one.share for one in found) <= 1.1
    assert fmean(one.covers for one in found) >= 0.75
