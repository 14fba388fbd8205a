"""When would it pay? Step costs by load, break-even acceptance, best k, crossover; with how far to trust it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from speclift.arithmetic.acceptance import best_k, break_even_acceptance
from speclift.arithmetic.cost import (
    IDEAL,
    Drafting,
    EngineLosses,
    ForwardModel,
    Hardware,
    drafting_time_s,
    step_s,
)
from speclift.core.hardware import Device
from speclift.core.units import Seconds, Tokens
from speclift.planner.acceptance_curve import Acceptance, Assumed
from speclift.planner.memory import Placed, layer_bytes_per_token

K_DEFAULT = (1, 2, 3, 4, 5, 7)
LOADS_DEFAULT = (1, 8, 32)
# Where a crossover is looked for; above it nobody runs one server.
CROSSOVER_LOADS = tuple(sorted({round(2 ** (step / 4)) for step in range(41)}))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """An engine's losses, and by which factor a speedup predicted with them may be off."""

    losses: EngineLosses
    trust_factor: float
    source: str
    # The engine's, that it predicts; empty where none is meant.
    version: str = ""


def forward_model(placed: Placed, device: Device, *, parallel: int, kv_value_bytes: float) -> ForwardModel:
    """The model on `parallel` devices that work as one."""
    shape = placed.shape
    kv = tuple(
        (
            each.layers
            * parallel
            * layer_bytes_per_token(each, value_bytes=kv_value_bytes, tensor_parallel=parallel),
            each.window,
        )
        for each in shape.kv
    )
    return ForwardModel(
        dense_bytes=placed.weights.read_every_step,
        expert_bytes=placed.weights.experts,
        experts=shape.experts,
        experts_per_token=shape.experts_per_token,
        active_parameters=shape.active_parameters,
        kv=kv,
        layers=shape.layers,
        hidden=shape.hidden,
        math_bits=placed.weights.math_bits,
        hardware=Hardware(
            bandwidth_bytes_s=device.bandwidth_bytes_s * parallel,
            flops_s=device.flops(placed.weights.math_bits) * parallel,
            exchange_s=device.link_latency_s if parallel > 1 else 0.0,
            exchange_bytes_s=device.link_bytes_s,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrediction:
    """k drafted tokens at one load. Acceptances are break-even rates; None where not even 1.0 would pay."""

    k: int
    step_s: Seconds
    cost_ratio: float
    break_even: float | None
    # With the cost ratio at either end of its trust; `high` None: perhaps never.
    break_even_low: float | None
    break_even_high: float | None
    # Of the roofline alone, without any loss of the engine's.
    ideal_cost_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BestChoice:
    """The best k for one acceptance at one load; k is 0 where plain decoding is predicted faster."""

    acceptance: str
    k: int
    speedup: Range
    # What no k can exceed: the accepted length over what drafting and checking cost at the least.
    ceiling: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedArm:
    """One k with one acceptance at one load."""

    k: int
    acceptance: str
    speedup: Range
    ceiling: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPrediction:
    concurrency: int
    baseline_step_s: Seconds
    draft_cost: float
    steps: tuple[StepPrediction, ...]
    best: tuple[BestChoice, ...]
    arms: tuple[PredictedArm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRange:
    """Concurrencies from `low` to `high`; `high` None: up to the largest looked at."""

    low: int
    high: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossoverPrediction:
    """The first concurrency at which no k pays; None: none up to the largest looked at."""

    acceptance: str
    # The best at the lowest load that was asked for.
    k: int
    concurrency: int | None
    low: int | None
    high: int | None
    # Where the best k pays, as the table of speedups says it of its loads.
    pays: tuple[LoadRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    method: str
    context: Tokens
    loads: tuple[LoadPrediction, ...]
    crossovers: tuple[CrossoverPrediction, ...]
    model: EngineModel
    # The articles' rule: k from the cost of a drafted token alone, at concurrency 1.
    simple_k: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """Step costs of one target with one drafter on one engine."""

    target: ForwardModel
    drafting: Drafting
    engine: EngineModel
    context: Tokens
    # By load, k and losses: the same for every acceptance.
    _ratios: dict[tuple[int, int, EngineLosses], float] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def ratio(self, concurrency: int, k: int, losses: EngineLosses) -> float:
        asked = concurrency, k, losses
        if asked not in self._ratios:
            plain = step_s(self.target, concurrency=concurrency, context=self.context, losses=losses)
            self._ratios[asked] = self._step_s(concurrency, k, losses) / plain
        return self._ratios[asked]

    def _step_s(self, concurrency: int, k: int, losses: EngineLosses) -> Seconds:
        return step_s(
            self.target,
            concurrency=concurrency,
            context=self.context,
            k=k,
            drafting=self.drafting,
            losses=losses,
        )

    def speedup(self, concurrency: int, k: int, acceptance: Acceptance, losses: EngineLosses) -> float:
        return acceptance.length(k) / self.ratio(concurrency, k, losses)

    def step(self, concurrency: int, k: int) -> StepPrediction:
        ratio = self.ratio(concurrency, k, self.engine.losses)
        trust = self.engine.trust_factor
        return StepPrediction(
            k=k,
            step_s=self._step_s(concurrency, k, self.engine.losses),
            cost_ratio=ratio,
            break_even=break_even_acceptance(k, ratio),
            break_even_low=break_even_acceptance(k, ratio / trust),
            break_even_high=break_even_acceptance(k, ratio * trust),
            ideal_cost_ratio=self.ratio(concurrency, k, IDEAL),
        )

    def ceiling(self, concurrency: int, k: int, acceptance: Acceptance) -> float:
        """Never above the accepted length. Fixed costs may hide more of a check than the roofline would."""
        ratios = (self.ratio(concurrency, k, losses) for losses in (IDEAL, self.engine.losses))
        return acceptance.length(k) / max(1.0, min(ratios))

    def arm(self, concurrency: int, acceptance: Acceptance, k: int) -> PredictedArm:
        value, trust = self.speedup(concurrency, k, acceptance, self.engine.losses), self.engine.trust_factor
        ceiling = self.ceiling(concurrency, k, acceptance)
        return PredictedArm(
            k=k,
            acceptance=acceptance.label,
            speedup=Range(value=value, low=value / trust, high=min(value * trust, ceiling)),
            ceiling=ceiling,
        )

    def best(self, concurrency: int, acceptance: Acceptance, ks: Sequence[int]) -> BestChoice:
        arms = [self.arm(concurrency, acceptance, k) for k in ks]
        chosen = max(arms, key=lambda arm: arm.speedup.value)
        return BestChoice(
            acceptance=acceptance.label,
            k=chosen.k if chosen.speedup.value > 1.0 else 0,
            speedup=chosen.speedup,
            ceiling=max(arm.ceiling for arm in arms),
        )

    def crossover(
        self, acceptance: Acceptance, ks: Sequence[int], loads: Sequence[int]
    ) -> CrossoverPrediction:
        """By the best k of each load, so that it says of `loads` what their table says."""
        looked_at = sorted({*CROSSOVER_LOADS, *loads})

        @cache
        def speedup(load: int) -> Range:
            return self.best(load, acceptance, ks).speedup

        def paying(end: Literal["value", "low", "high"]) -> tuple[LoadRange, ...]:
            return load_ranges(lambda load: getattr(speedup(load), end) > 1.0, looked_at)

        ranges = paying("value")
        return CrossoverPrediction(
            acceptance=acceptance.label,
            k=self.best(min(loads), acceptance, ks).k or min(ks),
            concurrency=_first_outside(ranges),
            low=_first_outside(paying("low")),
            high=_first_outside(paying("high")),
            pays=ranges,
        )

    def draft_cost(self, concurrency: int) -> float:
        """One more drafted token as a share of a plain step."""
        losses = self.engine.losses
        plain = step_s(self.target, concurrency=concurrency, context=self.context, losses=losses)
        one_s, two_s = (
            drafting_time_s(self.drafting, k=k, concurrency=concurrency, context=self.context, losses=losses)
            for k in (1, 2)
        )
        return (two_s - one_s) / plain


def load_ranges(pays: Callable[[int], bool], loads: Sequence[int]) -> tuple[LoadRange, ...]:
    """Where it pays among rising loads; each border is searched for between the two loads it lies between."""
    ranges: list[LoadRange] = []
    begin = None
    before = 0
    for load in loads:
        is_paying = pays(load)
        if is_paying and begin is None:
            begin = load if not before else _border(pays, before, load)
        elif not is_paying and begin is not None:
            ranges.append(LoadRange(low=begin, high=_border(pays, before, load) - 1))
            begin = None
        before = load
    if begin is not None:
        ranges.append(LoadRange(low=begin, high=None))
    return tuple(ranges)


def _border(pays: Callable[[int], bool], before: int, after: int) -> int:
    """The first load that is as `after` is, `before` being otherwise."""
    wanted = pays(after)
    while after - before > 1:
        middle = (before + after) // 2
        if pays(middle) == wanted:
            after = middle
        else:
            before = middle
    return after


def _first_outside(ranges: Sequence[LoadRange]) -> int | None:
    if not ranges or ranges[0].low > 1:
        return 1
    return None if ranges[0].high is None else ranges[0].high + 1


def predict(
    predictor: Predictor,
    *,
    method: str,
    loads: Sequence[int],
    ks: Sequence[int],
    acceptances: Sequence[Acceptance],
) -> Prediction:
    cost = predictor.draft_cost(min(loads))
    shown = tuple(
        LoadPrediction(
            concurrency=load,
            baseline_step_s=step_s(
                predictor.target, concurrency=load, context=predictor.context, losses=predictor.engine.losses
            ),
            draft_cost=predictor.draft_cost(load),
            steps=tuple(predictor.step(load, k) for k in ks),
            best=tuple(predictor.best(load, acceptance, ks) for acceptance in acceptances),
            arms=tuple(predictor.arm(load, acceptance, k) for acceptance in acceptances for k in ks),
        )
        for load in loads
    )
    return Prediction(
        method=method,
        context=predictor.context,
        loads=shown,
        crossovers=tuple(predictor.crossover(acceptance, ks, loads) for acceptance in acceptances),
        model=predictor.engine,
        simple_k=tuple(
            (acceptance.label, best_k(acceptance.rate, cost, max(ks)))
            for acceptance in acceptances
            if isinstance(acceptance, Assumed)
        ),
    )
