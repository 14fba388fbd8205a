"""The step time's functional form: which parameters a set of arms shares, and what time they give at a point.

T = passes (overhead + [memory^r + compute^r]^(1/r)) + speculation + drafting, all in units of the plain step; part of
the compute is paid in whole tiles, of 64 tokens or of the few that small kernels take. Memory and compute belong to a
target variant, drafting to a drafter, the rest to the engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from speclift.core.drafting import Drafting
from speclift.core.units import Tokens

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
