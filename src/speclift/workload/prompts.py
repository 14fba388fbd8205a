"""JSON lines to requests, with the exact line of anything wrong; selection and the tune/hold-out split."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from speclift.core.errors import UsageError, unknown_name
from speclift.core.traffic import DEFAULT_MAX_TOKENS, DEFAULT_SEGMENT, Message, Request, Workload
from speclift.core.units import Tokens

TEMPERATURE_MAX = 5.0  # engines accept at most 2 to 5; above is a typing slip


def parse_workload(lines: Iterable[bytes], *, source: str) -> Workload:
    """One request per non-blank line; `id` defaults to the line number and must be unique."""
    requests: list[Request] = []
    seen: dict[str, int] = {}
    digest = hashlib.sha256()
    for number, raw in enumerate(lines, start=1):
        if not raw.strip():
            continue
        request = _parse_line(raw, where=f"{source} line {number}", default_id=f"line-{number}")
        if request.id in seen:
            raise UsageError(f"{source} line {number}: id {request.id!r} was used on line {seen[request.id]}")
        seen[request.id] = number
        digest.update(raw.strip() + b"\n")
        requests.append(request)
    if not requests:
        raise UsageError(
            f"{source} holds no requests", hint="one JSON object per line, with messages or prompt"
        )
    return Workload(requests=tuple(requests), sha256=digest.hexdigest(), source=source)


def _parse_line(raw: bytes, *, where: str, default_id: str) -> Request:
    try:
        data = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}, column {error.colno}: not JSON ({error.msg})") from error
    except RecursionError as error:
        raise UsageError(f"{where}: JSON nested too deeply") from error
    if not isinstance(data, dict):
        raise UsageError(f"{where}: expected a JSON object, saw {type(data).__name__}")
    if ("messages" in data) == ("prompt" in data):
        raise UsageError(f"{where}: needs either 'messages' or 'prompt'")
    return Request(
        id=_label(str(data.get("id", default_id))),
        segment=_label(_text(data, "segment", where) or DEFAULT_SEGMENT),
        messages=_messages(data["messages"], where) if "messages" in data else (),
        prompt=_text(data, "prompt", where) if "prompt" in data else None,
        temperature=_number(data, "temperature", where, low=0.0, high=TEMPERATURE_MAX),
        top_p=_number(data, "top_p", where, low=0.0, high=1.0),
        max_tokens=_max_tokens(data, where),
        arrival_s=_number(data, "arrival_s", where, low=0.0, high=float("inf")),
        response=_text(data, "response", where),
    )


def _label(text: str) -> str:
    """Ids and segments are keys and table cells: what has no UTF-8 form is shown as an escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _messages(value: Any, where: str) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise UsageError(f"{where}: 'messages' must be a non-empty list")
    messages = []
    for index, entry in enumerate(value):
        is_message = isinstance(entry, dict) and isinstance(entry.get("role"), str)
        if not is_message or not isinstance(entry.get("content"), str):
            raise UsageError(f"{where}: messages[{index}] needs text 'role' and 'content'")
        messages.append(Message(role=entry["role"], content=entry["content"]))
    return tuple(messages)


def _text(data: dict[str, Any], key: str, where: str) -> str | None:
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{where}: '{key}' must be text, saw {type(value).__name__}")
    return value


def _number(data: dict[str, Any], key: str, where: str, *, low: float, high: float) -> float | None:
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise UsageError(f"{where}: '{key}' must be a number in {low:g}..{high:g}, saw {value!r}")
    return float(value)


def _max_tokens(data: dict[str, Any], where: str) -> Tokens:
    value = data.get("max_tokens", DEFAULT_MAX_TOKENS)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{where}: 'max_tokens' must be a whole number of at least 1, saw {value!r}")
    return value


def select(
    workload: Workload,
    *,
    segments: Sequence[str] = (),
    max_tokens: Tokens | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Workload:
    """The requests to measure, segments taking turns so that any prefix is balanced over them."""
    for name in segments:
        if name not in workload.segments:
            raise unknown_name(what="segment", seen=name, allowed=workload.segments)
    by_segment: dict[str, list[Request]] = defaultdict(list)
    for request in workload.requests:
        if not segments or request.segment in segments:
            by_segment[request.segment].append(request)
    for members in by_segment.values():
        members.sort(key=lambda request: _rank(request.id, seed))
    turns = zip_longest(*by_segment.values())
    ordered = [request for turn in turns for request in turn if request is not None]
    if not ordered:
        raise UsageError("no prompts are left after filtering", hint="check --segment and --requests")
    chosen = ordered[:limit]
    if max_tokens is not None:
        chosen = [replace(request, max_tokens=min(max_tokens, request.max_tokens)) for request in chosen]
    return workload.only(chosen)


def split(workload: Workload, *, seed: int, tune_share: float = 0.5) -> tuple[Workload, Workload]:
    """Tune and hold-out requests, each segment divided alike; the same seed gives the same split."""
    tune: set[str] = set()
    for segment in workload.segments:
        ids = [request.id for request in workload.requests if request.segment == segment]
        ids.sort(key=lambda request_id: _rank(request_id, seed))
        tune.update(ids[: round(len(ids) * tune_share)])
    return (
        workload.only(request for request in workload.requests if request.id in tune),
        workload.only(request for request in workload.requests if request.id not in tune),
    )


def _rank(request_id: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{request_id}".encode("utf-8", "surrogatepass")).digest()
