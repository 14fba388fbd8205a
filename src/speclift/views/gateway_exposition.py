"""What a gateway has counted, for Prometheus. Pure: never a prompt, a token or a key, no name that a caller made up.

What is not known has no sample: a zero would be a claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter

from speclift.core.address import shown
from speclift.core.gateway_totals import GatewayTotals, TallyKey, TimeHistogram
from speclift.core.routing import ServerPool, ServerState
from speclift.views.gateway_document import GatewayBoard
from speclift.views.prometheus_text import Sample, family, histogram_family

# Requests that nobody answered belong to no pool.
NO_POOL = "none"


def gateway_exposition(board: GatewayBoard) -> str:
    return "".join((*_request_families(board.totals), *_server_families(board), *_route_families(board)))


def _request_families(totals: GatewayTotals) -> Iterator[str]:
    classes = totals.classes
    ends: Counter[tuple[str, str, str]] = Counter()
    for key, tally in classes.items():
        for end, count in tally.ends.items():
            ends[_pool(key), key.segment, end.value] += count
    requests: list[Sample] = [
        ({"pool": pool, "segment": segment, "end": end}, count)
        for (pool, segment, end), count in ends.items()
    ]
    yield family("gateway_requests_total", "counter", "Requests that ended, and how.", requests)
    for name, words in (
        ("ttft", "From a request's arrival to the first text of its stream."),
        ("tpot", "Time per output token after the first, where the server counts tokens."),
        ("e2e", "From a request's arrival to the last byte of its answer."),
    ):
        histograms: Iterable[tuple[Mapping[str, str], TimeHistogram]] = (
            (_labels(key), attrgetter(f"{name}_s")(tally)) for key, tally in classes.items()
        )
        yield histogram_family(f"gateway_{name}_seconds", words, histograms)
    for name, words in (
        ("prompt_tokens", "Prompt tokens, as servers counted them."),
        ("output_tokens", "Output tokens, as servers counted them."),
        ("drafted", "Draft tokens, where engines tell."),
        ("accepted", "Draft tokens that were accepted, where engines tell."),
    ):
        short = f"gateway_{name.removesuffix('_tokens')}_tokens_total"
        counted = [(_labels(key), float(attrgetter(name)(tally)) or None) for key, tally in classes.items()]
        yield family(short, "counter", words, counted)


def _server_families(board: GatewayBoard) -> Iterator[str]:
    states = [(pool, state) for pool in ServerPool for state in board.pools.of(pool)]

    def by_server(pool: ServerPool, state: ServerState) -> dict[str, str]:
        return {"pool": pool.value, "server": shown(state.url)}

    running = [(by_server(pool, state), float(state.running)) for pool, state in states]
    yield family("gateway_server_running", "gauge", "Requests under way at a server.", running)
    is_up = [(by_server(pool, state), float(state.is_up)) for pool, state in states]
    yield family("gateway_server_up", "gauge", "1 where the server answers.", is_up)
    servers = board.totals.servers
    answered = [
        (by_server(pool, state), float(servers[state.url].requests))
        for pool, state in states
        if state.url in servers
    ]
    yield family("gateway_server_requests_total", "counter", "Requests that a server was given.", answered)


def _route_families(board: GatewayBoard) -> Iterator[str]:
    totals = board.totals
    yield family("gateway_info", "gauge", "This gateway.", [({"version": board.version}, 1.0)])
    yield family(
        "gateway_plain_only",
        "gauge",
        "1 while the switch sends everything to plain.",
        [({}, float(board.pools.is_plain_only))],
    )
    yield family(
        "gateway_spec_held_back",
        "gauge",
        "1 while the servers' own counters speak against speculation.",
        [({}, float(bool(board.pools.against_spec)))],
    )
    yield family(
        "gateway_retries_total", "counter", "Servers asked beyond a request's first.", [({}, totals.retries)]
    )
    canaries = [({"pool": pool.value}, float(count)) for pool, count in totals.canaries.items()]
    yield family(
        "gateway_canaries_total", "counter", "Requests sent to the other pool to keep measuring.", canaries
    )
    reasons = [({"reason": reason}, float(count)) for reason, count in totals.reasons.items()]
    yield family("gateway_routes_total", "counter", "What decided where a request went.", reasons)
    shares = [({"segment": segment}, share) for segment, share in board.shares.items()]
    yield family("gateway_spec_share", "gauge", "Share of a segment's requests that goes to spec.", shares)
    known = [(segment, live.e2e) for segment, live in board.live.items() if live.e2e is not None]
    for name, words, value in (
        ("speedup", "E2E of plain over spec on live traffic; above 1 spec is faster.", attrgetter("value")),
        ("speedup_low", "Its lower bound, which holds at any time.", attrgetter("low")),
        ("speedup_high", "Its upper bound, which holds at any time.", attrgetter("high")),
    ):
        samples = [({"segment": segment}, float(value(each))) for segment, each in known]
        yield family(f"gateway_{name}", "gauge", words, samples)
    shifts = [({"to": pool.value}, float(count)) for pool, count in board.shift_counts.items()]
    yield family("gateway_shifts_total", "counter", "Segments that live traffic moved.", shifts)


def _labels(key: TallyKey) -> dict[str, str]:
    return {"pool": _pool(key), "segment": key.segment, "temperature": key.temperature}


def _pool(key: TallyKey) -> str:
    return NO_POOL if key.pool is None else key.pool.value
