"""Metrics of a watch and a gateway for Prometheus: text format 0.0.4, one name for each quantity. Pure.

Never a prompt, a token or a key, no name that a caller made up. Nothing known, no sample: a zero would be a claim.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from speclift.core.address import shown
from speclift.core.live import Event, LiveEstimate, Payoff, Watched
from speclift.core.routing import ServerPool, ServerState
from speclift.routing.tallies import Tallies, TallyKey, TimeHistogram
from speclift.views.gateway_page import GatewayBoard

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABEL_CHARACTERS_MAX = 300

Sample = tuple[Mapping[str, str], float | None]
# Requests that nobody answered belong to no pool.
NO_POOL = "none"
# Only these are an answer to whether it pays.
_PAYS = {Payoff.PAYS: 1.0, Payoff.DOES_NOT_PAY: 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedTotals:
    """One server, with what was counted since the watch began."""

    watched: Watched
    looks: int
    # By event, those that never came included.
    events: Mapping[Event, int]
    # How often the settled answer became another.
    changes: int


def watch_exposition(servers: Sequence[WatchedTotals], *, version: str) -> str:
    text = [family("watch_info", "gauge", "This watch.", [({"version": version}, 1.0)])]
    for name, kind, meaning, samples in _families(servers):
        text.append(family(name, kind, meaning, samples))
    return "".join(text)


def _bound(of: Callable[[LiveEstimate], float]) -> Callable[[Watched], float | None]:
    return lambda watched: None if watched.accepted_length is None else of(watched.accepted_length)


def _break_even(watched: Watched) -> float | None:
    return None if watched.break_even is None else watched.break_even.accepted_length


# One value for each server: name, what it means, where it stands.
GAUGES: tuple[tuple[str, str, Callable[[Watched], float | None]], ...] = (
    (
        "up",
        "1 where the server's metrics could be read at the last look.",
        lambda watched: float(watched.unreachable is None),
    ),
    (
        "pays",
        "1 where speculation pays, 0 where it does not; absent while that is not known.",
        lambda watched: _PAYS.get(watched.verdict),
    ),
    ("accepted_length", "Tokens per decode step over the window.", _bound(attrgetter("value"))),
    ("accepted_length_low", "Its lower bound.", _bound(attrgetter("low"))),
    ("accepted_length_high", "Its upper bound.", _bound(attrgetter("high"))),
    (
        "break_even_accepted_length",
        "Accepted length from which on speculation pays, at the load of the moment.",
        _break_even,
    ),
    ("acceptance_rate", "Accepted of drafted tokens.", attrgetter("acceptance_rate")),
    ("tokens_per_second", "Generated tokens.", attrgetter("tokens_s")),
    ("requests_per_second", "Requests.", attrgetter("requests_s")),
    ("running", "Requests under way.", attrgetter("running")),
    ("waiting", "Requests that wait.", attrgetter("waiting")),
    ("kv_used", "Share of the KV cache in use.", attrgetter("kv_used")),
    ("prefix_hit_rate", "Share of prompt tokens found cached.", attrgetter("prefix_hit_rate")),
    ("window_seconds", "Time that the figures are about.", attrgetter("window_s")),
    ("since_timestamp_seconds", "When the present answer began.", attrgetter("since_s")),
    ("look_timestamp_seconds", "When the server was last looked at.", attrgetter("at_s")),
)


def _families(servers: Sequence[WatchedTotals]) -> Iterator[tuple[str, str, str, list[Sample]]]:
    """Name, kind, meaning and samples."""
    for name, meaning, value in GAUGES:
        yield name, "gauge", meaning, [(_server(server), value(server.watched)) for server in servers]
    infos: list[Sample] = [(_server(server) | _identity(server.watched), 1.0) for server in servers]
    yield "server_info", "gauge", "What the server says it is.", infos
    yield (
        *("verdict", "gauge", "1 for the answer that holds now, 0 for the others."),
        [sample for server in servers for sample in _verdicts(server)],
    )
    for name, meaning in (("ttft", "Time to first token"), ("tpot", "Time per output token")):
        # As a client's own summaries, which are over a window too.
        samples = [sample for server in servers for sample in _percentiles(server, name)]
        yield f"{name}_seconds", "summary", f"{meaning} over the window.", samples
    yield (
        *("events_total", "counter", "What happened to the server, as far as its metrics tell."),
        [sample for server in servers for sample in _events(server)],
    )
    yield "looks_total", "counter", "Looks taken.", [(_server(server), server.looks) for server in servers]
    changes: list[Sample] = [(_server(server), server.changes) for server in servers]
    yield "answer_changes_total", "counter", "How often the settled answer became another.", changes


def _verdicts(each: WatchedTotals) -> Iterator[Sample]:
    for payoff in Payoff:
        yield _server(each) | {"verdict": payoff.value}, float(each.watched.verdict is payoff)


def _events(each: WatchedTotals) -> Iterator[Sample]:
    for event, count in each.events.items():
        yield _server(each) | {"event": event.value}, count


def _percentiles(each: WatchedTotals, name: str) -> Iterator[Sample]:
    times = each.watched.ttft_s if name == "ttft" else each.watched.tpot_s
    for quantile, value in (("0.5", times.p50), ("0.95", times.p95), ("0.99", times.p99)):
        yield _server(each) | {"quantile": quantile}, value


def _server(each: WatchedTotals) -> dict[str, str]:
    return {"server": each.watched.url}


def _identity(watched: Watched) -> dict[str, str]:
    named = {"engine": watched.engine, "version": watched.version, "model": watched.model}
    return {name: value or "" for name, value in named.items()}


def gateway_exposition(board: GatewayBoard) -> str:
    return "".join((*_request_families(board.tallies), *_server_families(board), *_route_families(board)))


def _request_families(tallies: Tallies) -> Iterator[str]:
    classes = tallies.classes
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
            (_class_labels(key), attrgetter(f"{name}_s")(tally)) for key, tally in classes.items()
        )
        yield histogram_family(f"gateway_{name}_seconds", words, histograms)
    for name, words in (
        ("prompt_tokens", "Prompt tokens, as servers counted them."),
        ("output_tokens", "Output tokens, as servers counted them."),
        ("drafted", "Draft tokens, where engines tell."),
        ("accepted", "Draft tokens that were accepted, where engines tell."),
    ):
        short = f"gateway_{name.removesuffix('_tokens')}_tokens_total"
        counted = [
            (_class_labels(key), float(attrgetter(name)(tally)) or None) for key, tally in classes.items()
        ]
        yield family(short, "counter", words, counted)


def _server_families(board: GatewayBoard) -> Iterator[str]:
    states = [(pool, state) for pool in ServerPool for state in board.pools.of(pool)]

    def by_server(pool: ServerPool, state: ServerState) -> dict[str, str]:
        return {"pool": pool.value, "server": shown(state.url)}

    running = [(by_server(pool, state), float(state.running)) for pool, state in states]
    yield family("gateway_server_running", "gauge", "Requests under way at a server.", running)
    is_up = [(by_server(pool, state), float(state.is_up)) for pool, state in states]
    yield family("gateway_server_up", "gauge", "1 where the server answers.", is_up)
    servers = board.tallies.servers
    answered = [
        (by_server(pool, state), float(servers[state.url].requests))
        for pool, state in states
        if state.url in servers
    ]
    yield family("gateway_server_requests_total", "counter", "Requests that a server was given.", answered)


def _route_families(board: GatewayBoard) -> Iterator[str]:
    tallies = board.tallies
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
        "gateway_retries_total", "counter", "Servers asked beyond a request's first.", [({}, tallies.retries)]
    )
    canaries = [({"pool": pool.value}, float(count)) for pool, count in tallies.canaries.items()]
    yield family(
        "gateway_canaries_total", "counter", "Requests sent to the other pool to keep measuring.", canaries
    )
    reasons = [({"reason": reason}, float(count)) for reason, count in tallies.reasons.items()]
    yield family("gateway_routes_total", "counter", "What decided where a request went.", reasons)
    shares = [({"segment": live.segment}, live.spec_share) for live in board.segments]
    yield family("gateway_spec_share", "gauge", "Share of a segment's requests that goes to spec.", shares)
    speedups = [(live.segment, live.e2e) for live in board.segments if live.e2e is not None]
    for name, words, value in (
        ("speedup", "E2E of plain over spec on live traffic; above 1 spec is faster.", attrgetter("value")),
        ("speedup_low", "Its lower bound, which holds at any time.", attrgetter("low")),
        ("speedup_high", "Its upper bound, which holds at any time.", attrgetter("high")),
    ):
        samples = [({"segment": segment}, float(value(speedup))) for segment, speedup in speedups]
        yield family(f"gateway_{name}", "gauge", words, samples)
    shifts = [({"to": pool.value}, float(count)) for pool, count in board.shift_counts.items()]
    yield family("gateway_shifts_total", "counter", "Segments that live traffic moved.", shifts)


def _class_labels(key: TallyKey) -> dict[str, str]:
    return {"pool": _pool(key), "segment": key.segment, "temperature": key.temperature}


def _pool(key: TallyKey) -> str:
    return NO_POOL if key.pool is None else key.pool.value


def family(short: str, kind: str, meaning: str, samples: Iterable[Sample]) -> str:
    """Those samples that are known; nothing at all where none is."""
    name = f"speclift_{short}"
    return _with_head(name, kind, meaning, (_line(name, labels, value) for labels, value in samples))


def histogram_family(
    short: str, meaning: str, histograms: Iterable[tuple[Mapping[str, str], TimeHistogram]]
) -> str:
    """Those that counted anything."""
    name = f"speclift_{short}"
    lines = (line for labels, times in histograms if times.count for line in _histogram(name, labels, times))
    return _with_head(name, "histogram", meaning, lines)


def _histogram(name: str, labels: Mapping[str, str], histogram: TimeHistogram) -> Iterator[str]:
    so_far = 0
    for edge, count in zip((*histogram.edges, math.inf), histogram.counts, strict=True):
        so_far += count
        yield _line(f"{name}_bucket", {**labels, "le": _number(edge)}, so_far)
    yield _line(f"{name}_sum", labels, histogram.sum_s)
    yield _line(f"{name}_count", labels, so_far)


def _with_head(name: str, kind: str, meaning: str, lines: Iterable[str]) -> str:
    text = "".join(lines)
    return f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n{text}" if text else ""


def _line(name: str, labels: Mapping[str, str], value: float | None) -> str:
    if value is None or math.isnan(value):
        return ""
    return f"{name}{_labels(labels)} {_number(value)}\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    """A label's text as the format wants it. A carriage return ends no line there, but does for some readers."""
    shown = text[:LABEL_CHARACTERS_MAX].encode("utf-8", "replace").decode()
    return (
        shown.replace("\\", r"\\")
        .replace('"', r"\"")
        .replace("\n", r"\n")
        .replace("\r", " ")
        .replace("\0", " ")
    )


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
