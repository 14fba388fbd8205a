"""Policies, servers and requests to start a test from."""

from __future__ import annotations

from dataclasses import replace as with_fields
from typing import Any

from msgspec.structs import replace

from speclift.core.results import Decision
from speclift.core.routing import (
    PoolStates,
    RequestEnd,
    RequestFeatures,
    Route,
    RoutedRequest,
    ServerPool,
    ServerState,
)
from speclift.routing.policy import LoadLimit, Policy, PolicySegment, PolicySource, SegmentRule

SPEC, PLAIN = ServerPool.SPEC, ServerPool.PLAIN
SOURCE = PolicySource(
    study="study",
    arm="ngram-k5",
    engine="vllm",
    engine_version="vllm 0.32.0",
    model="model",
    verdict=Decision.SHIP_ON_CONDITIONS,
    metric="e2e",
    written="2026-11-16",
)
COPY = PolicySegment(
    name="copy",
    pool=SPEC,
    speedup=1.4,
    low=1.3,
    high=1.5,
    prompts=24,
    e2e_s=1.4,
    when=(SegmentRule(temperature_max=0.3, prompt_characters_min=400),),
)
CHAT = PolicySegment(name="chat", pool=PLAIN, speedup=0.9, low=0.85, high=0.95, prompts=24, e2e_s=1.0)
POLICY = Policy(schema=1, source=SOURCE, load=LoadLimit(leave=8, back=5, pays_to=8.0), segments=(COPY, CHAT))


def policy(**changes: Any) -> Policy:
    return replace(POLICY, **changes)


def copying(**changes: Any) -> RequestFeatures:
    ordinary = RequestFeatures(
        path="/v1/chat/completions", is_generation=True, temperature=0.0, prompt_characters=800
    )
    return with_fields(ordinary, **changes)


def chatting(**changes: Any) -> RequestFeatures:
    return copying(**{"temperature": 0.7, "prompt_characters": 100, **changes})


def servers(name: str, *running: int, down: tuple[int, ...] = ()) -> tuple[ServerState, ...]:
    return tuple(
        ServerState(url=f"http://{name}{place}", running=count, is_up=place not in down)
        for place, count in enumerate(running)
    )


def pools(spec: int = 0, plain: int = 0, **changes: Any) -> PoolStates:
    """One server each, with so many requests under way."""
    return PoolStates(**{"spec": servers("spec", spec), "plain": servers("plain", plain), **changes})


def ended(features: RequestFeatures, route: Route, **changes: Any) -> RoutedRequest:
    """By the first server of its route, as it should."""
    ordinary = RoutedRequest(
        request_id="r",
        arrived_s=0.0,
        features=features,
        route=route,
        server=route.servers[0],
        pool=route.pool,
        end=RequestEnd.OK,
        status=200,
        running=1,
        output_tokens=100,
    )
    return with_fields(ordinary, **changes)
