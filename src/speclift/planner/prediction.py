"""When would it pay, and which drafter first? Step costs, break-even acceptance, best k, crossover, and how far to
trust them. Pure.

Candidates are ranked by the acceptance they need: one known of one drafter says nothing of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Literal

from msgspec.structs import replace

from speclift.arithmetic.acceptance import best_k, break_even_acceptance, expected_length, iid_length
from speclift.arithmetic.cost import (
    IDEAL,
    Drafting,
    EngineLosses,
    ForwardModel,
    Hardware,
    drafting_time_s,
    step_s,
)
from speclift.core.document import Document
from speclift.core.errors import UsageError
from speclift.core.hardware import Device
from speclift.core.units import Seconds, Tokens
from speclift.planner.memory import Placed, layer_bytes_per_token

K_DEFAULT = (1, 2, 3, 4, 5, 7)
LOADS_DEFAULT = (1, 8, 32)
# Where a crossover is looked for; above it nobody runs one server.
CROSSOVER_LOADS = tuple(sorted({round(2 ** (step / 4)) for step in range(41)}))
NGRAM = "ngram"
DRAFT = "draft"
MTP = "mtp"
# Shown when nobody said an acceptance: the span that S2 and S4 call usual, creative to well matched.
ASSUMED_RATES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """Every drafted token is accepted with the same probability."""

    rate: float
    source: str = "assumed"

    @property
    def label(self) -> str:
        return f"{self.rate:g}"

    def length(self, k: int) -> float:
        return iid_length(self.rate, k)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """S_1, S_2, ...: the share of steps that accept at least so many; beyond the last the last ratio goes on."""

    rates: tuple[float, ...]
    label: str
    source: str

    def length(self, k: int) -> float:
        known = self.rates[:k]
        if k <= len(self.rates) or not self.rates or self.rates[-1] == 0:
            return expected_length(known)
        before = self.rates[-2] if len(self.rates) > 1 else 1.0
        ratio = self.rates[-1] / before if before else 0.0
        beyond = [self.rates[-1] * ratio**step for step in range(1, k - len(self.rates) + 1)]
        return expected_length((*known, *beyond))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens per step by k, as a replay counted them; a k it has not counted takes the nearest smaller one."""

    by_k: Mapping[int, float]
    label: str
    source: str

    def length(self, k: int) -> float:
        smaller = [known for known in self.by_k if known <= k]
        return self.by_k[max(smaller)] if smaller and k > 0 else 1.0


Acceptance = Assumed | Survival | Lengths


def parse_rates(text: str) -> tuple[Acceptance, ...]:
    """0.6,0.8 are two assumed rates; 0.8/0.6/0.5 are the survival rates of positions 1, 2 and 3."""
    found: list[Acceptance] = []
    for part in filter(None, (word.strip() for word in text.split(","))):
        try:
            rates = tuple(float(rate) for rate in part.split("/"))
        except ValueError:
            raise UsageError(
                f"--acceptance takes rates, a study or a replay, saw {text!r}",
                hint="such as 0.6,0.8 or 0.8/0.6/0.5, a study directory, or the JSON of speclift replay",
            ) from None
        if not all(0.0 <= rate <= 1.0 for rate in rates):
            raise UsageError(f"an acceptance rate lies in 0..1, saw {part}")
        if len(rates) == 1:
            found.append(Assumed(rate=rates[0], source="given"))
            continue
        if any(a < b for a, b in pairwise(rates)):
            raise UsageError(f"survival rates cannot rise from position to position, saw {part}")
        found.append(Survival(rates=rates, label=part, source="given"))
    if not found:
        raise UsageError("--acceptance is empty", hint="such as 0.6,0.8")
    return tuple(found)


class EngineModel(Document, frozen=True, kw_only=True):
    """An engine's losses, and by which factor a speedup predicted with them may be off."""

    losses: EngineLosses
    factor: float
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


class Range(Document, frozen=True, kw_only=True):
    value: float
    low: float
    high: float


class StepPrediction(Document, frozen=True, kw_only=True):
    """k drafted tokens at one load. Acceptances are break-even rates; None where not even 1.0 would pay."""

    k: int
    step_s: Seconds
    cost_ratio: float
    break_even_acceptance: float | None
    # With the cost ratio at either end of its trust; `high` None: perhaps never.
    break_even_low: float | None
    break_even_high: float | None
    # Of the roofline alone, without any loss of the engine's.
    ideal_cost_ratio: float


class PredictedArm(Document, frozen=True, kw_only=True):
    """One k with one acceptance at one load; as a load's best k is 0 where plain decoding is predicted faster."""

    k: int
    acceptance: str
    speedup: Range
    # What no k can exceed: the accepted length over what drafting and checking cost at the least.
    ceiling: float
    # Empty in documents of speclift 0.2.
    method: str = ""


class LoadPrediction(Document, frozen=True, kw_only=True):
    concurrency: int
    baseline_step_s: Seconds
    # One more drafted token as a share of a plain step.
    draft_token_cost: float
    steps: tuple[StepPrediction, ...]
    best: tuple[PredictedArm, ...]
    # Every k that was asked for, with every acceptance and method.
    arms: tuple[PredictedArm, ...] = ()


class LoadRange(Document, frozen=True, kw_only=True):
    """Concurrencies from `low` to `high`; `high` None: up to the largest looked at."""

    low: int
    high: int | None


class CrossoverPrediction(Document, frozen=True, kw_only=True):
    """The first concurrency at which no k pays; None: none up to the largest looked at."""

    acceptance: str
    # The best at the lowest load that was asked for.
    k: int
    metric: Literal["throughput"] = "throughput"
    axis: Literal["concurrency"] = "concurrency"
    value: int | None
    low: int | None
    high: int | None
    # Where the best k pays, as the table of speedups says it of its loads.
    pays: tuple[LoadRange, ...] = ()


class AcceptanceSources(Document, frozen=True, kw_only=True):
    assumed: bool
    sources: tuple[str, ...]


class SimpleK(Document, frozen=True, kw_only=True):
    acceptance: str
    k: int


class Prediction(Document, frozen=True, kw_only=True):
    method: str
    metric: Literal["tpot"] = "tpot"
    context: Tokens
    acceptance: AcceptanceSources
    trust: EngineModel
    loads: tuple[LoadPrediction, ...]
    crossover: tuple[CrossoverPrediction, ...]
    # The articles' rule: k from the cost of a drafted token alone, at concurrency 1.
    rule_of_thumb_k: tuple[SimpleK, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """Step costs of one target with one drafter on one engine."""

    target: ForwardModel
    drafting: Drafting
    engine: EngineModel
    context: Tokens
    method: str = NGRAM
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
        trust = self.engine.factor
        return StepPrediction(
            k=k,
            step_s=self._step_s(concurrency, k, self.engine.losses),
            cost_ratio=ratio,
            break_even_acceptance=break_even_acceptance(k, ratio),
            break_even_low=break_even_acceptance(k, ratio / trust),
            break_even_high=break_even_acceptance(k, ratio * trust),
            ideal_cost_ratio=self.ratio(concurrency, k, IDEAL),
        )

    def ceiling(self, concurrency: int, k: int, acceptance: Acceptance) -> float:
        """Never above the accepted length. Fixed costs may hide more of a check than the roofline would."""
        ratios = (self.ratio(concurrency, k, losses) for losses in (IDEAL, self.engine.losses))
        return acceptance.length(k) / max(1.0, min(ratios))

    def arm(self, concurrency: int, acceptance: Acceptance, k: int) -> PredictedArm:
        value, trust = self.speedup(concurrency, k, acceptance, self.engine.losses), self.engine.factor
        ceiling = self.ceiling(concurrency, k, acceptance)
        return PredictedArm(
            method=self.method,
            k=k,
            acceptance=acceptance.label,
            speedup=Range(value=value, low=value / trust, high=min(value * trust, ceiling)),
            ceiling=ceiling,
        )

    def best(self, concurrency: int, acceptance: Acceptance, ks: Sequence[int]) -> PredictedArm:
        arms = [self.arm(concurrency, acceptance, k) for k in ks]
        chosen = max(arms, key=lambda arm: arm.speedup.value)
        return PredictedArm(
            method=self.method,
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
            value=_first_outside(ranges),
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
    loads: Sequence[int],
    ks: Sequence[int],
    acceptances: Sequence[Acceptance] = (),
) -> Prediction:
    """For the acceptances that were given, else for the whole curve."""
    curve = acceptances or tuple(Assumed(rate=rate) for rate in ASSUMED_RATES)
    cost = predictor.draft_cost(min(loads))
    shown = tuple(
        LoadPrediction(
            concurrency=load,
            baseline_step_s=step_s(
                predictor.target, concurrency=load, context=predictor.context, losses=predictor.engine.losses
            ),
            draft_token_cost=predictor.draft_cost(load),
            steps=tuple(predictor.step(load, k) for k in ks),
            best=tuple(predictor.best(load, acceptance, ks) for acceptance in curve),
            arms=tuple(predictor.arm(load, acceptance, k) for acceptance in curve for k in ks),
        )
        for load in loads
    )
    return Prediction(
        method=predictor.method,
        context=predictor.context,
        acceptance=AcceptanceSources(
            assumed=not acceptances,
            sources=tuple(sorted({given.source for given in acceptances})) or ("assumed curve",),
        ),
        loads=shown,
        crossover=tuple(predictor.crossover(acceptance, ks, loads) for acceptance in curve),
        trust=predictor.engine,
        rule_of_thumb_k=tuple(
            SimpleK(acceptance=acceptance.label, k=best_k(acceptance.rate, cost, max(ks)))
            for acceptance in curve
            if isinstance(acceptance, Assumed)
        ),
    )


class LoadNeed(Document, frozen=True, kw_only=True):
    """What a candidate needs at one load; `break_even_acceptance` None where not even full acceptance pays."""

    concurrency: int
    k: int
    cost_ratio: float
    break_even_acceptance: float | None
    # None where no acceptance of this very drafter is known.
    speedup: float | None


class PlannedDraft(Document, frozen=True, kw_only=True):
    """`objection`: why an engine would not run it, or that it does not fit; empty where neither."""

    rank: int = 0
    method: str
    draft: str | None
    # How a command names the draft.
    reference: str | None
    precision: str | None
    ratio: float | None
    fits: bool
    usable: bool
    objection: str
    kv_tokens: int
    max_concurrency: float
    loads: tuple[LoadNeed, ...]

    @property
    def mean_break_even(self) -> float:
        """1.5 stands for "never": above any acceptance, so that such loads weigh in the ranking."""
        needed = [load.break_even_acceptance for load in self.loads]
        return sum(1.5 if rate is None else rate for rate in needed) / len(needed)


def needs_of(
    predictor: Predictor, *, loads: Sequence[int], ks: Sequence[int], acceptance: Acceptance | None
) -> tuple[LoadNeed, ...]:
    """At the middle one of the ks that were asked for; `acceptance` is this candidate's own, where it is known."""
    k = sorted(ks)[len(ks) // 2]
    needs = []
    for load in loads:
        step = predictor.step(load, k)
        needs.append(
            LoadNeed(
                concurrency=load,
                k=k,
                cost_ratio=step.cost_ratio,
                break_even_acceptance=step.break_even_acceptance,
                speedup=None if acceptance is None else acceptance.length(k) / step.cost_ratio,
            )
        )
    return tuple(needs)


def ranked(candidates: Sequence[PlannedDraft]) -> tuple[PlannedDraft, ...]:
    """Usable first, then the one that needs the least acceptance."""
    by_need = sorted(candidates, key=lambda candidate: (not candidate.usable, candidate.mean_break_even))
    return tuple(replace(candidate, rank=rank) for rank, candidate in enumerate(by_need, 1))
