"""Which arms are worth another launch? What the posterior says of dropping, racing, and being done."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from speclift.core.traffic import Load
from speclift.core.units import Seconds
from speclift.search.cost_fit import FRESH_SD
from speclift.search.cost_surface import Floats
from speclift.search.posterior import Dropped, Posterior
from speclift.search.problem import JobResult, Problem, Purpose
from speclift.search.race import PROMPTS_MIN, Pass, standings
from speclift.search.space import Elimination

# A challenger joins a race at a load where its expected gain is at least this share of the largest there.
GAIN_SHARE = 0.15
RIVALS_MAX = 3
# An arm that is the best of a load less often than this is not worth timing there.
CHANCE = 0.002
# A load missed once in fifty draws is seen forty times.
_DRAWS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One launch: the arm's row, its loads, and what it promises over the traffic in log score."""

    row: int
    loads: tuple[Load, ...]
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """One load: who would be chosen now, what that is expected to lose, and what each other arm may gain."""

    load: Load
    incumbent: int
    regret: float
    gains: Floats


def doubts(problem: Problem, posterior: Posterior, dropped: Dropped) -> list[Doubt]:
    found = []
    for column, load in enumerate(posterior.loads):
        drawn = posterior.draws(column, problem.settings.seed)
        incumbent = posterior.best(column, dropped)
        rows = range(len(posterior.candidates))
        out = [row for row in rows if row != incumbent and not posterior.may_win(row, column, dropped)]
        drawn[:, out] = -np.inf
        ahead = drawn - drawn[:, [incumbent]]
        found.append(
            Doubt(
                load=load,
                incumbent=incumbent,
                regret=float(ahead.max(axis=1).mean()),
                gains=np.clip(ahead, 0.0, None).mean(axis=0),
            )
        )
    return found


def expected_regret(problem: Problem, found: Sequence[Doubt]) -> float:
    """What choosing now is expected to lose, over the traffic."""
    return math.fsum(problem.share(doubt.load) * doubt.regret for doubt in found)


def race_entries(
    problem: Problem, posterior: Posterior, found: Sequence[Doubt]
) -> dict[str, tuple[Load, ...]]:
    """Arms to race and the loads of each, most doubtful load first; empty where nothing is in doubt.

    A load enters with its incumbent and the rivals that may gain most on it.
    """
    settings = problem.settings
    entries: dict[int, set[Load]] = {}
    open_loads = sorted(
        (doubt for doubt in found if doubt.regret > settings.regret_goal),
        key=lambda doubt: -problem.share(doubt.load) * doubt.regret,
    )
    for depth, doubt in product(range(1, RIVALS_MAX + 1), open_loads):
        rivals = _rivals(doubt, depth)
        raced = (doubt.incumbent, *rivals)
        if rivals and len(entries.keys() | set(raced)) <= settings.race_arms:
            for row in raced:
                entries.setdefault(row, set()).add(doubt.load)
    return {
        posterior.candidates[row].name: tuple(load for load in posterior.loads if load in loads)
        for row, loads in entries.items()
    }


def _rivals(doubt: Doubt, depth: int) -> list[int]:
    """Of the `depth` that may gain most on the incumbent those whose gain is not small beside the largest."""
    others = [int(row) for row in np.argsort(-doubt.gains) if row != doubt.incumbent]
    return [row for row in others[:depth] if doubt.gains[row] >= GAIN_SHARE * doubt.gains.max() > 0]


def contested(entries: dict[str, tuple[Load, ...]]) -> dict[str, tuple[Load, ...]]:
    """Only loads that two arms still share."""
    kept = {
        name: tuple(load for load in loads if sum(load in other for other in entries.values()) > 1)
        for name, loads in entries.items()
    }
    return {name: loads for name, loads in kept.items() if loads}


def best_probe(
    problem: Problem,
    posterior: Posterior,
    dropped: Dropped,
    *,
    launch_s: Seconds,
    cell_s: Mapping[Load, Seconds],
    price: float,
    left_s: Seconds = math.inf,
    without: Collection[int] = (),
) -> Probe | None:
    """The launch whose promise exceeds its cost by most, at `price` in log score per second; None where none does.

    Once an arm is launched, every load joins that is worth its own time, the best paid first while `left_s` lasts.
    `without` these rows, whose launches are asked for already.
    """
    settings = problem.settings
    best, best_worth = None, 0.0
    promised = [
        problem.share(load) * promises(posterior, column, dropped, near=settings.near, seed=settings.seed)
        for column, load in enumerate(posterior.loads)
    ]
    for row in sorted(set(range(len(posterior.candidates))) - set(without)):
        gains = {load: float(promised[column][row]) for column, load in enumerate(posterior.loads)}
        loads, rest_s = [], left_s - launch_s
        for load in sorted(gains, key=lambda load: -gains[load] / cell_s[load]):
            if gains[load] > price * cell_s[load] and cell_s[load] <= rest_s:
                loads.append(load)
                rest_s -= cell_s[load]
        gain = math.fsum(gains[load] for load in loads)
        worth = gain - price * (launch_s + math.fsum(cell_s[load] for load in loads))
        if worth > best_worth:
            ordered = tuple(load for load in posterior.loads if load in loads)
            best, best_worth = Probe(row=row, loads=ordered, gain=gain), worth
    return best


def promises(
    posterior: Posterior, column: int, dropped: Dropped, *, near: float = 0.0, seed: int = 0
) -> Floats:
    """What timing each arm once more at one load is expected to save, in log score, by changing the choice there.

    The knowledge gradient (Frazier, Powell, Dayanik 2009) of a loss that is nothing within `near` of the best: the loss
    of choosing now - the loss of choosing after the measurement, both over the same draws of what may be true.
    """
    gains = np.zeros(len(posterior.candidates))
    rows = [row for row in range(len(posterior.candidates)) if posterior.may_win(row, column, dropped)]
    if len(rows) < 2:
        return gains
    random, pick = np.random.default_rng((seed, column)), np.ix_(rows, rows)
    timing = posterior.time_covariance[column][pick]
    mean = posterior.mean[rows, column]
    shift = _normal(random, timing)
    drawn = mean + shift + _normal(random, posterior.covariance[column][pick] - timing)
    behind = drawn.max(axis=1, keepdims=True) - drawn
    lost = np.where(behind > near, behind, 0.0)
    wins = np.bincount(drawn.argmax(axis=1), minlength=len(rows))
    contenders = np.union1d(np.flatnonzero(wins >= CHANCE * _DRAWS), [mean.argmax()])
    noise = posterior.fit.noise_scale**2 * FRESH_SD**2
    seen = shift + math.sqrt(noise) * random.standard_normal(shift.shape)
    surprise = seen / (np.diag(timing) + noise)
    now = lost[:, mean.argmax()].mean()
    for row in contenders:
        after = mean[contenders] + surprise[:, [row]] * timing[row, contenders]
        chosen = contenders[after.argmax(axis=1)]
        gains[rows[row]] = max(0.0, now - lost[np.arange(_DRAWS), chosen].mean())
    return gains


def _normal(random: np.random.Generator, covariance: Floats) -> Floats:
    """Draws around 0, a row each."""
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.clip(values, 0.0, None))
    drawn: Floats = random.standard_normal((_DRAWS, len(values))) @ root.T
    return drawn


def far_from_best(problem: Problem, posterior: Posterior) -> list[Elimination]:
    """Candidates that are nowhere near the best of any load, even if they are luckier than expected.

    None whose drafter, or whose rival's, served fewer requests than a race takes: how unlike requests are is not known.
    """
    settings = problem.settings
    eliminated = []
    best = [posterior.best(column) for column in range(len(posterior.loads))]
    for row, candidate in enumerate(posterior.candidates):
        served = [posterior.requests(each) for each in (row, *best)]
        if candidate.is_baseline or min(served) < PROMPTS_MIN:
            continue
        gaps = []
        for column, leader in enumerate(best):
            covariance = posterior.covariance[column]
            variance = covariance[row, row] + covariance[leader, leader] - 2 * covariance[row, leader]
            gap = float(posterior.mean[leader, column] - posterior.optimistic[row, column])
            gaps.append((gap - settings.near_sd * math.sqrt(max(0.0, variance)), gap, column))
        least, gap, column = min(gaps)
        if least > settings.near:
            rival, where = posterior.candidates[best[column]].name, posterior.loads[column].label
            reason = f"predicted {100 * -math.expm1(-gap):.0f} % slower than {rival} even at {where}, its best load"
            eliminated.append(Elimination(candidate=candidate.name, stage="predicted", reason=reason))
    return eliminated


def beaten(posterior: Posterior, results: Sequence[JobResult]) -> list[Elimination]:
    """Arms that the confidence sequence puts behind the leader of a load."""
    passes = _passes(results)
    pass_sd = posterior.fit.noise_scale * FRESH_SD
    eliminated = []
    for column, load in enumerate(posterior.loads):
        # An arm that failed in its second pass has raced and is out for that reason.
        known = {candidate.name for candidate in posterior.candidates}
        by_arm = {name: each for name, each in passes.get(load, {}).items() if name in known}
        if len(by_arm) < 2:
            continue
        leader = max(by_arm, key=lambda name: posterior.mean[posterior.row(name), column])
        for standing in standings(by_arm, leader, pass_sd=pass_sd):
            if standing.is_beaten:
                reason = (
                    f"{100 * math.expm1(standing.log_ratio):.1f} % slower than {leader} (at least "
                    f"{100 * math.expm1(standing.log_ratio - standing.radius):.1f} %), "
                    f"{standing.prompts} prompts in {standing.passes} passes"
                )
                eliminated.append(
                    Elimination(candidate=standing.arm, stage="raced", reason=reason, load=load.label)
                )
    return eliminated


def _passes(results: Sequence[JobResult]) -> Mapping[Load, dict[str, dict[Pass, dict[str, float]]]]:
    """By load, arm and pass: log time by prompt. A prompt sent twice in a pass counts once, as its mean."""
    passes: dict[Load, dict[str, dict[Pass, dict[str, float]]]] = {}
    for result in results:
        if result.job.purpose is not Purpose.RACE:
            continue
        for cell in result.cells:
            times: dict[str, list[float]] = {}
            for request in cell.requests:
                if request.is_timed and request.tpot_s is not None:
                    times.setdefault(request.request_id, []).append(math.log(request.tpot_s))
            logs = {prompt: math.fsum(values) / len(values) for prompt, values in times.items()}
            by_arm = passes.setdefault(cell.load, {})
            by_arm.setdefault(result.job.candidate, {})[result.job.block, result.job.turn] = logs
    return passes
