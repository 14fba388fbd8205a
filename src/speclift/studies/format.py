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
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import TypeAlias

from speclift.core.arm import Arm, GpuShare, ServerSettings
from speclift.core.document import Json, plain, read
from speclift.core.engine_spec import AttachSettings, EngineSpec
from speclift.core.goals import Goals, Slo
from speclift.core.json_reading import (
    built,
    need_flag,
    need_list,
    need_number,
    need_object,
    need_objects,
    need_text,
    need_texts,
    need_whole,
)
from speclift.core.looks import Looks
from speclift.core.own_line import OwnLine
from speclift.core.records import Provenance
from speclift.core.speculation import Speculation
from speclift.core.traffic import Load, Message, Request
from speclift.core.typed_json import read_as
from speclift.workload.experiment import StudyPlan

FORMAT = 5
# 'SLFT': marks the database as a study, so that another SQLite file is never taken for one.
APPLICATION_ID = 0x534C4654

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE requests (position INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, body TEXT NOT NULL);
CREATE TABLE launches (
    id INTEGER PRIMARY KEY, arm TEXT NOT NULL, round INTEGER NOT NULL, command TEXT NOT NULL,
    engine_version TEXT NOT NULL, started_s REAL NOT NULL, ready_s REAL, kv_tokens INTEGER,
    failure TEXT NOT NULL DEFAULT '', log_tail TEXT NOT NULL DEFAULT '', counters TEXT NOT NULL DEFAULT '{}',
    settings TEXT NOT NULL DEFAULT '{}', notices TEXT NOT NULL DEFAULT '[]', usage TEXT NOT NULL DEFAULT '[]',
    gpu_memory_peak_bytes INTEGER, node TEXT NOT NULL DEFAULT ''
);
CREATE TABLE turns (
    id INTEGER PRIMARY KEY, launch INTEGER NOT NULL REFERENCES launches, block INTEGER NOT NULL,
    load TEXT NOT NULL, loop_lag_p99_s REAL NOT NULL, cpu_s REAL NOT NULL, wall_s REAL NOT NULL,
    counters TEXT NOT NULL DEFAULT '{}', stamp_blur_p99_s REAL NOT NULL DEFAULT 0
);
CREATE TABLE records (
    id INTEGER PRIMARY KEY, launch INTEGER NOT NULL REFERENCES launches, arm TEXT NOT NULL,
    round INTEGER NOT NULL, block INTEGER NOT NULL, load TEXT NOT NULL, request_id TEXT NOT NULL,
    segment TEXT NOT NULL, temperature REAL, phase TEXT NOT NULL, outcome TEXT NOT NULL, error TEXT NOT NULL,
    intended_s REAL NOT NULL, sent_s REAL NOT NULL, end_s REAL NOT NULL,
    first_token_s REAL, last_token_s REAL,
    prompt_tokens INTEGER, output_tokens INTEGER, finish_reason TEXT, text BLOB NOT NULL,
    drafted INTEGER, accepted INTEGER, steps TEXT, repeat INTEGER NOT NULL DEFAULT 0,
    refused TEXT NOT NULL DEFAULT '[]', node TEXT NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX measured_once ON records
    (launch, block, load, request_id, ifnull(temperature, -1), repeat) WHERE phase = 'measured';
CREATE TABLE findings (
    id INTEGER PRIMARY KEY, "check" TEXT NOT NULL, level TEXT NOT NULL, message TEXT NOT NULL,
    next_step TEXT NOT NULL, arm TEXT
);
"""

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

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "INTEGER": (int,),
    "REAL": (int, float),
    "TEXT": (str,),
    "BLOB": (bytes,),
}


def _column_types() -> dict[str, tuple[type, ...]]:
    """What may stand in a column of this name, by the schema; of a name in several tables what any of them takes."""
    types: dict[str, tuple[type, ...]] = {}
    for name, kind, rest in re.findall(r'"?(\w+)"? (INTEGER|REAL|TEXT|BLOB)([^,\n)]*)', SCHEMA):
        empty = () if "NOT NULL" in rest or "PRIMARY KEY" in rest else (type(None),)
        types[name] = (*types.get(name, ()), *_PYTHON_TYPES[kind], *empty)
    return types


COLUMN_TYPES = _column_types()


def checked_row(row: dict[str, Cell]) -> dict[str, Cell]:
    """ValueError where a value is of another kind than was written: SQLite keeps whatever it is given."""
    for name, value in row.items():
        allowed = COLUMN_TYPES.get(name, (object,))
        is_finite = not isinstance(value, float) or math.isfinite(value)
        if not isinstance(value, allowed) or not is_finite:
            raise ValueError(f"column {name!r} holds {type(value).__name__} {repr(value)[:40]}")
    return row


def dumps(value: object) -> str:
    """ASCII only: lone surrogates and NUL in a prompt survive as escapes."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def request_to_dict(request: Request) -> dict[str, Json]:
    """Without what only few requests have: earlier versions know nothing of it."""
    fields = asdict(request)
    if request.answer_format is None:
        del fields["answer_format"]
    return fields


def request_from_dict(data: Mapping[str, object]) -> Request:
    messages = tuple(built(Message, message) for message in need_objects(data["messages"]))
    return built(Request, {**data, "messages": messages})


def plan_to_dict(plan: StudyPlan) -> dict[str, Json]:
    """Without the requests, which have a table of their own."""
    return {
        "arms": [{"name": arm.name, "speculation": plain(arm.speculation)} for arm in plan.arms],
        "loads": [plain(load) for load in plan.loads],
        "temperatures": list(plan.temperatures),
        "rounds": plan.rounds,
        "together": plan.together,
        "seed": plan.seed,
        "request_count": plan.request_count,
        "looks": None if plan.looks is None else asdict(plan.looks),
    }


def plan_from_dict(data: Mapping[str, object], requests: tuple[Request, ...]) -> StudyPlan:
    temperatures = (
        None if degree is None else need_number(degree) for degree in need_list(data["temperatures"])
    )
    request_count = data.get("request_count")  # formats 1 and 2 sent each once
    looks = data.get("looks")  # formats up to 3 measured all of it
    return StudyPlan(
        arms=tuple(
            Arm(
                name=need_text(arm["name"]),
                speculation=read(Speculation, arm["speculation"]),
            )
            for arm in need_objects(data["arms"])
        ),
        loads=tuple(read(Load, load) for load in need_objects(data["loads"])),
        requests=requests,
        temperatures=tuple(temperatures),
        rounds=need_whole(data["rounds"]),
        together=need_flag(data["together"]),
        seed=need_whole(data["seed"]),
        request_count=None if request_count is None else need_whole(request_count),
        looks=None if looks is None else _looks_from_dict(need_object(looks)),
    )


def _looks_from_dict(data: Mapping[str, object]) -> Looks:
    sizes, shares = (tuple(map(need_number, need_list(data[name]))) for name in ("sizes", "shares"))
    return Looks(sizes=sizes, shares=shares)


def engine_to_dict(spec: EngineSpec) -> dict[str, Json]:
    return asdict(spec)


def engine_from_dict(data: Mapping[str, object]) -> EngineSpec:
    """Studies before vLLM name no `python`, those before the tuner nothing `by_arm`."""
    attach = data.get("attach")
    by_arm = (
        (need_text(name), settings) for name, settings in map(need_list, need_list(data.get("by_arm", [])))
    )
    return built(
        EngineSpec,
        {
            "kind": data["kind"],
            "binary": data["binary"],
            "python": data.get("python"),
            "version": data.get("version"),
            "settings": _settings_from_dict(data["settings"]),
            "attach": None if attach is None else built(AttachSettings, need_object(attach)),
            "by_arm": tuple((name, _settings_from_dict(settings)) for name, settings in by_arm),
        },
    )


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


NO_LINE = OwnLine(start=(), flags=())


def _settings_from_dict(data: object) -> ServerSettings:
    named = {RENAMED.get(name, name): value for name, value in need_object(data).items()}
    line, share = named.get("line"), named.get("shared_gpu")
    return built(
        ServerSettings,
        {
            **named,
            "engine_args": need_texts(named["engine_args"]),
            "shared_gpu": None if share is None else read_as(GpuShare, share),
            # With the defaults of fields that came after the study.
            "line": None if line is None else read_as(OwnLine, {**asdict(NO_LINE), **need_object(line)}),
        },
    )


def goals_to_dict(goals: Goals) -> dict[str, Json]:
    return asdict(goals)


def goals_from_dict(data: Mapping[str, object]) -> Goals:
    return built(Goals, {**data, "slos": tuple(built(Slo, slo) for slo in need_objects(data["slos"]))})


def provenance_to_dict(provenance: Provenance) -> dict[str, Json]:
    """Without the nodes, which join while it runs (nodes.py)."""
    fields = asdict(provenance)
    del fields["nodes"]
    return fields


def provenance_from_dict(data: Mapping[str, object]) -> Provenance:
    return built(
        Provenance,
        {
            **data,
            "commands": tuple(need_texts(command) for command in need_list(data["commands"])),
            "argv": need_texts(data["argv"]),
        },
    )
