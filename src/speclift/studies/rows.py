"""Records and launches as rows of the study's database, and back."""

from __future__ import annotations

import json
from typing import NotRequired, TypedDict

from speclift.core.document import plain, read_json
from speclift.core.json_reading import need_number, need_object, need_texts, need_whole
from speclift.core.records import Counters, Launch, Outcome, Phase, Place, Record, Refused, Step, Usage
from speclift.core.traffic import Load
from speclift.studies.format import Cell, dumps


class RecordRow(TypedDict):
    """A row of the table of records; what it need not have came with a later format."""

    launch: int
    arm: str
    round: int
    block: int
    load: str
    request_id: str
    segment: str
    temperature: float | None
    phase: str
    repeat: NotRequired[int]
    outcome: str
    error: str
    intended_s: float
    sent_s: float
    end_s: float
    first_token_s: float | None
    last_token_s: float | None
    prompt_tokens: int | None
    output_tokens: int | None
    finish_reason: str | None
    text: bytes
    drafted: int | None
    accepted: int | None
    steps: str | None
    refused: NotRequired[str]
    node: NotRequired[str]


class LaunchRow(TypedDict):
    id: int
    arm: str
    round: int
    command: str
    engine_version: str
    started_s: float
    ready_s: float | None
    kv_tokens: int | None
    failure: str
    log_tail: str
    counters: str
    settings: NotRequired[str]
    notices: NotRequired[str]
    usage: NotRequired[str]
    gpu_memory_peak_bytes: NotRequired[int | None]
    node: NotRequired[str]


class TurnRow(TypedDict):
    launch: int
    block: int
    load: str
    loop_lag_p99_s: float
    cpu_s: float
    wall_s: float
    stamp_blur_p99_s: NotRequired[float]
    counters: NotRequired[str]


class TextRow(TypedDict):
    value: str


class CountRow(TypedDict):
    last: int


class DoneRow(TypedDict):
    node: str
    arm: str
    round: int
    block: int
    request_id: str
    temperature: float | None
    repeat: int


class FindingRow(TypedDict):
    check: str
    level: str
    message: str
    next_step: str
    arm: str | None


def storable(value: Cell) -> Cell:
    """Lone surrogates have no UTF-8 form; as a column's text they are shown instead of failing."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value


def record_columns(record: Record) -> dict[str, Cell]:
    place = record.place
    return {
        "launch": place.launch,
        "arm": place.arm,
        "round": place.round,
        "block": place.block,
        "load": dumps(plain(place.load)),
        "request_id": place.request_id,
        "segment": place.segment,
        "temperature": place.temperature,
        "phase": place.phase,
        "repeat": place.repeat,
        "outcome": record.outcome,
        "error": record.error,
        "intended_s": record.intended_s,
        "sent_s": record.sent_s,
        "end_s": record.end_s,
        "first_token_s": record.first_token_s,
        "last_token_s": record.last_token_s,
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "finish_reason": record.finish_reason,
        # Bytes: what the model said comes back as it was, surrogates too.
        "text": record.text.encode("utf-8", "surrogatepass"),
        "drafted": record.drafted,
        "accepted": record.accepted,
        "steps": None
        if record.steps is None
        else dumps([(step.drafted, step.accepted) for step in record.steps]),
        "refused": dumps([(refused.rule, refused.said) for refused in record.refused]),
        "node": place.node,
    }


def record_from(row: RecordRow) -> Record:
    place = Place(
        arm=row["arm"],
        launch=row["launch"],
        round=row["round"],
        block=row["block"],
        load=read_json(Load, row["load"]),
        request_id=row["request_id"],
        segment=row["segment"],
        temperature=row["temperature"],
        phase=Phase(row["phase"]),
        repeat=row.get("repeat", 0),  # formats 1 and 2 sent each request once
        node=row.get("node", ""),  # formats up to 4 were of one machine
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
        steps=None if row["steps"] is None else _steps(row["steps"]),
        # Studies before format 3 took what servers said.
        refused=tuple(Refused(rule=rule, said=said) for rule, said in json.loads(row.get("refused", "[]"))),
    )


def _steps(text: str) -> tuple[Step, ...]:
    pairs = json.loads(text)
    return tuple(
        Step(drafted=need_whole(drafted), accepted=need_whole(accepted)) for drafted, accepted in pairs
    )


def counters_from(text: str) -> Counters:
    return Counters(
        values={name: need_number(value) for name, value in need_object(json.loads(text)).items()}
    )


def launch_from(row: LaunchRow) -> Launch:
    return Launch(
        id=row["id"],
        arm=row["arm"],
        round=row["round"],
        command=need_texts(json.loads(row["command"])),
        engine_version=row["engine_version"],
        started_s=row["started_s"],
        ready_s=row["ready_s"],
        failure=row["failure"],
        log_tail=row["log_tail"],
        counters=counters_from(row["counters"]),
        # Studies of format 1 have none of these.
        settings={
            name: str(value) for name, value in need_object(json.loads(row.get("settings", "{}"))).items()
        },
        notices=need_texts(json.loads(row.get("notices", "[]"))),
        usage=_usage(row.get("usage", "[]")),
        gpu_memory_peak_bytes=row.get("gpu_memory_peak_bytes"),
        node=row.get("node", ""),
    )


def usage_text(usage: tuple[Usage, ...]) -> str:
    return dumps([(point.at_s, point.running, point.waiting, point.kv_share) for point in usage])


def _usage(text: str) -> tuple[Usage, ...]:
    return tuple(
        Usage(
            at_s=need_number(at_s),
            running=need_whole(running),
            waiting=need_whole(waiting),
            kv_share=need_number(kv_share),
        )
        for at_s, running, waiting, kv_share in json.loads(text)
    )
