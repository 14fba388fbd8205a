"""Which way of spending the error over looks? A mean looked at six times, decided when its interval clears the bar.

    python benchmarks/spending.py [--studies 200000]

Brownian motion at the laps' shares of the requests, variance known: what is left when everything else is idealised. Of
each way: how often it ever excludes the truth (5 % allowed), and for true distances from the bar, in standard errors of
the whole study, the mean share of the requests until it decides and how often it does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from speclift.workload.laps import interim_plan_for
from trials import trial_options

Floats = NDArray[np.float64]
ERROR = 0.05
DISTANCES = (1.0, 2.0, 3.0, 4.0, 6.0, 10.0)
# Tuned to be narrowest at this share of the requests.
MIXTURE_AT = 1 / 3


def shares_bounds(shares: Floats) -> Floats:
    return np.asarray(stats.norm.isf(ERROR * shares / 2), dtype=np.float64)


def spending_bounds(times: Floats, spent: Floats, paths: Floats) -> Floats:
    """Lan and DeMets: each look's bound is what the looks before leave of the error spent until then."""
    bounds = np.full(len(times), np.inf)
    alive = np.ones(len(paths), dtype=bool)
    before = 0.0
    for look, total in enumerate(spent):
        height = np.abs(paths[:, look]) / np.sqrt(times[look])
        allowed = round((total - before) * len(paths))
        standing = np.sort(height[alive])
        bounds[look] = standing[-allowed] if 0 < allowed < len(standing) else np.inf
        alive &= height < bounds[look]
        before = total
    return bounds


def mixture_bounds(times: Floats) -> Floats:
    """A normal-mixture confidence sequence, in standard errors at each look."""

    def bound(time: float, rho: float) -> float:
        n = time * rho
        return float(np.sqrt((n + 1) / n * (np.log(n + 1) - 2 * np.log(ERROR))))

    best = optimize.minimize_scalar(lambda log: bound(MIXTURE_AT, float(np.exp(log))), bounds=(-5, 8))
    return np.array([bound(time, float(np.exp(best.x))) for time in times])


def drawn(times: Floats, studies: int, random: np.random.Generator) -> Floats:
    steps = np.diff(np.concatenate([[0.0], times]))
    return np.cumsum(random.normal(size=(studies, len(times))) * np.sqrt(steps), axis=1)


def decided(paths: Floats, times: Floats, bounds: Floats, distance: float) -> tuple[float, float]:
    """The mean share of requests until zero lies outside, and how often it ever does."""
    outside = np.abs(paths + distance * times) / np.sqrt(times) >= bounds
    ever = outside.any(axis=1)
    first = np.where(ever, outside.argmax(axis=1), len(times) - 1)
    return float(times[first].mean()), float(ever.mean())


def main() -> None:
    options = trial_options(str(__doc__), seed=1, studies=200_000)
    looks = interim_plan_for(3, together=True)
    assert looks is not None
    times = np.cumsum(looks.sizes) / sum(looks.sizes)
    random = np.random.default_rng(options.seed)
    null = drawn(times, options.studies, random)
    paths = drawn(times, options.studies, random)
    pocock = ERROR * np.log(1 + (np.e - 1) * times)
    late = 2 * stats.norm.sf(stats.norm.isf(ERROR / 2) / np.sqrt(times))
    ways = {
        "everything, one look": np.array([*[np.inf] * (len(times) - 1), stats.norm.isf(ERROR / 2)]),
        "as the product shares it": shares_bounds(np.array(looks.shares)),
        "equal shares": shares_bounds(np.full(len(times), 1 / len(times))),
        "Lan-DeMets, Pocock": spending_bounds(times, pocock, null),
        "Lan-DeMets, O'Brien-Fleming": spending_bounds(times, late, null),
        "normal mixture": mixture_bounds(times),
    }
    print("share of the requests until decided (and how often), by the true distance in standard errors")
    print(f"{'':30s}{'errs':>6s}" + "".join(f"{distance:>14g}" for distance in DISTANCES))
    for name, bounds in ways.items():
        _, errs = decided(paths, times, bounds, 0.0)
        cells = (decided(paths, times, bounds, distance) for distance in DISTANCES)
        row = "".join(f"{share:7.2f} ({ever:.2f})" for share, ever in cells)
        print(f"{name:30s}{100 * errs:5.1f}%{row}")


if __name__ == "__main__":
    main()
