"""The course of a study that is looked at on the way: which lap is next, and on which launch of its servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from speclift.bench.live import LiveArm
from speclift.core.errors import StudyError
from speclift.core.interim import InterimDecision
from speclift.core.json_reading import need_list, need_whole
from speclift.core.units import Seconds
from speclift.studies.study import Study
from speclift.workload.experiment import StudyPlan
from speclift.workload.laps import Lap, laps

# After so many laps.
InterimCheck: TypeAlias = Callable[[int], InterimDecision]
# In a study: on which launch each lap was measured.
LAPS = "laps"


@dataclass(slots=True)
class Up:
    """The servers that are up, since which launch, and for how long they were measured."""

    round: int | None = None
    live: dict[str, LiveArm] = field(default_factory=dict)
    measured_s: Seconds = 0.0


class LapCourse:
    """Counts laps. On which launch one is measured depends on what starting took, so it is kept: a study that goes on
    goes on as it would have without the interruption."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._plan: StudyPlan = study.plan
        self._rounds = lap_rounds(study)
        self.number = 0

    def next_lap(self, *, starts_anew: bool) -> Lap | None:
        """None where everything was sent. `starts_anew` where servers have been up long enough; a launch that has sent
        every request is over too."""
        if self.number == len(self._rounds):
            last = self._rounds[-1] if self._rounds else 0
            can_start = bool(self._rounds) and self._plan.rounds > 1
            ways = [last, last + 1] if not starts_anew or not can_start else [last + 1]
            follows = next((way for way in ways[: 1 + can_start] if self._lap([*self._rounds, way])), None)
            if follows is None:
                return None
            self._rounds.append(follows)
            self._study.keep(LAPS, {"rounds": list(self._rounds)})
        self.number += 1
        return self._lap(self._rounds[: self.number])

    def _lap(self, rounds: list[int]) -> Lap | None:
        """The last of so many; None where there are no more, or nothing is left for it."""
        found = list(laps(self._plan, rounds))
        return found[-1] if len(found) == len(rounds) and found[-1].blocks else None


def last_lap(study: Study) -> Lap | None:
    """None where the study is measured whole, or not begun."""
    plan, rounds = study.plan, lap_rounds(study)
    return None if plan.looks is None or not rounds else list(laps(plan, rounds))[-1]


def lap_rounds(study: Study) -> list[int]:
    kept: Mapping[str, object] = study.kept(LAPS) or {}
    rounds = [need_whole(number) for number in need_list(kept.get("rounds", []))]
    if rounds[:1] not in ([], [0]) or any(after - before not in (0, 1) for before, after in pairwise(rounds)):
        raise StudyError(f"{study.path}: laps on launches {rounds} are in no order", hint="start a new study")
    return rounds
