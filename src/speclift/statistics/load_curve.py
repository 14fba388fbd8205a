"""How does the speedup move with load? One curve per metric, whose loads are tied by prompts and launches.

The loads of a study are not independent samples. A curve therefore answers for any weighted sum of its loads,
not for each load alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from speclift.core.arm import BASELINE
from speclift.core.records import Phase, Record
from speclift.core.results import Estimate
from speclift.core.traffic import Concurrency
from speclift.statistics.cells import METRIC_OF, P99_REQUESTS_MIN, load_size
from speclift.statistics.crossed import Floats
from speclift.statistics.pairs import ALL_DISTINCT, Pair, PromptOf, pairs
from speclift.statistics.stats import SPREAD_MIN, crossed_fit, interval_of

Sample = tuple[int, str, float]
Counts = NDArray[np.int64]

TAIL = 0.99
# Fewer distinct prompts, however often they are sent, say nothing about the slowest in a hundred.
TAIL_PROMPTS_MIN = 20
# Loads whose common prompts and launches are at least this share of their own are compared on those alone.
SHARED_MIN = 0.5
# A spread over resampled prompts needs no more; its own relative error is then about 4 %.
RESAMPLES = 400
FEW_SHARED = "the loads share too few prompts: their correlation is unknown, so the worst case is assumed"
ONE_LAUNCH = "one launch only: the interval does not include differences between launches"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Log speedup at each load, lightest first.

    `estimate(weights, level)` gives sum(weights * log speedup at each load) with its interval, whatever ties
    the loads together: the same prompts, the same launches.
    """

    loads: tuple[float, ...]
    estimate: Callable[[Floats, float], Estimate]
    notes: tuple[str, ...] = ()


def paired_curve(
    records: Sequence[Record], arm: str, metric: str, *, prompt_of: PromptOf = ALL_DISTINCT
) -> Curve | None:
    """A latency over all loads with a pair, which must lie on one axis; None where there are not two."""
    found = pairs(records, arm, metric, prompt_of=prompt_of)
    by_load = _means_by_load(found)
    if len(by_load) < 2:
        return None
    loads, means = list(by_load), list(by_load.values())
    strata = {pair.prompt: pair.segment for pair in found}
    common = [cell for cell in means[0] if all(cell in other for other in means)]
    share = len(common) / max(len(members) for members in means)
    if share < SHARED_MIN:
        return _separate_curve(loads, means, strata)
    curve = shared_curve(
        loads,
        np.array([[members[cell] for cell in common] for members in means]),
        units=[unit for _, unit in common],
        launches=[launch for launch, _ in common],
        strata=[strata[unit] for _, unit in common],
    )
    if share == 1.0:
        return curve
    return replace(curve, notes=(*curve.notes, f"uses the {100 * share:.0f} % of pairs that every load has"))


def _means_by_load(found: Iterable[Pair]) -> dict[float, dict[tuple[int, str], float]]:
    """Mean log speedup of each prompt in each launch, at each load, the lightest first."""
    logs: dict[float, dict[tuple[int, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for pair in found:
        logs[load_size(pair.load)][(pair.round, pair.prompt)].append(pair.log_speedup)
    return {
        load: {cell: math.fsum(values) / len(values) for cell, values in logs[load].items()}
        for load in sorted(logs)
    }


def shared_curve(
    loads: Sequence[float],
    log_speedups: Floats,
    *,
    units: Sequence[Hashable],
    launches: Sequence[Hashable],
    strata: Sequence[Hashable] | None = None,
) -> Curve:
    """Loads measured on the same units and launches: one row of `log_speedups` per load, one column per cell.

    A weighted sum of loads is taken within each cell before the crossed fit, so that what a prompt or a launch
    does to several loads alike is neither lost nor counted twice.
    """

    def estimate(weights: Floats, level: float) -> Estimate:
        values: list[float] = (weights @ log_speedups).tolist()
        return interval_of(crossed_fit(values, units, launches, strata), level=level)

    return Curve(
        loads=tuple(loads), estimate=estimate, notes=(ONE_LAUNCH,) if len(set(launches)) == 1 else ()
    )


def _separate_curve(
    loads: Sequence[float], means: Sequence[dict[tuple[int, str], float]], strata: dict[str, str]
) -> Curve:
    """Loads measured on different prompts. How they move together is unknown, so the worst is assumed."""
    fits = [
        crossed_fit(
            values=list(members.values()),
            prompts=[unit for _, unit in members],
            launches=[launch for launch, _ in members],
            strata=[strata[unit] for _, unit in members],
        )
        for members in means
    ]

    def estimate(weights: Floats, level: float) -> Estimate:
        each = [interval_of(fit, level=level) for fit in fits]
        value = sum(float(weight) * one.value for weight, one in zip(weights, each, strict=True))
        half = sum(abs(float(w)) * (one.high - one.value) for w, one in zip(weights, each, strict=True) if w)
        return _symmetric(value, half, n=min(one.n for one in each), method="separate-loads", level=level)

    is_single = all(fit.launches == 1 for fit in fits)
    notes = (FEW_SHARED, ONE_LAUNCH) if is_single else (FEW_SHARED,)
    return Curve(loads=tuple(loads), estimate=estimate, notes=notes)


def throughput_curve(records: Sequence[Record], arm: str, *, seed: int) -> Curve | None:
    """Log ratio of token rates per block, averaged within a launch.

    The same prompts fill the blocks of every launch, so launches alone do not show what other prompts would
    have given. Where streams are kept full a block lasts as long as its requests take together, so tokens /
    seconds over resampled requests does. In an open loop the rate is the one offered, whatever the prompts.
    """
    by_load: dict[float, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for pair in pairs(records, arm, "throughput"):
        by_load[load_size(pair.load)][pair.round].append(pair.log_speedup)
    loads = sorted(by_load)
    launches = sorted({launch for members in by_load.values() for launch in members})
    if len(loads) < 2:
        return None
    per_launch = np.array(
        [[np.mean(by_load[load].get(launch, math.nan)) for launch in launches] for load in loads]
    )
    totals, unit_count = _served(records, arm, loads)
    tokens, seconds = totals @ _draws(unit_count, seed).T
    # A draw without any request of some load, possible where loads share few prompts, says nothing.
    rates = np.divide(tokens, seconds, out=np.ones_like(tokens), where=(tokens > 0) & (seconds > 0))
    baseline, other = np.log(rates)
    pooled = np.nanmean(per_launch, axis=1)
    return _resampled_curve(loads, pooled, other - baseline, per_launch, unit_count=unit_count)


def _served(records: Iterable[Record], arm: str, loads: Sequence[float]) -> tuple[Floats, int]:
    """Tokens and seconds (axis 0) of baseline and arm (axis 1) by load and prompt, in closed loops only."""
    rank_of = {load: rank for rank, load in enumerate(loads)}
    found = [
        (record.place, record.output_tokens, record.e2e_s)
        for record in records
        if record.is_ok
        and record.place.arm in (BASELINE, arm)
        and isinstance(record.place.load, Concurrency)
        and load_size(record.place.load) in rank_of
    ]
    units = _ranks(place.request_id for place, _, _ in found)
    totals = np.zeros((2, 2, len(loads), len(units)))
    for place, tokens, seconds in found:
        if tokens and seconds:
            where = (int(place.arm == arm), rank_of[load_size(place.load)], units[place.request_id])
            totals[(0, *where)] += tokens
            totals[(1, *where)] += seconds
    return totals, len(units)


def tail_curve(records: Sequence[Record], arm: str, *, seed: int) -> Curve | None:
    """P99 of TTFT, pooled over launches.

    Requests of one run that waited in the same queue are not independent; only launches show that.
    """
    samples = _tail_samples(records, arm)
    if len(samples) < 2:
        return None
    everything = [sample for sides in samples.values() for side in sides for sample in side]
    units = _ranks(unit for _, unit, _ in everything)
    launches = sorted({launch for launch, _, _ in everything})
    draws = _draws(len(units), seed)
    logs = [[_tail_logs(side, units, launches, draws) for side in sides] for sides in samples.values()]
    pooled, per_draw, per_launch = (
        np.array([baseline[part] - other[part] for baseline, other in logs]) for part in range(3)
    )
    curve = _resampled_curve(list(samples), pooled, per_draw, per_launch, unit_count=len(units))
    return replace(curve, notes=("uses P99, which depends on a few slow requests", *curve.notes))


def _resampled_curve(
    loads: Sequence[float], pooled: Floats, per_draw: Floats, per_launch: Floats, *, unit_count: int
) -> Curve:
    """The spread over prompts by resampling them, that over launches by t; one row per load in all three.

    Noise within a launch is in both spreads, so the interval errs wide.
    """
    whole = per_launch[:, ~np.isnan(per_launch).any(axis=0)]
    launch_count = whole.shape[1]

    def estimate(weights: Floats, level: float) -> Estimate:
        upper = (1.0 + level) / 2.0
        is_unknown = unit_count == 1 or (unit_count == 0 and launch_count < 2)
        square = math.inf if is_unknown else SPREAD_MIN**2
        if unit_count > 1:
            # Resampling the prompts at hand shows (n - 1) / n of what other prompts would.
            spread = float(np.var(weights @ per_draw)) * unit_count / (unit_count - 1)
            square += float(special.stdtrit(unit_count - 1, upper)) ** 2 * spread
        if launch_count > 1:
            between = float(np.var(weights @ whole, ddof=1)) / launch_count
            square += float(special.stdtrit(launch_count - 1, upper)) ** 2 * between
        value = float(weights @ pooled)
        return _symmetric(value, math.sqrt(square), n=unit_count, method="resampled-prompts", level=level)

    return Curve(loads=tuple(loads), estimate=estimate, notes=(ONE_LAUNCH,) if launch_count < 2 else ())


def _ranks(units: Iterable[str]) -> dict[str, int]:
    return {unit: rank for rank, unit in enumerate(sorted(set(units)))}


def _draws(unit_count: int, seed: int) -> Counts:
    """How often each unit comes in each resample; the same at every load and on both arms."""
    if unit_count == 0:
        return np.zeros((RESAMPLES, 0), dtype=np.int64)
    random = np.random.default_rng(seed)
    return random.multinomial(unit_count, np.full(unit_count, 1 / unit_count), size=RESAMPLES)


def _tail_logs(
    side: Sequence[Sample], units: dict[str, int], launches: Sequence[int], draws: Counts
) -> tuple[Floats, Floats, Floats]:
    """Log P99 of one arm at one load: of all requests, of each draw of prompts, of each launch."""
    values = np.array([value for _, _, value in side])
    launch_of = np.array([launch for launch, _, _ in side])
    drawn = quantile_of_draws(values, draws[:, [units[unit] for _, unit, _ in side]], TAIL)
    runs = [values[launch_of == launch] for launch in launches]
    per_launch = np.array([np.quantile(run, TAIL) if len(run) else math.nan for run in runs])
    return np.log(np.quantile(values, TAIL)), np.log(drawn), np.log(per_launch)


def _tail_samples(records: Sequence[Record], arm: str) -> dict[float, tuple[list[Sample], list[Sample]]]:
    """(launch, unit, TTFT) of baseline and arm at each load with enough requests and prompts on both."""
    found: dict[float, tuple[list[Sample], list[Sample]]] = defaultdict(lambda: ([], []))
    for record in records:
        place = record.place
        if place.phase is not Phase.MEASURED or not record.is_ok or place.arm not in (BASELINE, arm):
            continue
        value = METRIC_OF["ttft"](record)
        if value is not None and value > 0:
            side = found[load_size(place.load)][place.arm == arm]
            side.append((place.round, place.request_id, value))
    return {
        load: sides
        for load, sides in sorted(found.items())
        if min(len(side) for side in sides) >= P99_REQUESTS_MIN
        and min(len({unit for _, unit, _ in side}) for side in sides) >= TAIL_PROMPTS_MIN
    }


def quantile_of_draws(values: Floats, counts: Counts, q: float) -> Floats:
    """numpy's linear quantile of each resample; row r repeats values[i] counts[r, i] times."""
    order = np.argsort(values)
    reached = np.cumsum(counts[:, order], axis=1)
    position = np.maximum(reached[:, -1] - 1, 0) * q
    below = np.floor(position)

    def at(rank: Floats | Counts) -> Floats:
        index = (reached <= rank[:, None]).sum(axis=1)
        picked: Floats = values[order][np.minimum(index, len(values) - 1)]
        return picked

    low = at(below)
    result: Floats = low + (position - below) * (at(np.minimum(below + 1, reached[:, -1] - 1)) - low)
    return result


def _symmetric(value: float, half: float, *, n: int, method: str, level: float) -> Estimate:
    return Estimate(value=value, low=value - half, high=value + half, n=n, method=method, level=level)
