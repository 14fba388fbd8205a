"""What a watch knows, for Prometheus: one name for each quantity, whichever engine the server runs. Pure.

What is not known has no sample: a zero would be a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from speclift.core.live import Event, Payoff, Watched
from speclift.core.results import Estimate
from speclift.views.prometheus_text import Sample, family

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


def exposition(servers: Sequence[WatchedTotals], *, version: str) -> str:
    text = [family("watch_info", "gauge", "This watch.", [({"version": version}, 1.0)])]
    for name, kind, meaning, samples in _families(servers):
        text.append(family(name, kind, meaning, samples))
    return "".join(text)


def _bound(of: Callable[[Estimate], float]) -> Callable[[Watched], float | None]:
    return lambda watched: None if watched.accepted_length is None else of(watched.accepted_length)


def _break_even(watched: Watched) -> float | None:
    return None if watched.break_even is None else watched.break_even.accepted_length


# One value for each server: name, what it means, where it stands.
GAUGES: tuple[tuple[str, str, Callable[[Watched], float | None]], ...] = (
    (
        "up",
        "1 where the server's metrics could be read at the last look.",
        lambda watched: 0.0 if watched.unreachable else 1.0,
    ),
    (
        "pays",
        "1 where speculation pays, 0 where it does not; absent while that is not known.",
        lambda watched: _PAYS.get(watched.payoff),
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
        yield name, "gauge", meaning, [(_server(each), value(each.watched)) for each in servers]
    infos: list[Sample] = [(_server(each) | _identity(each.watched), 1.0) for each in servers]
    yield "server_info", "gauge", "What the server says it is.", infos
    yield (
        *("verdict", "gauge", "1 for the answer that holds now, 0 for the others."),
        [sample for each in servers for sample in _verdicts(each)],
    )
    for name, meaning in (("ttft", "Time to first token"), ("tpot", "Time per output token")):
        # As a client's own summaries, which are over a window too.
        samples = [sample for each in servers for sample in _percentiles(each, name)]
        yield f"{name}_seconds", "summary", f"{meaning} over the window.", samples
    yield (
        *("events_total", "counter", "What happened to the server, as far as its metrics tell."),
        [sample for each in servers for sample in _events(each)],
    )
    yield "looks_total", "counter", "Looks taken.", [(_server(each), each.looks) for each in servers]
    changes: list[Sample] = [(_server(each), each.changes) for each in servers]
    yield "answer_changes_total", "counter", "How often the settled answer became another.", changes


def _verdicts(each: WatchedTotals) -> Iterator[Sample]:
    for payoff in Payoff:
        yield _server(each) | {"verdict": payoff.value}, float(each.watched.payoff is payoff)


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
