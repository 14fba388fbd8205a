"""When would it pay? Step costs by load, break-even acceptance, best k, crossover; with how far to trust it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speclift.arithmetic.acceptance import best_k, break_even_acceptance
from speclift.arithmetic.cost import (
    IDEAL,
    Drafting,
    DraftPasses,
    EngineLosses,
    ForwardModel,
    Hardware,
    draft_pass_s,
    first_loss,
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
    # The roofline's own best: no engine is faster than it.
    ceiling: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPrediction:
    concurrency: int
    baseline_step_s: Seconds
    draft_cost: float
    steps: tuple[StepPrediction, ...]
    best: tuple[BestChoice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossoverPrediction:
    """The first concurrency that loses; None: none up to the largest looked at."""

    acceptance: str
    k: int
    concurrency: int | None
    low: int | None
    high: int | None


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

    def ratio(self, concurrency: int, k: int, losses: EngineLosses) -> float:
        plain = step_s(self.target, concurrency=concurrency, context=self.context, losses=losses)
        return self._step_s(concurrency, k, losses) / plain

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

    def best(self, concurrency: int, acceptance: Acceptance, ks: Sequence[int]) -> BestChoice:
        def at(k: int, losses: EngineLosses) -> float:
            return self.speedup(concurrency, k, acceptance, losses)

        chosen = max(ks, key=lambda k: at(k, self.engine.losses))
        value, trust = at(chosen, self.engine.losses), self.engine.trust_factor
        return BestChoice(
            acceptance=acceptance.label,
            k=chosen if value > 1.0 else 0,
            speedup=Range(value=value, low=value / trust, high=value * trust),
            ceiling=max(at(k, IDEAL) for k in ks),
        )

    def crossover(self, acceptance: Acceptance, k: int) -> CrossoverPrediction:
        def first(factor: float) -> int | None:
            return first_loss(
                lambda load: factor * self.speedup(load, k, acceptance, self.engine.losses), CROSSOVER_LOADS
            )

        trust = self.engine.trust_factor
        return CrossoverPrediction(
            acceptance=acceptance.label,
            k=k,
            concurrency=first(1.0),
            low=first(1.0 / trust),
            high=first(trust),
        )

    def draft_cost(self, concurrency: int) -> float:
        """One drafted token as a share of a plain step."""
        losses = self.engine.losses
        plain = step_s(self.target, concurrency=concurrency, context=self.context, losses=losses)
        if isinstance(self.drafting, DraftPasses):
            one_s = draft_pass_s(
                self.drafting.model, concurrency=concurrency, context=self.context, losses=losses
            )
        else:
            one_s = concurrency * losses.ngram_sequence_s
        return one_s / plain


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
        )
        for load in loads
    )
    crossovers = []
    for place, acceptance in enumerate(acceptances):
        at_lowest = shown[0].best[place].k
        crossovers.append(predictor.crossover(acceptance, at_lowest or min(ks)))
    return Prediction(
        method=method,
        context=predictor.context,
        loads=shown,
        crossovers=tuple(crossovers),
        model=predictor.engine,
        simple_k=tuple(
            (acceptance.label, best_k(acceptance.rate, cost, max(ks)))
            for acceptance in acceptances
            if isinstance(acceptance, Assumed)
        ),
    )
