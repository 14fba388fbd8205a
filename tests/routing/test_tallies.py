"""What a gateway counts of its requests, within bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from routed import PLAIN_URL, SPEC_URL, routed
from speclift.core.routing import (
    PoolStates,
    RoutedRequest,
    ServerPool,
    ServerState,
)
from speclift.routing.router import Router
from speclift.routing.tallies import (
    OTHER_SEGMENT,
    RECENT_MAX,
    SEGMENTS_MAX,
    Tallies,
    reason_word,
)

SPEC, PLAIN = ServerPool.SPEC, ServerPool.PLAIN


def tallied(*requests: RoutedRequest) -> Tallies:
    tallies = Tallies()
    for request in requests:
        tallies.note(request, now_s=100.0)
    return tallies


def test_callers_cannot_make_more_classes_than_there_are_names_for() -> None:
    tallies = tallied(*(routed(segment=f"made up {number}") for number in range(500)))
    segments = {key.segment for key in tallies.classes}
    assert len(segments) == SEGMENTS_MAX + 1
    assert OTHER_SEGMENT in segments


@pytest.mark.parametrize("count", [1, 2, 99, 100, RECENT_MAX + 200])
def test_percentiles_are_of_the_last_requests(count: int) -> None:
    times = tallied(*(routed(e2e_s=float(number)) for number in range(count))).recent[SPEC, "chat"]
    first = max(0, count - RECENT_MAX)
    assert times.e2e_s.p50 == pytest.approx((first + count - 1) / 2)
    assert (times.e2e_s.p99 is None) == (count < 100)


def states(*, is_up: bool = True, is_plain_only: bool = False, against: str = "") -> PoolStates:
    return PoolStates(
        spec=(ServerState(url=SPEC_URL, is_up=is_up),),
        plain=(ServerState(url=PLAIN_URL),),
        is_plain_only=is_plain_only,
        against_spec=against,
    )


@pytest.mark.parametrize(
    ("pools", "word"),
    [
        (states(), "policy"),
        (states(is_plain_only=True), "switched"),
        (states(against="accepted length 1.1"), "counters-against"),
        (states(is_up=False), "down"),
    ],
)
def test_what_decided_is_told_from_the_routers_own_words(pools: PoolStates, word: str) -> None:
    request = routed()
    route = Router().route(request.features, pools, now_s=0.0)
    assert reason_word(replace(request, route=route)) == word
