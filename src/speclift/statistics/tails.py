"""Is the tail worse? The highest percentile the requests support and the mean of the slowest 5 %, arm by arm.

Every request counts, and requests of one prompt are one cluster: they are slow together. Nothing is resampled.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

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

# Requests per arm and load from which each percentile is compared, highest first. Two-sided bounds of both arms at
# once exist from 437, 86 and 42 independent requests on.
PERCENTILES = ((0.99, 437), (0.95, 100), (0.90, 50))
REQUESTS_MIN = PERCENTILES[-1][1]
SLOWEST = 0.05
SLOWEST_LABEL = "mean of the slowest 5 %"
SLOWEST_REQUESTS_MIN = 100

Sample = tuple[Floats, Indices]


def tail_ratios(
    records: Sequence[Record], arm: str, *, prompt_of: PromptOf = ALL_DISTINCT
) -> tuple[TailRatio, ...]:
    """Baseline / arm, so that above 1 is faster. Percentiles have bounds of both arms at once, which err wide by
    themselves; means of the slowest have intervals that hold for all loads and times together."""
    samples = _samples(records, arm, prompt_of)
    together = bonferroni(CONFIDENCE, max(1, len(samples)))
    found = []
    for (load, metric), (baseline, other) in samples.items():
        ratios = {
            **_percentile_ratio(baseline, other, CONFIDENCE),
            SLOWEST_LABEL: slowest_ratio(baseline, other, together),
        }
        found += [
            TailRatio(arm=arm, load=load, metric=metric, statistic=name, ratio=ratio)
            for name, ratio in ratios.items()
            if ratio is not None
        ]
    return tuple(found)


def _samples(
    records: Sequence[Record], arm: str, prompt_of: PromptOf
) -> dict[tuple[Load, str], tuple[Sample, Sample]]:
    good: dict[tuple[Load, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.is_ok and record.place.phase is Phase.MEASURED:
            good[(record.place.load, record.place.arm)].append(record)
    names = dict.fromkeys(prompt_of.get(r.place.request_id, r.place.request_id) for r in records)
    number = {name: index for index, name in enumerate(names)}

    def sample(load: Load, name: str, metric: str) -> Sample:
        known = [
            (value, number[prompt_of.get(r.place.request_id, r.place.request_id)])
            for r in good[(load, name)]
            if (value := METRIC_OF[metric](r)) is not None and value > 0
        ]
        values = np.array([value for value, _ in known], dtype=np.float64)
        return values, np.array([prompt for _, prompt in known], dtype=np.intp)

    both = {
        (load, metric): (sample(load, BASELINE, metric), sample(load, arm, metric))
        for load in loads_of(records)
        for metric in METRIC_OF
    }
    return {
        where: sides for where, sides in both.items() if min(len(side[0]) for side in sides) >= REQUESTS_MIN
    }


def _percentile_ratio(baseline: Sample, other: Sample, level: float) -> dict[str, Estimate | None]:
    count = min(len(baseline[0]), len(other[0]))
    for q, requests_min in PERCENTILES:
        ratio = percentile_ratio(baseline, other, q, level) if count >= requests_min else None
        if ratio is not None:
            return {f"P{100 * q:.0f}": ratio}
    return {}


def percentile_ratio(baseline: Sample, other: Sample, q: float, level: float = CONFIDENCE) -> Estimate | None:
    """None where the requests, as far as they are independent, do not reach both bounds of both percentiles."""
    each = bonferroni(level, 2)
    top_low, top_high = quantile_interval(baseline[0], q, each, count=independent_count(*baseline, q))
    bottom_low, bottom_high = quantile_interval(other[0], q, each, count=independent_count(*other, q))
    if top_low is None or top_high is None or bottom_low is None or bottom_high is None:
        return None
    return Estimate(
        value=float(np.quantile(baseline[0], q) / np.quantile(other[0], q)),
        # Equal values give no width; no two servers are known to be alike to within a thousandth.
        low=top_low / bottom_high / (1.0 + SPREAD_MIN),
        high=top_high / bottom_low * (1.0 + SPREAD_MIN),
        n=min(len(np.unique(baseline[1])), len(np.unique(other[1]))),
        method="order-statistics-by-prompt",
        level=level,
    )


def slowest_ratio(baseline: Sample, other: Sample, level: float = CONFIDENCE) -> Estimate | None:
    """The ratio of the means of the slowest, by leaving out one prompt at a time on both arms.

    The degrees of freedom are the prompts found among the slowest of either arm, less one: few make the tail.
    """
    count = min(len(baseline[0]), len(other[0]))
    if count < SLOWEST_REQUESTS_MIN:
        return None
    among = min(len(_slowest_prompts(baseline)), len(_slowest_prompts(other)))
    if among < 2:
        return None
    prompts = np.union1d(baseline[1], other[1])
    whole = _log_slowest(baseline) - _log_slowest(other)
    left_out = np.array([_log_slowest(baseline, prompt) - _log_slowest(other, prompt) for prompt in prompts])
    variance = max((len(prompts) - 1) * float(np.var(left_out)), SPREAD_MIN**2)
    half = float(special.stdtrit(among - 1, (1.0 + level) / 2.0)) * math.sqrt(variance)
    return Estimate(
        value=math.exp(whole),
        low=math.exp(max(whole - half, -700.0)),
        high=math.exp(min(whole + half, 700.0)),
        n=len(prompts),
        method="jackknife-by-prompt",
        level=level,
    )


def _log_slowest(sample: Sample, without: int | None = None) -> float:
    values = sample[0] if without is None else sample[0][sample[1] != without]
    kept = math.ceil(SLOWEST * len(values))
    return math.log(float(np.mean(np.partition(values, len(values) - kept)[-kept:])))


def _slowest_prompts(sample: Sample) -> Indices:
    kept = math.ceil(SLOWEST * len(sample[0]))
    slowest = np.argpartition(sample[0], len(sample[0]) - kept)[-kept:]
    prompts: Indices = np.unique(sample[1][slowest])
    return prompts
