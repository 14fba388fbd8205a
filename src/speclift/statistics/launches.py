"""How much do launches vary, and is another one worth its time?

With two launches an arm tells its own launch variance with one degree of freedom, and t = 12.7 makes its interval
useless. The other arms of a study were launched as often beside it: what all of them say together is known better.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from speclift.core.results import CONFIDENCE
from speclift.core.units import Seconds
from speclift.statistics.crossed import average_cells
from speclift.statistics.stats import CrossedFit, LaunchSpread, planned_half_widths

# One launch shows none of what launches add.
LAUNCHES_MIN = 2
# Less is not worth a minute of starting servers.
GAIN_MIN = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEffects:
    """How far each launch lies from their mean, prompts being equal, and the variance that requests alone give it."""

    by_launch: Mapping[Hashable, float]
    noise: float = 0.0


def launch_effects(
    values: Sequence[float], prompts: Sequence[Hashable], launches: Sequence[Hashable]
) -> LaunchEffects:
    """Of one arm's log ratios; cells may be missing or repeated."""
    table = average_cells(values, prompts, launches, None)
    counts = np.bincount(table.prompt)
    prompt_means = np.bincount(table.prompt, weights=table.values) / counts
    is_launch = np.eye(table.launches)[table.launch]
    shares = np.stack([np.bincount(table.prompt, weights=column) for column in is_launch.T], axis=1)
    within = is_launch - (shares / counts[:, None])[table.prompt]
    values_within = table.values - prompt_means[table.prompt]
    effects = np.linalg.lstsq(within, values_within, rcond=None)[0]
    left = values_within - within @ effects
    freedom = len(left) - table.prompts - table.launches + 1
    per_launch = len(left) / table.launches
    return LaunchEffects(
        by_launch=dict(zip(dict.fromkeys(launches), (effects - effects.mean()).tolist(), strict=True)),
        noise=float(left @ left) / freedom / per_launch if freedom > 0 else 0.0,
    )


def pooled_spread(arms: Sequence[LaunchEffects]) -> LaunchSpread | None:
    """From every arm of a study against the same baseline; None where no two launches are common to all.

    Servers are taken to vary alike from launch to launch. A launch of the baseline moves the ratios of all arms
    together, so they count as (arms x (launches - 1)) degrees of freedom only once that is taken out: with s^2 the
    variance of a server, ratios of one launch have the covariance s^2 (I + J), whose inverse is I - J / (arms + 1).
    """
    common = sorted(set.intersection(*(set(arm.by_launch) for arm in arms)), key=repr) if arms else []
    if len(common) < LAUNCHES_MIN:
        return None
    table = np.array([[arm.by_launch[launch] for launch in common] for arm in arms])
    table -= table.mean(axis=1, keepdims=True)
    of_servers = float(np.sum(table**2) - np.sum(table.sum(axis=0) ** 2) / (len(arms) + 1))
    df = len(arms) * (len(common) - 1)
    noise = math.fsum(arm.noise for arm in arms) / len(arms)
    return LaunchSpread(variance=max(0.0, 2.0 * of_servers / df - noise), df=float(df))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchWorth:
    """Whether another launch of every arm is the best use of its time, and why, in words."""

    is_worth: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCost:
    """What another round takes before its first request, what one prompt takes on all arms, and how many prompts there
    are that were not sent yet."""

    launch_s: Seconds
    prompt_s: Seconds
    prompts_left: int


def launches_worth(fit: CrossedFit, cost: LaunchCost, *, level: float = CONFIDENCE) -> LaunchWorth:
    """Of an arm that is not settled, with the launch spread that all arms tell together.

    Another round launches every arm and sends the same prompts; in the same time the servers that are up could answer
    prompts that nobody saw yet. Whichever leaves the narrower interval is the better use of it.
    """
    if fit.launches < LAUNCHES_MIN:
        return LaunchWorth(
            is_worth=True,
            reason=f"{fit.launches} launch says nothing of how launches differ; {LAUNCHES_MIN} do",
        )
    now, another = _half_widths(fit, level, prompts=(0, 0), launches=(0, 1))
    round_s = cost.launch_s + fit.prompts * cost.prompt_s
    more = min(cost.prompts_left, math.floor(round_s / cost.prompt_s))
    (staying,) = _half_widths(fit, level, prompts=(more,), launches=(0,))
    gain, other = 1.0 - another / now, 1.0 - staying / now
    told = f"launch {fit.launches + 1} would narrow the interval by {max(0.0, gain):.0%}"
    if gain < GAIN_MIN:
        return LaunchWorth(is_worth=False, reason=f"{told}: launches hardly differ")
    if other >= gain:
        rest = f"{more} further prompts in the same time by {other:.0%}"
        return LaunchWorth(is_worth=False, reason=f"{told}, {rest}")
    beside = f", {more} further prompts in the same time by {max(0.0, other):.0%}" if more else ""
    return LaunchWorth(is_worth=True, reason=f"{told}{beside}")


def _half_widths(
    fit: CrossedFit, level: float, *, prompts: Sequence[int], launches: Sequence[int]
) -> list[float]:
    """With so many more of each."""
    planned = planned_half_widths(
        fit,
        level,
        prompts=np.array([float(fit.prompts + more) for more in prompts]),
        launches=np.array([float(fit.launches + more) for more in launches]),
    )
    return [float(width) for width in planned]
