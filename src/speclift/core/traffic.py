"""What is sent: requests, the workload they form, and the load they are sent at."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from speclift.core.errors import UsageError
from speclift.core.json_reading import Json, need_number
from speclift.core.units import Seconds, Tokens

DEFAULT_SEGMENT = "default"
DEFAULT_MAX_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of the workload. Either `messages` (chat) or `prompt` (plain completion) is set."""

    id: str
    segment: str = DEFAULT_SEGMENT
    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: Tokens = DEFAULT_MAX_TOKENS
    arrival_s: Seconds | None = None
    response: str | None = None
    # What the answer has to keep to, as JSON: the request's response_format, tools, stop strings and whether it is to
    # think first, sent as they are.
    answer_format: str | None = None

    @property
    def answer_settings(self) -> dict[str, Json]:
        """`answer_format` as fields of a request's body."""
        told: dict[str, Json] = {} if self.answer_format is None else json.loads(self.answer_format)
        return told

    @property
    def has_tools(self) -> bool:
        return bool(self.answer_settings.get("tools"))

    def __post_init__(self) -> None:
        if bool(self.messages) == (self.prompt is not None):
            raise UsageError(f"request {self.id!r} needs either 'messages' or 'prompt'")


def repeated_prompts(requests: Iterable[Request]) -> dict[str, str]:
    """Requests that say the same as an earlier one of their segment, and which: a file that repeats a prompt holds it
    once, whatever its lines are called."""
    first: dict[Hashable, str] = {}
    repeated = {}
    for request in requests:
        said = (request.segment, request.messages, request.prompt)
        if first.setdefault(said, request.id) != request.id:
            repeated[request.id] = first[said]
    return repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests in the order given; `sha256` identifies exactly what was sent."""

    requests: tuple[Request, ...]
    sha256: str
    source: str
    # What the source holds beside them, in words; "" where there is nothing else.
    left_out: str = ""

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(request.segment for request in self.requests))

    def only(self, requests: Iterable[Request]) -> Workload:
        return replace(self, requests=tuple(requests))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Concurrency:
    """Closed loop: this many requests in flight, the next sent when one ends."""

    streams: int

    def __post_init__(self) -> None:
        if self.streams < 1:
            raise UsageError(f"concurrency must be at least 1, saw {self.streams}")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Rate:
    """Open loop: requests sent at times fixed in advance, whether or not earlier ones ended."""

    per_s: float
    arrivals: Literal["poisson", "constant", "replay"] = "poisson"

    def __post_init__(self) -> None:
        if not 0 < self.per_s < float("inf"):
            raise UsageError(f"a rate in requests per second must be above 0, saw {self.per_s}")


Load: TypeAlias = Concurrency | Rate


def load_to_dict(load: Load) -> dict[str, Json]:
    match load:
        case Concurrency(streams=streams):
            return {"concurrency": streams}
        case Rate(per_s=per_s, arrivals="poisson"):
            return {"qps": per_s}
        case Rate(per_s=per_s, arrivals=arrivals):
            return {"qps": per_s, "arrivals": arrivals}


def load_from_dict(data: Mapping[str, object]) -> Load:
    if "concurrency" in data:
        return Concurrency(streams=int(need_number(data["concurrency"])))
    match data.get("arrivals", "poisson"):
        case "poisson" | "constant" | "replay" as arrivals:
            return Rate(per_s=float(need_number(data["qps"])), arrivals=arrivals)
        case unknown:
            raise ValueError(f"no such arrivals: {unknown!r}")


def load_label(load: Load) -> str:
    match load:
        case Concurrency(streams=streams):
            return f"c={streams}"
        case Rate(per_s=per_s):
            return f"{per_s:g} req/s"
