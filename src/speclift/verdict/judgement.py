"""What a study says, all of it as values: the verdict, what it took, and everything that a report shows beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from speclift.core.fleet import NodeGroup
from speclift.core.goals import Goals
from speclift.core.records import Provenance
from speclift.core.results import (
    Acceptance,
    AtTemperature,
    Cell,
    Comparison,
    Crossover,
    Evidence,
    Finding,
    Resources,
    Upgrade,
    Verdict,
)
from speclift.core.units import Seconds, Tokens
from speclift.lossless.gate import Gate
from speclift.search.tuning import ConfirmedTuning


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    # As planned: servers beside each other, requests per load and launch, launches of each server.
    arms: int
    requests: int
    launches: int
    # All requests of the plan, and those of them that were sent; arms that failed are in neither.
    planned: int
    asked: int
    # Server starts, and the time in which any server started or any request was under way.
    starts: int
    starting_s: Seconds
    asking_s: Seconds
    # Of the lossless gate; 0 where none ran.
    checking_s: Seconds
    # From start to ready, by arm.
    ready_s: Mapping[str, Seconds]
    # The prompts' segments, and the highest limit of any.
    segments: tuple[str, ...]
    max_tokens: Tokens | None
    # Distinct prompts to be had, by segment; None where only their file knows.
    pool: Mapping[str, int] | None
    # Ended before all was sent, because nothing more could change the verdict.
    is_settled: bool = False

    @property
    def missing(self) -> int:
        """Requests that would still be sent if the study went on."""
        return 0 if self.is_settled else max(0, self.planned - self.asked)

    def seconds_for(self, *, arms: int, requests: int, launches: int) -> Seconds | None:
        """Of a study of so many; None where this one has measured too little to tell."""
        if not self.asked or not self.planned:
            return None
        cells = self.planned / (self.arms * self.requests * self.launches)
        return (
            arms * launches * self._start_s
            + arms * launches * requests * cells * self._request_s
            + self.checking_s
        )

    def seconds_to_end(self) -> Seconds | None:
        """What is left of the plan."""
        if not self.asked:
            return None
        rounds = math.ceil(self.missing / (self.planned / self.launches))
        return rounds * self.arms * self._start_s + self.missing * self._request_s + self.checking_s

    @property
    def _start_s(self) -> Seconds:
        return self.starting_s / self.starts if self.starts else 0.0

    @property
    def _request_s(self) -> Seconds:
        return self.asking_s / self.asked


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceBucket(Acceptance):
    """By temperature; `up_to` is None where the bucket has no upper edge."""

    arm: str
    above: float
    up_to: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceHistogram:
    """Requests by acceptance rate, in ten bins."""

    arm: str
    by: Literal["segment", "temperature"]
    label: str
    requests: int
    counts: Annotated[tuple[int, ...], Meta(min_length=10, max_length=10)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """How an arm is served: in every form its engine takes, such as command and yaml, and as the engine's settings."""

    forms: Mapping[str, str]
    config: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroupSpeedups:
    """What nodes of one kind say, where a fleet has several; the verdict is on those `is_judged`."""

    group: NodeGroup
    is_judged: bool
    overall: tuple[Comparison, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLineChange:
    """The user's own text beside what is recommended; `after` is equal to it where nothing should change, and `diff`
    is empty then."""

    before: str
    after: str
    diff: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    # The study, or the first of those that were pooled, as a path to show.
    study: str
    goals: Goals
    provenance: Provenance
    verdict: Verdict
    # Of the winner; None where nobody won.
    served: Served | None
    on_all: tuple[Evidence, ...]
    cells: tuple[Cell, ...]
    acceptance_by_temperature: tuple[AcceptanceBucket, ...]
    acceptance_histograms: tuple[AcceptanceHistogram, ...]
    findings: tuple[Finding, ...]
    crossovers: tuple[Crossover, ...]
    kv_tokens: Mapping[str, int]
    kv_peaks: Mapping[str, float]
    failed_arms: tuple[str, ...]
    # Of the models' files by name; those that are not on this machine are missing.
    weight_bytes: Mapping[str, int]
    effort: Effort
    lossless: Gate
    # None where there was nothing to search.
    tuning: ConfirmedTuning | None
    # None where the user brought no line, or the verdict says nothing about it yet.
    line: OwnLineChange | None = None
    # Of the baseline and every arm.
    resources: tuple[Resources, ...] = ()
    # Of every arm; empty where all prompts have the same temperature.
    at_temperatures: tuple[AtTemperature, ...] = ()
    # Where two versions of the engine were compared: what changed since the other one.
    upgrade: Upgrade | None = None
    # Empty unless the nodes of a fleet were unlike.
    node_groups: tuple[NodeGroupSpeedups, ...] = ()
