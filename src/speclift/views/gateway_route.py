"""The route of one request and its reasons, as lines and as JSON, for --dry-run. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from speclift.core.document import Document
from speclift.core.quantities import printable, share
from speclift.core.routing import RequestFeatures, Route, ServerPool
from speclift.core.units import Tokens


class ReadFeatures(Document, frozen=True, kw_only=True):
    """The features of the request that were read; never its text."""

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


class ExplainedRoute(Document, frozen=True, kw_only=True):
    """`reasons`: what was decided first stands first. `servers`: the best first."""

    schema: Literal[1] = 1
    pool: ServerPool
    segment: str
    servers: tuple[str, ...]
    reasons: tuple[str, ...]
    is_canary: bool
    features: ReadFeatures
    # What was read, as a path to show; null where there is none.
    policy: str | None


def explained(features: RequestFeatures, route: Route, *, policy: str | None = None) -> ExplainedRoute:
    """One request that was not sent."""
    names = (name for name in ReadFeatures.__struct_fields__ if name != "has_session")
    values = {name: getattr(features, name) for name in names}
    return ExplainedRoute(
        pool=route.pool,
        segment=route.segment,
        servers=route.servers,
        reasons=route.reasons,
        is_canary=route.is_canary,
        features=ReadFeatures(**values, has_session=features.session is not None),
        policy=policy,
    )


def route_lines(route: ExplainedRoute) -> tuple[str, ...]:
    """The answer first, then why, then what was read."""
    first, *others = route.servers or ("no server",)
    beside = f", then {', '.join(others)}" if others else ""
    lines = (
        f"{route.pool}: {first}{beside}",
        *(f"  {reason}" for reason in route.reasons),
        f"read: {', '.join(_read(route.features))}",
        *([f"policy: {route.policy}"] if route.policy else []),
    )
    return tuple(printable(line, limit=1000) for line in lines)


def _read(features: ReadFeatures) -> Iterator[str]:
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
