"""What a watch knows, for Prometheus: one name for each quantity, whichever engine the server runs. Pure.

Text format 0.0.4. What is not known has no sample: a zero would be a claim.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from speclift.core.live import Event, Payoff, Watched

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABEL_CHARACTERS_MAX = 300
# Only these are an answer to whether it pays.
_PAYS = {Payoff.PAYS: 1.0, Payoff.DOES_NOT_PAY: 0.0}

Sample = tuple[Mapping[str, str], float | None]


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
    text = [_family("speclift_watch_info", "gauge", "This watch.", [({"version": version}, 1.0)])]
    for name, kind, meaning, samples in _families(servers):
        text.append(_family(name, kind, meaning, samples))
    return "".join(text)


def _families(servers: Sequence[WatchedTotals]) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    yield (
        *("speclift_up", "gauge", "1 where the server's metrics could be read at the last look."),
        [(_server(each), 0.0 if each.watched.unreachable else 1.0) for each in servers],
    )
    yield (
        *("speclift_server_info", "gauge", "What the server says it is."),
        [(_server(each) | _identity(each.watched), 1.0) for each in servers],
    )
    yield (
        *("speclift_verdict", "gauge", "1 for the answer that holds now, 0 for the others."),
        [
            (_server(each) | {"verdict": payoff.value}, float(each.watched.payoff is payoff))
            for each in servers
            for payoff in Payoff
        ],
    )
    yield (
        *(
            "speclift_pays",
            "gauge",
            "1 where speculation pays, 0 where it does not; absent while that is not known.",
        ),
        [(_server(each), _PAYS.get(each.watched.payoff)) for each in servers],
    )
    yield from _quantities(servers)
    for name, meaning in (("ttft", "Time to first token"), ("tpot", "Time per output token")):
        yield (
            # As a client's own summaries, which are over a window too.
            *(f"speclift_{name}_seconds", "summary", f"{meaning} over the window."),
            [sample for each in servers for sample in _percentiles(each, name)],
        )
    yield (
        *("speclift_events_total", "counter", "What happened to the server, as far as its metrics tell."),
        [
            (_server(each) | {"event": event.value}, float(count))
            for each in servers
            for event, count in each.events.items()
        ],
    )
    for name, meaning, values in (
        ("looks", "Looks taken.", [each.looks for each in servers]),
        (
            "answer_changes",
            "How often the settled answer became another.",
            [each.changes for each in servers],
        ),
    ):
        yield (
            *(f"speclift_{name}_total", "counter", meaning),
            [(_server(each), float(value)) for each, value in zip(servers, values, strict=True)],
        )


def _quantities(servers: Sequence[WatchedTotals]) -> Iterator[tuple[str, str, str, list[Sample]]]:
    """One value for each server."""
    watched = [each.watched for each in servers]
    lengths = [each.accepted_length for each in watched]
    points = [each.break_even for each in watched]
    quantities: Mapping[str, tuple[str, list[float | None]]] = {
        "accepted_length": (
            "Tokens per decode step over the window.",
            [None if each is None else each.value for each in lengths],
        ),
        "accepted_length_low": ("Its lower bound.", [None if each is None else each.low for each in lengths]),
        "accepted_length_high": (
            "Its upper bound.",
            [None if each is None else each.high for each in lengths],
        ),
        "break_even_accepted_length": (
            "Accepted length from which on speculation pays, at the load of the moment.",
            [None if each is None else each.accepted_length for each in points],
        ),
        "acceptance_rate": ("Accepted of drafted tokens.", [each.acceptance_rate for each in watched]),
        "tokens_per_second": ("Generated tokens.", [each.tokens_s for each in watched]),
        "requests_per_second": ("Requests.", [each.requests_s for each in watched]),
        "running": ("Requests under way.", [each.running for each in watched]),
        "waiting": ("Requests that wait.", [each.waiting for each in watched]),
        "kv_used": ("Share of the KV cache in use.", [each.kv_used for each in watched]),
        "prefix_hit_rate": (
            "Share of prompt tokens found cached.",
            [each.prefix_hit_rate for each in watched],
        ),
        "window_seconds": ("Time that the figures are about.", [each.window_s for each in watched]),
        "since_timestamp_seconds": ("When the present answer began.", [each.since_s for each in watched]),
        "look_timestamp_seconds": ("When the server was last looked at.", [each.at_s for each in watched]),
    }
    for name, (meaning, values) in quantities.items():
        samples: list[Sample] = [(_server(each), value) for each, value in zip(servers, values, strict=True)]
        yield f"speclift_{name}", "gauge", meaning, samples


def _percentiles(each: WatchedTotals, name: str) -> Iterator[Sample]:
    times = each.watched.ttft_s if name == "ttft" else each.watched.tpot_s
    for quantile, value in (("0.5", times.p50), ("0.95", times.p95), ("0.99", times.p99)):
        yield _server(each) | {"quantile": quantile}, value


def _server(each: WatchedTotals) -> dict[str, str]:
    return {"server": each.watched.url}


def _identity(watched: Watched) -> dict[str, str]:
    named = {"engine": watched.engine, "version": watched.version, "model": watched.model}
    return {name: value or "" for name, value in named.items()}


def _family(name: str, kind: str, meaning: str, samples: Iterable[Sample]) -> str:
    lines = [
        f"{name}{_labels(labels)} {_number(value)}\n"
        for labels, value in samples
        if value is not None and not math.isnan(value)
    ]
    return "".join((f"# HELP {name} {meaning}\n", f"# TYPE {name} {kind}\n", *lines)) if lines else ""


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    """As the format wants it. A carriage return ends no line there, but does in the eyes of some readers."""
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
