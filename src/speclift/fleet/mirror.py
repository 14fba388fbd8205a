"""A study as a node sees it: kept there for as long as a job runs, and told word by word to the one that stays.

The code that measures (bench/) writes to a study and knows of no fleet. On a node it is given a `MirrorStudy`, whose
every write goes on as an event; here `Mirrored` writes the same into the study that all nodes share. Launches are
numbered anew on the way, and every record and launch gets the name of its node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from speclift.bench.observer import Observer
from speclift.core.engine_spec import EngineSpec
from speclift.core.goals import Goals
from speclift.core.records import Counters, Launch, Provenance, Record, TurnHealth, Usage
from speclift.core.results import Finding
from speclift.core.units import Bytes, Seconds
from speclift.studies.study import NOTHING, Done, Study
from speclift.workload.experiment import StudyPlan

# Of an engine's log: enough to see why it failed, little enough for any network.
LOG_BYTES_MAX: Bytes = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchBegun:
    launch: Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReady:
    launch: int
    ready_s: Seconds
    kv_tokens: int | None
    settings: Mapping[str, str]
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFailed:
    launch: int
    failure: str
    log_tail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEnded:
    launch: int
    counters: Counters
    usage: tuple[Usage, ...]
    gpu_memory_peak_bytes: Bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLog:
    """The end of what a server wrote."""

    launch: int
    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTaken:
    launch: int
    block: int
    health: TurnHealth
    counters: Counters


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTaken:
    """One record."""

    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingMade:
    finding: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceSaid:
    text: str


StudyEvent: TypeAlias = (
    LaunchBegun
    | LaunchReady
    | LaunchFailed
    | LaunchEnded
    | LaunchLog
    | TurnTaken
    | RecordTaken
    | FindingMade
    | SentenceSaid
)
Tell: TypeAlias = Callable[[StudyEvent], None]


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
        super().add_launch(launch)
        self.tell(LaunchBegun(launch=launch))

    def launch_ready(
        self,
        launch: int,
        *,
        ready_s: Seconds,
        kv_tokens: int | None,
        settings: Mapping[str, str] | None = None,
        notices: Sequence[str] = (),
    ) -> None:
        super().launch_ready(launch, ready_s=ready_s, kv_tokens=kv_tokens, settings=settings, notices=notices)
        self.tell(
            LaunchReady(
                launch=launch,
                ready_s=ready_s,
                kv_tokens=kv_tokens,
                settings=dict(settings or {}),
                notices=tuple(notices),
            )
        )

    def launch_failed(self, launch: int, *, failure: str, log_tail: str) -> None:
        super().launch_failed(launch, failure=failure, log_tail=log_tail)
        self.tell(LaunchFailed(launch=launch, failure=failure, log_tail=log_tail))
        self._tell_log(launch)

    def launch_ended(
        self,
        launch: int,
        counters: Counters,
        *,
        usage: tuple[Usage, ...] = (),
        gpu_memory_peak_bytes: Bytes | None = None,
    ) -> None:
        super().launch_ended(launch, counters, usage=usage, gpu_memory_peak_bytes=gpu_memory_peak_bytes)
        self.tell(
            LaunchEnded(
                launch=launch, counters=counters, usage=usage, gpu_memory_peak_bytes=gpu_memory_peak_bytes
            )
        )
        self._tell_log(launch)

    def add_turn(self, launch: int, block: int, health: TurnHealth, counters: Counters = NOTHING) -> None:
        super().add_turn(launch, block, health, counters)
        self.tell(TurnTaken(launch=launch, block=block, health=health, counters=counters))

    def add_record(self, record: Record) -> None:
        super().add_record(record)
        self.tell(RecordTaken(record=record))

    def add_finding(self, finding: Finding) -> None:
        super().add_finding(finding)
        self.tell(FindingMade(finding=finding))

    def _tell_log(self, launch: int) -> None:
        log = self.log_path(launch)
        if self.keeps_text and log.is_file():
            with log.open("rb") as written:
                written.seek(max(0, log.stat().st_size - LOG_BYTES_MAX))
                self.tell(LaunchLog(launch=launch, text=written.read()))


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
        self._tell(SentenceSaid(text=text))


class Mirrored:
    """Here: what one job on a node tells, written into the study that stays."""

    def __init__(self, study: Study, node: str, observer: Observer) -> None:
        self._study, self._node, self._observer = study, node, observer
        # Ours by the node's own numbers.
        self.launches: dict[int, int] = {}

    def keep(self, events: Sequence[StudyEvent]) -> None:
        """One transaction for all of them."""
        with self._study.together():
            for event in events:
                self._keep(event)

    def _keep(self, event: StudyEvent) -> None:
        study = self._study
        match event:
            case LaunchBegun(launch=launch):
                self.launches[launch.id] = study.next_launch_id()
                study.add_launch(replace(launch, id=self.launches[launch.id], node=self._node))
                self._observer.launching(f"{launch.arm} on {self._node}", launch.round)
            case TurnTaken():
                study.add_turn(self.launches[event.launch], event.block, event.health, event.counters)
            case RecordTaken(record=record):
                place = replace(record.place, launch=self.launches[record.place.launch], node=self._node)
                study.add_record(replace(record, place=place))
            case FindingMade(finding=finding):
                found = replace(finding, message=f"node {self._node}: {finding.message}")
                study.add_finding(found)
                self._observer.noticed(found)
            case SentenceSaid(text=text):
                self._observer.say(f"node {self._node}: {text}")
            case LaunchLog():
                self._keep_log(event)
            case LaunchReady() | LaunchFailed() | LaunchEnded():
                self._keep_launch(event)

    def _keep_launch(self, event: LaunchReady | LaunchFailed | LaunchEnded) -> None:
        study, launch = self._study, self.launches[event.launch]
        match event:
            case LaunchReady():
                study.launch_ready(
                    launch,
                    ready_s=event.ready_s,
                    kv_tokens=event.kv_tokens,
                    settings=event.settings,
                    notices=event.notices,
                )
            case LaunchFailed():
                study.launch_failed(launch, failure=event.failure, log_tail=event.log_tail)
            case LaunchEnded():
                study.launch_ended(
                    launch,
                    event.counters,
                    usage=event.usage,
                    gpu_memory_peak_bytes=event.gpu_memory_peak_bytes,
                )

    def _keep_log(self, event: LaunchLog) -> None:
        if self._study.keeps_text:
            path = self._study.log_path(self.launches[event.launch])
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_bytes(event.text)
            path.chmod(0o600)
