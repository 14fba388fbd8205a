from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from simulated import ARM, LOADS, by_segment, by_streams, constant, drawn, study_places
from speclift.core.arm import BASELINE
from speclift.core.records import Place, Record
from speclift.testing.simulated_study import ArmTruth, SpeedupOf, StudyTruth, true_speedup

NOISELESS = StudyTruth(prompt_level_sd=0.0, launch_sd=0.0, residual_sd=0.0, arms={ARM.name: ArmTruth()})


def of_arm(records: tuple[Record, ...], name: str) -> list[Record]:
    return [record for record in records if record.place.arm == name]


def log_tpots(records: list[Record]) -> np.ndarray:
    return np.log([record.tpot_s or math.nan for record in records])


@pytest.mark.parametrize("gains_first_token", [True, False])
def test_without_noise_every_request_takes_what_the_truth_says(gains_first_token: bool) -> None:
    arm = ArmTruth(speedup=by_segment(copy=2.0, chat=1.0, code=0.5))
    truth = replace(NOISELESS, arms={ARM.name: arm}, gains_first_token=gains_first_token)
    for record in of_arm(drawn(study_places(), truth), ARM.name):
        factor = {"copy": 2.0, "chat": 1.0, "code": 0.5}[record.place.segment]
        assert record.tpot_s == pytest.approx(0.010 / factor)
        assert record.ttft_s == pytest.approx(0.050 / factor if gains_first_token else 0.050)


@pytest.mark.slow
def test_residual_and_prompt_spread_have_the_sizes_asked_for() -> None:
    places = study_places(prompts=2000, rounds=1)
    residual = log_tpots(of_arm(drawn(places, replace(NOISELESS, residual_sd=0.06)), BASELINE))
    assert np.std(residual) == pytest.approx(0.06, rel=0.1)
    arms = {ARM.name: ArmTruth(prompt_sd=0.15)}
    records = drawn(places, replace(NOISELESS, arms=arms))
    assert np.std(log_tpots(of_arm(records, ARM.name))) == pytest.approx(0.15, rel=0.1)
    assert np.std(log_tpots(of_arm(records, BASELINE))) < 1e-9


@pytest.mark.parametrize(
    ("places", "speedup", "expected"),
    [
        (study_places(), constant(1.5), 1.5),
        (study_places(loads=LOADS), by_streams({1: 2.0, 4: 1.0, 16: 0.5}), 1.0),
        (study_places(segments=("copy", "copy", "chat")), by_segment(copy=8.0, chat=1.0), 4.0),
    ],
    ids=["everywhere", "loads", "prompts of unequal segments"],
)
def test_the_true_speedup_weighs_prompts_and_loads_equally(
    places: tuple[Place, ...], speedup: SpeedupOf, expected: float
) -> None:
    truth = replace(NOISELESS, arms={ARM.name: ArmTruth(speedup=speedup)})
    assert true_speedup(places, truth, ARM.name) == pytest.approx(expected)
