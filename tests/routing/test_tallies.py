"""What a gateway counts of its requests, within bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from routed import PLAIN_URL, SPEC_URL, routed
from speclift.core.routing import (
    PoolStates,
    RequestEnd,
    RequestFeatures,
    RoutedRequest,
    ServerPool,
    ServerState,
)
from speclift.routing.learning import Learner
from speclift.routing.router import Router
from speclift.routing.tallies import (
    OTHER_SEGMENT,
    RECENT_MAX,
    SEGMENTS_MAX,
    SERVERS_MAX,
    Tallies,
    TallyKey,
    reason_word,
)
from speclift.statistics.temperatures import temperature_bucket

SPEC, PLAIN = ServerPool.SPEC, ServerPool.PLAIN


def tallied(*requests: RoutedRequest) -> Tallies:
    tallies = Tallies()
    for request in requests:
        tallies.note(request, now_s=100.0)
    return tallies


def test_requests_are_counted_by_pool_segment_and_temperature() -> None:
    tallies = tallied(routed(), routed(e2e_s=3.0), routed(pool=PLAIN), routed(temperature=0.7))
    classes = tallies.classes
    assert {key: tally.ends[RequestEnd.OK] for key, tally in classes.items()} == {
        TallyKey(SPEC, "chat", "0"): 2,
        TallyKey(PLAIN, "chat", "0"): 1,
        TallyKey(SPEC, "chat", "0.5-0.7"): 1,
    }
    both = classes[TallyKey(SPEC, "chat", "0")]
    assert (both.e2e_s.count, both.e2e_s.sum_s, both.output_tokens, both.drafted, both.accepted) == (
        *(2, 4.0, 100, 80, 60),
    )


@pytest.mark.parametrize(
    ("temperature", "word"),
    [
        *(
            (None, "unsaid"),
            (float("nan"), "unsaid"),
            (-1.0, "0"),
            (0.0, "0"),
            (1e-9, "0-0.5"),
            (0.5, "0-0.5"),
        ),
        *((0.6, "0.5-0.7"), (0.7, "0.5-0.7"), (1.0, "0.7-1"), (1.5, "over 1"), (float("inf"), "over 1")),
    ],
)
def test_temperatures_have_few_names(temperature: float | None, word: str) -> None:
    assert temperature_bucket(temperature) == word


@pytest.mark.parametrize(
    ("value", "place"), [(0.0005, 0), (0.001, 0), (0.0011, 1), (2560.0, 21), (9999.0, 22)]
)
def test_an_edge_counts_what_is_up_to_it(value: float, place: int) -> None:
    (tally,) = tallied(replace(routed(), ttft_s=value)).classes.values()
    assert tally.ttft_s.counts.index(1) == place


def test_only_generations_that_went_well_have_times() -> None:
    embeddings = RequestFeatures(path="/v1/embeddings", is_generation=False)
    for request in (routed(end=RequestEnd.CUT), routed(end=RequestEnd.LEFT), routed(features=embeddings)):
        totals = tallied(request)
        (tally,) = totals.classes.values()
        assert (tally.e2e_s.count, sum(tally.ends.values()), totals.recent) == (0, 1, {})


def test_callers_cannot_make_more_classes_than_there_are_names_for() -> None:
    tallies = tallied(*(routed(segment=f"made up {number}") for number in range(500)))
    segments = {key.segment for key in tallies.classes}
    assert len(segments) == SEGMENTS_MAX + 1
    assert OTHER_SEGMENT in segments


def test_servers_are_bounded_too() -> None:
    tallies = tallied(*(replace(routed(), server=f"http://h:{number}") for number in range(SERVERS_MAX + 50)))
    assert len(tallies.servers) == SERVERS_MAX


@pytest.mark.parametrize("count", [1, 2, 99, 100, RECENT_MAX + 200])
def test_percentiles_are_of_the_last_requests(count: int) -> None:
    times = tallied(*(routed(e2e_s=float(number)) for number in range(count))).recent[SPEC, "chat"]
    first = max(0, count - RECENT_MAX)
    assert times.e2e_s.p50 == pytest.approx((first + count - 1) / 2)
    assert (times.e2e_s.p99 is None) == (count < 100)


def test_what_was_not_measured_has_no_percentile() -> None:
    times = tallied(replace(routed(), ttft_s=None, tpot_s=None)).recent[SPEC, "chat"]
    assert (times.ttft_s.p50, times.tpot_s.p50, times.e2e_s.p50) == (None, None, 1.0)


def test_a_servers_tokens_are_those_of_the_last_minute() -> None:
    tallies = Tallies()
    for second in range(120):
        tallies.note(routed(), now_s=float(second))
        tallies.note(routed(), now_s=second + 0.5)
    assert tallies.servers[SPEC_URL].tokens_s(now_s=119.5) == pytest.approx(100.0)
    later = tallies.servers[SPEC_URL]
    assert (later.tokens_s(now_s=500.0), later.requests, later.output_tokens) == (0.0, 240, 12_000)


def test_retries_and_canaries_are_counted() -> None:
    canary = replace(routed(pool=PLAIN), attempts=3)
    canary = replace(canary, route=replace(canary.route, is_canary=True))
    unanswered = replace(routed(end=RequestEnd.UNANSWERED), pool=None, server=None, attempts=2)
    totals = tallied(canary, unanswered, routed())
    assert (totals.retries, totals.canaries) == (3, {SPEC: 0, PLAIN: 1})
    assert (None, "chat", "0") in totals.classes


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


class Shares(Learner):
    """Live traffic that taught a share."""

    def __init__(self, share: float) -> None:
        super().__init__(canary=0.0)
        self._share = share

    def share(self, segment: str, pool: ServerPool) -> float:
        return self._share

    def note(self, request: RoutedRequest, *, now_s: float) -> None: ...


@pytest.mark.parametrize(
    ("share", "words"), [(0.0, {"learned"}), (0.5, {"canary", "policy"}), (1.0, {"policy"})]
)
def test_canaries_and_what_was_learned_have_words_of_their_own(share: float, words: set[str]) -> None:
    router = Router(learning=Shares(share))
    request = routed()
    routes = [router.route(request.features, states(), now_s=0.0) for _ in range(50)]
    assert {reason_word(replace(request, route=route)) for route in routes} == words
