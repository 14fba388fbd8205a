"""How many tokens does a step give on a running server, and how sure is that? Over a window of scrapes.

The doubt is taken from how the scrapes differ, not from counts of steps: steps of one request are alike, requests of one
minute too. A step-level interval covers 5-84 % of the time (docs/method.md). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from speclift.core.live import Increment
from speclift.core.results import CONFIDENCE, Estimate

Floats = NDArray[np.float64]

EXPECTED_SD = 0.25
EXPECTED_DF = 4.0
COSINES_MAX = 4
TOKENS_PER_REQUEST = 256.0


def accepted_length(increments: Sequence[Increment], *, level: float = CONFIDENCE) -> Estimate | None:
    used = [each for each in increments if each.steps and each.step_tokens is not None]
    if not used:
        return None
    steps = np.array([each.steps for each in used], dtype=np.float64)
    tokens = np.array([each.step_tokens for each in used], dtype=np.float64)
    variance, df = log_variance(tokens, steps, np.float64(requests_of(used)))
    value = max(1.0, float(tokens.sum() / steps.sum()))
    stretch = math.exp(float(special.stdtrit(df, (1 + level) / 2) * np.sqrt(variance)))
    return Estimate(
        value=value,
        low=max(1.0, value / stretch),
        high=value * stretch,
        n=len(used),
        method="between-scrapes-t",
        level=level,
    )


def requests_of(increments: Sequence[Increment]) -> float:
    begun = [each.totals.requests for each in increments]
    running = max((each.running or 0.0 for each in increments), default=0.0)
    tokens = sum(each.step_tokens or 0.0 for each in increments)
    counted = (
        sum(b for b in begun if b is not None)
        if any(b is not None for b in begun)
        else tokens / TOKENS_PER_REQUEST
    )
    return max(1.0, running, counted)


def log_variance(
    tokens: Floats,
    steps: Floats,
    requests: Floats,
    cosines=COSINES_MAX,
    sd=EXPECTED_SD,
    df0=EXPECTED_DF,
    mode="max",
) -> tuple[Floats, Floats]:
    total = steps.sum(axis=-1, keepdims=True)
    share = steps / total
    ratio = tokens.sum(axis=-1, keepdims=True) / total
    residual = (tokens - ratio * steps) / (ratio * total)
    position = np.cumsum(share, axis=-1) - share / 2
    seen_df = np.minimum(1.0 / np.sum(share**2, axis=-1) - 1.0, cosines)
    seen = np.zeros_like(seen_df)
    for order in range(1, cosines + 1):
        wave = math.sqrt(2.0) * np.sum(residual * np.cos(math.pi * order * position), axis=-1)
        seen = seen + np.clip(seen_df - order + 1.0, 0.0, 1.0) * wave**2
    expected = sd**2 / requests
    pooled = (df0 * expected + seen) / (df0 + seen_df)
    with np.errstate(divide="ignore", invalid="ignore"):
        v1 = np.where(seen_df > 1e-9, seen / seen_df, 0.0)
        satt = (df0 * expected + seen) ** 2 / (
            df0 * expected**2 + np.where(seen_df > 1e-9, seen**2 / seen_df, 0.0)
        )
    if mode == "pool":
        return pooled, df0 + seen_df
    if mode == "max":
        return np.maximum(pooled, v1), np.where(v1 > expected, satt, df0 + seen_df)
    raise ValueError


WATCH_LEVEL = 0.9995
