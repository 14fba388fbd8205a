"""How long do launches and cells take, what would a full grid take, and how much of that may the search spend?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from speclift.core.traffic import Load
from speclift.core.units import Seconds
from speclift.tune.problem import CellResult, Problem, Purpose, Result

# What people do without a tuner: every arm at every load, and again twice against noise; a cell that has to tell of
# acceptance by itself needs this many requests, where a search's may have fewer.
GRID_REPEATS = 3
GRID_REQUESTS_MIN = 24
# A small space is calibrated at a good share of its grid; what is in doubt then still deserves a few launches.
CALIBRATIONS = 2
_CALIBRATING = frozenset({Purpose.BASELINE, Purpose.LONG, Purpose.SHORT})


def launch_s(problem: Problem, results: Sequence[Result]) -> Seconds:
    """The mean of those seen, else the guess."""
    seen = [result.launch_s for result in results if result.launch_s > 0]
    return math.fsum(seen) / len(seen) if seen else problem.settings.launch_s_guess


def cell_s(problem: Problem, results: Sequence[Result], load: Load) -> Seconds:
    """The longest seen at this load or the nearest that was seen, else the guess."""
    seen = [cell.wall_s for cell in _seen(problem, results, load)]
    return max(seen, default=problem.settings.cell_s_guess)


def job_s(problem: Problem, results: Sequence[Result], loads: Sequence[Load]) -> Seconds:
    """One launch with these loads."""
    return launch_s(problem, results) + math.fsum(cell_s(problem, results, load) for load in loads)


def grid_s(problem: Problem, results: Sequence[Result]) -> Seconds:
    """What every candidate at every load, three times over, would take, were they all as those seen on average."""
    cells = 0.0
    for load in problem.loads:
        seen = [
            cell.wall_s * max(1.0, GRID_REQUESTS_MIN / len(cell.requests))
            for cell in _seen(problem, results, load)
            if cell.requests
        ]
        cells += math.fsum(seen) / len(seen) if seen else problem.settings.cell_s_guess
    return GRID_REPEATS * len(problem.candidates) * (launch_s(problem, results) + cells)


def allowed_s(problem: Problem, results: Sequence[Result]) -> Seconds:
    """Of the whole search, for probes and races: a share of the grid, or some times its calibration if more."""
    calibration = math.fsum(result.engine_s for result in results if result.job.purpose in _CALIBRATING)
    return max(problem.settings.grid_share * grid_s(problem, results), CALIBRATIONS * calibration)


def left_s(problem: Problem, results: Sequence[Result]) -> Seconds:
    """For probes and races: of the budget, and of what they are allowed."""
    settings = problem.settings
    spent = math.fsum(result.engine_s for result in results)
    return min(settings.budget_s - settings.reserve_s, allowed_s(problem, results)) - spent


def _seen(problem: Problem, results: Sequence[Result], load: Load) -> list[CellResult]:
    """Cells of this load, or of the nearest that was seen."""
    seen: dict[Load, list[CellResult]] = {}
    for cell in (cell for result in results for cell in result.cells):
        seen.setdefault(cell.load, []).append(cell)
    place = problem.loads.index(load)
    nearest = min(seen, key=lambda other: abs(problem.loads.index(other) - place), default=load)
    return seen.get(nearest, [])
