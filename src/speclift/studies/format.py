"""The study file: one SQLite database, its schema and the JSON inside it.

Format history
    1  2026-11  first: meta, requests, launches, turns, records, findings
    2  2026-11  launches: settings, notices, usage; turns: counters, stamp_blur_p99_s
    3  2026-11  records: repeat, so that a cell may send a request more than once; refused
    4  2026-11  launches: gpu_memory_peak_bytes
    5  2026-11  launches, records: node, for studies that run on several machines
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from typing import TypeAlias, TypeVar

from speclift.core.document import Json, plain_object, read
from speclift.core.engine_spec import EngineSpec
from speclift.core.records import Provenance, Record
from speclift.core.traffic import Request
from speclift.workload.experiment import StudyPlan

FORMAT = 5
# 'SLFT': marks the database as a study, so that another SQLite file is never taken for one.
APPLICATION_ID = 0x534C4654

SCHEMA = files("speclift.studies").joinpath("schema.sql").read_text(encoding="utf-8")

# What turns a study of an older format into one of today's, by the format that brought it.
UPGRADES = (
    (2, "ALTER TABLE launches ADD COLUMN settings TEXT NOT NULL DEFAULT '{}'"),
    (2, "ALTER TABLE launches ADD COLUMN notices TEXT NOT NULL DEFAULT '[]'"),
    (2, "ALTER TABLE launches ADD COLUMN usage TEXT NOT NULL DEFAULT '[]'"),
    (2, "ALTER TABLE turns ADD COLUMN counters TEXT NOT NULL DEFAULT '{}'"),
    (2, "ALTER TABLE turns ADD COLUMN stamp_blur_p99_s REAL NOT NULL DEFAULT 0"),
    (3, "ALTER TABLE records ADD COLUMN repeat INTEGER NOT NULL DEFAULT 0"),
    (3, "DROP INDEX measured_once"),
    (
        3,
        "CREATE UNIQUE INDEX measured_once ON records"
        " (launch, block, load, request_id, ifnull(temperature, -1), repeat) WHERE phase = 'measured'",
    ),
    (3, "ALTER TABLE records ADD COLUMN refused TEXT NOT NULL DEFAULT '[]'"),
    (4, "ALTER TABLE launches ADD COLUMN gpu_memory_peak_bytes INTEGER"),
    (5, "ALTER TABLE launches ADD COLUMN node TEXT NOT NULL DEFAULT ''"),
    (5, "ALTER TABLE records ADD COLUMN node TEXT NOT NULL DEFAULT ''"),
)


# What SQLite keeps.
Cell: TypeAlias = int | float | str | bytes | None
Row: TypeAlias = dict[str, Cell]
T = TypeVar("T")

# Columns that hold JSON.
JSON_COLUMNS = frozenset({"load", "steps", "refused", "command", "counters", "settings", "notices", "usage"})
# Names of settings before they were named like their flags.
RENAMED = {
    "quantisation": "target_quant",
    "tensor_parallel": "tp",
    "pipeline_parallel": "pp",
    "sequences_max": "max_num_seqs",
    "keeps_prefixes": "prefix_cache",
    "schedules_ahead": "async_scheduling",
    "extra_args": "engine_args",
}


def dumps(value: object) -> str:
    """JSON in ASCII: lone surrogates and NUL in a prompt survive as escapes."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def columns_of(value: object) -> Row:
    """The fields of a value as columns: lists and objects as JSON, the rest as it is."""
    return {
        name: dumps(field) if isinstance(field, list | dict) else field  # type: ignore[misc]
        for name, field in plain_object(value).items()
    }


def record_columns(record: Record) -> Row:
    """One row of the table of records; whether answers came in one burst is told anew each time."""
    columns = columns_of(record) | columns_of(record.place)
    del columns["place"], columns["is_in_one_burst"]
    # Bytes: the model's text comes back as it was, surrogates too.
    return columns | {"text": record.text.encode("utf-8", "surrogatepass")}


def read_row(kind: type[T], row: Mapping[str, object]) -> T:
    """A row as the value that was stored; what an older format lacks has its default."""
    return read(kind, _fields(row))


def read_record(row: Mapping[str, object]) -> Record:
    fields = _fields(row)
    text = fields["text"]
    if not isinstance(text, bytes):
        raise ValueError(f"a record's text holds {type(text).__name__}")
    return read(Record, {**fields, "text": text.decode("utf-8", "surrogatepass"), "place": fields})


def read_totals(kind: type[T], row: Mapping[str, object]) -> T:
    """A row with counters as the value that holds them."""
    fields = _fields(row)
    return read(kind, {**fields, "counters": {"values": fields["counters"]}})


def _fields(row: Mapping[str, object]) -> dict[str, object]:
    """The columns with their JSON read; ValueError for a number that is none: SQLite keeps whatever it is given."""
    fields = dict(row)
    for name, value in row.items():
        if name in JSON_COLUMNS and isinstance(value, str | bytes):
            fields[name] = json.loads(value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"column {name!r} holds {value}")
    return fields


def storable(value: Cell) -> Cell:
    """Lone surrogates have no UTF-8 form; as a column's text they are shown instead of failing."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value


def request_body(request: Request) -> str:
    """A request as JSON, without what only few have: earlier versions know nothing of it."""
    fields = plain_object(request)
    if request.answer_format is None:
        del fields["answer_format"]
    return dumps(fields)


def plan_document(plan: StudyPlan) -> dict[str, Json]:
    """The plan without the requests, which have a table of their own."""
    fields = plain_object(plan)
    del fields["requests"]
    return fields


def provenance_document(provenance: Provenance) -> dict[str, Json]:
    """The provenance without its nodes, which join while the study runs."""
    fields = plain_object(provenance)
    del fields["nodes"]
    return fields


def read_plan(document: Mapping[str, object], requests: tuple[Request, ...]) -> StudyPlan:
    """The plan that `plan_document` wrote, with its requests."""
    return replace(read(StudyPlan, {**document, "requests": requests}), requests=requests)


def read_engine(document: Mapping[str, object]) -> EngineSpec:
    """The engine as stored, also where its settings had other names then."""
    by_arm = document.get("by_arm", [])
    if not isinstance(by_arm, list):
        raise ValueError(f"by_arm holds {type(by_arm).__name__}")
    return read(
        EngineSpec,
        {
            **document,
            "settings": _renamed(document["settings"]),
            "by_arm": [(name, _renamed(settings)) for name, settings in by_arm],
        },
    )


def _renamed(settings: object) -> object:
    if not isinstance(settings, dict):
        return settings
    return {RENAMED.get(name, name): value for name, value in settings.items()}
