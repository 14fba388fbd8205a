"""A study as a node sees it: it lasts as long as a job runs, and every write goes on to the study that stays.

The code that measures (bench/) writes to a study and knows of no fleet. On a node it is given a `MirrorStudy`, whose
every write goes on as a `StudyCall`; here `Mirrored` writes the same into the study that all nodes share. Launches are
numbered anew on the way, and every record and launch gets the name of its node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from speclift.bench.observer import Observer
from speclift.core.engine_spec import EngineSpec
from speclift.core.goals import Goals
from speclift.core.records import Counters, Launch, Provenance, Record, TurnHealth
from speclift.core.results import Finding
from speclift.core.units import Bytes
from speclift.studies.study import NOTHING, Done, Study
from speclift.workload.experiment import StudyPlan

# Of an engine's log: enough to see why it failed, little enough for any network.
LOG_BYTES_MAX: Bytes = 64 * 1024


@dataclass(frozen=True, slots=True)
class StudyCall:
    """One write on a node, to be made here too: a method of Study with its arguments, or `say` or `log`."""

    method: str
    arguments: tuple[object, ...]
    facts: Mapping[str, object] = field(default_factory=dict)


Tell: TypeAlias = Callable[[StudyCall], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOutline:
    """All that a node has to know of a study to work for it."""

    plan: StudyPlan
    engine: EngineSpec
    goals: Goals
    provenance: Provenance
    keeps_text: bool


def outline_of(study: Study) -> StudyOutline:
    return StudyOutline(
        plan=study.plan,
        engine=study.engine,
        goals=study.goals,
        provenance=study.provenance,
        keeps_text=study.keeps_text,
    )


class MirrorStudy(Study):
    """Made by `mirror`. `done` is what the study that stays has already."""

    tell: Tell
    known: frozenset[Done]

    def done(self) -> frozenset[Done]:
        return self.known | super().done()

    def add_launch(self, launch: Launch) -> None:
        self._tell("add_launch", (launch,))

    def launch_ready(self, launch: int, **facts: Any) -> None:
        self._tell("launch_ready", (launch,), facts)

    def launch_failed(self, launch: int, **facts: Any) -> None:
        self._tell("launch_failed", (launch,), facts)
        self._tell_log(launch)

    def launch_ended(self, launch: int, counters: Counters, **facts: Any) -> None:
        self._tell("launch_ended", (launch, counters), facts)
        self._tell_log(launch)

    def add_turn(self, launch: int, block: int, health: TurnHealth, counters: Counters = NOTHING) -> None:
        self._tell("add_turn", (launch, block, health, counters))

    def add_record(self, record: Record) -> None:
        self._tell("add_record", (record,))

    def add_finding(self, finding: Finding) -> None:
        self._tell("add_finding", (finding,))

    def _tell(
        self, method: str, arguments: tuple[object, ...], facts: Mapping[str, object] | None = None
    ) -> None:
        getattr(super(), method)(*arguments, **(facts or {}))
        self.tell(StudyCall(method, arguments, facts or {}))

    def _tell_log(self, launch: int) -> None:
        log = self.log_path(launch)
        if self.keeps_text and log.is_file():
            with log.open("rb") as written:
                written.seek(max(0, log.stat().st_size - LOG_BYTES_MAX))
                self.tell(StudyCall("log", (launch, written.read())))


@contextmanager
def mirror(path: Path, outline: StudyOutline, done: frozenset[Done], tell: Tell) -> Iterator[MirrorStudy]:
    """On a node, in a folder that goes when the job ends."""
    made = MirrorStudy.create(
        path,
        plan=outline.plan,
        engine=outline.engine,
        goals=outline.goals,
        provenance=outline.provenance,
        keeps_text=outline.keeps_text,
    )
    with made as study:
        assert isinstance(study, MirrorStudy)
        study.tell, study.known = tell, done
        yield study


class TellingObserver(Observer):
    """On a node: findings come with the study, sentences by themselves; progress is counted where all of it meets."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def say(self, text: str) -> None:
        self._tell(StudyCall("say", (text,)))


class Mirrored:
    """Here: what one job on a node tells, written into the study that stays."""

    def __init__(self, study: Study, node: str, observer: Observer) -> None:
        self._study, self._node, self._observer = study, node, observer
        # Ours by the node's own numbers.
        self.launches: dict[int, int] = {}

    def keep(self, calls: Sequence[StudyCall]) -> None:
        """Makes all of them in one transaction."""
        with self._study.together():
            for call in calls:
                self._keep(call)

    def _keep(self, call: StudyCall) -> None:
        study = self._study
        match (call.method, *call.arguments):
            case "say", text:
                self._observer.say(f"node {self._node}: {text}")
            case "log", int(launch), bytes(text):
                self._keep_log(self.launches[launch], text)
            case "add_launch", Launch() as launch:
                self.launches[launch.id] = study.next_launch_id()
                study.add_launch(replace(launch, id=self.launches[launch.id], node=self._node))
                self._observer.launching(f"{launch.arm} on {self._node}", launch.round)
            case "add_record", Record() as record:
                place = replace(record.place, launch=self.launches[record.place.launch], node=self._node)
                study.add_record(replace(record, place=place))
            case "add_finding", Finding() as finding:
                named = replace(finding, message=f"node {self._node}: {finding.message}")
                study.add_finding(named)
                self._observer.noticed(named)
            case str(method), int(launch), *others:
                getattr(study, method)(self.launches[launch], *others, **call.facts)

    def _keep_log(self, launch: int, text: bytes) -> None:
        if self._study.keeps_text:
            path = self._study.log_path(launch)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_bytes(text)
            path.chmod(0o600)
