"""Does the tail's rule keep its promises? Whole studies with a known tail, from records to verdict, counted.

    python benchmarks/tails.py [--studies 400] [--seed 1] [--only TEXT]

First the intervals alone, on samples of many shapes; then a table of truths: an arm that is 1.67 times as fast as the
baseline, and 2 to 10 times slower than that on a few of its requests. What is true of each tail comes from a million
draws. Exits 1 where a share lies outside what is promised by more than two standard errors.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from zlib import crc32

import numpy as np

from speclift.core.arm import BASELINE, Arm
from speclift.core.goals import Goals
from speclift.core.records import Place, Record
from speclift.core.results import ALL_TRAFFIC, Conditions, Decision, Estimate, Evidence, Level
from speclift.core.speculation import NGram
from speclift.core.traffic import Concurrency, Load
from speclift.statistics.compare import Comparer
from speclift.statistics.crossed import Floats
from speclift.statistics.tails import (
    PERCENTILES,
    SLOWEST_PROMPTS_MIN,
    Sides,
    percentile_ratio,
    pooled,
    slowest_ratio,
)
from speclift.testing.simulated_study import ArmTruth, ShareOf, StudyTruth, simulate_study
from speclift.verdict.verdict import decide
from trials import SEGMENTS, slack, trial_options

ARM = Arm(name="arm", speculation=NGram(k=4))
TEMPERATURES = (0.0, 0.5, 1.0)
ONE_LOAD, TWO_LOADS = (Concurrency(streams=1),), (Concurrency(streams=1), Concurrency(streams=4))
FAST = 1.67
DRAWS = 1_000_000
GOALS = Goals()
# The tail passes by mistake in so many per cent of studies, and where the truth is so many times the tolerance it
# passes in at least so many.
WRONG_MAX = 2.5
CLEAR = 1.5
POWER_MIN = {400: 80.0, 2000: 95.0}
# Of the studies asked for, by requests per arm and load: larger ones cost more and are told apart with fewer.
SIZES = {100: 1.0, 400: 0.5, 2000: 0.1}
COVERED_MIN = 93.0
PROMPTS_MIN = {q: prompts for q, _, prompts in PERCENTILES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Slow requests: how many in a hundred of all, how many times slower, and where. `repeats` of each prompt."""

    percent: int
    times: float
    spread: str
    repeats: int = 1

    @property
    def name(self) -> str:
        again = f", each prompt {self.repeats} times" if self.repeats > 1 else ""
        return f"{self.percent} % {self.times:g}x slower, {self.spread}{again}"

    @property
    def loads(self) -> tuple[Load, ...]:
        return TWO_LOADS if self.spread == "one load" else ONE_LOAD

    @property
    def share(self) -> ShareOf:
        everywhere = self.percent / 100

        def share(segment: str, load: Load, temperature: float | None) -> float:
            match self.spread:
                case "one segment":
                    return len(SEGMENTS) * everywhere * (segment == SEGMENTS[1])
                case "one temperature":
                    return len(TEMPERATURES) * everywhere * (temperature == TEMPERATURES[-1])
                case "one load":
                    return everywhere * (load == TWO_LOADS[-1])
                case _:
                    return everywhere

        return share

    @property
    def truth(self) -> StudyTruth:
        arm = ArmTruth(
            speedup=lambda _segment, _load, _temperature: FAST,
            prompt_sd=0.15,
            drafted_per_step=4,
            acceptance=0.6,
            slow_share=self.share,
            slow_times=self.times,
        )
        # The first token is neither sped up nor slowed: its tail is the baseline's.
        return StudyTruth(arms={ARM.name: arm}, gains_first_token=False)


def tails() -> Iterator[Tail]:
    yield Tail(percent=0, times=1.0, spread="none")
    spreads = ("at random", "one segment", "one temperature", "one load")
    for spread, percent, times in product(spreads, (2, 6, 20), (2.0, 4.0, 6.0, 10.0)):
        yield Tail(percent=percent, times=times, spread=spread)
    for percent, times in product((2, 6, 20), (2.0, 6.0)):
        yield Tail(percent=percent, times=times, spread="at random", repeats=4)


# What is true


def true_ratios(tail: Tail) -> dict[tuple[str, str], float]:
    """The least over loads of baseline / arm, by metric and statistic; TTFT is the same on both and left out."""
    found: dict[tuple[str, str], float] = {}
    for load in tail.loads:
        sides = [_drawn(tail, load, name, np.random.default_rng(7)) for name in (BASELINE, ARM.name)]
        for metric in ("tpot", "e2e"):
            for statistic in ("P95", "P99", "slowest"):
                top, bottom = (_statistic(side[metric], statistic) for side in sides)
                key = (metric, statistic)
                found[key] = min(found.get(key, math.inf), top / bottom)
    return found


def _statistic(values: Floats, name: str) -> float:
    if name == "slowest":
        kept = len(values) // 20
        return float(np.partition(values, len(values) - kept)[-kept:].mean())
    return float(np.quantile(values, int(name[1:]) / 100))


def _drawn(tail: Tail, load: Load, arm: str, random: np.random.Generator) -> dict[str, Floats]:
    truth = tail.truth
    own = truth.arms.get(arm, ArmTruth())
    spread = math.hypot(truth.prompt_level_sd, truth.launch_sd, truth.residual_sd, own.prompt_sd)
    tpot = truth.tpot_s * np.exp(random.normal(0.0, spread, DRAWS))
    if arm == ARM.name:
        settings = list(product(SEGMENTS, TEMPERATURES))
        shares = np.array([tail.share(segment, load, temperature) for segment, temperature in settings])
        is_slow = random.random(DRAWS) < shares[random.integers(len(settings), size=DRAWS)]
        tpot = tpot / FAST * np.where(is_slow, tail.times, 1.0)
    ttft = truth.ttft_s * np.exp(random.normal(0.0, truth.residual_sd, DRAWS))
    return {"tpot": tpot, "e2e": ttft + tpot * (truth.output_tokens - 1)}


# What studies of it say


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    tail: str
    requests: int
    studies: int
    # Of what the rule compares at that size: the least ratio of its percentile, and of the slowest.
    percentile: float
    slowest: float
    ship: float
    ship_passed: float
    failed: float
    broken: str = ""


def run(tail: Tail, requests: int, *, studies: int, seed: int) -> Outcome:
    ratios = _true_of(tail)
    percentile = "P99" if requests >= 437 else "P95"
    least = {
        statistic: min(ratios[(metric, statistic)] for metric in ("tpot", "e2e"))
        for statistic in (percentile, "slowest")
    }
    places, truth = tuple(_places(tail, requests)), tail.truth
    seen: Counter[str] = Counter()
    # Truths must not share their luck.
    for child in np.random.SeedSequence([seed, requests, crc32(tail.name.encode())]).spawn(studies):
        seen.update(_observed(simulate_study(places, truth, np.random.default_rng(child))))
    percent = {name: 100 * seen[name] / studies for name in ("ship", "ship passed", "fail")}
    outcome = Outcome(
        tail=tail.name,
        requests=requests,
        studies=studies,
        percentile=least[percentile],
        slowest=least["slowest"],
        ship=percent["ship"],
        ship_passed=percent["ship passed"],
        failed=percent["fail"],
    )
    return replace(outcome, broken=_broken(outcome, can_pass=requests // tail.repeats >= SLOWEST_PROMPTS_MIN))


_true_of = cache(true_ratios)


def _broken(outcome: Outcome, *, can_pass: bool) -> str:
    worst = min(outcome.percentile, outcome.slowest)
    if worst < GOALS.tail_tolerance and outcome.ship_passed > WRONG_MAX + slack(WRONG_MAX, outcome.studies):
        return f"passed wrongly in more than {WRONG_MAX:g} %"
    power = POWER_MIN.get(outcome.requests)
    if power is None or not can_pass or worst < CLEAR * GOALS.tail_tolerance:
        return ""
    is_short = outcome.ship_passed < power - slack(power, outcome.studies)
    return f"passed in less than {power:g} %" if is_short else ""


def _places(tail: Tail, requests: int) -> Iterator[Place]:
    prompts = requests // tail.repeats
    for number, load in product(range(requests), tail.loads):
        prompt, block = number % prompts, number * len(tail.loads) + tail.loads.index(load)
        arms = (BASELINE, ARM.name)
        for arm in arms if block % 2 == 0 else arms[::-1]:
            yield Place(
                arm=arm,
                launch=arms.index(arm),
                round=0,
                block=block,
                load=load,
                request_id=f"p{prompt}",
                segment=SEGMENTS[prompt % len(SEGMENTS)],
                temperature=TEMPERATURES[prompt // len(SEGMENTS) % len(TEMPERATURES)],
                repeat=number // prompts,
            )


def _observed(records: Sequence[Record]) -> Iterator[str]:
    """On all traffic: whether a part of it would ship is another question."""
    comparer = Comparer(
        records, metric=GOALS.metric, bar=GOALS.min_speedup, arm_count=1, by_temperature=False
    )
    whole = comparer.evidence(ARM, ALL_TRAFFIC)

    def evidence_for(_arm: Arm, conditions: Conditions) -> Evidence:
        return (
            whole
            if conditions == ALL_TRAFFIC
            else replace(whole, conditions=conditions, overall=None, parts=())
        )

    verdict = decide((ARM,), evidence_for, goals=GOALS)
    (level,) = [reason.level for reason in verdict.reasons if reason.rule == "tail"]
    if level is Level.FAIL:
        yield "fail"
    if verdict.decision is Decision.SHIP:
        yield "ship"
        if level is Level.PASS:
            yield "ship passed"


# The intervals alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Requests of both arms: prompts, how often each, the percentile, and the arm's slow ones, by request or prompt."""

    prompts: int
    repeats: int
    q: float
    percent: int
    times: float
    by_prompt: bool
    # To so many digits; None is as they come.
    rounded: int | None = None
    # Each prompt at every one, three times as long from one to the next, the slow ones at the last alone.
    loads: int = 1

    @property
    def name(self) -> str:
        slow = f"{self.percent} % {self.times:g}x slower by {'prompt' if self.by_prompt else 'request'}"
        ties = ", ties" if self.rounded is not None else ""
        loads = f", {self.loads} loads pooled" if self.loads > 1 else ""
        return f"{self.prompts} prompts x {self.repeats}, P{100 * self.q:.0f}, {slow}{ties}{loads}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    shape: str
    samples: int
    # Per cent of samples that have an interval and in which it holds the truth; how far the lower bound lies, as a log.
    known: dict[str, float]
    covered: dict[str, float]
    below: dict[str, float]
    broken: str = ""


def shapes() -> Iterator[Shape]:
    designs = (
        (50, 1, 0.9),
        (50, 10, 0.9),
        (8, 50, 0.9),
        (100, 1, 0.95),
        (100, 4, 0.95),
        (400, 1, 0.95),
        (200, 10, 0.95),
        (2000, 1, 0.99),
    )
    slow = (
        (0, 1.0, False),
        (2, 6.0, False),
        (2, 10.0, True),
        (6, 2.0, False),
        (6, 10.0, True),
        (20, 4.0, True),
    )
    for (prompts, repeats, q), (percent, times, by_prompt) in product(designs, slow):
        yield Shape(prompts=prompts, repeats=repeats, q=q, percent=percent, times=times, by_prompt=by_prompt)
    yield Shape(prompts=400, repeats=1, q=0.95, percent=6, times=2.0, by_prompt=False, rounded=1)
    for (prompts, q), (percent, times, by_prompt) in product(((45, 0.9), (90, 0.95)), slow):
        thin = Shape(prompts=prompts, repeats=1, q=q, percent=percent, times=times, by_prompt=by_prompt)
        yield replace(thin, loads=3)


def covered(shape: Shape, *, samples: int, seed: int) -> Coverage:
    truths = _true_of_shape(replace(shape, prompts=DRAWS, repeats=1))
    random = np.random.default_rng([seed, crc32(shape.name.encode())])
    found: dict[str, list[Estimate]] = {"percentile": [], "slowest": []}
    for _ in range(samples):
        sides = _sides(shape, random)
        ratios = {"percentile": percentile_ratio(sides, shape.q), "slowest": slowest_ratio(sides)}
        for name, ratio in ratios.items():
            if ratio is not None and (name == "slowest" or shape.prompts >= PROMPTS_MIN[shape.q]):
                found[name].append(ratio)
    known = {name: 100 * len(ratios) / samples for name, ratios in found.items()}
    holding = {
        name: 100 * float(np.mean([ratio.low <= truths[name] <= ratio.high for ratio in ratios]))
        for name, ratios in found.items()
        if ratios
    }
    # Nothing is promised of the few that have an interval where most have none.
    short = [
        name
        for name, share in holding.items()
        if known[name] > 90 and share < COVERED_MIN - slack(COVERED_MIN, samples)
    ]
    return Coverage(
        shape=shape.name,
        samples=samples,
        known=known,
        covered=holding,
        below={
            name: float(np.mean([math.log(ratio.value / ratio.low) for ratio in ratios]))
            for name, ratios in found.items()
            if ratios and all(ratio.low > 0 for ratio in ratios)
        },
        broken=f"covers less than {COVERED_MIN:g} %: {', '.join(short)}" if short else "",
    )


@cache
def _true_of_shape(shape: Shape) -> dict[str, float]:
    sides = _sides(shape, np.random.default_rng(7))
    statistics = {"percentile": f"P{100 * shape.q:.0f}", "slowest": "slowest"}
    return {
        name: _statistic(sides.baseline[0], statistic) / _statistic(sides.arm[0], statistic)
        for name, statistic in statistics.items()
    }


def _sides(shape: Shape, random: np.random.Generator) -> Sides:
    level = random.normal(0.0, 0.20, shape.prompts)
    if shape.loads == 1:
        return _at_one_load(shape, level, random)
    usual = replace(shape, percent=0)
    by_load: dict[Load, Sides] = {}
    for number in range(shape.loads):
        of_load = shape if number == shape.loads - 1 else usual
        by_load[Concurrency(streams=number + 1)] = _at_one_load(of_load, level + number * math.log(3), random)
    return pooled(by_load)


def _at_one_load(shape: Shape, levels: Floats, random: np.random.Generator) -> Sides:
    prompt = np.tile(np.arange(shape.prompts, dtype=np.intp), shape.repeats)
    level = levels[prompt]
    units = shape.prompts if shape.by_prompt else len(prompt)
    is_slow = random.random(units) < shape.percent / 100
    slow = np.where(is_slow[prompt] if shape.by_prompt else is_slow, shape.times, 1.0)
    baseline, arm = (np.exp(level + random.normal(0.0, 0.06, len(prompt))) for _ in range(2))
    arm = arm / FAST * slow
    if shape.rounded is not None:
        baseline, arm = np.round(baseline, shape.rounded), np.round(arm, shape.rounded)
    return Sides((baseline, prompt), (arm, prompt))


def main() -> None:
    options = trial_options(str(__doc__), seed=1, studies=400, only="")
    found: list[Coverage | Outcome] = []
    for result in _results(options.studies, options.seed, options.only):
        found.append(result)
        print(_line(result), flush=True)
    print(_summary([result for result in found if isinstance(result, Outcome)]))
    sys.exit(any(result.broken for result in found))


def _results(studies: int, seed: int, only: str) -> Iterator[Coverage | Outcome]:
    for shape in shapes():
        if only in shape.name:
            yield covered(shape, samples=studies, seed=seed)
    for tail, (requests, share) in product(tails(), SIZES.items()):
        if only in tail.name:
            yield run(tail, requests, studies=max(1, round(studies * share)), seed=seed)


def _line(result: Coverage | Outcome) -> str:
    broken = f"  BROKEN {result.broken}" if result.broken else ""
    if isinstance(result, Coverage):
        said = ", ".join(
            f"{name} covers {share:.1f}"
            + (f", lower bound {100 * result.below[name]:.0f} % below" if name in result.below else "")
            + (f" (known in {result.known[name]:.0f} %)" if result.known[name] < 100 else "")
            for name, share in result.covered.items()
        )
        return f"{result.shape}: {said or 'no interval'}{broken}"
    return (
        f"{result.tail}, {result.requests} requests: percentile {result.percentile:.2f}x, slowest "
        f"{result.slowest:.2f}x; ship {result.ship:.1f}, with the tail passed {result.ship_passed:.1f}, "
        f"tail fails {result.failed:.1f} % of {result.studies}{broken}"
    )


def _summary(outcomes: Sequence[Outcome]) -> str:
    lines = []
    for requests in SIZES:
        worse = [
            outcome
            for outcome in outcomes
            if outcome.requests == requests
            and min(outcome.percentile, outcome.slowest) < GOALS.tail_tolerance
        ]
        if worse:
            ship, passed = (
                float(np.mean([getattr(o, name) for o in worse])) for name in ("ship", "ship_passed")
            )
            lines.append(
                f"{requests} requests, {len(worse)} truths under the tolerance: {ship:.1f} % ship, "
                f"{passed:.2f} % with the tail passed"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
