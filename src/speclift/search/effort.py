"""How long do launches and cells take, what would a full grid take, and how much of that may the search spend?"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from speclift.core.traffic import Concurrency, Load
from speclift.core.units import Seconds
from speclift.search.posterior import Posterior
from speclift.search.problem import CALIBRATING, CellResult, JobResult, Problem

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
