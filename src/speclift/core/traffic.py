"""What is sent: requests, the workload they form, and the load they are sent at."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from speclift.core.document import Json
from speclift.core.errors import UsageError
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


class _Load:
    """How requests are sent: closed loop or open loop. JSON tells the two apart by their fields."""

    __slots__ = ()

    @property
    def label(self) -> str:
        """The load in few characters: c=8, 2.5 req/s."""
        raise NotImplementedError

    @classmethod
    def from_plain(cls, value: object) -> Concurrency | Rate:
        """The load that a JSON object says; ValueError where it says none."""
        if isinstance(value, dict) and "concurrency" in value:
            return msgspec.convert(value, Concurrency)
        return msgspec.convert(value, Rate)

    @classmethod
    def plain_schema(cls) -> dict[str, object]:
        closed, open_ = (
            msgspec.json.schema_components((kind,))[1][kind.__name__] for kind in (Concurrency, Rate)
        )
        return {"anyOf": [closed, open_]}


class Concurrency(
    msgspec.Struct, _Load, frozen=True, kw_only=True, order=True, rename={"streams": "concurrency"}
):
    """Closed loop: this many requests in flight, the next sent when one ends."""

    streams: int

    def __post_init__(self) -> None:
        if self.streams < 1:
            raise UsageError(f"concurrency must be at least 1, saw {self.streams}")

    @property
    def label(self) -> str:
        return f"c={self.streams}"


class Rate(
    msgspec.Struct, _Load, frozen=True, kw_only=True, order=True, omit_defaults=True, rename={"per_s": "qps"}
):
    """Open loop: requests sent at times fixed in advance, whether or not earlier ones ended."""

    per_s: float
    arrivals: Literal["poisson", "constant", "replay"] = "poisson"

    def __post_init__(self) -> None:
        if not 0 < self.per_s < float("inf"):
            raise UsageError(f"a rate in requests per second must be above 0, saw {self.per_s}")

    @property
    def label(self) -> str:
        return f"{self.per_s:g} req/s"


if TYPE_CHECKING:
    Load: TypeAlias = Concurrency | Rate
else:
    # msgspec wants a tag in unions of Structs; the base reads itself.
    Load = _Load
