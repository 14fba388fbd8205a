"""Records and launches as rows of the study's database, and back."""

from __future__ import annotations

import json
import math
from typing import Any

from speclift.core.records import Counters, Launch, Outcome, Phase, Place, Record, Refused, Step, Usage
from speclift.core.traffic import load_from_dict, load_to_dict
from speclift.studies.format import dumps


def storable(value: Any) -> Any:
    """Lone surrogates have no UTF-8 form; as a column's text they are shown instead of failing."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value


def record_columns(record: Record) -> dict[str, Any]:
    place = record.place
    return {
        "launch": place.launch,
        "arm": place.arm,
        "round": place.round,
        "block": place.block,
        "load": dumps(load_to_dict(place.load)),
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
    }


def record_from(row: dict[str, Any]) -> Record:
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
        repeat=row.get("repeat", 0),  # formats 1 and 2 sent each request once
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
    return tuple(Step(drafted=_whole(drafted), accepted=_whole(accepted)) for drafted, accepted in pairs)


def counters_from(text: str) -> Counters:
    return Counters(values={name: _number(value) for name, value in _object(text).items()})


# What stands in a study may have been edited: each of these raises where it is of another kind.


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, saw {text[:40]!r}")
    return value


def _words(text: str) -> tuple[str, ...]:
    value = json.loads(text)
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ValueError(f"expected a list of words, saw {text[:40]!r}")
    return tuple(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"expected a number, saw {str(value)[:40]!r}")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"expected a whole number, saw {str(value)[:40]!r}")
    return value


def launch_from(row: dict[str, Any]) -> Launch:
    return Launch(
        id=row["id"],
        arm=row["arm"],
        round=row["round"],
        command=_words(row["command"]),
        engine_version=row["engine_version"],
        started_s=row["started_s"],
        ready_s=row["ready_s"],
        failure=row["failure"],
        log_tail=row["log_tail"],
        counters=counters_from(row["counters"]),
        # Studies of format 1 have none of these.
        settings={str(name): str(value) for name, value in _object(row.get("settings", "{}")).items()},
        notices=_words(row.get("notices", "[]")),
        usage=_usage(row.get("usage", "[]")),
    )


def usage_text(usage: tuple[Usage, ...]) -> str:
    return dumps([(point.at_s, point.running, point.waiting, point.kv_share) for point in usage])


def _usage(text: str) -> tuple[Usage, ...]:
    return tuple(
        Usage(
            at_s=_number(at_s),
            running=_whole(running),
            waiting=_whole(waiting),
            kv_share=_number(kv_share),
        )
        for at_s, running, waiting, kv_share in json.loads(text)
    )
