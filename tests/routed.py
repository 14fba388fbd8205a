"""Requests that a gateway has answered, for the tests of what it makes of them."""

from __future__ import annotations

from dataclasses import replace

from speclift.core.routing import RequestEnd, RequestFeatures, Route, RoutedRequest, ServerPool

SPEC_URL, PLAIN_URL = "http://127.0.0.1:8001", "http://127.0.0.1:8002"


def routed(
    *,
    pool: ServerPool = ServerPool.SPEC,
    segment: str = "chat",
    temperature: float | None = 0.0,
    e2e_s: float = 1.0,
    features: RequestFeatures | None = None,
    end: RequestEnd = RequestEnd.OK,
) -> RoutedRequest:
    url = SPEC_URL if pool is ServerPool.SPEC else PLAIN_URL
    asked = features or RequestFeatures(
        path="/v1/chat/completions",
        is_generation=True,
        is_stream=True,
        model="smol",
        temperature=temperature,
        max_tokens=64,
        prompt_characters=400,
    )
    return RoutedRequest(
        request_id="r-1",
        arrived_s=1_763_300_000.25,
        features=replace(asked, temperature=temperature),
        route=Route(pool=pool, servers=(url,), segment=segment, reasons=("the policy allows it",)),
        server=url,
        pool=pool,
        end=end,
        status=200,
        running=1,
        ttft_s=e2e_s / 5,
        e2e_s=e2e_s,
        tpot_s=e2e_s / 100,
        prompt_tokens=100,
        output_tokens=50,
        drafted=40,
        accepted=30,
        finish_reason="stop",
    )
