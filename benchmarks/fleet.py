"""Do intervals of a study on several machines cover? Whole studies with known truth, from records to the interval.

    python benchmarks/fleet.py [--studies 500] [--seed 1]

Machines differ in pace, which pairs cancel, and in what the arm gains on them, which they do not: the truth is the mean
over all machines there could be. Each design is a number of nodes, rounds on each of them and the standard deviation of
the gain from node to node. Exits 1 where fewer than 92.5 % of the intervals cover, by more than two standard errors.
Some minutes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from speclift.core.arm import BASELINE, Arm
from speclift.core.records import Place, Record
from speclift.core.results import Estimate
from speclift.core.speculation import NGram
from speclift.core.traffic import Concurrency
from speclift.statistics.balance import Observation, Stratum, fit_table, pair_table
from speclift.statistics.pairs import pairs
from speclift.statistics.stats import interval_of, launch_spread
from speclift.testing.simulated_study import ArmTruth, StudyTruth, simulate_study
from trials import SEGMENTS, trial_options

GAIN = 1.4
ARM = Arm(name="ngram-k4", speculation=NGram(n=3, k=4))
COVERED_MIN = 92.5


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDesign:
    nodes: int
    rounds: int  # on each node
    node_sd: float
    prompts: int = 24
    # Looked at on the way, as decide is by default, or measured whole.
    in_laps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCoverage:
    design: FleetDesign
    percent: float
    # Of all intervals, the half-width on the log scale in the middle.
    half_width: float
    # What the same interval would cover if every launch were taken for one on a machine of its own.
    percent_by_launch: float


def designs() -> Iterator[FleetDesign]:
    shapes = ((3, 1), (3, 2), (2, 3), (8, 1))
    for (nodes, rounds), node_sd, in_laps in product(shapes, (0.05, 0.0), (False, True)):
        yield FleetDesign(nodes=nodes, rounds=rounds, node_sd=node_sd, in_laps=in_laps)


def places(design: FleetDesign) -> list[Place]:
    found = []
    for index in range(design.nodes * design.rounds):
        for number in range(design.prompts):
            arms = (BASELINE, ARM.name) if (number + index) % 2 == 0 else (ARM.name, BASELINE)
            found += [
                Place(
                    arm=arm,
                    launch=2 * index + (arm == ARM.name),
                    round=index,
                    block=number,
                    load=Concurrency(streams=1),
                    request_id=f"p{number}",
                    segment=SEGMENTS[number % len(SEGMENTS)],
                    temperature=0.0,
                    node=f"node-{index % design.nodes}" if design.nodes > 1 else "",
                )
                for arm in arms
            ]
    return found


def coverage(design: FleetDesign, *, studies: int, seed: int) -> FleetCoverage:
    truth = StudyTruth(
        arms={ARM.name: ArmTruth(speedup=lambda *_: GAIN, prompt_sd=0.1)},
        node_level_sd=0.3,
        node_sd=design.node_sd,
    )
    where = places(design)
    covered, by_launch, widths = 0, 0, []
    seeds = np.random.SeedSequence([seed, design.nodes, design.rounds, round(100 * design.node_sd)])
    for child in seeds.spawn(studies):
        records = simulate_study(where, truth, np.random.default_rng(child))
        interval = interval_over(records, in_laps=design.in_laps)
        covered += interval.low <= math.log(GAIN) <= interval.high
        widths.append((interval.high - interval.low) / 2)
        apart = [replace(record, place=replace(record.place, node="")) for record in records]
        taken_apart = interval_over(apart, in_laps=design.in_laps)
        by_launch += taken_apart.low <= math.log(GAIN) <= taken_apart.high
    return FleetCoverage(
        design=design,
        percent=100 * covered / studies,
        half_width=float(np.median(widths)),
        percent_by_launch=100 * by_launch / studies,
    )


def interval_over(records: Sequence[Record], *, in_laps: bool) -> Estimate:
    """As statistics/compare.py makes it of all traffic."""
    observations = [
        Observation(
            pair.round,
            pair.prompt,
            Stratum(pair.segment, pair.load, pair.temperature),
            pair.log_speedup,
            pair.node,
        )
        for pair in pairs(records, ARM.name, "tpot")
    ]
    table = pair_table(observations)
    fit = fit_table(table, by_temperature=False)
    if in_laps:
        fit = fit_table(table, by_temperature=False, launches=launch_spread(fit))
    return interval_of(fit)


def main() -> None:
    options = trial_options(str(__doc__), seed=1, studies=500)
    print("nodes rounds node_sd   laps  covered %  half-width  covered % if nodes are taken for launches")
    worst = 100.0
    for design in designs():
        found = coverage(design, studies=options.studies, seed=options.seed)
        worst = min(worst, found.percent)
        print(
            f"{design.nodes:5d} {design.rounds:6d} {design.node_sd:7.2f} {design.in_laps!s:>6} {found.percent:10.1f} "
            f"{found.half_width:11.3f} {found.percent_by_launch:10.1f}",
            flush=True,
        )
    error = 100 * math.sqrt(0.05 * 0.95 / options.studies)
    print(f"least {worst:.1f} % of {options.studies} studies a design")
    sys.exit(worst < COVERED_MIN - 2 * error)


if __name__ == "__main__":
    main()
