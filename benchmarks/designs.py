"""Does the interval cover in every design a user could make, the degenerate ones too? Tables with known truth, counted.

Run by coverage.py. A design is a number of prompts, launches and loads, where the prompts' temperatures come from, and
what is repeated or missing. Every table goes through the function the product uses. A design is broken that covers less
than 93 % by more than two standard errors; from 12 prompts and 3 launches on also one that covers more than 98 %, or,
where launches carry less than a third of the variance, with over 1.5 times the width that known variances would give.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from speclift.core.results import CONFIDENCE
from speclift.core.traffic import Concurrency
from speclift.statistics.balance import Observation, PairTable, Stratum, fit_table, pair_table
from speclift.statistics.stats import CrossedFit, interval_of, launch_spread
from speclift.workload.laps import Window

Floats = NDArray[np.float64]

OVERALL = 0.2
# What a segment and a load add to the log speedup, and what a degree of temperature takes away.
SEGMENTS = {"copy": 0.4, "chat": -0.3, "code": 0.0, "json": 0.1}
LOADS = {1: 0.1, 4: 0.0, 16: -0.2}
PER_DEGREE = -0.3
SEGMENT_TEMPERATURES = {"copy": 0.0, "chat": 1.0, "code": 0.2, "json": 0.0}
# A ratio has the spread of two launches (2 %) and of two requests (6 %).
LAUNCH_SD, RESIDUAL_SD = 0.028, 0.085
# How unlike a prompt's speedup is at two loads, against how unlike prompts are.
LOAD_SHARE = 0.3
MISSING_SHARE = 0.15
# What a budget leaves of the last load: two prompts of each segment.
CUT_PROMPTS = 2 * len(SEGMENTS)
COVERED_MIN, COVERED_MAX, WIDTH_MAX = 0.93, 0.98, 1.5
WIDTH_PROMPTS_MIN, WIDTH_LAUNCHES_MIN = 12, 3
LAUNCH_SHARE_MAX = 1 / 3
NORMAL = 1.959964
FRACTION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    temperatures: str  # one, by segment, own
    prompts: int
    launches: int
    loads: int
    made: str  # complete, repeated, missing, cut, laps
    prompt_sd: float

    @property
    def launch_share(self) -> float:
        """Of the variance of the result. Three launches know their own spread by two degrees of freedom, so where they
        carry most of it no honest interval is near the one that knows it: t is 4.3, not 1.96."""
        requests = self.launches * self.loads * (2 if self.made == "repeated" else 1)
        launch = LAUNCH_SD**2 / self.launches
        by_prompt = self.prompt_sd**2 * (1 + LOAD_SHARE**2 / self.loads) + RESIDUAL_SD**2 / requests
        return launch / (launch + by_prompt / self.prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    design: Design
    studies: int
    # Tables that gave an interval at all; the shares below are of those.
    intervals: int
    covered: float
    standard_error: float
    # Median width against that of the interval with known variances; None without intervals.
    width: float | None
    narrowest: float

    @property
    def broken(self) -> list[str]:
        if not self.intervals:
            return []
        found = []
        if self.covered < COVERED_MIN - 2 * self.standard_error:
            found.append(f"covers {self.covered:.1%}")
        if self.narrowest <= 0:
            found.append("an interval without width")
        # In laps launches are expected to differ by more than they do here.
        is_large = (
            self.design.prompts >= WIDTH_PROMPTS_MIN
            and self.design.launches >= WIDTH_LAUNCHES_MIN
            and self.design.made != "laps"
        )
        if is_large and self.covered > COVERED_MAX + 2 * self.standard_error:
            found.append(f"covers {self.covered:.1%}, hiding behind width")
        is_by_prompts = is_large and self.design.launch_share < LAUNCH_SHARE_MAX
        if is_by_prompts and self.width is not None and self.width > WIDTH_MAX:
            found.append(f"{self.width:.2f} times as wide as known variances would give")
        return found


def designs() -> Iterator[Design]:
    for temperatures, prompts, launches, loads, made, prompt_sd in product(
        ("one", "by segment", "own"),
        (1, 2, 3, 6, 12, 24, 96),
        (1, 3),
        (1, 3),
        ("complete", "repeated", "missing", "cut"),
        (0.05, 0.2, 0.3),
    ):
        if made == "cut" and (loads == 1 or prompts <= CUT_PROMPTS):
            continue
        yield Design(
            temperatures=temperatures,
            prompts=prompts,
            launches=launches,
            loads=loads,
            made=made,
            prompt_sd=prompt_sd,
        )


def lap_designs() -> Iterator[Design]:
    """Each launch met a third of the prompts, or all where it is the only one; the whole lends its launches' spread."""
    for temperatures, prompts, launches, loads, prompt_sd in product(
        ("one", "own"), (1, 2, 3, 6, 12, 24, 96), (1, 2, 3, 6), (1, 3), (0.05, 0.2, 0.3)
    ):
        yield Design(
            temperatures=temperatures,
            prompts=prompts,
            launches=launches,
            loads=loads,
            made="laps",
            prompt_sd=prompt_sd,
        )


def run(design: Design, *, studies: int, seed: int) -> Result:
    random = np.random.default_rng(seed)
    full, part = _table(design)
    covered, widths, errors = 0, [], []
    for _ in range(studies):
        log_speedup, truth = _drawn(design, full, part, random)
        table = replace(full, log_speedup=log_speedup)
        if design.made == "missing":
            table = _thinned(table, random)
        if not len(table):
            continue
        interval = interval_of(_fit(design, table), level=CONFIDENCE)
        if math.isinf(interval.high):
            continue
        truth += _mix(table)
        covered += interval.low <= truth <= interval.high
        widths.append(interval.high - interval.low)
        errors.append(interval.value - truth)
    count = len(widths)
    share = covered / count if count else 0.0
    return Result(
        design=design,
        studies=studies,
        intervals=count,
        covered=share,
        standard_error=math.sqrt(max(share * (1 - share), 1 / max(count, 1)) / max(count, 1)),
        width=float(np.median(widths) / (2 * NORMAL * np.std(errors))) if count > 1 else None,
        narrowest=min(widths, default=0.0),
    )


def _fit(design: Design, table: PairTable) -> CrossedFit:
    fit = fit_table(table, by_temperature=False)
    if design.made != "laps":
        return fit
    return fit_table(table, by_temperature=False, launches=launch_spread(fit))


def _is_in_lap(design: Design, launch: int, number: int) -> bool:
    """By the place within the segment, as the product cuts laps."""
    if design.launches == 1:
        return True
    size, step = 1 / 3, 1 / 4
    window = Window(start=launch * step, end=launch * step + size)
    of_segment = len(range(number % len(SEGMENTS), design.prompts, len(SEGMENTS)))
    return window.holds((number // len(SEGMENTS) + 0.5) / of_segment)


def _table(design: Design) -> tuple[PairTable, Floats]:
    """The pairs of one study in columns, values still 0, and what segment and load add to each."""
    names = list(SEGMENTS)
    observations, added = [], []
    for launch, number, load in product(
        range(design.launches), range(design.prompts), list(LOADS)[: design.loads]
    ):
        segment = names[number % len(names)]
        if design.made == "cut" and load == max(LOADS) and number >= CUT_PROMPTS:
            continue
        if design.made == "laps" and not _is_in_lap(design, launch, number):
            continue
        for _ in range(2 if design.made == "repeated" else 1):
            setting = Stratum(segment, Concurrency(streams=load), _temperature(design, segment, number))
            observations.append(Observation(launch, f"p{number}", setting, 0.0))
            added.append(LOADS[load])
    return pair_table(observations), np.array(added)


def _temperature(design: Design, segment: str, number: int) -> float | None:
    if design.temperatures == "own":
        return number / 100
    return SEGMENT_TEMPERATURES[segment] if design.temperatures == "by segment" else None


def _drawn(
    design: Design, table: PairTable, load_effect: Floats, random: np.random.Generator
) -> tuple[Floats, float]:
    """Log speedups, and the truth less what the mix of segments adds: with one launch, that of this launch."""
    prompt = random.normal(0.0, design.prompt_sd, design.prompts)
    if design.temperatures == "own":
        # Any prompt could have had any temperature: what it takes away is part of how unlike prompts are.
        prompt += PER_DEGREE * (random.random(design.prompts) - 0.5)
    launch = random.normal(0.0, LAUNCH_SD, design.launches)
    streams = np.array([setting.load.streams for setting in table.settings])[table.setting]  # type: ignore[union-attr]
    _, load = np.unique(streams, return_inverse=True)
    by_load = random.normal(0.0, LOAD_SHARE * design.prompt_sd, (design.prompts, design.loads))
    segment = np.array([SEGMENTS[name] for name in table.segments])
    values = (
        OVERALL
        + load_effect
        + segment[table.unit]
        + prompt[table.unit]
        + by_load[table.unit, load]
        + launch[table.round]
        + random.normal(0.0, RESIDUAL_SD, len(table))
    )
    truth = OVERALL + float(np.mean(list(LOADS.values())[: design.loads]))
    return values, truth + (float(launch[0]) if design.launches == 1 else 0.0)


def _mix(table: PairTable) -> float:
    """What the segments of the prompts that are there add: the workload's own mix, not an error."""
    present = np.unique(table.unit)
    return float(np.mean([SEGMENTS[table.segments[unit]] for unit in present]))


def _thinned(table: PairTable, random: np.random.Generator) -> PairTable:
    keep = random.random(len(table)) >= MISSING_SHARE
    return replace(
        table,
        log_speedup=table.log_speedup[keep],
        round=table.round[keep],
        unit=table.unit[keep],
        setting=table.setting[keep],
    )


def design_results(*, every: bool, studies: int, seed: int) -> Iterator[Result]:
    """One result per design, each printed as it comes; without `every` a third of them, of every kind."""
    for index, design in enumerate(designs()):
        if every or index % FRACTION == (index // FRACTION) % FRACTION:
            result = run(design, studies=studies, seed=seed + index)
            print(_line(result), flush=True)
            yield result


def _line(result: Result) -> str:
    design = result.design
    where = (
        f"{design.temperatures:<10} {design.prompts:3d} prompts {design.launches} launches {design.loads} loads "
        f"{design.made:<8} sd {design.prompt_sd:.2f}"
    )
    if not result.intervals:
        return f"{where}  no interval"
    width = f"{result.width:5.2f}" if result.width is not None else "    –"
    broken = f"  BROKEN: {'; '.join(result.broken)}" if result.broken else ""
    return f"{where}  covered {result.covered:6.1%}  width {width}  of {result.intervals}{broken}"


def summary(results: list[Result]) -> str:
    shown = [result for result in results if result.intervals]
    broken = sum(bool(result.broken) for result in results)
    lowest, highest = min(r.covered for r in shown), max(r.covered for r in shown)
    return f"{len(results)} designs, {len(shown)} with an interval: covered {lowest:.1%}-{highest:.1%}; {broken} broken"
