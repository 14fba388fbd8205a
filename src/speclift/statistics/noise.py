"""How much do two identical servers seem to differ on this machine, and how many prompts does that cost?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain

import numpy as np
from scipy import special

from speclift.core.doctor import Noise, PromptsNeeded
from speclift.core.records import Phase, Record
from speclift.core.results import CONFIDENCE, Estimate
from speclift.core.units import Seconds
from speclift.statistics.stats import SPREAD_MIN

# Normal quantiles: 95 % confidence, two-sided, and 80 % power.
Z_CONFIDENCE, Z_POWER = 1.96, 0.84
# Fewer prompts than this stand for no traffic, however quiet the machine: docs/method.md's least per segment.
PROMPTS_MIN = 10
# The bar for shipping, and the small gains that tell arms apart.
SPEEDUPS = (1.3, 1.1, 1.05, 1.02)
# From 8 pairs the true spread lies, at 95 %, between 0.7 and 2 times the measured one; fewer say too little.
PAIRS_MIN = 8


def noise_of(records: Iterable[Record]) -> Noise | None:
    """From two arms that ran the same requests block by block; None under PAIRS_MIN pairs or of one prompt alone."""
    pairs = _pairs(records)
    ratios: dict[str, list[float]] = defaultdict(list)
    repeats: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (_, request_id), by_arm in pairs.items():
        first, second = _in_order(by_arm)
        ratios[request_id].append(math.log(first / second))
        for arm, tpot_s in by_arm.items():
            repeats[arm, request_id].append(math.log(tpot_s))
    if len(pairs) < PAIRS_MIN or len(ratios) < 2:
        return None
    paired_log_sd = float(np.std(list(chain.from_iterable(ratios.values())), ddof=1))
    return Noise(
        measured=True,
        pairs=len(pairs),
        tpot_s_p50=float(np.median([tpot_s for by_arm in pairs.values() for tpot_s in by_arm.values()])),
        request_log_sd=_pooled_sd(repeats.values()),
        paired_log_sd=paired_log_sd,
        servers_ratio=_ratio([float(np.mean(logs)) for logs in ratios.values()]),
        prompts_needed=tuple(
            PromptsNeeded(speedup=speedup, prompts=prompts_needed(speedup, paired_log_sd=paired_log_sd))
            for speedup in SPEEDUPS
        ),
    )


def _pairs(records: Iterable[Record]) -> dict[tuple[int, str], dict[str, Seconds]]:
    """TPOT by arm of every block and request that both arms answered."""
    tpots: dict[tuple[int, str], dict[str, Seconds]] = defaultdict(dict)
    for record in records:
        if record.place.phase is Phase.MEASURED and record.is_ok and record.tpot_s:
            tpots[record.place.block, record.place.request_id][record.place.arm] = record.tpot_s
    return {key: by_arm for key, by_arm in tpots.items() if len(by_arm) == 2}


def prompts_needed(speedup: float, *, paired_log_sd: float) -> int:
    """n = (1.96 + 0.84)^2 sd^2 / ln(speedup)^2, at least PROMPTS_MIN: to tell `speedup` from none."""
    if not speedup > 0 or speedup == 1:
        raise ValueError(f"a speedup to be seen is above 0 and not 1, saw {speedup}")
    exact = (Z_CONFIDENCE + Z_POWER) ** 2 * paired_log_sd**2 / math.log(speedup) ** 2
    return max(PROMPTS_MIN, math.ceil(exact))


def _in_order(by_arm: dict[str, Seconds]) -> tuple[Seconds, Seconds]:
    first, second = sorted(by_arm)
    return by_arm[first], by_arm[second]


def _pooled_sd(groups: Iterable[list[float]]) -> float | None:
    """Around each group's own mean: prompts differ, repeats of one prompt should not. None without repeats."""
    kept = [np.asarray(group) for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in kept)
    squares = sum(float(np.sum((group - group.mean()) ** 2)) for group in kept)
    return math.sqrt(squares / freedom) if freedom else None


def _ratio(log_ratios: list[float]) -> Estimate:
    """Of prompts, each with the mean of its pairs; clocks that tell no difference still leave SPREAD_MIN of one."""
    count, mean = len(log_ratios), float(np.mean(log_ratios))
    quantile = float(special.stdtrit(count - 1, 0.5 + CONFIDENCE / 2))
    half_width = quantile * max(SPREAD_MIN, float(np.std(log_ratios, ddof=1))) / math.sqrt(count)
    return Estimate(
        value=math.exp(mean),
        low=math.exp(mean - half_width),
        high=math.exp(mean + half_width),
        n=count,
        method="paired-t over prompts",
    )
