"""A request at a gateway: what is known before it is sent, where it went, and what came of it.

None is what the request, or the engine's answer, does not say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from speclift.core.units import Seconds, Tokens

# Both of requests: a caller may say what kind of traffic this is, and which conversation it belongs to.
SEGMENT_FIELD, SESSION_FIELD = "x-speclift-segment", "x-speclift-session"
# Of answers.
POOL_FIELD, REQUEST_ID_FIELD = "x-speclift-pool", "x-request-id"
# Which gateways a request has come through.
THROUGH_FIELD = "x-speclift-through"
# Says that a line of JSON is of a gateway's access log; the number is the format's.
ACCESS_MARK: Literal["gateway"] = "gateway"
ACCESS_FORMAT: Literal[1] = 1


class ServerPool(StrEnum):
    """Servers that speculate, and servers launched without any speculative configuration."""

    SPEC = "spec"
    PLAIN = "plain"

    @property
    def other(self) -> ServerPool:
        return ServerPool.PLAIN if self is ServerPool.SPEC else ServerPool.SPEC


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFeatures:
    """All that a route may depend on. Never the text itself."""

    # Without the query, as /v1/chat/completions.
    path: str
    # Header fields of the caller, names in lower case.
    fields: Mapping[str, str] = field(default_factory=dict)
    # A generation whose body was read; else it is passed on unread, and belongs to no segment.
    is_generation: bool = False
    is_stream: bool = False
    model: str | None = None
    temperature: float | None = None
    max_tokens: Tokens | None = None
    # "text", "json_object", "json_schema" or what else the body says; "grammar" for an engine's own constraint.
    response_format: str | None = None
    has_tools: bool = False
    prompt_characters: int = 0
    # Messages of the conversation; 1 for a prompt.
    turns: int = 1
    # Share of the prompt's tokens that the speculation's own look-up drafter would have had right; None where nobody
    # asked for it, it has no such drafter, or the time limit was reached.
    repetition: float | None = None
    # Of one conversation always the same, whatever its length; None where nothing identifies it.
    session: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """One server of a pool, as the gateway sees it now."""

    url: str
    # Requests that it was sent and has not finished.
    running: int = 0
    is_up: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStates:
    spec: tuple[ServerState, ...]
    plain: tuple[ServerState, ...]
    # The one switch: everything to plain.
    is_plain_only: bool = False
    # Why speculation does not pay at present, by what the servers count themselves; "" where nothing speaks against it.
    against_spec: str = ""

    def of(self, pool: ServerPool) -> tuple[ServerState, ...]:
        return self.spec if pool is ServerPool.SPEC else self.plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The pool and servers of one request, and why: what was decided first stands first."""

    pool: ServerPool
    # Of that pool, the best first; those after it are asked where it does not answer. Then the other pool's.
    servers: tuple[str, ...]
    segment: str
    reasons: tuple[str, ...]
    # Sent to the other pool than it would be, to keep measuring both.
    is_canary: bool = False


class RequestEnd(StrEnum):
    """How it went, seen from the gateway."""

    OK = "ok"
    # The server answered, with a status that is no success or an error in the stream.
    REFUSED = "refused"
    # No server answered.
    UNANSWERED = "unanswered"
    # The server's answer broke off.
    CUT = "cut"
    # The caller went away before the end.
    LEFT = "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedRequest:
    """One request that ended."""

    request_id: str
    # On the wall's clock, when its last byte had come.
    arrived_s: Seconds
    features: RequestFeatures
    route: Route
    # Who answered; the route's first server unless that one did not. None where nobody did.
    server: str | None
    pool: ServerPool | None
    end: RequestEnd
    status: int
    # Requests under way at its server when it was sent there, itself included.
    running: int
    # From its arrival: to the first text, and to the last byte of the answer.
    ttft_s: Seconds | None = None
    e2e_s: Seconds = 0.0
    tpot_s: Seconds | None = None
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    drafted: Tokens | None = None
    accepted: Tokens | None = None
    finish_reason: str | None = None
    # How many servers were asked.
    attempts: int = 1
    # Bodies, kept only where the access log is to hold text.
    request_body: bytes | None = None
    answer_text: str | None = None
