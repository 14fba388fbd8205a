"""Weeks of simulated traffic of a running server, scrape by scrape, with a known accepted length. For watch_alarms.py.

Every week is another server: from one request in five minutes to eighty a minute, ten times as many by day as by night,
a third of the servers idle at night; requests that differ from each other by 9-40 % and last from seconds to two
minutes; a mix that wanders with minutes of memory and, where asked for, follows the hour of the day.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import signal

Floats = NDArray[np.float64]

INTERVAL_S = 15.0
DAY = round(24 * 3600 / INTERVAL_S)
WEEK = 7 * DAY
STEPS_PER_REQUEST = 100.0
# Of the lengths of answers, sd over mean: ShareGPT's is about one.
LENGTHS_CV = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """One row each: what stays the same for a week. Arrays of shape (weeks, 1)."""

    requests_per_scrape: Floats
    request_sd: Floats
    # Of an answer: how much of it is still to come a scrape later.
    lasting: Floats
    mix_sd: Floats
    mix_memory: Floats
    rhythm: Floats
    idle_nights: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Arrays of shape (weeks, scrapes)."""

    tokens: Floats
    steps: Floats
    requests: Floats


def some_servers(weeks: int, random: np.random.Generator, *, rhythm: float) -> Servers:
    def between(low: float, high: float) -> Floats:
        return np.exp(random.uniform(math.log(low), math.log(high), (weeks, 1)))

    return Servers(
        requests_per_scrape=between(0.05, 20.0),
        request_sd=between(0.09, 0.4),
        lasting=np.exp(-INTERVAL_S / between(5.0, 120.0)),
        mix_sd=between(0.01, 0.04),
        mix_memory=np.exp(-INTERVAL_S / between(60.0, 300.0)),
        rhythm=rhythm * random.uniform(0.0, 1.0, (weeks, 1)),
        idle_nights=random.random((weeks, 1)) < 1 / 3,
    )


def simulate(
    servers: Servers, length: Floats | float, random: np.random.Generator, scrapes: int = WEEK
) -> Traffic:
    """`length`: the accepted length without rhythm and wandering, one value or one for each scrape."""
    shape = (len(servers.request_sd), scrapes)
    hour = 2 * math.pi * (np.arange(scrapes) / DAY + random.random((shape[0], 1)))
    begun = random.poisson(_rates(servers, hour, random)).astype(np.float64)
    # Sums over the requests that began: of steps, and of steps times each one's own accepted length.
    steps = STEPS_PER_REQUEST * LENGTHS_CV**2 * random.standard_gamma(begun / LENGTHS_CV**2)
    mix = servers.mix_sd * _wandering(servers.mix_memory, shape, random) + servers.rhythm * np.sin(hour + 1.0)
    many = np.maximum(begun, 1.0)
    own = servers.request_sd * np.sqrt((1 + LENGTHS_CV**2 * (1 - 1 / many)) / many)
    tokens = length * steps * np.exp(mix + own * random.standard_normal(shape) - own**2 / 2)
    steps, tokens = (_over_time(servers.lasting, sums) for sums in (steps, tokens))
    busy = steps >= 1.0
    return Traffic(
        tokens=np.where(busy, np.maximum(tokens, steps), 0.0),
        steps=np.where(busy, steps, 0.0),
        requests=begun,
    )


def _rates(servers: Servers, hour: Floats, random: np.random.Generator) -> Floats:
    """Ten times as many by day as by night; crowds that come at once and stay for minutes."""
    shape = (len(servers.request_sd), hour.shape[1])
    crowds = np.exp(0.5 * _wandering(servers.mix_memory, shape, random) - 0.125)
    bursts = 1.0 + 5.0 * (_over_time(np.full((shape[0], 1), 0.9), random.random(shape) < 1e-3) > 0.03)
    asleep = servers.idle_nights & (np.sin(hour) < -0.7)
    daily = np.exp(math.log(10.0) / 2 * np.sin(hour))
    rates: Floats = np.where(asleep, 0.0, servers.requests_per_scrape * daily * crowds * bursts)
    return rates


def _wandering(memory: Floats, shape: tuple[int, int], random: np.random.Generator) -> Floats:
    """AR(1) of variance 1."""
    noise = random.standard_normal(shape) * np.sqrt(1 - memory**2)
    noise[:, 0] /= np.sqrt(1 - memory[:, 0] ** 2)
    return np.stack(
        [signal.lfilter([1.0], [1.0, -keep], row) for keep, row in zip(memory[:, 0], noise, strict=True)]
    )


def _over_time(lasting: Floats, sums: Floats | NDArray[np.bool_]) -> Floats:
    """What begins in a scrape comes out over this and the following ones."""
    return np.stack(
        [
            signal.lfilter([1.0 - keep], [1.0, -keep], row)
            for keep, row in zip(lasting[:, 0], sums, strict=True)
        ]
    )
