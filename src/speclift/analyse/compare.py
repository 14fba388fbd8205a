"""One arm against the baseline: paired log ratios per prompt, intervals over launches and prompts.

A pair is the same request at the same load, temperature and round on both arms, so that what makes a prompt
slow cancels. Loads and temperatures weigh equally within a prompt. docs/method.md has the formulae.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from speclift.analyse.balance import Observation, PairTable, Setting, fit_table, pair_table
from speclift.analyse.cells import ALL, METRIC_OF, NO_TOTALS, Totals, cells, load_size, loads_of, values_of
from speclift.analyse.stats import (
    bonferroni,
    interval_of,
    launches_needed,
    prompts_needed,
    quantile_ratio,
)
from speclift.core.arm import BASELINE, Arm
from speclift.core.records import Phase, Place, Record
from speclift.core.results import (
    ALL_TRAFFIC,
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
MIXED = "mixed"
# Round, request, load, temperature and repeat: a repeat pairs with the same repeat of the other arm.
PairKey: TypeAlias = tuple[int, str, Load, float | None, int]
# The error of 5 % goes to the headline. Where that shows no difference its parts share a fifth of it, so that a
# study without any claims one in at most 6 %; where it does, the parts are the next question and share all of it.
PARTS_ALONE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """log(speedup) of one unit (a prompt, or a block for throughput) in one round at one setting."""

    round: int
    unit: str
    segment: str
    load: Load
    temperature: float | None
    log_speedup: float
    # The one request of a block; None where a block holds several.
    request_id: str | None = None
    repeat: int = 0


class Comparer:
    """Any arm against the baseline within any conditions; what does not depend on them is worked out once."""

    def __init__(
        self,
        records: Iterable[Record],
        *,
        metric: str,
        bar: float,
        arm_count: int,
        by_temperature: bool,
        totals: Totals = NO_TOTALS,
    ) -> None:
        """`bar` is the speedup asked for; `arm_count` how many arms compete, for simultaneous intervals."""
        self._metric, self._bar, self._totals = metric, bar, totals
        self._arm_count, self._by_temperature = arm_count, by_temperature
        self._by_setting: dict[tuple[str, Setting], list[Record]] = defaultdict(list)
        for record in records:
            if record.place.phase is not Phase.WARMUP:
                place = record.place
                setting = Setting(place.segment, place.load, place.temperature)
                self._by_setting[(place.arm, setting)].append(record)
        self._tables: dict[tuple[str, str], PairTable] = {}

    def evidence(self, arm: Arm, conditions: Conditions) -> Evidence:
        """Cells (over all segments) and tails are left out on a part of the traffic that misses the bar."""
        everything = self._table(arm.name, self._metric, ALL_TRAFFIC)
        scoped = self._table(arm.name, self._metric, conditions)
        e2e = self._table(arm.name, "e2e", conditions)
        pair_count = len(self._table(arm.name, "e2e", ALL_TRAFFIC))
        is_whole = len(e2e) == pair_count
        cut = _parts(scoped)
        family = self._arm_count * max(1, len(_parts(everything)), len(cut))
        # On all traffic only the choice of arm is a search; a part is picked from every part of every arm.
        overall_count = self._arm_count if is_whole else family
        compare = _Comparison(
            arm=arm.name, metric=self._metric, bar=self._bar, family=family if is_whole else None
        )
        compare_e2e = _Comparison(arm=arm.name, metric="e2e", bar=self._bar)
        overall = compare(scoped, Part.ALL, "all", overall_count)
        shows = overall is not None and overall.simultaneous.excludes(1.0)
        part_count = family if shows else family * PARTS_ALONE
        # A part that misses the bar is out whatever else it shows, and a search meets hundreds of those.
        is_out = not is_whole and (overall is None or overall.simultaneous.low < self._bar)
        both = [] if is_out else self._records(arm.name, conditions)
        all_cells = cells(
            both,
            by_temperature=self._by_temperature,
            by_segment=is_whole,
            # The engine's totals are of all traffic.
            totals=self._totals if is_whole else NO_TOTALS,
        )
        return Evidence(
            arm=arm,
            conditions=conditions,
            overall=overall,
            e2e=compare_e2e(e2e, Part.ALL, "all", overall_count),
            parts=tuple(
                comparison
                for part, label, members in cut
                if (comparison := compare(members, part, label, part_count)) is not None
            ),
            tails=_tails(both, arm.name),
            cells=tuple(cell for cell in all_cells if cell.arm == arm.name and cell.segment == ALL),
            baseline_cells=tuple(cell for cell in all_cells if cell.arm == BASELINE and cell.segment == ALL),
            segment_cells=tuple(cell for cell in all_cells if cell.segment != ALL),
            traffic_share=len(e2e) / pair_count if pair_count else 0.0,
        )

    def _records(self, arm: str, conditions: Conditions) -> list[Record]:
        return [
            record
            for (name, setting), members in self._by_setting.items()
            if name in (arm, BASELINE) and admits(conditions, setting)
            for record in members
        ]

    def _table(self, arm: str, metric: str, conditions: Conditions) -> PairTable:
        if metric == "throughput":
            # A block's rate is that of the requests admitted, so its pairs are formed anew.
            return _block_table(pairs(self._records(arm, conditions), arm, metric))
        if (arm, metric) not in self._tables:
            found = pairs(self._records(arm, ALL_TRAFFIC), arm, metric)
            self._tables[(arm, metric)] = _request_table(found)
        return self._tables[(arm, metric)].within(lambda setting: admits(conditions, setting))


def admits(conditions: Conditions, place: Place | Setting) -> bool:
    """A request without a temperature runs at one we do not know, so no ceiling admits it."""
    if conditions.segments is not None and place.segment not in conditions.segments:
        return False
    ceiling = conditions.max_temperature
    if ceiling is not None and (place.temperature is None or place.temperature > ceiling):
        return False
    if isinstance(place.load, Concurrency):
        return conditions.max_concurrency is None or place.load.streams <= conditions.max_concurrency
    return conditions.max_qps is None or place.load.per_s <= conditions.max_qps


def pairs(records: Iterable[Record], arm: str, metric: str) -> list[Pair]:
    """Pairs of successes. Throughput has no value per request, so its unit is the block."""
    if metric == "throughput":
        return _block_pairs(records, arm)
    value_of = METRIC_OF[metric]
    found: dict[PairKey, dict[str, Record]] = defaultdict(dict)
    for record in records:
        if record.place.phase is Phase.MEASURED and record.is_ok:
            found[_pair_key(record.place)][record.place.arm] = record
    result = []
    for (round_index, unit, load, temperature, repeat), sides in found.items():
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
                    repeat=repeat,
                )
            )
    return result


def _pair_key(place: Place) -> PairKey:
    return place.round, place.request_id, place.load, place.temperature, place.repeat


def idle_tax(records: Sequence[Record], arm: str, metric: str = "tpot") -> Comparison | None:
    """The arm against the baseline on requests for which it drafted nothing: what speculation costs by being on."""
    idle = {_pair_key(r.place) for r in records if r.place.arm == arm and r.drafted == 0}
    found = [
        p for p in pairs(records, arm, metric) if (p.round, p.unit, p.load, p.temperature, p.repeat) in idle
    ]
    compare = _Comparison(arm=arm, metric=metric, bar=1.0)
    return compare(_request_table(found), Part.ALL, "without drafts", 1)


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
        if record.place.phase is not Phase.WARMUP:
            place = record.place
            turns[(place.round, place.block, place.load)][place.arm].append(record)
    result = []
    for (round_index, block, load), sides in turns.items():
        rates = [_token_rate(sides.get(name, [])) for name in (BASELINE, arm)]
        if rates[0] and rates[1]:
            members = [*sides[BASELINE], *sides[arm]]
            segments = {record.place.segment for record in members}
            requests = {(record.place.request_id, record.place.temperature) for record in members}
            request_id, temperature = requests.pop() if len(requests) == 1 else (None, None)
            result.append(
                Pair(
                    round=round_index,
                    unit=f"block-{block}",
                    segment=segments.pop() if len(segments) == 1 else MIXED,
                    load=load,
                    temperature=temperature,
                    log_speedup=math.log(rates[1] / rates[0]),
                    request_id=request_id,
                )
            )
    return result


def _token_rate(turn: Sequence[Record]) -> float | None:
    """Over the time the turn ran; one that was interrupted ran in two launches, and not in between."""
    good = [record for record in turn if record.is_ok and record.output_tokens]
    runs: dict[int, list[Record]] = defaultdict(list)
    for record in turn:
        runs[record.place.launch].append(record)
    seconds = sum(max(r.end_s for r in run) - min(r.sent_s for r in run) for run in runs.values())
    return sum(record.output_tokens or 0 for record in good) / seconds if good and seconds > 0 else None


def _request_table(found: Sequence[Pair]) -> PairTable:
    return pair_table([Observation(p.round, p.unit, _setting(p, p.segment), p.log_speedup) for p in found])


def _block_table(found: Sequence[Pair]) -> PairTable:
    """Blocks of one request are that request's. Others are dealt into as many groups at every load as the load
    with the fewest blocks has, so that a load of many short blocks does not outweigh one of few long ones."""
    if all(pair.request_id is not None for pair in found):
        return pair_table(
            [
                Observation(p.round, p.request_id or p.unit, _setting(p, p.segment), p.log_speedup)
                for p in found
            ]
        )
    blocks: dict[Load, dict[str, int]] = defaultdict(dict)
    for pair in found:
        blocks[pair.load].setdefault(pair.unit, len(blocks[pair.load]))
    groups = min(len(ranks) for ranks in blocks.values())
    segments = {pair.segment for pair in found}
    segment = segments.pop() if len(segments) == 1 else MIXED
    return pair_table(
        [
            Observation(
                p.round, f"group-{blocks[p.load][p.unit] % groups}", _setting(p, segment), p.log_speedup
            )
            for p in found
        ]
    )


def _setting(pair: Pair, segment: str) -> Setting:
    return Setting(segment, pair.load, pair.temperature)


def _parts(table: PairTable) -> list[tuple[Part, str, PairTable]]:
    """The ways to cut the traffic that leave more than one piece."""
    by_part: dict[Part, dict[str, set[Setting]]] = {
        Part.SEGMENT: defaultdict(set),
        Part.LOAD: defaultdict(set),
        Part.TEMPERATURE: defaultdict(set),
    }
    present = sorted(table.counts(), key=lambda setting: load_size(setting.load))
    for setting in present:
        by_part[Part.SEGMENT][setting.segment].add(setting)
        by_part[Part.LOAD][load_label(setting.load)].add(setting)
        if setting.temperature is not None:
            by_part[Part.TEMPERATURE][_temperature_label(setting.temperature)].add(setting)
    cuts = {part: groups for part, groups in by_part.items() if len(groups) > 1}
    if Part.SEGMENT in cuts and Part.TEMPERATURE in cuts and _same_cut(present):
        del cuts[Part.TEMPERATURE]  # every segment has its own temperature: the same question twice
    return [
        (part, label, table.within(members.__contains__))
        for part, groups in cuts.items()
        for label, members in groups.items()
    ]


def _temperature_label(temperature: float) -> str:
    """Short where that is exact: a ceiling is read back from it."""
    short = f"{temperature:g}"
    return short if float(short) == temperature else repr(temperature)


def _same_cut(present: Sequence[Setting]) -> bool:
    both = {(setting.segment, setting.temperature) for setting in present}
    return len(both) == len({segment for segment, _ in both}) == len({temperature for _, temperature in both})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    arm: str
    metric: str
    bar: float
    # Comparisons a part is picked from; None where nobody asks what would bring an interval clear of the bar.
    family: int | None = None

    def __call__(self, table: PairTable, part: Part, label: str, count: int) -> Comparison | None:
        if not len(table):
            return None
        fit = fit_table(table)
        speedup = _exponentiated(interval_of(fit, level=CONFIDENCE))
        simultaneous = _exponentiated(interval_of(fit, level=bonferroni(CONFIDENCE, count)))
        margin = abs(fit.mean - math.log(self.bar))
        is_open = margin > 0 and simultaneous.low < self.bar <= speedup.high
        plans = self.family is not None and is_open
        # To clear the bar takes the interval that a claim is judged by; to miss it, the plain one.
        is_above = fit.mean > math.log(self.bar)
        level = bonferroni(CONFIDENCE, min(count, self.family or count)) if is_above else CONFIDENCE
        return Comparison(
            arm=self.arm,
            metric=self.metric,
            part=part,
            label=label,
            speedup=speedup,
            simultaneous=simultaneous,
            prompts=fit.prompts,
            launches=fit.launches,
            prompts_needed=prompts_needed(fit, margin, level=level) if plans else None,
            launches_needed=launches_needed(fit, margin, level=level) if plans else None,
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
    good: dict[tuple[Load, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.is_ok and record.place.phase is Phase.MEASURED:
            good[(record.place.load, record.place.arm)].append(record)
    result = []
    for load in loads_of(records):
        for metric in METRIC_OF:
            baseline = values_of(good[(load, BASELINE)], metric)
            other = values_of(good[(load, arm)], metric)
            ratio = quantile_ratio(baseline, other, TAIL) if baseline and other else None
            if ratio is not None:
                result.append(TailRatio(arm=arm, load=load, metric=metric, ratio=ratio))
    return tuple(result)
