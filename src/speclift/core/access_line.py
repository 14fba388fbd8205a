"""One line of a gateway's access log: what it is called there, for whoever writes it and whoever reads it back."""

from __future__ import annotations

from typing import Literal, TypedDict

from speclift.core.document import Json
from speclift.core.routing import RequestEnd, ServerPool

# Says what a line is; the number is the format's.
MARK: Literal["gateway"] = "gateway"
FORMAT: Literal[1] = 1


class AccessLine(TypedDict):
    gateway: Literal[1]
    # On the wall's clock, in words and in seconds.
    at: str
    arrival_s: float
    id: str
    path: str
    is_generation: bool
    segment: str
    stream: bool
    model: str | None
    temperature: float | None
    max_tokens: int | None
    response_format: str | None
    tools: bool
    prompt_characters: int
    turns: int
    repetition: float | None
    # Of one conversation always the same; says nothing of it.
    session: str | None
    pool: ServerPool | None
    routed_to: ServerPool
    canary: bool
    reasons: list[str]
    server: str | None
    attempts: int
    running: int
    end: RequestEnd
    status: int
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float
    prompt_tokens: int | None
    output_tokens: int | None
    drafted: int | None
    accepted: int | None
    finish_reason: str | None


class AccessLineWithText(AccessLine):
    """Only where the log is to keep text; null where there was none that could be kept."""

    request: Json
    response: str | None
