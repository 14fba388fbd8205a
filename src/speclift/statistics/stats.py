"""How sure are we? Intervals for log ratios over prompts x launches, percentiles and ratios of totals.

Numbers in, numbers out: nothing here knows what a request or an arm is, and nothing is resampled,
so the same study always gives the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy import special

from speclift.core.results import CONFIDENCE, Estimate
from speclift.statistics.crossed import (
    EVEN,
    Evenness,
    Floats,
    Indices,
    MeanSquares,
    Table,
    average_cells,
    mean_over_prompts,
    mean_squares,
)

# Beyond these a plan is no plan: nobody sends 100,000 prompts or restarts a server 1,000 times.
PROMPTS_MAX = 100_000
LAUNCHES_MAX = 1_000
# Above this a plan is rounded up by at most 1 %.
SIZES_EXACT = 500

# Where between Satterthwaite's t quantile (0) and Cochran's weighted one (1) the interval is taken.
# Grid of benchmarks/coverage.py, 20,000 simulated sets of mean squares per cell, nominal 95 %, 3 launches:
# at 0 coverage falls to 92.2 % where launches carry most of the variance, because the few launches also
# estimate their own weight; at 1 it is 94.7-99.7 % with intervals up to 28 % wider; at 0.4 it is 93.5-98.8 %
# for at most 11 % more width (6 % on average). No rule tried stays inside 93-97 %: it is exceeded where the
# residual is twice the prompts' spread and launches hardly differ. 5 launches: 94.5-97.3 %.
COCHRAN_WEIGHT = 0.4


# No server repeats a request to within a thousandth: quiet GPUs vary by 0.8-1.2 % from one run to the next. Values
# that agree better than this are taken to differ by as much, so that no interval is without width.
SPREAD_MIN = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossedFit:
    """d = mean + launch + prompt (within its stratum) + residual, each random with its own variance.

    A variance is None where the table cannot tell it apart from the others; `variance`, that of the mean,
    is infinite where the table says nothing about it. With one launch `prompt_variance` includes the
    residual.
    """

    mean: float
    variance: float
    df: float
    launch_variance: float | None
    prompt_variance: float | None
    residual_variance: float | None
    prompts: int
    launches: int
    launch_df: float
    prompt_df: float
    # Weight of the launch mean square, known with launch_df only, against that of the prompts.
    launch_share: float


def crossed_interval(
    values: Sequence[float],
    prompts: Sequence[Hashable],
    launches: Sequence[Hashable],
    strata: Sequence[Hashable] | None = None,
    *,
    level: float = CONFIDENCE,
) -> Estimate:
    """The mean of log ratios over prompts x launches with its interval, still on the log scale."""
    return interval_of(crossed_fit(values, prompts, launches, strata), level=level)


def crossed_fit(
    values: Sequence[float],
    prompts: Sequence[Hashable],
    launches: Sequence[Hashable],
    strata: Sequence[Hashable] | None = None,
    evenness: Evenness = EVEN,
) -> CrossedFit:
    """Fits the crossed model to any table of prompts x launches, cells missing or repeated.

    The mean is that over prompts of each prompt's mean over its launches. Strata are fixed effects: the
    spread between segments is part of the workload, not of the error. Strata of one prompt are merged, so that
    their spread counts as error and the interval errs wide. `evenness` where values are shares in a result that
    rests on some prompts or launches more than on others.
    """
    table = average_cells(values, prompts, launches, strata)
    if table.prompts == 1 or table.launches == 1:
        return _fit_one_launch(table, evenness)
    squares = mean_squares(table, evenness)
    launch_df, prompt_df, residual_df = (float(df) for df in squares.df[:, 0])
    variance, df, launch_share = math.inf, 0.0, 0.0
    launch_variance, prompt_variance, residual_variance = None, None, None
    if launch_df and prompt_df:
        variance, df, launch_share = (float(column[0]) for column in _variance_of_mean(squares))
        variance = max(variance, SPREAD_MIN**2 / table.prompts)
        launch, prompt, residual = (float(square) for square in squares.square[:, 0])
        launch_variance = max(0.0, launch - residual) / float(squares.scale[0, 0])
        prompt_variance = max(0.0, prompt - residual) / float(squares.scale[1, 0])
        residual_variance = residual if residual_df else None
    return CrossedFit(
        mean=mean_over_prompts(table),
        variance=variance,
        df=df,
        launch_variance=launch_variance,
        prompt_variance=prompt_variance,
        residual_variance=residual_variance,
        prompts=table.prompts,
        launches=table.launches,
        launch_df=launch_df,
        prompt_df=prompt_df,
        launch_share=launch_share,
    )


# What launches are taken to differ by where few were seen: 6 % in a ratio, weighing as much as three launches do. On an
# H200 two launches of four arms differed by 10 %, most of it turns of seconds; starts that differ by so much keep their
# coverage, and two launches give an interval that is of use (a spread known from two alone has a quantile of 12.7).
LAUNCH_SD_EXPECTED = 0.06
LAUNCH_DF_EXPECTED = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpread:
    """The variance of a log ratio from launch to launch, and with how many degrees of freedom it is known."""

    variance: float = LAUNCH_SD_EXPECTED**2
    df: float = LAUNCH_DF_EXPECTED


def launch_spread(fit: CrossedFit) -> LaunchSpread:
    """What was seen, together with what is expected: weighed by their degrees of freedom."""
    if fit.launch_variance is None:
        return LaunchSpread()
    df = LAUNCH_DF_EXPECTED + fit.launches - 1
    expected = LAUNCH_DF_EXPECTED * LAUNCH_SD_EXPECTED**2
    return LaunchSpread(variance=(expected + (fit.launches - 1) * fit.launch_variance) / df, df=df)


def prompt_fit(
    values: Sequence[float],
    strata: Sequence[Hashable],
    evenness: Evenness,
    launch_weights: Floats,
    launches: LaunchSpread,
) -> CrossedFit:
    """The mean over prompts, each with one value, where the spread of launches is known from elsewhere: what prompts
    leave open, and what the launches add on which the result rests with these weights."""
    prompts = _fit_one_launch(average_cells(values, range(len(values)), [0] * len(values), strata), evenness)
    if math.isinf(prompts.variance):
        return replace(prompts, launches=len(launch_weights))
    of_launches = launches.variance * float(launch_weights @ launch_weights)
    variance = prompts.variance + of_launches
    df = variance**2 / (prompts.variance**2 / prompts.df + of_launches**2 / launches.df)
    return replace(
        prompts,
        variance=variance,
        df=df,
        launch_variance=launches.variance,
        launches=int(np.count_nonzero(launch_weights)),
        launch_df=launches.df,
        launch_share=of_launches / variance,
    )


def interval_of(fit: CrossedFit, *, level: float = CONFIDENCE) -> Estimate:
    """`method` says what the interval rests on: both factors, prompts alone, or nothing (then it is infinite).

    Three launches are the least to decide on: with two, a 95 % interval covers as little as 92 %. At 99 %
    (an interval widened for many comparisons) three launches cover 97.9 % or more, five 98.5 % or more.
    """
    half_width = _half_width(fit, level)
    if math.isinf(fit.variance):
        method = "not-estimable"
    elif fit.launches == 1:
        method = "prompts-only-t"
    else:
        method = "crossed-t"
    return Estimate(
        value=fit.mean,
        low=fit.mean - half_width,
        high=fit.mean + half_width,
        n=fit.prompts,
        method=method,
        level=level,
    )


def prompts_needed(fit: CrossedFit, margin_log: float, level: float = CONFIDENCE) -> int | None:
    """The least number of prompts (above 500 within 1 %), no fewer than now, that brings the half-width to
    `margin_log`.

    None where no number up to PROMPTS_MAX does: then launches, not prompts, are what is missing.
    """
    if _is_within(fit, margin_log, level):
        return fit.prompts
    if fit.prompt_variance is None:
        return None
    more = _sizes_above(fit.prompts, PROMPTS_MAX)
    planned = _planned_half_widths(fit, level, prompts=more, launches=np.full_like(more, fit.launches))
    return next((int(count) for count in more[planned <= margin_log]), None)


def _sizes_above(count: int, largest: int) -> Floats:
    """Every size up to SIZES_EXACT, then steps of 1 %: all 100,000 would take 75 ms, these take 1."""
    exact = np.arange(count + 1, min(SIZES_EXACT, largest) + 1, dtype=np.float64)
    start = max(count, SIZES_EXACT)
    steps = np.arange(1, math.log(largest / start) / math.log(1.01) + 1) if start < largest else np.empty(0)
    return np.concatenate([exact, np.minimum(np.ceil(start * 1.01**steps), largest)])


def launches_needed(fit: CrossedFit, margin_log: float, level: float = CONFIDENCE) -> int | None:
    """As prompts_needed, for launches at the present prompts; None too where only one launch was seen."""
    if _is_within(fit, margin_log, level):
        return fit.launches
    if fit.launch_variance is None:
        return None
    more = _sizes_above(fit.launches, LAUNCHES_MAX)
    planned = _planned_half_widths(fit, level, prompts=np.full_like(more, fit.prompts), launches=more)
    return next((int(count) for count in more[planned <= margin_log]), None)


def quantile_interval(
    sample: Sequence[float] | Floats, q: float, level: float = CONFIDENCE, *, count: int | None = None
) -> tuple[float | None, float | None]:
    """Distribution-free bounds of a quantile: two order statistics with binomial ranks.

    `count` where fewer of the observations are independent than there are. A bound is None where no observation is
    extreme enough to serve: a 95 % interval has an upper bound for p99 from 368 observations on.
    """
    if not 0.0 < q < 1.0:
        raise ValueError(f"a quantile lies strictly between 0 and 1, saw {q}")
    tail = _tail(level)
    ordered = np.sort(np.asarray(sample, dtype=np.float64))
    if len(ordered) == 0:
        return None, None
    independent = len(ordered) if count is None else count
    low_rank, high_rank = _quantile_ranks(independent, q, tail)
    stretch = len(ordered) / independent
    low = float(ordered[math.floor(low_rank * stretch) - 1]) if low_rank >= 1 else None
    high_index = min(math.ceil(high_rank * stretch), len(ordered)) - 1
    high = float(ordered[high_index]) if high_rank <= independent else None
    return low, high


@cache
def _quantile_ranks(count: int, q: float, tail: float) -> tuple[int, int]:
    """1-based; below 1 or above `count` where there is none. Cached: many cells are of one size."""
    at_most = special.bdtr(np.arange(count + 1), count, q)
    low, high = np.searchsorted(at_most, (tail, 1.0 - tail))
    return int(low), int(high) + 1


def independent_count(values: Floats, prompt: Indices, q: float) -> int:
    """So many independent requests would place the percentile as surely as these, of which prompts share some: the
    variance of the share beyond it, requests taken one by one against prompts taken whole."""
    prompts = len(np.unique(prompt))
    beyond = (values > np.quantile(values, q)).astype(np.float64)
    beyond -= beyond.mean()
    sums = np.bincount(prompt, weights=beyond)
    clustered = float(sums @ sums)
    if prompts < 2 or clustered <= 0:
        return 1 if prompts < 2 else prompts
    return max(1, min(len(values), round(len(values) * float(beyond @ beyond) / clustered)))


def ratio_of_totals(
    numerators: Sequence[float], denominators: Sequence[float], level: float = CONFIDENCE
) -> Estimate:
    """sum / sum with requests as the independent units, e.g. tokens per step over requests.

    Delta method: se = sqrt(n/(n-1) * sum (top_i - ratio * bottom_i)^2) / sum bottom_i, t with n-1 degrees
    of freedom. One request says nothing about the spread: its interval is infinite.
    """
    top = np.asarray(numerators, dtype=np.float64)
    bottom = np.asarray(denominators, dtype=np.float64)
    if len(top) != len(bottom):
        raise ValueError(f"a ratio of totals pairs its terms: saw {len(top)} and {len(bottom)}")
    total = float(bottom.sum())
    if total <= 0.0:
        raise ValueError(f"a ratio of totals needs a positive denominator, saw {total} over {len(bottom)}")
    tail = _tail(level)
    count = len(top)
    ratio = float(top.sum()) / total
    half_width = math.inf
    if count > 1:
        spread = math.sqrt(count / (count - 1) * float(np.sum((top - ratio * bottom) ** 2)))
        half_width = float(special.stdtrit(count - 1, 1.0 - tail)) * spread / total
    return Estimate(
        value=ratio,
        low=ratio - half_width,
        high=ratio + half_width,
        n=count,
        method="ratio-of-totals-t",
        level=level,
    )


def bonferroni(level: float, count: float) -> float:
    """The level each of `count` intervals needs so that all hold together at `level`; not whole where shares differ."""
    if count < 1:
        raise ValueError(f"a family has at least 1 interval, saw {count}")
    return 1.0 - 2.0 * _tail(level) / count


def _fit_one_launch(table: Table, evenness: Evenness) -> CrossedFit:
    """What launches add cannot be seen and is not in the interval. One prompt alone says nothing of others, however
    often it was launched."""
    stratum_means = np.bincount(table.stratum, weights=table.values) / np.bincount(table.stratum)
    freedom = table.prompts - table.strata
    spread: float | None = None
    if freedom > 0 and evenness.prompts > 0:
        squares = float(np.sum((table.values - stratum_means[table.stratum]) ** 2))
        spread = max(squares / freedom, SPREAD_MIN**2)
    df = freedom * evenness.prompts
    return CrossedFit(
        mean=float(table.values.mean()),
        variance=math.inf if spread is None else spread / table.prompts,
        df=df,
        launch_variance=None,
        prompt_variance=spread,
        residual_variance=None,
        prompts=table.prompts,
        launches=table.launches,
        launch_df=0.0,
        prompt_df=df,
        launch_share=0.0,
    )


def _variance_of_mean(squares: MeanSquares) -> tuple[Floats, Floats, Floats]:
    """Variance of the mean, its Satterthwaite degrees of freedom, and the launches' share.

    A component estimated below 0 is taken as 0 and its mean square leaves the variance and the degrees of
    freedom; left in, it makes intervals wider at 12 prompts and covers no better. The share counts it as no
    smaller than noise makes it: that three launches happened to agree does not show that launches do (for an
    arm that is the baseline, 5.2 % false alarms instead of 5.7 %).
    """
    residual = squares.square[2]
    full = squares.weight[:2] / squares.scale
    kept = np.where(squares.square[:2] > residual, full, 0.0)
    coefficients = np.vstack([kept, squares.weight[2] - kept.sum(axis=0)])
    terms = coefficients * squares.square
    variance = terms.sum(axis=0)
    spread = (terms**2 / np.where(squares.df > 0, squares.df, 1.0)).sum(axis=0)
    df = np.divide(variance**2, spread, out=np.full_like(spread, math.inf), where=spread > 0)
    rest = full[1] * np.maximum(squares.square[1], residual)
    launch = full[0] * np.maximum(squares.square[0], residual)
    share = np.divide(launch, launch + rest, out=np.zeros_like(rest), where=launch > 0)
    return variance, df, share


def _multiplier(
    df: Floats, launch_share: Floats, launch_df: Floats, prompt_df: Floats, tail: float
) -> Floats:
    """Between Satterthwaite's quantile and Cochran's, which weighs both factors' own."""
    satterthwaite = special.stdtrit(df, 1.0 - tail)
    cochran = launch_share * special.stdtrit(np.maximum(launch_df, 1.0), 1.0 - tail) + (
        1.0 - launch_share
    ) * special.stdtrit(np.maximum(prompt_df, 1.0), 1.0 - tail)
    mixed = (1.0 - COCHRAN_WEIGHT) * satterthwaite + COCHRAN_WEIGHT * cochran
    multiplier: Floats = np.where(launch_share > 0, mixed, satterthwaite)
    return multiplier


def _half_width(fit: CrossedFit, level: float) -> float:
    tail = _tail(level)
    if fit.variance in (0.0, math.inf):
        return fit.variance
    numbers = (fit.df, fit.launch_share, fit.launch_df, fit.prompt_df)
    df, share, launch_df, prompt_df = (np.array([number], dtype=np.float64) for number in numbers)
    multiplier = _multiplier(df, share, launch_df, prompt_df, tail)
    return float(multiplier[0]) * math.sqrt(fit.variance)


def _is_within(fit: CrossedFit, margin_log: float, level: float) -> bool:
    if not margin_log > 0.0:
        raise ValueError(f"a margin is a positive half-width on the log scale, saw {margin_log}")
    return _half_width(fit, level) <= margin_log


def _planned_half_widths(fit: CrossedFit, level: float, *, prompts: Floats, launches: Floats) -> Floats:
    """Half-widths of complete tables with the fitted variances, one per size.

    They need not fall steadily: more prompts shift weight to the launches, whose quantile is larger.
    """
    components = (fit.launch_variance, fit.prompt_variance, fit.residual_variance)
    launch, prompt, residual = (component or 0.0 for component in components)
    launch_df = launches - 1.0
    prompt_df = prompts - max(1, fit.prompts - fit.prompt_df)
    squares = MeanSquares(
        square=np.vstack([prompts * launch, launches * prompt, np.zeros_like(prompts)]) + residual,
        df=np.vstack([launch_df, prompt_df, launch_df * (prompts - 1.0)]),
        scale=np.vstack([prompts, launches]),
        weight=1.0 / np.vstack([launches, prompts, launches * prompts]),
    )
    variance, df, share = _variance_of_mean(squares)
    half_widths: Floats = _multiplier(df, share, launch_df, prompt_df, _tail(level)) * np.sqrt(variance)
    return half_widths


def _tail(level: float) -> float:
    if not 0.0 < level < 1.0:
        raise ValueError(f"a confidence level lies strictly between 0 and 1, saw {level}")
    return (1.0 - level) / 2.0
