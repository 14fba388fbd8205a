"""How long does a step take where nothing was measured? A surface fitted to a handful of cells, and how sure it is.

T = passes (overhead + [memory^r + compute^r]^(1/r)) + speculation + drafting, all in units of the plain step; part of
the compute is paid in whole tiles, of 64 tokens or of the few that small kernels take. Memory and compute belong to a
target variant, drafting to a drafter, the rest to the engine.

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
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.special import bdtr

from speclift.core.drafting import Drafting
from speclift.core.units import Seconds, Tokens

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One place on the surface: an arm's cost side at one load."""

    target: str
    # None is the baseline: no speculative configuration at all.
    drafter: str | None
    k: int
    batch: float
    context: float
    # Drafted tokens per sequence and step, steps without a draft counted.
    drafted: float
    # Share of the steps that draft; the others verify one token each.
    drafting: float = 1.0
    # Prompt tokens that a step of this load carries beside the decodes.
    prefill: float = 0.0
    token_budget: Tokens | None = None

    @property
    def tokens(self) -> float:
        return self.batch * (1.0 + self.drafted) + self.prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts: how many, how many per token, and what share of the weights they hold."""

    count: int
    per_token: int
    weight_share: float = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Tokens that a small kernel takes at once. What is left over of a step either fills up a tile of its own (`pads`)
    or goes through token by token, each at a higher price than one in a tile."""

    width: int
    pads: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """A positive parameter: its centre, and the factor by which it may well be off."""

    name: str
    centre: float
    factor: float


# Rows that one instruction of a matrix product takes on Hopper GPUs (wgmma: m64); others use 64 or a multiple.
TILE = 64.0

# Centres in units of the plain step at the smallest load measured, of Llama 3.1 8B on H100 (SpecDecode-Bench, arXiv
# 2601.11580): 5.89 ms for weights + 0.021 ms a token + 3.93e-5 ms a token of KV + 1.21 ms overhead, 7.1 ms in all. Tax:
# +6.6 % at 2 requests (vLLM issue 49548). Tiles: about 0.4 of the compute on H200. The factors say that other engines
# are known to differ: by 2 to 5 where nothing is known beforehand.
_SHARED = (
    Prior(name="overhead", centre=0.12, factor=2.5),
    Prior(name="kv", centre=6.0e-6, factor=4.0),
    Prior(name="tax", centre=0.04, factor=3.0),
    Prior(name="tax_token", centre=1.5e-4, factor=4.0),
    # r = 1 + this.
    Prior(name="overlap", centre=1.2, factor=2.0),
    # Compute paid for whole tiles against compute paid by the token.
    Prior(name="tile_odds", centre=0.5, factor=3.0),
)
# What the tokens left over of small tiles cost beside those in them: a share of the padding, or how much dearer a token
# is alone. llama.cpp on a CPU (ggml's repacked Q4_0: four rows at once, the rest one by one): see docs/tune.md.
_LEFT_OVER = {
    True: Prior(name="left_over", centre=0.8, factor=1.5),
    False: Prior(name="left_over", centre=0.3, factor=2.5),
}
# Beyond so many sequences what is left over is as good as random, and little beside the rest.
_COUNTED_BATCH = 32
_EXPERTS_FACTOR = 2.0
_PER_TARGET = (
    Prior(name="weights", centre=0.8, factor=1.6),
    Prior(name="compute", centre=3.5e-3, factor=4.0),
)
# On a CPU a token's arithmetic counts from the first on: SmolLM2-135M in llama.cpp on one x86 core, 0.7 of the plain
# step for every further token that is verified (docs/tune.md).
_PER_TARGET_ON_CPU = (
    Prior(name="weights", centre=0.5, factor=2.0),
    Prior(name="compute", centre=0.5, factor=2.5),
)
_PER_DRAFTER = {
    Drafting.PASSES: (
        Prior(name="draft", centre=0.08, factor=4.0),
        Prior(name="draft_sequence", centre=2.0e-4, factor=5.0),
    ),
    Drafting.ONE_PASS: (
        Prior(name="draft", centre=0.2, factor=4.0),
        Prior(name="draft_sequence", centre=1.0e-3, factor=5.0),
    ),
    Drafting.LOOK_UP: (
        Prior(name="draft", centre=0.01, factor=5.0),
        Prior(name="draft_sequence", centre=5.0e-4, factor=5.0),
    ),
}


class Surface:
    """Parameters in one vector (logs relative to their priors' centres) and the time they give."""

    def __init__(
        self,
        *,
        targets: Sequence[str],
        drafters: Sequence[tuple[str, Drafting]],
        experts: Experts | None = None,
        tiles: Tiles | None = None,
        is_on_cpu: bool = False,
    ) -> None:
        self.targets = tuple(targets)
        self.drafters = tuple(drafters)
        self.experts = experts
        self.tiles = tiles
        self.is_on_cpu = is_on_cpu
        priors = list(_SHARED)
        if experts is not None:
            rate = -math.log1p(-experts.per_token / experts.count)
            priors += [
                Prior(name="expert_rate", centre=rate, factor=_EXPERTS_FACTOR),
                # The ratio of expert to other weight bytes.
                Prior(
                    name="expert_odds",
                    centre=experts.weight_share / (1 - experts.weight_share),
                    factor=_EXPERTS_FACTOR,
                ),
            ]
        if tiles is not None:
            priors.append(_LEFT_OVER[tiles.pads])
        self._shared_count = len(priors)
        per_target = _PER_TARGET_ON_CPU if is_on_cpu else _PER_TARGET
        priors += [_named(prior, target) for target in self.targets for prior in per_target]
        for drafter, drafting in self.drafters:
            priors += [_named(prior, drafter) for prior in _PER_DRAFTER[drafting]]
        self.priors = tuple(priors)
        self.prior_sd: Floats = np.log([prior.factor for prior in priors])
        self._index = {prior.name: place for place, prior in enumerate(priors)}
        self._centres: Floats = np.array([prior.centre for prior in priors])

    def log_time(self, parameters: Floats, points: Points) -> Floats:
        """log of the step time at each point, in units of the plain step; a row for each row of `parameters`."""
        values = self._centres * np.exp(np.clip(parameters, -12.0, 12.0))
        shared = {
            prior.name: values[..., place : place + 1]
            for place, prior in enumerate(self.priors[: self._shared_count])
        }
        weights = values[..., points.weights_at]
        compute = values[..., points.weights_at + 1]
        tokens = points.tokens / points.passes
        if self.experts is not None:
            share = shared["expert_odds"] / (1.0 + shared["expert_odds"])
            touched = -np.expm1(-shared["expert_rate"] * tokens)
            # Relative to one token, so that `weights` stays what a plain step at batch 1 reads.
            alone = -np.expm1(-shared["expert_rate"])
            weights = weights * ((1.0 - share) + share * touched) / ((1.0 - share) + share * alone)
        memory = weights + shared["kv"] * points.batch * points.context / points.passes
        power = 1.0 + shared["overlap"]
        tiled = shared["tile_odds"] / (1.0 + shared["tile_odds"])
        paid = tokens + tiled * (_tiled(tokens) - tokens)
        if self.tiles is not None:
            paid = paid + shared["left_over"] * points.left_over
        arithmetic = compute * paid
        longer = np.maximum(memory, arithmetic)
        shorter = np.minimum(memory, arithmetic)
        forward = longer * (1.0 + (shorter / longer) ** power) ** (1.0 / power)
        total = points.passes * (shared["overhead"] + forward)
        total = total + points.speculates * (shared["tax"] + shared["tax_token"] * points.tokens)
        draft = values[..., points.draft_at] + values[..., points.draft_at + 1] * points.batch
        total = total + points.draft_passes * draft
        log_time: Floats = np.log(total)
        return log_time

    def with_tiles(self, tiles: Tiles | None) -> Surface:
        return Surface(
            targets=self.targets,
            drafters=self.drafters,
            experts=self.experts,
            tiles=tiles,
            is_on_cpu=self.is_on_cpu,
        )

    def points(self, points: Sequence[Point]) -> Points:
        """The points as arrays, each with the place of its parameters. Unknown targets or drafters raise ValueError."""
        kinds = dict(self.drafters)
        weights_at, draft_at, draft_passes = [], [], []
        for point in points:
            if point.target not in self.targets or (point.drafter is not None and point.drafter not in kinds):
                raise ValueError(f"the surface knows no {point.target!r} with drafter {point.drafter!r}")
            weights_at.append(self._index[f"weights {point.target}"])
            if point.drafter is None or point.k == 0:
                draft_at.append(0)
                draft_passes.append(0.0)
            else:
                draft_at.append(self._index[f"draft {point.drafter}"])
                draft_passes.append(float(point.k) if kinds[point.drafter] is Drafting.PASSES else 1.0)
        tokens = np.array([point.tokens for point in points])
        budget = np.array([point.token_budget or math.inf for point in points])
        return Points(
            weights_at=np.array(weights_at, dtype=np.int64),
            draft_at=np.array(draft_at, dtype=np.int64),
            draft_passes=np.array(draft_passes),
            speculates=np.array([float(point.drafter is not None) for point in points]),
            batch=np.array([point.batch for point in points]),
            context=np.array([point.context for point in points]),
            tokens=tokens,
            left_over=np.array([left_over(self.tiles, point) for point in points]),
            # More tokens than the scheduler takes at once need further passes.
            passes=np.maximum(1.0, tokens / budget),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    weights_at: NDArray[np.int64]
    draft_at: NDArray[np.int64]
    draft_passes: Floats
    speculates: Floats
    batch: Floats
    context: Floats
    tokens: Floats
    # Mean over the steps of what small tiles leave over, in tokens or in padding.
    left_over: Floats
    passes: Floats


def left_over(tiles: Tiles | None, point: Point) -> float:
    """Mean over the steps of one load: each sequence drafts by itself in a share of them, as many tokens each time."""
    if tiles is None:
        return 0.0
    batch = max(1, round(point.batch))
    if batch > _COUNTED_BATCH:
        return (tiles.width - 1) / 2
    drafting = min(1.0, max(0.0, point.drafting)) if point.drafted > 0 else 0.0
    length = round(point.drafted / drafting) if drafting else 0
    below = np.concatenate([[0.0], bdtr(np.arange(batch + 1), batch, drafting)])
    rest = (batch + length * np.arange(batch + 1)) % tiles.width
    spilled = (-rest) % tiles.width if tiles.pads else rest
    return float(np.diff(below) @ spilled)


def _tiled(tokens: Floats) -> Floats:
    """Tokens padded to whole tiles; small products have kernels with smaller ones."""
    padded: Floats = np.where(tokens > TILE, TILE * np.ceil(tokens / TILE - 1e-9), tokens)
    return padded


def _named(prior: Prior, owner: str) -> Prior:
    return Prior(name=f"{prior.name} {owner}", centre=prior.centre, factor=prior.factor)


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
