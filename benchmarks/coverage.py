"""Does the crossed interval cover? Simulates whole studies with known truth and counts.

    python benchmarks/coverage.py [--all] [--studies 2000] [--seed 1] [--level 0.95] [--missing 0.1]

Every study goes through the function the product uses. A cell of the grid is a number of launches, prompts
and segments with the true standard deviations of launch, prompt and residual on the log scale. After the grid
come the designs of designs.py, the degenerate ones among them: a third of them, or --all; exits 1 where one is broken.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from designs import design_results, summary
from speclift.statistics.stats import crossed_interval
from trials import trial_options

# Segments differ far more than prompts within one do; only their mean is in the truth.
SEGMENT_MEANS = (0.0, 0.4, -0.3)
OVERALL = 0.2
ACCEPTED_PERCENT = (93.0, 97.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    launches: int
    prompts: int
    segments: int
    launch_sd: float
    prompt_sd: float
    residual_sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    truth: Truth
    studies: int
    percent: float
    standard_error: float
    half_width_mean: float


def grid(*, launches: tuple[int, ...] = (3, 5)) -> Iterator[Truth]:
    prompt_counts, segment_counts = (12, 36, 64), (1, 3)
    launch_sds, prompt_sds, residual_sds = (0.0, 0.01, 0.03, 0.05), (0.05, 0.2), (0.02, 0.1)
    for row in product(launches, prompt_counts, segment_counts, launch_sds, prompt_sds, residual_sds):
        names = ("launches", "prompts", "segments", "launch_sd", "prompt_sd", "residual_sd")
        yield Truth(**dict(zip(names, row, strict=True)))  # type: ignore[arg-type]


def coverage(truth: Truth, *, studies: int, seed: int, level: float = 0.95, missing: float = 0.0) -> Coverage:
    """`missing` is the share of (prompt, launch) pairs that got lost at random."""
    random = np.random.default_rng(seed)
    segment = np.arange(truth.prompts) % truth.segments
    segment_means = np.array(SEGMENT_MEANS)[segment]
    target = OVERALL + float(segment_means.mean())
    prompt_of, launch_of = np.divmod(np.arange(truth.prompts * truth.launches), truth.launches)
    covered, half_widths = 0, []
    for _ in range(studies):
        launch = random.normal(0.0, truth.launch_sd, truth.launches)
        prompt = random.normal(0.0, truth.prompt_sd, truth.prompts) + segment_means
        residual = random.normal(0.0, truth.residual_sd, len(prompt_of))
        values = OVERALL + launch[launch_of] + prompt[prompt_of] + residual
        # The first launch stays whole, so that no prompt vanishes and the truth stays the same.
        kept = (random.random(len(values)) >= missing) | (launch_of == 0)
        interval = crossed_interval(
            values[kept].tolist(),
            prompt_of[kept].tolist(),
            launch_of[kept].tolist(),
            segment[prompt_of[kept]].tolist(),
            level=level,
        )
        covered += interval.low <= target <= interval.high
        half_widths.append((interval.high - interval.low) / 2)
    share = covered / studies
    return Coverage(
        truth=truth,
        studies=studies,
        percent=100 * share,
        standard_error=100 * math.sqrt(share * (1 - share) / studies),
        half_width_mean=float(np.mean(half_widths)),
    )


def main() -> None:
    options = trial_options(str(__doc__), seed=1, studies=2000, level=0.95, missing=0.0, all=False)
    results = []
    print("launches prompts segments launch_sd prompt_sd residual_sd  covered %  half-width")
    for index, truth in enumerate(grid()):
        result = coverage(
            truth,
            studies=options.studies,
            seed=options.seed + index,
            level=options.level,
            missing=options.missing,
        )
        results.append(result)
        print(
            f"{truth.launches:8d} {truth.prompts:7d} {truth.segments:8d} {truth.launch_sd:9.2f} "
            f"{truth.prompt_sd:9.2f} {truth.residual_sd:11.2f}  {result.percent:9.1f}  {result.half_width_mean:10.4f}",
            flush=True,
        )
    of_designs = list(design_results(every=options.all, studies=options.studies // 2, seed=options.seed))
    percents = [result.percent for result in results]
    low, high = ACCEPTED_PERCENT
    outside = sum(not low <= percent <= high for percent in percents)
    print(
        f"{min(percents):.1f}-{max(percents):.1f} % over {len(results)} cells of {options.studies} studies; "
        f"{outside} outside {low:.0f}-{high:.0f} %"
    )
    print(summary(of_designs))
    sys.exit(any(result.broken for result in of_designs))


if __name__ == "__main__":
    main()
