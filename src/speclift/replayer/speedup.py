"""What would the accepted lengths be worth? Tokens per step over what a step costs, drafted tokens included.

A step that verifies d drafted tokens takes 1 + c d plain steps. c comes from the user or from a study of the same
machine; it is measured where it is used, because it depends on engine, model, load and hardware.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from speclift.core.records import Phase, Record
from speclift.core.traffic import Load
from speclift.replayer.estimates import LengthEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """`per_token`: what verifying one drafted token adds to a step, as a share of a plain step."""

    per_token: float
    load: Load | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """The interval is the accepted length's alone; the cost is taken as known."""

    k: int
    value: float
    low: float | None
    high: float | None


def speedups(lengths: Sequence[LengthEstimate], cost: StepCost) -> tuple[Speedup, ...]:
    found = []
    for length in lengths:
        if length.value is None or length.drafted_per_step is None:
            continue
        step = 1.0 + cost.per_token * length.drafted_per_step
        low, high = (None if bound is None else bound / step for bound in (length.low, length.high))
        found.append(Speedup(k=length.k, value=length.value / step, low=low, high=high))
    return tuple(found)


@dataclass(slots=True)
class _StepTime:
    decode_s: float = 0.0
    steps: int = 0
    drafted: int = 0

    @property
    def per_step_s(self) -> float:
        return self.decode_s / self.steps

    @property
    def drafted_per_step(self) -> float:
        return self.drafted / self.steps


def study_costs(
    records: Sequence[Record], *, baseline: str, arms: Sequence[str], source: str
) -> tuple[StepCost, ...]:
    """The cost at every load with a baseline and an arm that drafted: least squares through (0 drafted, 1 step)."""
    times: dict[tuple[Load, str], _StepTime] = {}
    for record in records:
        if record.is_ok and record.place.phase is Phase.MEASURED:
            _add(times, record, is_baseline=record.place.arm == baseline)
    by_load: dict[Load, dict[str, _StepTime]] = {}
    for (load, arm), time in times.items():
        by_load.setdefault(load, {})[arm] = time
    costs = []
    for load, found in by_load.items():
        cost = _cost(found, baseline, arms)
        if cost is not None:
            costs.append(StepCost(per_token=cost, load=load, source=source))
    return tuple(costs)


def _add(times: dict[tuple[Load, str], _StepTime], record: Record, *, is_baseline: bool) -> None:
    if record.tpot_s is None or record.output_tokens is None:
        return
    decoded = record.output_tokens - 1
    steps = decoded if is_baseline else record.decode_steps
    if not steps:
        return
    time = times.setdefault((record.place.load, record.place.arm), _StepTime())
    time.decode_s += record.tpot_s * decoded
    time.steps += steps
    time.drafted += record.drafted or 0


def _cost(found: Mapping[str, _StepTime], baseline: str, arms: Sequence[str]) -> float | None:
    plain = found.get(baseline)
    drafting = [found[arm] for arm in arms if arm in found and found[arm].drafted > 0]
    if plain is None or not plain.decode_s or not drafting:
        return None
    pairs = [(arm.drafted_per_step, arm.per_step_s / plain.per_step_s - 1.0) for arm in drafting]
    cost = sum(drafted * extra for drafted, extra in pairs) / sum(drafted**2 for drafted, _ in pairs)
    # Noise may make a drafting step look cheaper than a plain one; it never is.
    return max(cost, 0.0)
