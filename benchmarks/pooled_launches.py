"""Does an interval cover whose launch variance is pooled over the arms of a study?

    python benchmarks/pooled_launches.py [--studies 1000] [--seed 1]

Simulates whole studies: a baseline and some arms, each launched as often, on the same prompts; servers' launch effects,
prompts and single requests vary as told. Every study goes through the functions that the product uses, once with each
arm's own launches and once with all arms' launches pooled. `uneven` is by how much the last arm's launches vary more
than the others' and the baseline's.
"""

from __future__ import annotations

import argparse
import math
from itertools import product

import numpy as np

from speclift.statistics.launches import launch_effects, pooled_spread
from speclift.statistics.stats import crossed_fit, interval_of

TRUTH = 0.2
PROMPT_SD, RESIDUAL_SD = 0.2, 0.05
LAUNCH_SDS = (0.0, 0.01, 0.03, 0.1)


def simulate(
    random: np.random.Generator, *, arms: int, launches: int, prompts: int, launch_sd: float, uneven: float
) -> tuple[list[tuple[bool, float]], list[tuple[bool, float]]]:
    """Of the last arm, the one that varies most: whether it covers and its half-width, own and pooled."""
    scale = np.full(arms + 1, launch_sd)
    scale[-1] *= uneven
    launch = random.normal(0.0, 1.0, (arms + 1, 1, launches)) * scale[:, None, None]
    request = random.normal(0.0, RESIDUAL_SD, (arms + 1, prompts, launches))
    prompt = random.normal(0.0, PROMPT_SD, (arms, prompts, 1))
    time = launch + request
    ratios = TRUTH + time[0] - time[1:] + prompt
    prompt_of, launch_of = np.divmod(np.arange(prompts * launches), launches)
    ids, starts = prompt_of.tolist(), launch_of.tolist()
    effects = [launch_effects(ratio.ravel().tolist(), ids, starts) for ratio in ratios]
    values = ratios[-1].ravel().tolist()
    results = []
    for spread in (None, pooled_spread(effects)):
        interval = interval_of(crossed_fit(values, ids, starts, spread=spread))
        results.append([(interval.low <= TRUTH <= interval.high, (interval.high - interval.low) / 2)])
    return results[0], results[1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=36)
    options = parser.parse_args()
    print("arms launches launch_sd uneven | own: covered half-width | pooled: covered half-width")
    for arms, launches, launch_sd, uneven in product((1, 2, 3, 5), (2, 3), LAUNCH_SDS, (1.0, 2.0)):
        if not launch_sd and uneven > 1:
            continue
        random = np.random.default_rng(options.seed)
        own: list[tuple[bool, float]] = []
        pooled: list[tuple[bool, float]] = []
        for _ in range(options.studies):
            a, b = simulate(
                random,
                arms=arms,
                launches=launches,
                prompts=options.prompts,
                launch_sd=launch_sd,
                uneven=uneven,
            )
            own += a
            pooled += b
        told = [
            f"{100 * sum(hit for hit, _ in each) / len(each):5.1f} % {math.fsum(w for _, w in each) / len(each):.4f}"
            for each in (own, pooled)
        ]
        print(f"{arms:4d} {launches:8d} {launch_sd:9.2f} {uneven:6.0f} | {told[0]} | {told[1]}", flush=True)


if __name__ == "__main__":
    main()
