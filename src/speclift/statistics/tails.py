"""Is the tail worse? The highest percentile the requests support and the mean of the slowest 5 %, arm by arm.

Every request counts, and requests of one prompt are one cluster: they are slow together, on one arm and on both.
Nothing is resampled.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy import special

from speclift.core.arm import BASELINE
from speclift.core.records import Phase, Record
from speclift.core.results import CONFIDENCE, Estimate, TailRatio
from speclift.core.traffic import Load
from speclift.statistics.cells import METRIC_OF, loads_of
from speclift.statistics.crossed import Floats, Indices
from speclift.statistics.pairs import ALL_DISTINCT, PromptOf
from speclift.statistics.stats import SPREAD_MIN, bonferroni, independent_count, quantile_interval

# Requests per arm and load from which each percentile is compared, and prompts among them, highest first. Two-sided
# bounds of both arms at once exist from 437, 86 and 42 independent requests on; fewer prompts do not show how far
# requests of one prompt are slow together, and their bounds miss the truth (benchmarks/tails.py).
PERCENTILES = ((0.99, 437, 437), (0.95, 100, 86), (0.90, 50, 42))
SLOWEST = 0.05
SLOWEST_LABEL = "mean of the slowest 5 %"
SLOWEST_REQUESTS_MIN = 100
# Two slow prompts in a hundred can double this mean, and 184 prompts hold none of them in 2.4 % of studies: what was
# not seen cannot be ruled out, so with fewer the mean has no lower bound. Rounded up after benchmarks/tails.py.
SLOWEST_PROMPTS_MIN = 200

# The times of an arm's requests, and whose prompt each is.
Sample = tuple[Floats, Indices]


class _Named(NamedTuple):
    statistic: str
    ratio: Estimate
    prompts_min: int


class Sides(NamedTuple):
    baseline: Sample
    arm: Sample

    @property
    def requests(self) -> int:
        return min(len(self.baseline[0]), len(self.arm[0]))

    @property
    def prompts(self) -> int:
        return min(len(np.unique(self.baseline[1])), len(np.unique(self.arm[1])))


def tail_ratios(
    records: Sequence[Record], arm: str, *, prompt_of: PromptOf = ALL_DISTINCT, level: float = CONFIDENCE
) -> tuple[TailRatio, ...]:
    """Baseline / arm, so that above 1 is faster; where each load alone is too thin, over all loads together.

    Each lower bound holds at `level`, for a tail passes only where all do. One upper bound under 1 is enough to fail,
    so those of percentiles join bounds of both arms, which err wide by themselves, and those of the means of the
    slowest hold for all loads and times together.
    """
    samples = {metric: _by_load(records, arm, metric, prompt_of) for metric in METRIC_OF}
    together = bonferroni(level, max(1, sum(len(by_load) for by_load in samples.values())))
    statistics: tuple[Callable[[Sides], _Named | None], ...] = (
        partial(_highest_percentile, level=level),
        partial(_slowest, level=level, together=together),
    )
    return tuple(
        TailRatio(
            arm=arm,
            load=load,
            metric=metric,
            statistic=named.statistic,
            ratio=named.ratio,
            prompts_min=named.prompts_min,
        )
        for metric, by_load in samples.items()
        for statistic in statistics
        for load, named in _by_load_or_pooled(by_load, statistic)
    )


def _by_load_or_pooled(
    by_load: Mapping[Load, Sides], statistic: Callable[[Sides], _Named | None]
) -> Iterator[tuple[Load | None, _Named]]:
    known = [(load, named) for load, sides in by_load.items() if (named := statistic(sides)) is not None]
    yield from known
    if not known and len(by_load) > 1 and (named := statistic(pooled(by_load))) is not None:
        yield None, named


def pooled(by_load: Mapping[Load, Sides]) -> Sides:
    """Every time as a multiple of the baseline's median at its load: what is usual at each counts the same, and the
    medians, which both arms are divided by, leave the ratio alone."""
    usual = [float(np.median(sides.baseline[0])) for sides in by_load.values()]

    def joined(samples: Sequence[Sample]) -> Sample:
        values = [values / scale for (values, _), scale in zip(samples, usual, strict=True)]
        return np.concatenate(values), np.concatenate([prompts for _, prompts in samples])

    return Sides(
        joined([sides.baseline for sides in by_load.values()]),
        joined([sides.arm for sides in by_load.values()]),
    )


def _by_load(records: Sequence[Record], arm: str, metric: str, prompt_of: PromptOf) -> dict[Load, Sides]:
    """Loads at which both arms succeeded. Prompts are numbered by name: no interval hangs on the order of records."""

    def prompt(record: Record) -> str:
        return prompt_of.get(record.place.request_id, record.place.request_id)

    number = {name: index for index, name in enumerate(sorted({prompt(record) for record in records}))}
    timed: dict[tuple[Load, str], list[tuple[float, int]]] = defaultdict(list)
    for record in records:
        value = METRIC_OF[metric](record)
        if record.is_ok and record.place.phase is Phase.MEASURED and value is not None and value > 0:
            timed[(record.place.load, record.place.arm)].append((value, number[prompt(record)]))

    def sample(load: Load, name: str) -> Sample:
        known = timed[(load, name)]
        return np.array([value for value, _ in known]), np.array([index for _, index in known], dtype=np.intp)

    return {
        load: Sides(sample(load, BASELINE), sample(load, arm))
        for load in loads_of(records)
        if timed[(load, BASELINE)] and timed[(load, arm)]
    }


# Percentiles


def _highest_percentile(sides: Sides, level: float) -> _Named | None:
    for q, requests_min, prompts_min in PERCENTILES:
        if sides.requests < requests_min or sides.prompts < prompts_min:
            continue
        ratio = percentile_ratio(sides, q, level)
        if ratio is not None:
            return _Named(f"P{100 * q:.0f}", ratio, prompts_min)
    return None


def percentile_ratio(sides: Sides, q: float, level: float = CONFIDENCE) -> Estimate | None:
    """None where the requests, as far as they are independent, do not reach both bounds of both percentiles.

    The upper bound is that of the baseline's over the lower one of the arm's, both at once. The lower one adds the
    distances from value to bound as standard errors add, less what the arms have in common (Zou and Donner's MOVER):
    where the same prompts are slow on both, their percentiles move together. It is never nearer than either arm's own.
    """
    counts = [independent_count(*side, q) for side in sides]
    at_once, alone = (
        [quantile_interval(side[0], q, each, count=count) for side, count in zip(sides, counts, strict=True)]
        for each in (bonferroni(level, 2), level)
    )
    (top_low, _), (_, bottom_high) = alone
    (top_lowest, top_high), (bottom_low, bottom_highest) = at_once
    if top_lowest is None or top_high is None or bottom_low is None or bottom_highest is None:
        return None
    # What reaches the wider bounds reaches the narrower ones.
    assert top_low is not None
    assert bottom_high is not None
    top, bottom = (float(np.quantile(side[0], q)) for side in sides)
    down, up = math.log(top / top_low), math.log(bottom_high / bottom)
    apart = math.sqrt(max(down**2, up**2, down**2 + up**2 - 2.0 * _agreement(sides, q) * down * up))
    return Estimate(
        value=top / bottom,
        # Equal values give no width; no two servers are known to be alike to within a thousandth.
        low=top / bottom * math.exp(-apart) / (1.0 + SPREAD_MIN),
        high=top_high / bottom_low * (1.0 + SPREAD_MIN),
        n=sides.prompts,
        method="order-statistics-by-prompt",
        level=level,
    )


def _agreement(sides: Sides, q: float) -> float:
    """The correlation of how many of a prompt's requests lie beyond the percentile on either arm."""
    size = max(int(side[1].max()) for side in sides) + 1
    beyond = []
    for values, prompt in sides:
        share = (values > np.quantile(values, q)).astype(np.float64)
        beyond.append(np.bincount(prompt, weights=share - share.mean(), minlength=size))
    spread = math.sqrt(float(beyond[0] @ beyond[0]) * float(beyond[1] @ beyond[1]))
    return max(0.0, float(beyond[0] @ beyond[1]) / spread) if spread > 0 else 0.0


# The slowest


def _slowest(sides: Sides, level: float, together: float) -> _Named | None:
    ratio = slowest_ratio(sides, level, together=together)
    return None if ratio is None else _Named(SLOWEST_LABEL, ratio, SLOWEST_PROMPTS_MIN)


def slowest_ratio(
    sides: Sides, level: float = CONFIDENCE, *, together: float | None = None
) -> Estimate | None:
    """The ratio of the means of the slowest, prompts as the units, paired over the arms.

    Each bound is that of a sample in which one more prompt was as slow as the slowest, on the arm that this speaks
    against: few make the tail, and how many there are is a matter of chance. For the same reason the degrees of freedom
    are the prompts found among the slowest of either arm, less one. `together` is the upper bound's level.
    """
    if sides.requests < SLOWEST_REQUESTS_MIN:
        return None
    among = min(len(_slowest_prompts(side)) for side in sides)
    if among < 2:
        return None
    quantiles = [float(special.stdtrit(among - 1, (1.0 + each) / 2.0)) for each in (level, together or level)]
    low, low_error = _log_slowest_ratio(Sides(sides.baseline, _with_one_more(sides.arm)))
    high, high_error = _log_slowest_ratio(Sides(_with_one_more(sides.baseline), sides.arm))
    is_seen = sides.prompts >= SLOWEST_PROMPTS_MIN
    return Estimate(
        value=math.exp(_log_slowest_ratio(sides)[0]),
        low=math.exp(max(low - quantiles[0] * low_error, -700.0)) if is_seen else 0.0,
        high=math.exp(min(high + quantiles[1] * high_error, 700.0)),
        n=sides.prompts,
        method="slowest-by-prompt",
        level=level,
    )


def _with_one_more(sample: Sample) -> Sample:
    """A prompt beyond those there are, with as many requests as the usual one, all as slow as the slowest."""
    values, prompt = sample
    requests = max(1, round(len(values) / len(np.unique(prompt))))
    return (
        np.append(values, np.full(requests, values.max())),
        np.append(prompt, np.full(requests, prompt.max() + 1)),
    )


def _log_slowest_ratio(sides: Sides) -> tuple[float, float]:
    """With its standard error: what each prompt adds to either mean, one less the other, summed in squares."""
    size = max(int(side[1].max()) for side in sides) + 1
    logs, added = [], []
    for values, prompt in sides:
        kept = math.ceil(SLOWEST * len(values))
        slowest = np.partition(values, len(values) - kept)[-kept:]
        beyond = np.maximum(values - slowest.min(), 0.0)
        mean = float(slowest.mean())
        logs.append(math.log(mean))
        added.append(np.bincount(prompt, weights=(beyond - beyond.mean()) / (kept * mean), minlength=size))
    difference = added[0] - added[1]
    prompts = len(np.union1d(sides.baseline[1], sides.arm[1]))
    variance = float(difference @ difference) * prompts / max(1, prompts - 1)
    return logs[0] - logs[1], max(math.sqrt(variance), SPREAD_MIN)


def _slowest_prompts(sample: Sample) -> Indices:
    kept = math.ceil(SLOWEST * len(sample[0]))
    slowest = np.argpartition(sample[0], len(sample[0]) - kept)[-kept:]
    prompts: Indices = np.unique(sample[1][slowest])
    return prompts
