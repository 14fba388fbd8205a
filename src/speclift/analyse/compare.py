"""One arm against the baseline: paired log ratios per prompt, intervals over launches and prompts.

A pair is the same request at the same load, temperature and round on both arms, so that what makes a prompt
slow cancels. Loads and temperatures weigh equally within a prompt. docs/method.md has the formulae.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from speclift.analyse.cells import METRIC_OF, cells, load_size, loads_of, values_of
from speclift.analyse.stats import (
    CrossedFit,
    bonferroni,
    crossed_fit,
    interval_of,
    launches_needed,
    prompts_needed,
    quantile_ratio,
)
from speclift.core.arm import BASELINE, Arm
from speclift.core.records import Phase, Record
from speclift.core.results import (
    CONFIDENCE,
    Comparison,
    Conditions,
    Estimate,
    Evidence,
    Part,
    TailRatio,
)
from speclift.core.traffic import Concurrency, Load, load_label

TAIL = 0.99
DESIGN = "paired-log-ratio"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """log(speedup) of one unit (a prompt, or a block for throughput) in one round at one setting."""

    round: int
    unit: str
    segment: str
    load: Load
    temperature: float | None
    log_speedup: float


def evidence(
    records: Sequence[Record],
    arm: Arm,
    conditions: Conditions,
    *,
    metric: str,
    bar: float,
    arm_count: int,
    by_temperature: bool,
) -> Evidence:
    """`bar` is the speedup asked for; `arm_count` how many arms compete, for simultaneous intervals."""
    measured = [record for record in records if record.place.phase is not Phase.WARMUP]
    admitted = [record for record in measured if admits(conditions, record)]
    both = [record for record in admitted if record.place.arm in (arm.name, BASELINE)]
    everything = pairs(measured, arm.name, metric)
    scoped = pairs(admitted, arm.name, metric)
    compare = _Comparer(arm=arm.name, metric=metric, bar=bar)
    cut = _parts(scoped)
    family = arm_count * max(1, len(_parts(everything)))
    # On all traffic only the choice of arm is a search; a part is picked from every part of every arm.
    overall_count = arm_count if len(scoped) == len(everything) else family
    e2e = _Comparer(arm=arm.name, metric="e2e", bar=bar)(
        pairs(admitted, arm.name, "e2e"), Part.ALL, "all", overall_count
    )
    all_cells = cells(both, by_temperature=by_temperature)
    return Evidence(
        arm=arm,
        conditions=conditions,
        overall=compare(scoped, Part.ALL, "all", overall_count),
        e2e=e2e,
        parts=tuple(
            comparison
            for part, label, members in cut
            if (comparison := compare(members, part, label, family)) is not None
        ),
        tails=_tails(both, arm.name),
        cells=tuple(cell for cell in all_cells if cell.arm == arm.name),
        baseline_cells=tuple(cell for cell in all_cells if cell.arm == BASELINE),
        traffic_share=len(scoped) / len(everything) if everything else 0.0,
    )


def admits(conditions: Conditions, record: Record) -> bool:
    place = record.place
    if conditions.segments is not None and place.segment not in conditions.segments:
        return False
    if conditions.max_temperature is not None and (place.temperature or 0.0) > conditions.max_temperature:
        return False
    if isinstance(place.load, Concurrency):
        return conditions.max_concurrency is None or place.load.streams <= conditions.max_concurrency
    return conditions.max_qps is None or place.load.per_s <= conditions.max_qps


def pairs(records: Iterable[Record], arm: str, metric: str) -> list[Pair]:
    """Pairs of successes. Throughput has no value per request, so its unit is the block."""
    if metric == "throughput":
        return _block_pairs(records, arm)
    value_of = METRIC_OF[metric]
    found: dict[tuple[int, str, Load, float | None], dict[str, Record]] = defaultdict(dict)
    for record in records:
        if record.place.phase is Phase.MEASURED and record.is_ok:
            place = record.place
            found[(place.round, place.request_id, place.load, place.temperature)][place.arm] = record
    result = []
    for (round_index, unit, load, temperature), sides in found.items():
        log_speedup = _log_ratio(sides.get(BASELINE), sides.get(arm), value_of)
        if log_speedup is not None:
            result.append(
                Pair(
                    round=round_index,
                    unit=unit,
                    segment=sides[arm].place.segment,
                    load=load,
                    temperature=temperature,
                    log_speedup=log_speedup,
                )
            )
    return result


def idle_tax(records: Sequence[Record], arm: str, metric: str = "tpot") -> Comparison | None:
    """The arm against the baseline on requests for which it drafted nothing: what speculation costs by being on."""
    idle = {
        (record.place.round, record.place.request_id, record.place.load, record.place.temperature)
        for record in records
        if record.place.arm == arm and record.drafted == 0
    }
    found = [p for p in pairs(records, arm, metric) if (p.round, p.unit, p.load, p.temperature) in idle]
    return _Comparer(arm=arm, metric=metric, bar=1.0)(found, Part.ALL, "without drafts", 1)


def _log_ratio(
    baseline: Record | None, arm: Record | None, value_of: Callable[[Record], float | None]
) -> float | None:
    if baseline is None or arm is None:
        return None
    slow, fast = value_of(baseline), value_of(arm)
    return math.log(slow / fast) if slow and fast and slow > 0 and fast > 0 else None


def _block_pairs(records: Iterable[Record], arm: str) -> list[Pair]:
    turns: dict[tuple[int, int, Load], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        turns[(record.place.round, record.place.block, record.place.load)][record.place.arm].append(record)
    result = []
    for (round_index, block, load), sides in turns.items():
        rates = [_token_rate(sides.get(name, [])) for name in (BASELINE, arm)]
        if rates[0] and rates[1]:
            segments = {record.place.segment for record in sides[arm]}
            result.append(
                Pair(
                    round=round_index,
                    unit=f"block-{block}",
                    segment=segments.pop() if len(segments) == 1 else "mixed",
                    load=load,
                    temperature=None,
                    log_speedup=math.log(rates[1] / rates[0]),
                )
            )
    return result


def _token_rate(turn: Sequence[Record]) -> float | None:
    good = [record for record in turn if record.is_ok and record.output_tokens]
    if not good:
        return None
    seconds = max(record.end_s for record in turn) - min(record.sent_s for record in turn)
    return sum(record.output_tokens or 0 for record in good) / seconds if seconds > 0 else None


def _parts(found: Sequence[Pair]) -> list[tuple[Part, str, list[Pair]]]:
    """The ways to cut the traffic that leave more than one piece."""
    by_part: dict[Part, dict[str, list[Pair]]] = {
        Part.SEGMENT: defaultdict(list),
        Part.LOAD: defaultdict(list),
        Part.TEMPERATURE: defaultdict(list),
    }
    for pair in sorted(found, key=lambda pair: load_size(pair.load)):
        by_part[Part.SEGMENT][pair.segment].append(pair)
        by_part[Part.LOAD][load_label(pair.load)].append(pair)
        if pair.temperature is not None:
            by_part[Part.TEMPERATURE][f"{pair.temperature:g}"].append(pair)
    cuts = {part: groups for part, groups in by_part.items() if len(groups) > 1}
    if Part.SEGMENT in cuts and Part.TEMPERATURE in cuts and _same_cut(found):
        del cuts[Part.TEMPERATURE]  # every segment has its own temperature: the same question twice
    return [(part, label, members) for part, groups in cuts.items() for label, members in groups.items()]


def _same_cut(found: Sequence[Pair]) -> bool:
    both = {(pair.segment, pair.temperature) for pair in found}
    return len(both) == len({segment for segment, _ in both}) == len({temperature for _, temperature in both})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparer:
    arm: str
    metric: str
    bar: float

    def __call__(self, found: Sequence[Pair], part: Part, label: str, count: int) -> Comparison | None:
        if not found:
            return None
        fit = _fit(found)
        margin = abs(fit.mean - math.log(self.bar))
        return Comparison(
            arm=self.arm,
            metric=self.metric,
            part=part,
            label=label,
            speedup=_exponentiated(interval_of(fit, level=CONFIDENCE)),
            simultaneous=_exponentiated(interval_of(fit, level=bonferroni(CONFIDENCE, count))),
            prompts=fit.prompts,
            launches=fit.launches,
            prompts_needed=prompts_needed(fit, margin, level=CONFIDENCE) if margin > 0 else None,
            launches_needed=launches_needed(fit, margin, level=CONFIDENCE) if margin > 0 else None,
        )


def _fit(found: Sequence[Pair]) -> CrossedFit:
    """Loads and temperatures are averaged within (round, unit) first, so that each weighs the same."""
    cell: dict[tuple[int, str], list[float]] = defaultdict(list)
    stratum: dict[str, str] = {}
    for pair in found:
        cell[(pair.round, pair.unit)].append(pair.log_speedup)
        stratum[pair.unit] = pair.segment
    return crossed_fit(
        values=[sum(logs) / len(logs) for logs in cell.values()],
        prompts=[unit for _, unit in cell],
        launches=[round_index for round_index, _ in cell],
        strata=[stratum[unit] for _, unit in cell],
    )


def _exponentiated(estimate: Estimate) -> Estimate:
    return Estimate(
        value=math.exp(estimate.value),
        low=math.exp(estimate.low),
        high=math.exp(min(estimate.high, 700.0)),  # exp(710) overflows; unknown stays unknown
        n=estimate.n,
        method=estimate.method,
        level=estimate.level,
    )


def _tails(records: Sequence[Record], arm: str) -> tuple[TailRatio, ...]:
    result = []
    for load in loads_of(records):
        here = [r for r in records if r.place.load == load and r.is_ok and r.place.phase is Phase.MEASURED]
        for metric in METRIC_OF:
            baseline = values_of((r for r in here if r.place.arm == BASELINE), metric)
            other = values_of((r for r in here if r.place.arm == arm), metric)
            ratio = quantile_ratio(baseline, other, TAIL) if baseline and other else None
            if ratio is not None:
                result.append(TailRatio(arm=arm, load=load, metric=metric, ratio=ratio))
    return tuple(result)
