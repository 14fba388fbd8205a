"""One study directory: study.sqlite and the engines' logs. Records are committed as they arrive.

SQLite in WAL mode: a killed process loses at most the record it was writing, never an earlier one.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import StudyError
from speclift.core.goals import Goals
from speclift.core.records import (
    Counters,
    Launch,
    Outcome,
    Phase,
    Place,
    Provenance,
    Record,
    Step,
    TurnHealth,
)
from speclift.core.results import Finding, Level
from speclift.core.traffic import load_from_dict, load_to_dict
from speclift.core.units import Seconds
from speclift.plan.experiment import StudyPlan
from speclift.store import format as fmt

DATABASE = "study.sqlite"
LOCK = "lock"


class Done(NamedTuple):
    """A place whose record is final and is not measured again."""

    arm: str
    round: int
    block: int
    request_id: str
    temperature: float | None


class Study:
    """Open with `create` or `open`; close it, or use it in a with statement."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: IO[str] | None) -> None:
        self.path = path
        self._db = connection
        self._lock = lock

    @classmethod
    def create(
        cls, path: Path, *, plan: StudyPlan, engine: EngineSpec, goals: Goals, provenance: Provenance
    ) -> Study:
        if is_study(path):
            raise StudyError(f"{path} already holds a study", hint="add --resume, or name another --study")
        with _disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            lock = _take_lock(path)
            study = cls(path, _connect(path / DATABASE), lock)
            # One transaction: a study killed while it is created is no study yet.
            study._db.execute("BEGIN IMMEDIATE")
            for statement in fmt.SCHEMA.split(";\n"):
                study._db.execute(statement)
            study._set("plan", fmt.plan_to_dict(plan))
            study._set("engine", fmt.engine_to_dict(engine))
            study._set("goals", fmt.goals_to_dict(goals))
            study._set("provenance", fmt.provenance_to_dict(provenance))
            study._db.executemany(
                "INSERT INTO requests (id, body) VALUES (?, ?)",
                [(r.id, fmt.dumps(fmt.request_to_dict(r))) for r in plan.requests],
            )
            study._db.execute(f"PRAGMA application_id = {fmt.APPLICATION_ID}")
            study._db.execute(f"PRAGMA user_version = {fmt.FORMAT}")
            study._db.execute("COMMIT")
        return study

    @classmethod
    def open(cls, path: Path, *, writing: bool = False) -> Study:
        database = path / DATABASE
        if not is_study(path):
            raise StudyError(
                f"no study at {path}", hint="a study is a directory with a complete study.sqlite"
            )
        lock = _take_lock(path) if writing else None
        connection = _connect(database)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > fmt.FORMAT:
            raise StudyError(
                f"{path} has study format {version}; this speclift reads up to {fmt.FORMAT}",
                hint="upgrade speclift: pip install -U speclift",
            )
        return cls(path, connection, lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()
        if self._lock is not None:
            self._lock.close()

    # What the study set out to do

    @property
    def plan(self) -> StudyPlan:
        rows = self._db.execute("SELECT body FROM requests ORDER BY position")
        requests = tuple(fmt.request_from_dict(json.loads(body)) for (body,) in rows)
        return fmt.plan_from_dict(self._get("plan"), requests)

    @property
    def engine(self) -> EngineSpec:
        return fmt.engine_from_dict(self._get("engine"))

    @property
    def goals(self) -> Goals:
        return fmt.goals_from_dict(self._get("goals"))

    @property
    def provenance(self) -> Provenance:
        return fmt.provenance_from_dict(self._get("provenance"))

    @property
    def block_limits(self) -> dict[int, int]:
        """Blocks the time budget cut short, with the number of items left in each; settled in round 0."""
        limits: dict[str, int] = self._get("block_limits", default={})
        return {int(block): limit for block, limit in limits.items()}

    def limit_block(self, block: int, items: int) -> None:
        with _disk_errors(self.path):
            self._set("block_limits", {**self.block_limits, block: items})

    def log_path(self, launch: int) -> Path:
        return self.path / "logs" / f"launch-{launch:03d}.log"

    # What happened

    def add_launch(self, launch: Launch) -> None:
        with _disk_errors(self.path):
            self._db.execute(
                "INSERT INTO launches (id, arm, round, command, engine_version, started_s)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (
                    *(launch.id, launch.arm, launch.round, fmt.dumps(launch.command)),
                    *(launch.engine_version, launch.started_s),
                ),
            )

    def launch_ready(self, launch: int, *, ready_s: Seconds, kv_tokens: int | None) -> None:
        self._update_launch(launch, ready_s=ready_s, kv_tokens=kv_tokens)

    def launch_failed(self, launch: int, *, failure: str, log_tail: str) -> None:
        self._update_launch(launch, failure=_safe(failure), log_tail=_safe(log_tail))

    def launch_ended(self, launch: int, counters: Counters) -> None:
        self._update_launch(launch, counters=fmt.dumps(counters.values))

    def _update_launch(self, launch: int, **values: Any) -> None:
        columns = ", ".join(f"{name} = ?" for name in values)
        with _disk_errors(self.path):
            self._db.execute(f"UPDATE launches SET {columns} WHERE id = ?", (*values.values(), launch))

    def next_launch_id(self) -> int:
        last: int = self._db.execute("SELECT ifnull(max(id), 0) FROM launches").fetchone()[0]
        return last + 1

    def add_turn(self, launch: int, block: int, health: TurnHealth) -> None:
        with _disk_errors(self.path):
            self._db.execute(
                "INSERT INTO turns (launch, block, load, loop_lag_p99_s, cpu_s, wall_s)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (
                    *(launch, block, fmt.dumps(load_to_dict(health.load))),
                    *(health.loop_lag_p99_s, health.cpu_s, health.wall_s),
                ),
            )

    def add_record(self, record: Record) -> None:
        columns = _record_columns(record)
        marks = ", ".join("?" for _ in columns)
        with _disk_errors(self.path):
            self._db.execute(
                f"INSERT INTO records ({', '.join(columns)}) VALUES ({marks})", tuple(columns.values())
            )

    def add_finding(self, finding: Finding) -> None:
        with _disk_errors(self.path):
            self._db.execute(
                'INSERT INTO findings ("check", level, message, next_step, arm) VALUES (?, ?, ?, ?, ?)',
                (finding.check, finding.level, _safe(finding.message), finding.next_step, finding.arm),
            )

    # Reading back

    def records(self) -> tuple[Record, ...]:
        cursor = self._db.execute("SELECT * FROM records ORDER BY id")
        names = [column[0] for column in cursor.description]
        return tuple(_record_from(dict(zip(names, row, strict=True))) for row in cursor)

    def launches(self) -> tuple[tuple[Launch, int | None], ...]:
        """Each launch with the KV tokens it reported."""
        rows = self._db.execute(
            "SELECT id, arm, round, command, engine_version, started_s, ready_s, failure, log_tail,"
            " counters, kv_tokens FROM launches ORDER BY id"
        )
        return tuple((_launch_from(row), row[10]) for row in rows)

    def turn_health(self) -> tuple[TurnHealth, ...]:
        rows = self._db.execute("SELECT load, loop_lag_p99_s, cpu_s, wall_s FROM turns ORDER BY id")
        return tuple(
            TurnHealth(
                load=load_from_dict(json.loads(load)), loop_lag_p99_s=lag_s, cpu_s=cpu_s, wall_s=wall_s
            )
            for load, lag_s, cpu_s, wall_s in rows
        )

    def findings(self) -> tuple[Finding, ...]:
        rows = self._db.execute('SELECT "check", level, message, next_step, arm FROM findings ORDER BY id')
        return tuple(
            Finding(check=check, level=Level(level), message=message, next_step=next_step, arm=arm)
            for check, level, message, next_step, arm in rows
        )

    def done(self) -> frozenset[Done]:
        """Final records: successes, and failures of a server that lived on. What a dying server broke off is
        measured again on resume."""
        rows = self._db.execute(
            "SELECT DISTINCT records.arm, records.round, block, request_id, temperature FROM records"
            " JOIN launches ON launches.id = records.launch"
            " WHERE phase = 'measured' AND (outcome = 'ok' OR launches.failure = '')"
        )
        return frozenset(Done(*row) for row in rows)

    def _get(self, key: str, **default: Any) -> Any:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        if row is None:
            if "default" in default:
                return default["default"]
            raise StudyError(f"{self.path} is incomplete: it has no {key}", hint="start a new study")
        return json.loads(row[0])

    def _set(self, key: str, value: Any) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, fmt.dumps(value)))


def is_study(path: Path) -> bool:
    """True where a study was completely created, in whatever format version."""
    database = path / DATABASE
    if not database.is_file():
        return False
    try:
        connection = sqlite3.connect(database)
        application: int = connection.execute("PRAGMA application_id").fetchone()[0]
        connection.close()
    except sqlite3.DatabaseError as error:
        raise StudyError(
            f"{database} is damaged: {error}", hint="restore it, or start a new study"
        ) from error
    return application == fmt.APPLICATION_ID


def _connect(database: Path) -> sqlite3.Connection:
    # Autocommit: every record is on disk when its call returns.
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    # Survives a killed process; a power cut may cost the last records.
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def _take_lock(path: Path) -> IO[str]:
    lock = (path / LOCK).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise StudyError(f"another speclift is writing to {path}", hint="wait for it, or end it") from error
    return lock


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.OperationalError, OSError) as error:
        raise StudyError(
            f"cannot write to {path}: {error}",
            hint="what was measured so far is kept; free disk space or permissions, then --resume",
        ) from error


def _safe(text: str) -> str:
    """Lone surrogates cannot be stored as UTF-8; show them instead of failing."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _record_columns(record: Record) -> dict[str, Any]:
    place = record.place
    return {
        "launch": place.launch,
        "arm": place.arm,
        "round": place.round,
        "block": place.block,
        "load": fmt.dumps(load_to_dict(place.load)),
        "request_id": place.request_id,
        "segment": place.segment,
        "temperature": place.temperature,
        "phase": place.phase,
        "outcome": record.outcome,
        "error": _safe(record.error),
        "intended_s": record.intended_s,
        "sent_s": record.sent_s,
        "end_s": record.end_s,
        "first_token_s": record.first_token_s,
        "last_token_s": record.last_token_s,
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "finish_reason": record.finish_reason,
        "text": record.text.encode("utf-8", "surrogatepass"),
        "drafted": record.drafted,
        "accepted": record.accepted,
        "steps": None
        if record.steps is None
        else fmt.dumps([(step.drafted, step.accepted) for step in record.steps]),
    }


def _record_from(row: dict[str, Any]) -> Record:
    place = Place(
        arm=row["arm"],
        launch=row["launch"],
        round=row["round"],
        block=row["block"],
        load=load_from_dict(json.loads(row["load"])),
        request_id=row["request_id"],
        segment=row["segment"],
        temperature=row["temperature"],
        phase=Phase(row["phase"]),
    )
    return Record(
        place=place,
        outcome=Outcome(row["outcome"]),
        error=row["error"],
        intended_s=row["intended_s"],
        sent_s=row["sent_s"],
        end_s=row["end_s"],
        first_token_s=row["first_token_s"],
        last_token_s=row["last_token_s"],
        prompt_tokens=row["prompt_tokens"],
        output_tokens=row["output_tokens"],
        finish_reason=row["finish_reason"],
        text=row["text"].decode("utf-8", "surrogatepass"),
        drafted=row["drafted"],
        accepted=row["accepted"],
        steps=None if row["steps"] is None else _steps(json.loads(row["steps"])),
    )


def _steps(pairs: Iterable[list[int]]) -> tuple[Step, ...]:
    return tuple(Step(drafted=drafted, accepted=accepted) for drafted, accepted in pairs)


def _launch_from(row: tuple[Any, ...]) -> Launch:
    return Launch(
        id=row[0],
        arm=row[1],
        round=row[2],
        command=tuple(json.loads(row[3])),
        engine_version=row[4],
        started_s=row[5],
        ready_s=row[6],
        failure=row[7],
        log_tail=row[8],
        counters=Counters(values=json.loads(row[9])),
    )
