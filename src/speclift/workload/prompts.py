"""A request file to requests, with the exact place of anything wrong; selection and the tune/hold-out split."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from speclift.core.errors import UsageError, unknown_name
from speclift.core.traffic import DEFAULT_MAX_TOKENS, DEFAULT_SEGMENT, Message, Request, Workload
from speclift.core.units import Tokens
from speclift.workload.formats import is_gateway_line, read_entries, request_fields

TEMPERATURE_MAX = 5.0  # engines accept at most 2 to 5; above is a typing slip
# Far above any context; a larger one is a mistake and fits into no database.
MAX_TOKENS_MAX = 100_000_000
# What an answer has to keep to, and how much is thought before it: answers without their thoughts are other traffic.
# Engines that know nothing of it say so themselves.
ANSWER_FORMATS: Mapping[str, type | tuple[type, ...]] = {
    "response_format": dict,
    "tools": list,
    "tool_choice": (str, dict),
    "parallel_tool_calls": bool,
    "stop": (str, list),
    "chat_template_kwargs": dict,
    "reasoning_effort": str,
}
# Settings of traffic that are not sent, each with what changes nothing. Seeds are our own: arms are compared by them.
NOT_SENT: Mapping[str, tuple[object, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "repeat_penalty": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "n": (1,),
}
ARRIVAL_S_MAX = 1e12  # 30,000 years: what is above was not counted in seconds


def parse_workload(lines: Iterable[bytes], *, source: str) -> Workload:
    """JSON lines, a gateway's access log, OpenAI batch lines or ShareGPT; `id` defaults to the position and must be
    unique."""
    requests: list[Request] = []
    seen: dict[str, str] = {}
    digest = hashlib.sha256()
    unlike = unread = 0
    not_sent: Counter[str] = Counter()
    for entry in read_entries(lines, source=source):
        where = f"{source} {entry.position}"
        fields = request_fields(entry.data, where=where)
        if fields is None:
            unlike += is_gateway_line(entry.data)
            continue
        try:
            request = _request(fields, where=where, default_id=entry.default_id)
        except UsageError:
            # Who wrote a file for this can mend it; what callers sent to a gateway is as it is.
            if not is_gateway_line(entry.data):
                raise
            unread += 1
            continue
        if request.id in seen:
            raise UsageError(f"{where}: id {request.id!r} was used on {seen[request.id]}")
        seen[request.id] = entry.position
        digest.update(entry.raw + b"\n")
        requests.append(request)
        not_sent.update(
            name for name, neutral in NOT_SENT.items() if fields.get(name) not in (None, *neutral)
        )
    left_out = _left_out(unlike=unlike, unread=unread, not_sent=not_sent)
    if not requests:
        raise UsageError(
            f"{source} holds no requests" + (f": {left_out}" if left_out else ""),
            hint="one JSON object per line, with messages or prompt",
        )
    return Workload(requests=tuple(requests), sha256=digest.hexdigest(), source=source, left_out=left_out)


def _left_out(*, unlike: int, unread: int, not_sent: Counter[str]) -> str:
    settings = (
        (f"{name}, which is not sent, of requests", count) for name, count in sorted(not_sent.items())
    )
    counted = (("failed or no generation", unlike), ("more than text", unread), *settings)
    return ", ".join(f"{what}: {count}" for what, count in counted if count)


def _request(data: Mapping[str, object], *, where: str, default_id: str) -> Request:
    has_messages, has_prompt = (data.get(key) is not None for key in ("messages", "prompt"))
    if has_messages == has_prompt:
        raise UsageError(f"{where}: needs either 'messages' or 'prompt'")
    return Request(
        id=_identity(data, where) or default_id,
        segment=_label(_text(data, "segment", where) or DEFAULT_SEGMENT),
        messages=_messages(data["messages"], where) if has_messages else (),
        prompt=_text(data, "prompt", where),
        temperature=_number(data, "temperature", where, low=0.0, high=TEMPERATURE_MAX),
        top_p=_number(data, "top_p", where, low=0.0, high=1.0),
        max_tokens=_max_tokens(data, where),
        arrival_s=_number(data, "arrival_s", where, low=0.0, high=ARRIVAL_S_MAX),
        response=_text(data, "response", where),
        answer_format=_answer_format(data, where),
    )


def _answer_format(data: Mapping[str, object], where: str) -> str | None:
    said = {key: value for key in ANSWER_FORMATS if (value := data.get(key)) is not None}
    for key, value in said.items():
        if not isinstance(value, ANSWER_FORMATS[key]):
            raise UsageError(f"{where}: '{key}' cannot be {type(value).__name__}")
    stops = said.get("stop")
    if isinstance(stops, list) and not all(isinstance(each, str) for each in stops):
        raise UsageError(f"{where}: 'stop' must be text or a list of texts")
    return json.dumps(said, sort_keys=True) if said else None


def _identity(data: Mapping[str, object], where: str) -> str:
    value = data.get("id")
    if isinstance(value, bool) or not isinstance(value, (str, int, type(None))):
        raise UsageError(f"{where}: the id must be text or a whole number, saw {type(value).__name__}")
    return "" if value is None else _label(str(value))


def _label(text: str) -> str:
    """Ids and segments are keys and table cells: what has no UTF-8 form is shown as an escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _messages(value: object, where: str) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise UsageError(f"{where}: 'messages' must be a non-empty list")
    messages = []
    for index, entry in enumerate(value):
        if not isinstance(entry, dict) or not isinstance(entry.get("role"), str):
            raise UsageError(f"{where}: messages[{index}] needs text 'role' and 'content'")
        content = _content(entry.get("content"), f"{where}: messages[{index}]")
        messages.append(Message(role=entry["role"], content=content))
    return tuple(messages)


def _content(value: object, where: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise UsageError(f"{where} needs text 'role' and 'content'")
    texts = []
    for index, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text":
            raise UsageError(f"{where}: content[{index}] is {kind!r}", hint="only text can be measured")
        if not isinstance(part.get("text"), str):
            raise UsageError(f"{where}: content[{index}] needs text 'text'")
        texts.append(part["text"])
    return "\n".join(
        texts
    )  # as vLLM joins parts for templates that take plain text (entrypoints/chat_utils.py)


def _text(data: Mapping[str, object], key: str, where: str) -> str | None:
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{where}: '{key}' must be text, saw {type(value).__name__}")
    return value


def _number(data: Mapping[str, object], key: str, where: str, *, low: float, high: float) -> float | None:
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise UsageError(f"{where}: '{key}' must be a number in {low:g}..{high:g}, saw {value!r}")
    return float(value)


def _max_tokens(data: Mapping[str, object], where: str) -> Tokens:
    """OpenAI's newer name wins over the older one; null is as good as absent."""
    for key in ("max_completion_tokens", "max_tokens"):
        value = data.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{where}: '{key}' must be a whole number of at least 1, saw {value!r}")
        if value > MAX_TOKENS_MAX:
            raise UsageError(f"{where}: '{key}' must be at most {MAX_TOKENS_MAX:,}, saw a larger number")
        return value
    return DEFAULT_MAX_TOKENS


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
    chosen = ordered[:limit]
    if not chosen:
        raise UsageError("no prompts are left after filtering", hint="check --segment and --requests")
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
