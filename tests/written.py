"""Simulated studies on disk, for the verbs that read finished ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from samples import launch, new_study, plan, request
from simulated import ARM, LOADS, SEGMENTS, drawn, study_places
from speclift.core.arm import Arm, baseline_arm
from speclift.core.records import Counters
from speclift.core.traffic import Load
from speclift.testing.simulated_study import StudyTruth


def write_study(
    path: Path,
    truth: StudyTruth,
    *,
    arms: Sequence[Arm] = (ARM,),
    loads: Sequence[Load] = LOADS,
    prompts: int = 12,
    segments: Sequence[str] = SEGMENTS,
    rounds: int = 2,
    temperatures: Sequence[float | None] = (None,),
    seed: int = 1,
    counters: Counters | None = None,
    **parts: Any,
) -> Path:
    """The study's path; `parts` are those of `samples.new_study`."""
    places = study_places(
        arms=arms, prompts=prompts, segments=segments, loads=loads, rounds=rounds, temperatures=temperatures
    )
    requests = tuple(
        request(f"p{number}", segment=segments[number % len(segments)], temperature=None)
        for number in range(prompts)
    )
    planned = plan(arms=(baseline_arm(), *arms), loads=tuple(loads), requests=requests, rounds=rounds)
    with new_study(path, **{"plan": planned, **parts}) as study, study.together():
        for number in sorted({place.launch for place in places}):
            place = next(place for place in places if place.launch == number)
            study.add_launch(launch(number, arm=place.arm, round=place.round))
            study.launch_ended(number, counters or Counters())
        for record in drawn(places, truth, seed=seed):
            study.add_record(record)
    return path
