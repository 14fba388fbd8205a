"""Where a gateway would send one request, and why: as lines and as JSON, for --dry-run. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypedDict

from speclift.core.quantities import printable, share
from speclift.core.routing import RequestFeatures, Route, ServerPool
from speclift.core.typed_json import finite
from speclift.core.units import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRoute:
    """One request that was not sent. `policy` is what was read, as a path to show; empty where there is none."""

    features: RequestFeatures
    route: Route
    policy: str = ""


class FeaturesDocument(TypedDict):
    """What was read of the request; never its text."""

    path: str
    is_generation: bool
    is_stream: bool
    model: str | None
    temperature: float | None
    max_tokens: Tokens | None
    response_format: str | None
    has_tools: bool
    prompt_characters: int
    turns: int
    repetition: float | None
    has_session: bool


class RouteDocument(TypedDict):
    """`reasons`: what was decided first stands first. `servers`: the best first."""

    schema: Literal[1]
    pool: ServerPool
    segment: str
    servers: list[str]
    reasons: list[str]
    is_canary: bool
    features: FeaturesDocument
    policy: str | None


def route_document(explained: ExplainedRoute) -> RouteDocument:
    features, route = explained.features, explained.route
    document: RouteDocument = {
        "schema": 1,
        "pool": route.pool,
        "segment": route.segment,
        "servers": list(route.servers),
        "reasons": list(route.reasons),
        "is_canary": route.is_canary,
        "features": {
            "path": features.path,
            "is_generation": features.is_generation,
            "is_stream": features.is_stream,
            "model": features.model,
            "temperature": features.temperature,
            "max_tokens": features.max_tokens,
            "response_format": features.response_format,
            "has_tools": features.has_tools,
            "prompt_characters": features.prompt_characters,
            "turns": features.turns,
            "repetition": features.repetition,
            "has_session": features.session is not None,
        },
        "policy": explained.policy or None,
    }
    return finite(document)


def route_lines(explained: ExplainedRoute) -> tuple[str, ...]:
    """The answer first, then why, then what was read."""
    route = explained.route
    first, *others = route.servers or ("no server",)
    beside = f", then {', '.join(others)}" if others else ""
    lines = (
        f"{route.pool}: {first}{beside}",
        *(f"  {reason}" for reason in route.reasons),
        f"read: {', '.join(_read(explained.features))}",
        *([f"policy: {explained.policy}"] if explained.policy else []),
    )
    return tuple(printable(line, limit=1000) for line in lines)


def _read(features: RequestFeatures) -> Iterator[str]:
    yield features.path
    if not features.is_generation:
        yield "nothing else: no generation, or a body that cannot be read"
        return
    yield "no temperature" if features.temperature is None else f"temperature {features.temperature:g}"
    yield "no max_tokens" if features.max_tokens is None else f"max_tokens {features.max_tokens}"
    yield f"{features.prompt_characters} characters in {features.turns} {'turn' if features.turns == 1 else 'turns'}"
    if features.repetition is not None:
        yield f"repetition {share(features.repetition)}"
    if features.response_format is not None:
        yield f"response_format {features.response_format}"
    if features.has_tools:
        yield "tools"
    if features.model is not None:
        yield f"model {features.model}"
