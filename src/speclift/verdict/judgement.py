"""What a study says, all of it as values: the verdict, and everything that a report shows beside it."""

from __future__ import annotations

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
from speclift.lossless.gate import Gate
from speclift.search.tuning import ConfirmedTuning
from speclift.verdict.effort import Effort


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
