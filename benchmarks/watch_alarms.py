"""How often does `speclift watch` cry wolf, and how soon does it notice? On weeks of traffic with a known truth.

    python benchmarks/watch_alarms.py [--weeks 1000] [--looks 200] [--changes 400] [--seed 1]

Weeks of watch_traffic.py at a scrape every 15 s. Prints false alarms of a change per week; how often a server at its
break-even, or 2, 5, 10 % above it, is said not to pay; coverage of the interval; how long a change takes to be noticed,
and how well it is placed in time. About eight minutes on an idle core.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from speclift.core.results import CONFIDENCE
from speclift.statistics.live import (
    EXPECTED_SPREAD,
    WATCH_LEVEL,
    Change,
    ChangeWatch,
    Scrape,
    TrafficSpread,
    seen_variance,
    together,
)
from trials import trial_options
from watch_traffic import DAY, INTERVAL_S, WEEK, Traffic, simulate, some_servers

Floats = NDArray[np.float64]

LENGTH = 2.5
# The hour moves the accepted length by up to so much either way, in logs.
RHYTHM = 0.12
WINDOW = 40
RESTARTS_PER_WEEK = 2.0
K = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    scrape: int
    change: Change


def scrapes_of(traffic: Traffic, week: int) -> Iterator[Scrape]:
    columns = (traffic.tokens[week].tolist(), traffic.steps[week].tolist(), traffic.requests[week].tolist())
    for index, (tokens, steps, begun) in enumerate(zip(*columns, strict=True)):
        yield Scrape(index * INTERVAL_S, INTERVAL_S, tokens, steps, begun, 0.0)


def alarms_of(traffic: Traffic, week: int, restarts: frozenset[int] = frozenset()) -> list[Alarm]:
    watch, alarms = ChangeWatch(), []
    for index, scrape in enumerate(scrapes_of(traffic, week)):
        if index in restarts:
            watch.forget()
        change = watch.follow_scrape(scrape)
        if change is not None:
            alarms.append(Alarm(scrape=index, change=change))
    return alarms


def false_alarms(weeks: int, random: np.random.Generator) -> list[int]:
    """Alarms in each week; nothing changes but the traffic."""
    counts = []
    for _ in range(weeks):
        traffic = simulate(some_servers(1, random, rhythm=RHYTHM), LENGTH, random)
        restarts = frozenset(random.integers(0, WEEK, random.poisson(RESTARTS_PER_WEEK)).tolist())
        counts.append(len(alarms_of(traffic, 0, restarts)))
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """What each look at a window says of the log accepted length; of windows in which anything was decoded."""

    at: NDArray[np.intp]  # the last scrape of the window
    log_length: Floats
    half_width: Floats


def looks_at(
    traffic: Traffic,
    week: int,
    *,
    level: float,
    window: int = WINDOW,
    spreads: list[TrafficSpread] | None = None,
) -> Looks:
    """As `accepted_length` of the window that ends with each scrape, all of them at once. `spreads`: as known then."""

    def windows(row: Floats) -> Floats:
        return np.lib.stride_tricks.sliding_window_view(row, window)

    tokens, steps, begun = (windows(each[week]) for each in (traffic.tokens, traffic.steps, traffic.requests))
    busy = steps.sum(axis=1) > 0
    tokens, steps, begun = tokens[busy], steps[busy], begun[busy]
    at = np.flatnonzero(busy) + window - 1
    known = [EXPECTED_SPREAD] * len(at) if spreads is None else [spreads[index] for index in at]
    even = steps.sum(axis=1) ** 2 / np.sum(steps**2 / np.maximum(1.0, begun), axis=1)
    requests = np.maximum(1.0, np.minimum(np.where(steps > 0, begun, 0.0).sum(axis=1), even))
    expected = np.array(
        [spread.variance(count) for spread, count in zip(known, requests.tolist(), strict=True)]
    )
    variance, df = together(
        *seen_variance(tokens, steps), expected, np.array([spread.df for spread in known])
    )
    return Looks(
        at=at,
        log_length=np.log(np.maximum(1.0, tokens.sum(axis=1) / steps.sum(axis=1))),
        half_width=np.asarray(special.stdtrit(df, (1.0 + level) / 2.0) * np.sqrt(variance), dtype=np.float64),
    )


def learnt_spreads(traffic: Traffic, week: int) -> list[TrafficSpread]:
    """After each scrape."""
    watch, spreads = ChangeWatch(), []
    for scrape in scrapes_of(traffic, week):
        watch.follow_scrape(scrape)
        spreads.append(watch.spread)
    return spreads


def episodes(at: NDArray[np.intp]) -> int:
    """Looks within one window of each other are one false answer."""
    return 0 if len(at) == 0 else 1 + int(np.count_nonzero(np.diff(at) > WINDOW))


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeWeek:
    """False answers by how far the truth lies on the other side of break-even, and half of the interval's width."""

    not_paying: tuple[int, ...]
    paying: tuple[int, ...]
    half_width: float


def edge_week(random: np.random.Generator, margins: tuple[float, ...]) -> EdgeWeek:
    traffic = simulate(some_servers(1, random, rhythm=0.0), LENGTH, random)
    looks = looks_at(traffic, 0, level=WATCH_LEVEL, spreads=learnt_spreads(traffic, 0))
    off = looks.log_length - math.log(LENGTH)
    return EdgeWeek(
        not_paying=tuple(episodes(looks.at[off + looks.half_width < -math.log1p(each)]) for each in margins),
        paying=tuple(episodes(looks.at[off - looks.half_width >= math.log1p(each)]) for each in margins),
        half_width=float(np.median(looks.half_width)) if len(looks.at) else math.nan,
    )


def coverage(scrapes: int, memory_s: float, servers: int, random: np.random.Generator) -> float:
    """Of a single look at 95 %, at windows that do not overlap, on servers of which nothing is known."""
    covered = []
    for _ in range(servers):
        server = some_servers(1, random, rhythm=0.0)
        memory = math.exp(-INTERVAL_S / memory_s) if memory_s else 0.0
        traffic = simulate(replace(server, mix_memory=np.array([[memory]])), LENGTH, random, DAY)
        looks = looks_at(traffic, 0, level=CONFIDENCE, window=scrapes)
        apart = looks.at % WINDOW == 0
        covered += (np.abs(looks.log_length - math.log(LENGTH)) <= looks.half_width)[apart].tolist()
    return float(np.mean(covered))


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """Minutes from a change to its alarm, between it and where it was placed, and to the answer does-not-pay at a
    break-even in the middle; infinite where none came."""

    # In the three windows before the change or after it, whichever had fewer.
    requests_per_minute: float
    delay: float
    error: float
    answer: float


def accepted_length_at(acceptance: float) -> float:
    return float(sum(acceptance**position for position in range(K + 1)))


def noticed(before: float, after: float, random: np.random.Generator) -> Noticed:
    """A change of acceptance 20 hours after the start, at any hour of the server's day."""
    at = DAY * 5 // 6
    lengths = np.where(np.arange(DAY) < at, accepted_length_at(before), accepted_length_at(after))
    traffic = simulate(some_servers(1, random, rhythm=RHYTHM), lengths, random, DAY)
    alarm = next((each for each in alarms_of(traffic, 0) if each.scrape >= at), None)
    looks = looks_at(traffic, 0, level=WATCH_LEVEL, spreads=learnt_spreads(traffic, 0))
    middle = math.log(accepted_length_at(before) * accepted_length_at(after)) / 2
    answers = looks.at[(looks.log_length + looks.half_width < middle) & (looks.at >= at)]
    minute = 60.0 / INTERVAL_S
    # A server that has just woken up has nothing to be compared with.
    around = (traffic.requests[0, at - 3 * WINDOW : at], traffic.requests[0, at : at + 3 * WINDOW])
    return Noticed(
        requests_per_minute=min(float(each.mean()) for each in around) * minute,
        delay=math.inf if alarm is None else (alarm.scrape + 1 - at) / minute,
        error=math.inf if alarm is None else abs(alarm.change.at_s / INTERVAL_S - at) / minute,
        answer=(int(answers[0]) + 1 - at) / minute if len(answers) else math.inf,
    )


def print_false_alarms(weeks: int, random: np.random.Generator) -> None:
    counts = np.array(false_alarms(weeks, random))
    print(f"False alarms of a change in {weeks} weeks: {counts.mean():.3f} a week; weeks with any: ", end="")
    print(f"{np.mean(counts > 0):.1%}; the most in one week: {counts.max()}\n", flush=True)


def print_edge(weeks: int, random: np.random.Generator) -> None:
    margins = (0.0, 0.02, 0.05, 0.10)
    seen = [edge_week(random, margins) for _ in range(weeks)]
    print(f"False answers a week, {weeks} weeks, level {WATCH_LEVEL}; the truth beyond break-even by")
    print("| | " + " | ".join(f"{margin:.0%}" for margin in margins) + " |\n|---|" + "---|" * len(margins))
    for name, rows in (
        ("does-not-pay", [week.not_paying for week in seen]),
        ("pays", [week.paying for week in seen]),
    ):
        print(f"| {name} | " + " | ".join(f"{rate:.2f}" for rate in np.mean(rows, axis=0)) + " |")
    low, middle, high = np.expm1(np.nanquantile([week.half_width for week in seen], (0.1, 0.5, 0.9)))
    print(
        f"\nHalf of the interval: {middle:.0%} in the median server, {low:.0%}-{high:.0%} in four of five\n",
        flush=True,
    )


def print_coverage(servers: int, random: np.random.Generator) -> None:
    memories = (0.0, 60.0, 180.0, 600.0)
    print(f"Coverage at 95 %, {servers} servers; memory of the mix in minutes")
    print(
        "| scrapes | "
        + " | ".join(f"{each / 60:.0f}" for each in memories)
        + " |\n|---|"
        + "---|" * len(memories)
    )
    for scrapes in (1, 2, 3, 10, 40):
        cells = [coverage(scrapes, each, servers, random) for each in memories]
        print(f"| {scrapes} | " + " | ".join(f"{cell:.1%}" for cell in cells) + " |", flush=True)


def print_changes(count: int, random: np.random.Generator) -> None:
    print(
        f"\nAcceptance changes, k {K}; {count} servers each, by requests a minute before and after. Minutes p50, p90"
    )
    print("| from, to | requests | in three windows | alarm after | placed within | does-not-pay after |")
    print("|---|---|---|---|---|---|")
    for after in (0.3, 0.6, 0.7):
        changes = [noticed(0.8, after, random) for _ in range(count)]
        for least, most in ((0.3, 1.0), (1.0, 10.0), (10.0, math.inf)):
            seen = [each for each in changes if least <= each.requests_per_minute < most]
            if seen:
                cells = (
                    [each.delay for each in seen],
                    [each.error for each in seen if each.delay <= 30.0] or [math.inf],
                    [each.answer for each in seen],
                )
                told = " | ".join(
                    ", ".join(f"{minutes:.1f}" for minutes in np.quantile(cell, (0.5, 0.9), method="higher"))
                    for cell in cells
                )
                soon = np.mean([each.delay <= 30.0 for each in seen])
                print(
                    f"| 0.8, {after} | {least:g}-{most:g} | {soon:.1%} of {len(seen)} | {told} |", flush=True
                )


def main() -> None:
    options = trial_options(str(__doc__), seed=1, weeks=1000, looks=200, changes=400)
    random = np.random.default_rng(options.seed)
    print_edge(options.looks, random)
    print_coverage(options.looks, random)
    print_changes(options.changes, random)
    print()
    print_false_alarms(options.weeks, random)


if __name__ == "__main__":
    main()
