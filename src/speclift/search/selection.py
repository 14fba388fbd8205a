"""Which arms are worth another launch, and what does it cost? What the posterior says of dropping, racing, being done.

A race compares a few arms directly: mirrored blocks against drift, a confidence sequence against peeking.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import TypeAlias, TypeVar

import numpy as np

from speclift.core.traffic import Concurrency, Load
from speclift.core.units import Seconds
from speclift.search.cost import FRESH_SD, Floats
from speclift.search.posterior import Dropped, Posterior
from speclift.search.problem import CALIBRATING, CellResult, JobResult, Problem, Purpose
from speclift.search.space import Elimination

Arm = TypeVar("Arm")
# Block, and turn within it.
Pass: TypeAlias = tuple[int, int]

ALPHA = 0.05
# Tuned for about 40 prompts; false alarms stay below alpha at any n.
PROMPTS_RATIO = 1 / 40
# The spread of fewer prompts is not known well enough for any radius.
PROMPTS_MIN = 8
# Launch pairs come in ones and twos.
LAUNCHES_RATIO = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One arm against the leader at one load: mean log ratio of its time, positive is slower, and its radius."""

    arm: str
    leader: str
    log_ratio: float
    radius: float
    prompts: int
    passes: int

    @property
    def is_beaten(self) -> bool:
        return self.log_ratio - self.radius > 0


def mirrored(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """A B C C B A: drift that is linear in time falls equally on every arm."""
    return (*arms, *reversed(arms))


def radius(n: int, sd: float, *, alpha: float = ALPHA, ratio: float = PROMPTS_RATIO) -> float:
    """Half width that holds at every n at once: s sqrt(2 (n r + 1) / (n^2 r) ln(sqrt(n r + 1) / alpha)).

    The normal-mixture confidence sequence (Robbins 1970; Howard et al., arXiv 1810.08240); infinite at n = 0.
    """
    if n < 1:
        return math.inf
    if not 0 < alpha < 1 or not ratio > 0 or sd < 0:
        raise ValueError(f"a radius needs alpha in 0..1, ratio > 0 and sd >= 0, saw {alpha}, {ratio}, {sd}")
    scale = n * ratio + 1
    return sd * math.sqrt(2 * scale / (n * n * ratio) * math.log(math.sqrt(scale) / alpha))


def standings(
    passes: Mapping[str, Mapping[Pass, Mapping[str, float]]],
    leader: str,
    *,
    pass_sd: float,
    alpha: float = ALPHA,
) -> tuple[Standing, ...]:
    """Every other arm against the leader, alpha shared among them (Bonferroni).

    `passes[arm]` holds log time by prompt of each pass. A unit is a prompt met by both arms in the same passes; what a
    launch does to all its prompts alike, `pass_sd`, is added, for no number of prompts removes it. Whoever leads, and
    however often this is asked, the truly fastest arm is beaten with probability alpha at most: that takes one of its
    comparisons with the others to fail.
    """
    rivals = [arm for arm in passes if arm != leader]
    share = alpha / max(1, len(rivals))
    return tuple(_standing(passes[arm], passes[leader], arm, leader, pass_sd, share) for arm in rivals)


def _standing(
    own: Mapping[Pass, Mapping[str, float]],
    leading: Mapping[Pass, Mapping[str, float]],
    arm: str,
    leader: str,
    pass_sd: float,
    alpha: float,
) -> Standing:
    pairs = [(own[each], leading[each]) for each in own if each in leading]
    prompts = sorted(set(chain.from_iterable(mine.keys() & theirs.keys() for mine, theirs in pairs)))
    ratios = np.array(
        [
            np.mean(
                [
                    mine[prompt] - theirs[prompt]
                    for mine, theirs in pairs
                    if prompt in mine and prompt in theirs
                ]
            )
            for prompt in prompts
        ]
    )
    if len(ratios) == 0:
        return Standing(arm=arm, leader=leader, log_ratio=0.0, radius=math.inf, prompts=0, passes=len(pairs))
    among_prompts = math.inf
    if len(ratios) >= PROMPTS_MIN:
        among_prompts = radius(len(ratios), float(ratios.std(ddof=1)), alpha=alpha / 2)
    among_launches = radius(len(pairs), pass_sd * math.sqrt(2), alpha=alpha / 2, ratio=LAUNCHES_RATIO)
    return Standing(
        arm=arm,
        leader=leader,
        log_ratio=float(ratios.mean()),
        radius=among_prompts + among_launches,
        prompts=len(ratios),
        passes=len(pairs),
    )


# What people do without a tuner: every arm at every load, and again twice against noise; a cell that has to tell of
# acceptance by itself needs this many requests, where a search's may have fewer.
GRID_REPEATS = 3
GRID_REQUESTS_MIN = 24
# A small space is calibrated at a good share of its grid; what is in doubt then still deserves a few launches. With
# this, 12 arms at one load stay below a quarter of their grid.
CALIBRATIONS = 1.75


def launch_s(problem: Problem, results: Sequence[JobResult]) -> Seconds:
    """The mean of those seen, else the guess."""
    seen = [result.launch_s for result in results if result.launch_s > 0]
    return math.fsum(seen) / len(seen) if seen else problem.settings.launch_s_guess


def cell_s(problem: Problem, results: Sequence[JobResult], load: Load) -> Seconds:
    """The longest seen at this load or the nearest that was seen, else the guess."""
    seen = [cell.wall_s for _, cell in _seen(problem, results, load)]
    return max(seen, default=problem.settings.cell_s_guess)


def job_s(problem: Problem, results: Sequence[JobResult], loads: Sequence[Load]) -> Seconds:
    """One launch with these loads."""
    return launch_s(problem, results) + math.fsum(cell_s(problem, results, load) for load in loads)


def grid_s(problem: Problem, results: Sequence[JobResult], posterior: Posterior | None = None) -> Seconds:
    """What every candidate at every load, three times over, would take.

    As fast as `posterior` says that each of them is; without it as those seen, which are the better ones.
    """
    cells = 0.0
    for place, load in enumerate(problem.loads):
        seen = [
            _in_a_grid_s(cell, _slower(problem, posterior, name, cell.load, place))
            for name, cell in _seen(problem, results, load)
            if cell.requests
        ]
        cells += math.fsum(seen) / len(seen) if seen else problem.settings.cell_s_guess
    return GRID_REPEATS * len(problem.candidates) * (launch_s(problem, results) + cells)


def _in_a_grid_s(cell: CellResult, slower: float) -> Seconds:
    """With as many requests as a grid sends, each decoding `slower` times as long; what is not decoding stays."""
    times = slower * max(1.0, GRID_REQUESTS_MIN / len(cell.requests))
    streams = cell.load.streams if isinstance(cell.load, Concurrency) else 1
    decoding_s = math.fsum(request.decode_s or cell.wall_s for request in cell.requests) / streams
    return cell.wall_s + (times - 1.0) * min(cell.wall_s, decoding_s)


def _slower(problem: Problem, posterior: Posterior | None, name: str, load: Load, place: int) -> float:
    """How much longer than `name` at `load` the average candidate takes at the load at `place`."""
    known = posterior is not None and name in {each.name for each in posterior.candidates}
    # In an open loop a cell takes as long as its arrivals do.
    if posterior is None or not known or not isinstance(problem.loads[place], Concurrency):
        return 1.0
    ran = posterior.mean[posterior.row(name), problem.loads.index(load)]
    return float(np.exp(ran - posterior.mean[:, place]).mean())


def allowed_s(problem: Problem, results: Sequence[JobResult], posterior: Posterior | None = None) -> Seconds:
    """Of the whole search, for probes and races: a share of the grid, or some times its calibration if more."""
    calibration = math.fsum(result.engine_s for result in results if result.job.purpose in CALIBRATING)
    grid = grid_s(problem, results, posterior)
    return max(problem.settings.grid_share * grid, CALIBRATIONS * calibration)


def left_s(problem: Problem, results: Sequence[JobResult], posterior: Posterior | None = None) -> Seconds:
    """For probes and races: of the budget, and of what they are allowed."""
    settings = problem.settings
    spent = math.fsum(result.engine_s for result in results)
    return min(settings.budget_s - settings.reserve_s, allowed_s(problem, results, posterior)) - spent


def _seen(problem: Problem, results: Sequence[JobResult], load: Load) -> list[tuple[str, CellResult]]:
    """Cells of this load, or of the nearest that was seen, each with its candidate."""
    seen: dict[Load, list[tuple[str, CellResult]]] = {}
    for result in results:
        for cell in result.cells:
            seen.setdefault(cell.load, []).append((result.job.candidate, cell))
    place = problem.loads.index(load)
    nearest = min(seen, key=lambda other: abs(problem.loads.index(other) - place), default=load)
    return seen.get(nearest, [])


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
