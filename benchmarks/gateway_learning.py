"""How often does the canary move a segment though nothing differs, and how soon where something does?

    python benchmarks/gateway_learning.py [--weeks 100] [--seed 1]

Virtual time. Requests of four kinds of unlike length, in conversations of three turns on average that are slow or fast
together; what a request takes varies by 35 %, 2 % of requests take six times as long, and everything slows down and
speeds up by 30 % over the day. With 80 classes instead of 4, most requests have few to be compared with. Prints false
shifts a week, the interval's coverage, and the time to a shift. 200 weeks of three rates take ten minutes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from speclift.core.routing import ServerPool
from speclift.routing.learning import BLOCK_ROWS, BLOCK_S, WEEK_S, LearnedSegment
from speclift.statistics.pool_comparison import (
    GROUPS,
    PoolEvidence,
    anytime_speedup,
    no_evidence,
    pool_evidence,
)
from trials import trial_options

KINDS = (0.4, 0.3, 0.2, 0.1)
KIND_S = (0.5, 1.5, 4.0, 12.0)
TURNS_MEAN = 3.0
SESSION_SD, REQUEST_SD = 0.3, 0.35
SLOW_SHARE, SLOW_TIMES = 0.02, 6.0
DAY_S, DRIFT = 86_400.0, 0.3
TURN_S = 2.3 * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    rate: float
    canary: float
    # Speedup of spec, and what it turns to after TURN_S.
    truth: float = 1.0
    turned: float | None = None
    policy: ServerPool = ServerPool.SPEC
    # Each kind of request comes in so many sizes, which are classes of their own.
    sizes: int = 1


def block(case: Case, at_s: float, *, share: float, rng: np.random.Generator) -> PoolEvidence:
    """The requests of one block; the present share of them goes to spec."""
    count = min(rng.poisson(case.rate * BLOCK_S), BLOCK_ROWS)
    sessions = max(1, round(count / TURNS_MEAN))
    session = rng.integers(0, sessions, count)
    kind = rng.choice(len(KINDS), count, p=KINDS)
    is_spec = rng.random(count) < share
    logs = np.log(np.take(KIND_S, kind)) + rng.normal(0, SESSION_SD, sessions)[session]
    logs += rng.normal(0, REQUEST_SD, count) + np.where(
        rng.random(count) < SLOW_SHARE, math.log(SLOW_TIMES), 0
    )
    truth = case.truth if case.turned is None or at_s < TURN_S else case.turned
    logs += DRIFT * math.sin(2 * math.pi * at_s / DAY_S) - is_spec * math.log(truth)
    size = rng.integers(0, case.sizes, count)
    return pool_evidence(
        kind * case.sizes + size, rng.integers(0, GROUPS, sessions)[session], is_spec, np.exp(logs)
    )


def block_s(case: Case) -> float:
    """Of busy traffic a block is full before its time is up."""
    return min(BLOCK_S, BLOCK_ROWS / case.rate)


def shifts(case: Case, *, duration_s: float, rng: np.random.Generator) -> list[float]:
    """When segments moved; after each, the share is the other."""
    segment, at_s, moments = LearnedSegment(case.policy), 0.0, []
    while at_s < duration_s:
        at_s += block_s(case)
        share = 1 - case.canary if segment.usual is ServerPool.SPEC else case.canary
        if segment.take(block(case, at_s, share=share, rng=rng), now_s=at_s, among=1) is not None:
            moments.append(at_s)
    return moments


def naive_shifts(case: Case, *, duration_s: float, rng: np.random.Generator) -> int:
    """What an interval of 95 % for one look does where it is looked at after every block of a day, day by day."""
    moved = 0
    for _ in range(int(duration_s / DAY_S)):
        evidence, at_s = no_evidence(), 0.0
        while at_s < DAY_S:
            at_s += block_s(case)
            evidence = evidence + block(case, at_s, share=1 - case.canary, rng=rng)
            weight = float(evidence.weights.sum())
            if evidence.groups < 20 or weight == 0:
                continue
            effect = float(evidence.scores.sum()) / weight
            error = math.sqrt(float(((evidence.scores - effect * evidence.weights) ** 2).sum())) / weight
            if effect + 1.96 * error < 0:
                moved += 1
                break
    return moved


def covered(case: Case, *, days: int, alpha: float, rng: np.random.Generator) -> tuple[float, float]:
    """The share of days whose interval held the truth after every block, and its mean half width at the end."""
    held, half = 0, 0.0
    for _ in range(days):
        evidence, at_s, is_held, last = no_evidence(), 0.0, True, None
        while at_s < DAY_S:
            at_s += block_s(case)
            evidence = evidence + block(case, at_s, share=1 - case.canary, rng=rng)
            last = anytime_speedup(evidence, alpha=alpha)
            is_held = is_held and (last is None or last.low <= case.truth <= last.high)
        held += is_held
        half += math.log(last.high / last.low) / 2 if last is not None else math.nan
    return held / days, half / days


def main() -> None:
    ask = trial_options(str(__doc__), seed=1, weeks=100, rates="0.2,1,10")
    rng = np.random.default_rng(ask.seed)
    rates = [float(rate) for rate in ask.rates.split(",")]
    print(f"Nothing differs, {ask.weeks} weeks each: shifts a week (naive: a 95 % interval at every look)")
    for rate, sizes in ((rate, sizes) for rate in rates for sizes in (1, 20)):
        case = Case(rate=rate, canary=0.05, sizes=sizes)
        counts = [len(shifts(case, duration_s=WEEK_S, rng=rng)) for _ in range(ask.weeks)]
        naive = naive_shifts(case, duration_s=max(1, ask.weeks // 20) * WEEK_S, rng=rng) / max(
            1, ask.weeks // 20
        )
        print(
            f"  {rate:5.1f} requests/s, canary 5 %, {4 * sizes:2} classes: {np.mean(counts):.3f}   naive {naive:.1f}"
        )
    print("Coverage over a whole day of looks, 95 % promised; half width at its end")
    for case in (Case(rate=0.2, canary=0.05), Case(rate=1, canary=0.05), Case(rate=1, canary=0.2, truth=1.3)):
        share, half = covered(case, days=2 * ask.weeks, alpha=0.05, rng=rng)
        print(
            f"  {case.rate:5.1f} requests/s, canary {case.canary:.0%}, truth {case.truth}: {share:.1%}, {half:.1%}"
        )
    print("Time to the first shift: median, and 90 %; inf where it takes longer than two days")
    for rate in rates:
        for truth, policy in ((0.5, "spec"), (0.8, "spec"), (0.9, "spec"), (0.95, "spec"), (1.3, "plain")):
            case = Case(rate=rate, canary=0.05, truth=truth, policy=ServerPool(policy))
            first = [(shifts(case, duration_s=2 * DAY_S, rng=rng) or [math.inf])[0] for _ in range(50)]
            print(f"  {rate:5.1f} requests/s, {truth:.2f}x, policy {policy:5}: {_spread(first)}")
        turned = Case(rate=rate, canary=0.05, truth=1.3, turned=0.8)
        later = [_after_turn(shifts(turned, duration_s=4 * DAY_S, rng=rng)) for _ in range(30)]
        print(f"  {rate:5.1f} requests/s, from 1.30x to 0.80x after two days: {_spread(later)}")


def _after_turn(moments: list[float]) -> float:
    return next((moment - TURN_S for moment in moments if moment > TURN_S), math.inf)


def _spread(times_s: list[float]) -> str:
    p50, p90 = np.sort(times_s)[[len(times_s) // 2 - 1, len(times_s) * 9 // 10 - 1]]
    return f"{p50 / 60:6.0f} min, 90 % within {p90 / 60:6.0f} min"


if __name__ == "__main__":
    main()
