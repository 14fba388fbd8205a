"""How many tokens does a step give on a running server, and how sure is that, over a window of scrapes?

The doubt is taken from how scrapes differ, not from counts of steps: steps of one request are alike, and so are
requests of one minute. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from speclift.core.live import Increment, LiveEstimate
from speclift.core.results import CONFIDENCE
from speclift.statistics.live_spread import EXPECTED_SPREAD, Scrape, TrafficSpread, scrape_of, window_sums

Floats = NDArray[np.float64]

# For a server that is looked at every 15 s for weeks, over windows of ten minutes. One that lies exactly at its
# break-even is then said not to pay 0.7 times a week (200 weeks of benchmarks/watch_alarms.py), and to pay as often;
# one 5 % above it 0.14 times. At 0.999 it was 1.1 times a week at the edge.
WATCH_LEVEL = 0.9995
# Cosines over the window. At the level above and with nothing learnt, 30 weeks at the edge gave no false answer with
# two, and intervals a third wider; 0.2 a week with four, and 1.6 with eight: these no longer see what neighbouring
# minutes have in common.
WAVES = 4


def accepted_length(
    increments: Sequence[Increment], *, level: float = CONFIDENCE, spread: TrafficSpread = EXPECTED_SPREAD
) -> LiveEstimate | None:
    """Tokens over steps; None where nothing was decoded.

    `spread`: what was learnt of this server before (`ChangeWatch.spread`), else what is expected of any.
    """
    scrapes = [scrape for scrape in map(scrape_of, increments) if scrape is not None and scrape.steps > 0]
    if not scrapes:
        return None
    variance, df = _log_variance(scrapes, spread)
    value = math.exp(window_sums(scrapes).log_length)
    stretch = math.exp(float(special.stdtrit(df, (1.0 + level) / 2.0)) * math.sqrt(variance))
    return LiveEstimate(
        value=value, low=max(1.0, value / stretch), high=value * stretch, level=level, scrapes=len(scrapes)
    )


def _log_variance(scrapes: Sequence[Scrape], spread: TrafficSpread) -> tuple[float, float]:
    tokens = np.array([scrape.tokens for scrape in scrapes])
    steps = np.array([scrape.steps for scrape in scrapes])
    seen, seen_df = seen_variance(tokens, steps)
    expected = np.array(spread.variance(window_sums(scrapes).requests))
    variance, df = together(seen, seen_df, expected, np.array(spread.df))
    return float(variance), float(df)


def seen_variance(tokens: Floats, steps: Floats) -> tuple[Floats, Floats]:
    """Variance of the log of the ratio of sums along the last axis, and its degrees of freedom.

    Residuals of the ratio are projected on the slowest cosines over the steps (the equal-weighted cosine estimator of a
    long-run variance): what varies within seconds averages out in these as it does in the ratio, what varies
    over minutes does in neither. One scrape that has nearly all steps leaves less than one degree of freedom.
    """
    total = steps.sum(axis=-1, keepdims=True)
    share = steps / total
    ratio = np.maximum(1.0, tokens.sum(axis=-1, keepdims=True) / total)
    residuals = (tokens / ratio - steps) / total
    middle = np.cumsum(share, axis=-1) - share / 2.0
    # Rounding makes scrapes that are all equal one too many by a hair.
    df = np.clip(1.0 / np.sum(share**2, axis=-1) - 1.0, 0.0, WAVES)
    squares = np.zeros_like(df)
    for order in range(1, WAVES + 1):
        wave = math.sqrt(2.0) * np.sum(residuals * np.cos(math.pi * order * middle), axis=-1)
        squares = squares + np.clip(df - order + 1.0, 0.0, 1.0) * wave**2
    return squares / np.maximum(df, np.finfo(np.float64).tiny), df


def together(seen: Floats, seen_df: Floats, expected: Floats, expected_df: Floats) -> tuple[Floats, Floats]:
    """What was seen and what is expected, weighed by their degrees of freedom; never less than what was seen."""
    df = seen_df + expected_df
    return np.maximum(seen, (seen_df * seen + expected_df * expected) / df), df
