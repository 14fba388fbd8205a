"""Send times of an open loop, fixed in advance: a pure function of load, count and seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from speclift.core.errors import UsageError
from speclift.core.traffic import Rate, Request
from speclift.core.units import Seconds


def arrival_offsets(load: Rate, requests: Sequence[Request], *, seed: int) -> tuple[Seconds, ...]:
    """Seconds after the start, one per request, in the order of `requests`.

    constant: i / rate. poisson: exponential gaps of mean 1 / rate. replay: the requests' own arrival_s,
    shifted to start at 0 and stretched to the rate asked for.
    """
    count = len(requests)
    match load.arrivals:
        case "constant":
            return tuple(index / load.per_s for index in range(count))
        case "poisson":
            rng = random.Random(seed)
            offsets, now = [], 0.0
            for _ in range(count):
                offsets.append(now)
                now += rng.expovariate(load.per_s)
            return tuple(offsets)
        case "replay":
            return _replayed(load, requests)


def period_s(requests: Sequence[Request]) -> Seconds:
    """After how long recorded traffic begins again: its span and one mean gap."""
    recorded = [request.arrival_s for request in requests if request.arrival_s is not None]
    if len(recorded) < 2:
        return 0.0
    return (max(recorded) - min(recorded)) * len(recorded) / (len(recorded) - 1)


def again(request: Request, *, repeat: int, period_s: Seconds) -> Request:
    """The request as its repeat arrives: one period after the time before, not on top of it."""
    if request.arrival_s is None or repeat == 0:
        return request
    return replace(request, arrival_s=request.arrival_s + repeat * period_s)


def _replayed(load: Rate, requests: Sequence[Request]) -> tuple[Seconds, ...]:
    recorded = [request.arrival_s for request in requests if request.arrival_s is not None]
    if len(recorded) < len(requests):
        raise UsageError("replayed arrivals need arrival_s on every request")
    span_s = max(recorded, default=0.0) - min(recorded, default=0.0)
    if span_s == 0:
        return tuple(0.0 for _ in recorded)
    # n - 1 gaps: the recorded mean rate over them is scaled to the rate asked for.
    stretch = (len(recorded) - 1) / load.per_s / span_s
    return tuple((time - min(recorded)) * stretch for time in recorded)
