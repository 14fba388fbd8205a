"""One study directory: study.sqlite and the engines' logs. Records are committed as they arrive.

SQLite in WAL mode: a killed process loses at most the record it was writing, never an earlier one.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec

from speclift.core.document import plain, plain_object, read, read_json
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import StudyError
from speclift.core.fleet import NodeFacts
from speclift.core.goals import Goals
from speclift.core.records import Counters, Launch, Provenance, Record, TurnHealth, TurnTotals, Usage
from speclift.core.results import Finding
from speclift.core.traffic import Request
from speclift.core.units import Bytes, Seconds
from speclift.studies import format as fmt
from speclift.studies.database import (
    connect,
    disk_errors,
    file_at,
    is_study,
    read_errors,
    require_empty,
    take_lock,
)
from speclift.studies.format import Cell
from speclift.studies.private import private_folder
from speclift.studies.texts import digest_of, finding_stand_in, record_stand_in, request_stand_in, with_texts
from speclift.studies.verdict_file import DATABASE
from speclift.workload.experiment import StudyPlan

__all__ = ["DATABASE", "Done", "Study", "is_study"]

NOTHING = Counters()
# Names of documents kept beside the records.
KEEPS_TEXT = "keeps-text"
NODES = "nodes"
LEFT_OUT = "left-out"
# Beside every document its hash, under its name and this.
SEAL = "#sha256"


class Done(msgspec.Struct, frozen=True):
    """A place whose record is final and is not measured again."""

    arm: str
    round: int
    block: int
    request_id: str
    temperature: float | None
    repeat: int = 0


class Study:
    """Open with `create` or `open`; close it, or use it in a with statement."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: IO[str] | None) -> None:
        self.path = path
        self._db = connection
        self._lock = lock
        self._file = file_at(path / DATABASE)
        self._keeps_text: bool | None = None
        # Of a study that keeps no text, what this process knows of it: requests, and records as they were.
        self._requests: tuple[Request, ...] | None = None
        self._spoken: list[Record] = []
        self._logs: tempfile.TemporaryDirectory[str] | None = None

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        plan: StudyPlan,
        engine: EngineSpec,
        goals: Goals,
        provenance: Provenance,
        keeps_text: bool = True,
    ) -> Study:
        if is_study(path):
            raise StudyError(f"{path} already holds a study", hint="add --resume, or use another --study")
        with disk_errors(path), ExitStack() as undo:
            private_folder(path)
            lock = undo.enter_context(take_lock(path))
            require_empty(path / DATABASE)
            study = undo.enter_context(cls(path, connect(path / DATABASE), lock))
            # One transaction: a study killed while it is created is no study yet.
            study._db.execute("BEGIN IMMEDIATE")
            for statement in fmt.SCHEMA.split(";\n"):
                study._db.execute(statement)
            study._set("plan", fmt.plan_document(plan))
            study._set("engine", plain_object(engine))
            study._set("goals", plain_object(goals))
            study._set("provenance", fmt.provenance_document(provenance))
            requests = plan.requests
            if not keeps_text:
                study._set(KEEPS_TEXT, {"keeps_text": False})
                study._requests = plan.requests
                requests = tuple(request_stand_in(request) for request in plan.requests)
            study._db.executemany(
                "INSERT INTO requests (id, body) VALUES (?, ?)",
                [(r.id, fmt.request_body(r)) for r in requests],
            )
            study._db.execute(f"PRAGMA application_id = {fmt.APPLICATION_ID}")
            study._db.execute(f"PRAGMA user_version = {fmt.FORMAT}")
            study._db.execute("COMMIT")
            undo.pop_all()
        return study

    @classmethod
    def open(cls, path: Path, *, writing: bool = False) -> Study:
        database = path / DATABASE
        if not is_study(path):
            raise StudyError(
                f"no study at {path}", hint="a study is a directory with a complete study.sqlite"
            )
        with read_errors(path), ExitStack() as undo:
            lock = undo.enter_context(take_lock(path)) if writing else None
            study = undo.enter_context(cls(path, connect(database), lock))
            version = study._db.execute("PRAGMA user_version").fetchone()[0]
            if version > fmt.FORMAT:
                raise StudyError(
                    f"{path} has study format {version}; this speclift reads up to {fmt.FORMAT}",
                    hint="upgrade speclift: pip install -U speclift",
                )
            if writing:
                study._upgrade(version)
            undo.pop_all()
        return study

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def settle(self) -> None:
        """Nothing is left to be written into the database when it is closed; another reader may put that off."""
        with suppress(sqlite3.OperationalError):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        self._db.close()
        if self._logs is not None:
            self._logs.cleanup()
        if self._lock is not None:
            self._lock.close()

    # What the study set out to do

    @property
    def plan(self) -> StudyPlan:
        with read_errors(self.path):
            rows = self._rows("SELECT body FROM requests ORDER BY position")
            requests = tuple(read_json(Request, str(row["body"])) for row in rows)
            return fmt.read_plan(self._get("plan"), self._requests or requests)

    @property
    def keeps_text(self) -> bool:
        if self._keeps_text is None:
            self._keeps_text = self.kept(KEEPS_TEXT) is None
        return self._keeps_text

    def provide(self, requests: Iterable[Request]) -> None:
        """The text of a study's requests, where it keeps none and is to go on; StudyError where it is another."""
        self._requests = with_texts(self.plan.requests, requests)

    @property
    def engine(self) -> EngineSpec:
        with read_errors(self.path):
            return fmt.read_engine(self._get("engine"))

    @property
    def goals(self) -> Goals:
        with read_errors(self.path):
            return read(Goals, self._get("goals"))

    @property
    def provenance(self) -> Provenance:
        with read_errors(self.path):
            return read(Provenance, self._get("provenance"))

    @property
    def block_limits(self) -> dict[int, int]:
        """Blocks the time budget cut short, with the number of items left in each; settled in round 0."""
        with read_errors(self.path):
            return msgspec.convert(self._found("block_limits") or {}, dict[int, int], str_keys=True)

    def limit_block(self, block: int, items: int) -> None:
        with disk_errors(self.path):
            limits = {**self.block_limits, block: items}
            self._set("block_limits", {str(number): limit for number, limit in limits.items()})

    @property
    def nodes(self) -> tuple[NodeFacts, ...]:
        """The machines of a fleet that took part; none where the study is of one machine."""
        with read_errors(self.path):
            return read(tuple[NodeFacts, ...], (self._found(NODES) or {}).get("nodes", []))

    def add_nodes(self, facts: Iterable[NodeFacts]) -> None:
        """Adds machines to those that took part before; one that joined again is as it is now."""
        by_name = {node.name: node for node in (*self.nodes, *facts)}
        self.keep(NODES, {"nodes": plain(list(by_name.values()))})

    @property
    def left_out(self) -> list[str]:
        """Sentences on the part of the last run that the budget left out."""
        with read_errors(self.path):
            return read(list[str], (self._found(LEFT_OUT) or {}).get("left_out", []))

    def set_left_out(self, words: Sequence[str]) -> None:
        """Replaces `left_out`, also by nothing where an earlier run had left something out."""
        if words or self.left_out:
            self.keep(LEFT_OUT, {"left_out": list(words)})

    def keep(self, name: str, document: Mapping[str, object]) -> None:
        """A JSON document beside the records: what the lossless gate found, how a search stands."""
        with disk_errors(self.path):
            self._set(name, document)

    def kept(self, name: str) -> dict[str, Any] | None:
        """None where none of that name was kept."""
        with read_errors(self.path):
            return self._found(name)

    @property
    def logs(self) -> Path:
        """Of the engines. They may quote what they are asked: where no text is kept, neither are they."""
        if self.keeps_text:
            return self.path / "logs"
        self._logs = self._logs or tempfile.TemporaryDirectory(prefix="speclift-logs-")
        return Path(self._logs.name)

    def log_path(self, launch: int) -> Path:
        return self.logs / f"launch-{launch:03d}.log"

    # What happened

    def add_launch(self, launch: Launch) -> None:
        columns = fmt.columns_of(launch)
        at_start = ("id", "arm", "round", "command", "engine_version", "started_s", "node")
        self._insert("launches", **{name: columns[name] for name in at_start})

    def launch_ready(
        self,
        launch: int,
        *,
        ready_s: Seconds,
        kv_tokens: int | None,
        settings: Mapping[str, str] | None = None,
        notices: Sequence[str] = (),
    ) -> None:
        said = {"settings": fmt.dumps(dict(settings or {})), "notices": fmt.dumps(list(notices))}
        self._update_launch(launch, ready_s=ready_s, kv_tokens=kv_tokens, **said)

    def launch_failed(self, launch: int, *, failure: str, log_tail: str) -> None:
        self._update_launch(launch, failure=failure, log_tail=log_tail if self.keeps_text else "")

    def launch_ended(
        self,
        launch: int,
        counters: Counters,
        *,
        usage: tuple[Usage, ...] = (),
        gpu_memory_peak_bytes: Bytes | None = None,
    ) -> None:
        self._update_launch(
            launch,
            counters=fmt.dumps(counters.values),
            usage=fmt.dumps(plain(usage)),
            gpu_memory_peak_bytes=gpu_memory_peak_bytes,
        )

    def next_launch_id(self) -> int:
        (row,) = self._rows("SELECT ifnull(max(id), 0) AS last FROM launches")
        return int(row["last"]) + 1

    def add_turn(self, launch: int, block: int, health: TurnHealth, counters: Counters = NOTHING) -> None:
        # Most of an engine's counters stand still in a turn.
        moved = fmt.dumps({name: value for name, value in counters.values.items() if value})
        self._insert("turns", launch=launch, block=block, counters=moved, **fmt.columns_of(health))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Several writes at the price of one: on disk when it ends, also where one of them fails."""
        with disk_errors(self.path):
            self._db.execute("BEGIN")
            try:
                yield
            finally:
                if self._db.in_transaction:  # a full disk ends it too
                    self._db.execute("COMMIT")

    def require_in_place(self) -> None:
        """StudyError where the file is no longer at its path: what is written to it then is nobody's."""
        if file_at(self.path / DATABASE) != self._file:
            raise StudyError(
                f"the study at {self.path} is gone: {DATABASE} was deleted, moved or replaced in the meantime",
                hint="where it was moved, go on with --resume --study NEW_PLACE; else measure again",
            )

    def add_record(self, record: Record) -> None:
        if not self.keeps_text:
            self._spoken.append(record)
            record = record_stand_in(record)
        self._insert("records", **fmt.record_columns(record))

    def add_finding(self, finding: Finding) -> None:
        finding = finding if self.keeps_text else finding_stand_in(finding)
        self._insert("findings", **fmt.columns_of(finding))

    # Reading back

    def records(self) -> tuple[Record, ...]:
        self.require_in_place()
        with read_errors(self.path):
            return tuple(map(fmt.read_record, self._rows("SELECT * FROM records ORDER BY id")))

    def spoken(self) -> tuple[Record, ...]:
        """Records whose text is known: all of them, or those of this process where no text is kept."""
        return self.records() if self.keeps_text else tuple(self._spoken)

    def launches(self) -> tuple[tuple[Launch, int | None], ...]:
        """Each launch with the KV tokens it reported."""
        with read_errors(self.path):
            rows = self._rows("SELECT * FROM launches ORDER BY id")
            return tuple((fmt.read_totals(Launch, row), read(int | None, row["kv_tokens"])) for row in rows)

    def turn_health(self) -> tuple[TurnHealth, ...]:
        with read_errors(self.path):
            rows = self._rows("SELECT * FROM turns ORDER BY id")
            return tuple(fmt.read_row(TurnHealth, row) for row in rows)

    def turn_totals(self) -> tuple[TurnTotals, ...]:
        """Turns of which the engine told its totals."""
        with read_errors(self.path):
            rows = self._rows("SELECT * FROM turns ORDER BY id")
            totals = [
                fmt.read_totals(TurnTotals, {"counters": "{}", **row}) for row in rows
            ]  # format 1 has none
            return tuple(turn for turn in totals if turn.counters.values)

    def findings(self) -> tuple[Finding, ...]:
        with read_errors(self.path):
            return tuple(
                fmt.read_row(Finding, row) for row in self._rows("SELECT * FROM findings ORDER BY id")
            )

    def done(self) -> frozenset[Done]:
        """Final records: successes, and failures of a server that lived on. What a dying server broke off is
        measured again on resume."""
        return frozenset[Done]().union(*self.done_by_node().values())

    def done_by_node(self) -> dict[str, frozenset[Done]]:
        """The same, by where it was measured: the one machine of most studies has no name."""
        # A study that is only read may be of a format without nodes.
        node = "records.node" if self._has_nodes() else "''"
        rows = self._rows(
            f"SELECT DISTINCT {node} AS node, records.arm, records.round, block, request_id, temperature, repeat"
            " FROM records JOIN launches ON launches.id = records.launch"
            " WHERE phase = 'measured' AND (outcome = 'ok' OR launches.failure = '')",
        )
        places: dict[str, set[Done]] = defaultdict(set)
        for row in rows:
            places[str(row.pop("node"))].add(read(Done, row))
        return {name: frozenset(done) for name, done in places.items()}

    def _has_nodes(self) -> bool:
        columns = self._db.execute("PRAGMA table_info(records)").fetchall()
        return any(column[1] == "node" for column in columns)

    # The database

    def _upgrade(self, version: int) -> None:
        """An old study that goes on gets the columns it lacks, all or none of them."""
        self._db.execute("BEGIN IMMEDIATE")
        for statement in (change for since, change in fmt.UPGRADES if version < since):
            self._db.execute(statement)
        self._db.execute(f"PRAGMA user_version = {fmt.FORMAT}")
        self._db.execute("COMMIT")

    def _get(self, key: str) -> Mapping[str, object]:
        document = self._found(key)
        if document is None:
            raise StudyError(f"{self.path} is incomplete: it has no {key}", hint="start a new study")
        return document

    def _found(self, key: str) -> dict[str, Any] | None:
        """None where there is no such document."""
        rows = self._rows("SELECT value FROM meta WHERE key = ?", key)
        if not rows:
            return None
        text = str(rows[0]["value"])
        seal = self._rows("SELECT value FROM meta WHERE key = ?", key + SEAL)
        if seal and seal[0]["value"] != digest_of(text):
            raise StudyError(
                f"cannot read the study at {self.path}: its {key!r} is damaged",
                hint="if it was edited or damaged, restore it from a copy or start a new study",
            )
        return read_json(dict[str, Any], text)

    def _set(self, key: str, value: Mapping[str, object]) -> None:
        """With a seal: whoever reads it relies on its shape, which an edited one need not have."""
        text = fmt.dumps(value)
        self._db.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)", [(key, text), (key + SEAL, digest_of(text))]
        )

    def _rows(self, query: str, *values: Cell) -> list[dict[str, Any]]:
        with read_errors(self.path):
            cursor = self._db.execute(query, values)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def _insert(self, table: str, **values: Cell) -> None:
        columns, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" for _ in values)
        self._write(f"INSERT INTO {table} ({columns}) VALUES ({marks})", *values.values())

    def _update_launch(self, launch: int, **values: Cell) -> None:
        columns = ", ".join(f"{name} = ?" for name in values)
        self._write(f"UPDATE launches SET {columns} WHERE id = ?", *values.values(), launch)

    def _write(self, statement: str, *values: Cell) -> None:
        self.require_in_place()
        with disk_errors(self.path):
            self._db.execute(statement, tuple(fmt.storable(value) for value in values))
