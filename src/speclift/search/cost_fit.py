"""How long does a step take where nothing was measured? A surface fitted to a handful of cells, and how sure it is.

Parameters have weak log-normal priors. What the form cannot express (kernel switches, graph sizes, tiles) stays as a
residual that is kept where it was seen and fades with distance in batch and k; one start of a server shifts all its
cells alike. Small tiles are in the form where the cells are more probable with them; what several forms explain alike
stays open between them. Everything is in logs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from speclift.core.units import Seconds
from speclift.search.cost_surface import Floats, Point, Points, Surface, Tiles

# Log sd. A launch against another of the same arm, a run against another of the same launch, and the machine against
# itself some time later, with the e-folding time of that: 0.8-1.2 % on quiet GPUs; all grow with what the residuals of
# a study show.
LAUNCH_SD = 0.006
RUN_SD = 0.008
DRIFT_SD = 0.011
DRIFT_S = 1200.0
# Of requests that a cell times for a run to scatter by no more than RUN_SD; one of fewer scatters by more.
RUN_REQUESTS = 12
# Of a measurement against one of another launch just before it, some minutes apart.
FRESH_SD = math.sqrt(LAUNCH_SD**2 + RUN_SD**2 + DRIFT_SD**2 * -math.expm1(-300.0 / DRIFT_S))
# What the form misses: a part that goes with the tokens in a step (graph sizes, tiles, kernel switches, clocks), which
# all arms of a target share; a part of one drafter; a part that is one cell's own.
TOKENS_SD = 0.030
DRAFTER_SD = 0.010
CELL_SD = 0.012
# e-folding distances in log tokens, log batch and log (k + 1).
TOKENS_REACH = 1.0
BATCH_REACH = 1.2
K_REACH = 1.0
# Misfit and noise are scaled by what the cells show: the scales tried, and how far (as a factor) they may well be off.
# A dozen cells that happen to fit well are no sign that the rest will: misfit is never taken to be below the above.
MISFIT_SCALES = (1.0, 1.5, 2.2, 3.3, 5.0)
NOISE_SCALES = (1.0, 1.5, 2.5, 5.0, 10.0, 20.0)
SCALE_FACTOR = 2.0
# The least and usual misfit scale of a mixture of experts: fits to published tables (SGLang PR 22246) missed experts
# by 3 % on average and dense models by 1.7-2.4 %.
EXPERTS_MISFIT = 1.3
# Small tiles that the form is tried with.
SMALL_TILES = tuple(Tiles(width=width, pads=pads) for width in (4, 8) for pads in (False, True))
# What the cells have to make up for before tiles are believed in (a log of odds): one engine in about a hundred, unless
# its kernels are known to have them; then as much speaks against their absence.
TILES_DOUBT = 4.5
# A form less probable than this, among all tried, is left out of predictions.
_PROBABLE = 0.02
_STARTS = 2
_DIFFERENCE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPoint:
    """A measured cell. Cells of one `launch` share what that start of the server did, cells near in time what the
    machine did."""

    point: Point
    step_s: Seconds
    launch: int
    # On a clock of the search's own.
    at_s: Seconds = 0.0
    # How many of them were timed.
    requests: int = RUN_REQUESTS


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """log step time in seconds at each point asked for, with its covariance."""

    log_s: Floats
    covariance: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """What a cell took against the fitted form alone: 0.03 is 3 % slower."""

    point: Point
    log_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFit:
    surface: Surface
    parameters: Floats
    unit_s: Seconds
    cells: tuple[TimedPoint, ...]
    # Against the constants above; a noise of 1 is a quiet GPU.
    misfit_scale: float
    noise_scale: float
    # log probability of the cells under this form, but for a constant: the freedom of its parameters is paid for.
    log_evidence: float
    # Other forms that the cells leave possible, each with its probability; this one has the rest.
    rivals: tuple[tuple[float, CostFit], ...] = ()

    def residuals(self) -> tuple[Residual, ...]:
        fitted = self.surface.log_time(self.parameters, self._points())
        return tuple(
            Residual(point=cell.point, log_ratio=math.log(cell.step_s / self.unit_s) - float(value))
            for cell, value in zip(self.cells, fitted, strict=True)
        )

    def predict(self, points: Sequence[Point]) -> StepTimes:
        """The form plus the residual carried over from measured cells; the mean over the forms that are possible, and
        how far they differ is part of the covariance."""
        weights = [1.0 - math.fsum(weight for weight, _ in self.rivals), *(each for each, _ in self.rivals)]
        times = [self._predicted(points), *(rival._predicted(points) for _, rival in self.rivals)]
        log_s: Floats = np.average([each.log_s for each in times], axis=0, weights=weights)
        covariance: Floats = np.zeros((len(points), len(points)))
        for weight, each in zip(weights, times, strict=True):
            apart = each.log_s - log_s
            covariance += weight * (each.covariance + np.outer(apart, apart))
        return StepTimes(log_s=log_s, covariance=covariance)

    def _predicted(self, points: Sequence[Point]) -> StepTimes:
        here, there = self.surface.points(points), self._points()
        form = self.surface.log_time(self.parameters, here)
        slopes_here = _slopes(self.surface, self.parameters, here)
        slopes_there = _slopes(self.surface, self.parameters, there)
        seen = [cell.point for cell in self.cells]
        prior, misfit = self.surface.prior_sd**2, self.misfit_scale**2
        near = misfit * _misfit(points, seen)
        own = _spread(self.cells, self.misfit_scale, self.noise_scale)
        residual = np.array([each.log_ratio for each in self.residuals()])
        log_s = form + near @ cho_solve(cho_factor(own), residual) + math.log(self.unit_s)
        across = (slopes_here * prior) @ slopes_there.T + near
        measured = (slopes_there * prior) @ slopes_there.T + own
        unseen = (slopes_here * prior) @ slopes_here.T + misfit * _misfit(points, points)
        covariance: Floats = unseen - across @ cho_solve(cho_factor(measured), across.T)
        return StepTimes(log_s=log_s, covariance=(covariance + covariance.T) / 2)

    def form_s(self, points: Sequence[Point]) -> Floats:
        """The fitted form alone, in seconds."""
        seconds: Floats = self.unit_s * np.exp(
            self.surface.log_time(self.parameters, self.surface.points(points))
        )
        return seconds

    def _points(self) -> Points:
        return self.surface.points([cell.point for cell in self.cells])


def fit_cost(surface: Surface, cells: Sequence[TimedPoint], *, tile_width: int = 1) -> CostFit:
    """The most probable form, its parameters maximum a posteriori; with one cell the prior's shape remains.

    `tile_width`: of the small tiles that the engine's kernels are known to have; 1 where nothing is known.
    """
    if not cells:
        raise ValueError("a cost fit needs at least one measured cell, saw none")
    if any(not cell.step_s > 0 for cell in cells):
        raise ValueError("a step time must be above 0 s")
    plain = _fitted(surface, cells, _starts(len(surface.priors), surface.prior_sd))
    known = Tiles(width=tile_width, pads=False)
    fits = {None: plain} | {
        tiles: _fitted(surface.with_tiles(tiles), cells, [_with_left_over(plain)])
        for tiles in dict.fromkeys((*SMALL_TILES, *([known] if tile_width > 1 else [])))
        if tiles == known or _would_show(plain, tiles)
    }
    usual = known if tile_width > 1 else None
    odds = {tiles: fit.log_evidence - TILES_DOUBT * (tiles != usual) for tiles, fit in fits.items()}
    best = max(odds, key=lambda tiles: odds[tiles])
    shares = {tiles: math.exp(each - odds[best]) for tiles, each in odds.items()}
    probable = {
        tiles: share for tiles, share in shares.items() if share > _PROBABLE * math.fsum(shares.values())
    }
    whole = math.fsum(probable.values())
    rivals = tuple((share / whole, fits[tiles]) for tiles, share in probable.items() if tiles != best)
    return replace(fits[best], rivals=rivals)


def _would_show(plain: CostFit, tiles: Tiles) -> bool:
    """Whether they would tell the cells apart by more than a run scatters by, compute being what it looks like."""
    surface, seen = plain.surface.with_tiles(tiles), [cell.point for cell in plain.cells]
    with_them = surface.log_time(_with_left_over(plain), surface.points(seen))
    change = with_them - plain.surface.log_time(plain.parameters, plain.surface.points(seen))
    return float(np.ptp(change)) > RUN_SD


def _with_left_over(plain: CostFit) -> Floats:
    """The parameters of a form without small tiles where one with them begins: theirs at its prior's centre."""
    surface = plain.surface.with_tiles(SMALL_TILES[0])
    place = next(place for place, prior in enumerate(surface.priors) if prior.name == "left_over")
    extended: Floats = np.insert(plain.parameters, place, 0.0)
    return extended


def _fitted(surface: Surface, cells: Sequence[TimedPoint], starts: Sequence[Floats]) -> CostFit:
    plain = [cell.step_s for cell in cells if cell.point.drafter is None]
    unit_s = min(plain or [cell.step_s for cell in cells])
    there = surface.points([cell.point for cell in cells])
    measured = np.log([cell.step_s / unit_s for cell in cells])
    scales, log_evidence = (1.0, 1.0), 0.0
    # Twice: how noisy the cells are shows once the form fits, and how well it must fit depends on the noise.
    for _ in range(2):
        parameters = _most_probable(surface, there, measured, _spread(cells, *scales), starts)
        residual = measured - surface.log_time(parameters, there)
        scales, log_evidence = _scales(surface, cells, residual, parameters)
        starts = [parameters]
    return CostFit(
        surface=surface,
        parameters=parameters,
        unit_s=unit_s,
        cells=tuple(cells),
        misfit_scale=scales[0],
        noise_scale=scales[1],
        log_evidence=log_evidence,
    )


def _most_probable(
    surface: Surface, there: Points, measured: Floats, spread: Floats, starts: Sequence[Floats]
) -> Floats:
    root = np.linalg.cholesky(spread)

    def errors(parameters: Floats) -> Floats:
        gap = surface.log_time(parameters, there) - measured
        whitened: Floats = np.concatenate(
            [solve_triangular(root, gap, lower=True), parameters / surface.prior_sd]
        )
        return whitened

    def slopes(parameters: Floats) -> Floats:
        own = solve_triangular(root, _slopes(surface, parameters, there), lower=True)
        stacked: Floats = np.vstack([own, np.diag(1.0 / surface.prior_sd)])
        return stacked

    from scipy.optimize import least_squares  # a tenth of a second, which only a search needs

    tries = [least_squares(errors, start, jac=slopes, method="lm", max_nfev=60) for start in starts]
    best: Floats = min(tries, key=lambda found: float(found.cost)).x
    return best


def _scales(
    surface: Surface, cells: Sequence[TimedPoint], residual: Floats, parameters: Floats
) -> tuple[tuple[float, float], float]:
    """Misfit and noise under which the residuals are most probable, the parameters' freedom counted (Laplace), and
    the log of how probable."""
    seen = [cell.point for cell in cells]
    slopes = _slopes(surface, parameters, surface.points(seen))
    freedom = (slopes * surface.prior_sd**2) @ slopes.T
    # The residual as if the parameters stood at their priors' centres, to first order.
    gap = residual + slopes @ parameters
    misfit, noise = _misfit(seen, seen), _noise(cells)
    usual_misfit = EXPERTS_MISFIT if surface.experts is not None else 1.0

    def log_evidence(scales: tuple[float, float]) -> float:
        root = np.linalg.cholesky(freedom + scales[0] ** 2 * misfit + scales[1] ** 2 * noise)
        fitted = float(np.sum(solve_triangular(root, gap, lower=True) ** 2)) / 2 + float(
            np.sum(np.log(np.diag(root)))
        )
        unusual = (math.log(scales[0] / usual_misfit), math.log(scales[1]))
        doubt = sum((log_scale / math.log(SCALE_FACTOR)) ** 2 for log_scale in unusual) / 2
        return -fitted - doubt

    scales = max(product([usual_misfit * scale for scale in MISFIT_SCALES], NOISE_SCALES), key=log_evidence)
    return scales, log_evidence(scales)


def _spread(cells: Sequence[TimedPoint], misfit_scale: float, noise_scale: float) -> Floats:
    seen = [cell.point for cell in cells]
    spread: Floats = misfit_scale**2 * _misfit(seen, seen) + noise_scale**2 * _noise(cells)
    return spread


def _starts(count: int, prior_sd: Floats) -> list[Floats]:
    """The priors' centres, and points around them that do not depend on chance."""
    signs = np.array([1.0 if place % 2 else -1.0 for place in range(count)])
    return [np.zeros(count), *(0.5 * (-1) ** turn * signs * prior_sd for turn in range(_STARTS - 1))]


def _slopes(surface: Surface, parameters: Floats, points: Points) -> Floats:
    """Central differences of log time, a column for each parameter; the surface is smooth and cheap."""
    shifts = _DIFFERENCE * np.eye(len(parameters))
    rises = surface.log_time(parameters + shifts, points) - surface.log_time(parameters - shifts, points)
    slopes: Floats = rises.T / (2 * _DIFFERENCE)
    return slopes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Where points lie, and whom they belong to; an entry each."""

    log_tokens: Floats
    log_batch: Floats
    log_k: Floats
    target: NDArray[np.str_]
    drafter: NDArray[np.str_]
    token_budget: NDArray[np.int64]


def _places(points: Sequence[Point]) -> _Places:
    return _Places(
        log_tokens=np.log([point.tokens for point in points]),
        log_batch=np.log([point.batch for point in points]),
        log_k=np.log1p([float(point.k) for point in points]),
        target=np.array([point.target for point in points]),
        drafter=np.array([point.drafter or "" for point in points]),
        token_budget=np.array([point.token_budget or 0 for point in points]),
    )


def _misfit(left: Sequence[Point], right: Sequence[Point]) -> Floats:
    """Covariance of what the form misses, between two lists of points."""
    here, there = _places(left), _places(right)
    tokens = _apart(here.log_tokens, there.log_tokens)
    batch = _apart(here.log_batch, there.log_batch)
    k = _apart(here.log_k, there.log_k)
    same_target = here.target[:, None] == there.target[None, :]
    same_arm = same_target & (here.drafter[:, None] == there.drafter[None, :])
    same_budget = here.token_budget[:, None] == there.token_budget[None, :]
    shared = TOKENS_SD**2 * np.exp(-tokens / TOKENS_REACH) * same_target
    own = DRAFTER_SD**2 * np.exp(-batch / BATCH_REACH - k / K_REACH) * same_arm
    cell = CELL_SD**2 * (same_arm & same_budget & (batch == 0) & (k == 0))
    covariance: Floats = shared + own + cell
    return covariance


def _apart(left: Floats, right: Floats) -> Floats:
    distance: Floats = np.abs(left[:, None] - right[None, :])
    return distance


def _noise(cells: Sequence[TimedPoint]) -> Floats:
    launches = np.array([cell.launch for cell in cells])
    at_s = np.array([cell.at_s for cell in cells])
    drift = DRIFT_SD**2 * np.exp(-_apart(at_s, at_s) / DRIFT_S)
    same_launch = launches[:, None] == launches[None, :]
    run = RUN_SD**2 * np.array([max(1.0, RUN_REQUESTS / max(1, cell.requests)) for cell in cells])
    noise: Floats = LAUNCH_SD**2 * same_launch + np.diag(run) + drift
    return noise
