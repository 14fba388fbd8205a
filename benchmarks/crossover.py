"""Does the crossover's interval cover the true load? Simulates whole studies with known truth and counts.

    python benchmarks/crossover.py [--studies 2000] [--seed 1] [--level 0.95] [--hard] [--records]

A cell is a family of true curves, the loads measured, the launches, and whether a prompt or a launch does the
same at every load. Within a cell each study draws its own curve, prompts (24-64) and noise. `--hard` measures
curves that cross outside the loads, and some with a knee too sharp for them. `--records` sends fewer and larger studies
through the whole function, record by record, to see every metric.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import brentq

from speclift.core.arm import BASELINE
from speclift.core.records import Outcome, Place, Record
from speclift.core.results import Estimate
from speclift.core.traffic import Concurrency
from speclift.statistics.crossed import Floats
from speclift.statistics.crossover import Crossing, crossing_of, crossovers
from speclift.statistics.load_curve import Curve, shared_curve
from trials import trial_options

ACCEPTED_PERCENT = (93.0, 97.0)
LOADS = {"1,2,4..64": (1, 2, 4, 8, 16, 32, 64), "1,4,16,64": (1, 4, 16, 64)}
# How alike a launch, and a prompt, is at two loads.
TIES = {"same at every load": (1.0, 1.0), "partly": (0.5, 0.8), "own at each load": (0.0, 0.0)}
# Exponent of (memory^r + compute^r)^(1/r): 1 adds the two, 4 is nearly the larger of them, a knee.
OVERLAP = {"cost": 1.0, "cost, soft knee": 2.0, "cost, sharp knee": 4.0}
INSIDE, HARD = ("linear", "cost"), ("linear, outside", "cost, soft knee", "cost, sharp knee")
ARM = "arm"
NORMAL_P99 = 2.3263
TTFT_PROMPT_SD, TTFT_REQUEST_SD = 0.25, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    family: str
    loads: str
    launches: int
    tie: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    prompts: int
    launch_sd: float
    prompt_sd: float
    residual_sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """log speedup at a log load, and where it is 0."""

    log_speedup: Callable[[float], float]
    log_crossing: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    cell: Cell
    metric: str
    studies: int
    percent: float
    standard_error: float
    # The interval lay wholly above, wholly below the truth.
    above_percent: float
    below_percent: float
    open_percent: float
    # high / low of the closed intervals, estimate / truth, and the same without any noise.
    width_median: float | None
    error_median_percent: float | None
    bias_percent: float | None
    interpolation_p95_percent: float | None


def cells(*, hard: bool, records: bool) -> Iterator[Cell]:
    families = HARD if hard else INSIDE
    for family, loads, launches, tie in product(families, LOADS, (3, 5), ("partly",) if records else TIES):
        yield Cell(family=family, loads=loads, launches=launches, tie=tie)


def draw_truth(family: str, random: np.random.Generator, *, low: float, high: float) -> Truth:
    """A curve that crosses inside the loads, unless said; linear ones are as steep as the cost model's."""
    if family.startswith("linear"):
        slope, crossing = random.uniform(0.1, 0.4), random.uniform(low + 0.4, high - 0.4)
        if "outside" in family:
            crossing = random.choice([low - 0.2, high + 0.2])
        return Truth(log_speedup=lambda x: -slope * (x - crossing), log_crossing=crossing)
    while True:
        drafted = int(random.choice([1, 2, 3, 4, 5, 7]))
        acceptance = random.uniform(0.4, 0.9)
        length = (1 - acceptance ** (drafted + 1)) / (1 - acceptance)
        # Tokens in a step at which compute costs as much as reading the weights: 4-bit on a small GPU to H100.
        ridge = math.exp(random.uniform(math.log(8), math.log(300)))
        draft_cost = drafted * random.uniform(0.0, 0.15)
        log_speedup = _cost_curve(OVERLAP[family], drafted, length, ridge, draft_cost)
        if log_speedup(low) > 0.03 and log_speedup(high) < -0.03:
            return Truth(log_speedup=log_speedup, log_crossing=float(brentq(log_speedup, low, high)))


def _cost_curve(
    overlap: float, drafted: int, length: float, ridge: float, draft_cost: float
) -> Callable[[float], float]:
    """log of L T(b, 0) / T(b, k), docs/method.md: a step's time in units of reading the weights once."""

    def step(tokens: float, draft: float) -> float:
        return 0.15 + float((1 + (tokens / ridge) ** overlap) ** (1 / overlap)) + draft

    def log_speedup(log_load: float) -> float:
        batch = math.exp(log_load)
        return math.log(length * step(batch, 0.0) / step(batch * (drafted + 1), draft_cost))

    return log_speedup


def draw_noise(random: np.random.Generator, *, prompts_min: int) -> Noise:
    return Noise(
        prompts=int(random.integers(prompts_min, 65)),
        launch_sd=random.uniform(0.01, 0.03),
        prompt_sd=random.uniform(0.05, 0.2),
        residual_sd=random.uniform(0.03, 0.1),
    )


def draw_log_speedups(cell: Cell, truth: Truth, noise: Noise, random: np.random.Generator) -> Floats:
    """Loads x launches x prompts."""
    loads = np.log(LOADS[cell.loads])
    launch_tie, prompt_tie = TIES[cell.tie]

    def effects(count: int, sd: float, tie: float) -> Floats:
        common, own = random.normal(size=(1, count)), random.normal(size=(len(loads), count))
        tied: Floats = sd * (math.sqrt(tie) * common + math.sqrt(1 - tie) * own)
        return tied

    launch = effects(cell.launches, noise.launch_sd, launch_tie)[:, :, None]
    prompt = effects(noise.prompts, noise.prompt_sd, prompt_tie)[:, None, :]
    residual = random.normal(0.0, noise.residual_sd, (len(loads), cell.launches, noise.prompts))
    curve = np.array([truth.log_speedup(load) for load in loads])[:, None, None]
    table: Floats = curve + launch + prompt + residual
    return table


class Tally:
    """Counts one metric of one cell."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.widths: list[float] = []
        self.errors: list[float] = []
        self.interpolation: list[float] = []

    def add(self, crossing: Crossing, log_truth: float, interpolated: float | None) -> None:
        truth = math.exp(log_truth)
        if crossing.low is not None and crossing.low > truth:
            self.outcomes["above"] += 1
        elif crossing.high is not None and crossing.high < truth:
            self.outcomes["below"] += 1
        else:
            self.outcomes["covered"] += 1
        if crossing.low is None or crossing.high is None:
            self.outcomes["open"] += 1
        else:
            self.widths.append(crossing.high / crossing.low)
        if crossing.value is not None:
            self.errors.append(math.log(crossing.value) - log_truth)
        if interpolated is not None:
            self.interpolation.append(math.log(interpolated) - log_truth)

    def coverage(self, cell: Cell, metric: str) -> Coverage:
        studies = sum(self.outcomes[name] for name in ("covered", "above", "below"))
        share = self.outcomes["covered"] / studies

        def percentile(values: list[float], rank: float) -> float | None:
            return 100 * math.expm1(float(np.percentile(np.abs(values), rank))) if values else None

        return Coverage(
            cell=cell,
            metric=metric,
            studies=studies,
            percent=100 * share,
            standard_error=100 * math.sqrt(share * (1 - share) / studies),
            above_percent=100 * self.outcomes["above"] / studies,
            below_percent=100 * self.outcomes["below"] / studies,
            open_percent=100 * self.outcomes["open"] / studies,
            width_median=float(np.median(self.widths)) if self.widths else None,
            error_median_percent=percentile(self.errors, 50),
            bias_percent=100 * math.expm1(float(np.mean(self.errors))) if self.errors else None,
            interpolation_p95_percent=percentile(self.interpolation, 95),
        )


def table_coverage(cell: Cell, *, studies: int, seed: int, level: float) -> list[Coverage]:
    random = np.random.default_rng(seed)
    loads = LOADS[cell.loads]
    low, high = math.log(loads[0]), math.log(loads[-1])
    tally = Tally()
    for _ in range(studies):
        truth = draw_truth(cell.family, random, low=low, high=high)
        noise = draw_noise(random, prompts_min=24)
        table = draw_log_speedups(cell, truth, noise, random).reshape(len(loads), -1)
        launch_of, prompt_of = np.divmod(np.arange(table.shape[1]), noise.prompts)
        curve = shared_curve(loads, table, units=prompt_of.tolist(), launches=launch_of.tolist())
        tally.add(crossing_of(curve, level=level), truth.log_crossing, _without_noise(loads, truth))
    return [tally.coverage(cell, "any paired metric")]


def _without_noise(loads: tuple[int, ...], truth: Truth) -> float | None:
    exact = np.array([truth.log_speedup(math.log(load)) for load in loads])

    def estimate(weights: Floats, level: float) -> Estimate:
        value = float(weights @ exact)
        return Estimate(value=value, low=value, high=value, n=1, method="exact", level=level)

    return crossing_of(Curve(loads=loads, estimate=estimate)).value


def record_coverage(cell: Cell, *, studies: int, seed: int, level: float) -> list[Coverage]:
    """P99 and throughput cross elsewhere than the mean log ratio: where is known, for normal logs."""
    random = np.random.default_rng(seed)
    loads = LOADS[cell.loads]
    low, high = math.log(loads[0]), math.log(loads[-1])
    tallies: dict[str, Tally] = defaultdict(Tally)
    for index in range(studies):
        truth = draw_truth(cell.family, random, low=low, high=high)
        noise = draw_noise(random, prompts_min=40)
        table = draw_log_speedups(cell, truth, noise, random)
        variance = noise.prompt_sd**2 + noise.residual_sd**2
        ttft_sd = math.hypot(TTFT_PROMPT_SD, TTFT_REQUEST_SD)
        shifts = defaultdict(
            float,
            throughput=-variance / 2,
            ttft_p99=NORMAL_P99 * (ttft_sd - math.sqrt(ttft_sd**2 + variance + noise.launch_sd**2)),
        )
        for found in crossovers(study_records(loads, table, random), ARM, level=level, seed=seed + index):
            shift = shifts[found.metric]
            if truth.log_speedup(low) + shift <= 0 or truth.log_speedup(high) + shift >= 0:
                continue
            crossing = Crossing(value=found.value, low=found.low, high=found.high, notes=())
            log_truth = float(brentq(lambda x: truth.log_speedup(x) + shift, low, high))  # noqa: B023
            tallies[found.metric].add(crossing, log_truth, None)
    return [tally.coverage(cell, metric) for metric, tally in tallies.items()]


def study_records(loads: tuple[int, ...], table: Floats, random: np.random.Generator) -> list[Record]:
    """Every time of a request is its baseline's / its speedup; one block per load.

    Connections end as though every stream were full to the last: that a short turn drains is not the question.
    """
    records = []
    _, launches, prompts = table.shape
    level = 0.1 * np.exp(random.normal(0.0, TTFT_PROMPT_SD, prompts))
    for (block, load), launch in product(enumerate(loads), range(launches)):
        ttft_s = level * np.exp(random.normal(0.0, TTFT_REQUEST_SD, prompts))
        for arm, seconds in ((BASELINE, ttft_s), (ARM, ttft_s / np.exp(table[block, launch]))):
            # An answer takes 10 times as long as its first token.
            starts = np.concatenate([[0.0], np.cumsum(10 * seconds)[:-1]]) / load
            for prompt, (start, first) in enumerate(zip(starts.tolist(), seconds.tolist(), strict=True)):
                place = Place(
                    arm=arm,
                    launch=launch,
                    round=launch,
                    block=block,
                    load=Concurrency(streams=load),
                    request_id=f"p{prompt}",
                    segment="default",
                    temperature=None,
                )
                records.append(_record(place, start, ttft_s=first, e2e_s=10 * first, streams=load))
    return records


def _record(place: Place, start_s: float, *, ttft_s: float, e2e_s: float, streams: int) -> Record:
    return Record(
        place=place,
        outcome=Outcome.OK,
        intended_s=start_s,
        sent_s=start_s,
        end_s=start_s + e2e_s / streams,
        first_token_s=start_s + ttft_s,
        last_token_s=start_s + e2e_s,
        output_tokens=64,
    )


def line(result: Coverage) -> str:
    cell = result.cell
    figures = (
        result.percent,
        result.above_percent,
        result.below_percent,
        result.open_percent,
        result.width_median,
        result.error_median_percent,
        result.bias_percent,
        result.interpolation_p95_percent,
    )
    return (
        f"{cell.family:17s} {cell.loads:10s} {cell.launches:2d}  {cell.tie:19s} {result.metric:18s}"
        + "".join("       -" if figure is None else f" {figure:7.2f}" for figure in figures)
    )


def main() -> None:
    options = trial_options(str(__doc__), seed=1, studies=2000, level=0.95, hard=False, records=False)
    results: list[Coverage] = []
    print(
        "family            loads   launches  launch and prompt   metric             covers%  above%  below%"
        "   open%   width  error%   bias% shape p95%"
    )
    measure = record_coverage if options.records else table_coverage
    studies = max(1, options.studies // 10) if options.records else options.studies
    for index, cell in enumerate(cells(hard=options.hard, records=options.records)):
        found = measure(cell, studies=studies, seed=options.seed + 1000 * index, level=options.level)
        results += found
        print("\n".join(line(result) for result in found), flush=True)
    percents = [result.percent for result in results]
    low, high = ACCEPTED_PERCENT
    outside = sum(not low <= percent <= high for percent in percents)
    print(
        f"{min(percents):.1f}-{max(percents):.1f} %, mean {np.mean(percents):.1f} % over {len(results)} rows of "
        f"{studies} studies; {outside} outside {low:.0f}-{high:.0f} %"
    )


if __name__ == "__main__":
    main()
