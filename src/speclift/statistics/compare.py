"""One arm against the baseline: paired log ratios per prompt, intervals over launches and prompts.

Loads and temperatures that a study varies weigh the same; the prompt is the unit. docs/method.md has the formulae.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from speclift.core.arm import BASELINE, Arm
from speclift.core.records import Phase, Place, Record
from speclift.core.results import (
    ALL_TRAFFIC,
    CONFIDENCE,
    RAW_E2E,
    SPEEDUP_METRICS,
    Cell,
    Comparison,
    Completeness,
    Conditions,
    Estimate,
    Evidence,
    Part,
    is_complete,
)
from speclift.core.traffic import Concurrency
from speclift.statistics.balance import (
    AS_MEASURED,
    Observation,
    PairTable,
    PromptCounts,
    Stratum,
    fit_table,
    pair_table,
)
from speclift.statistics.cells import ALL, NO_TOTALS, Totals, cells, load_size
from speclift.statistics.loops import degenerate_segments
from speclift.statistics.pairs import (
    ALL_DISTINCT,
    THROUGHPUT,
    Pair,
    PromptOf,
    answered_in_one_token,
    asked_of_both,
    pair_key,
    pairs,
)
from speclift.statistics.stats import (
    LaunchSpread,
    bonferroni,
    interval_of,
    launch_spread,
    launches_needed,
    prompts_needed,
)
from speclift.statistics.tails import tail_ratios
from speclift.statistics.temperatures import repeat_segments, temperature_groups

# Of the error of 5 % three fifths go to the headline and two to the conditions on which a part may ship, so that an arm
# without any gain ships by chance in 2.5 % of studies at most, on all traffic or on a part.
HEADLINE_SHARE = 0.6
# What is said of parts without shipping them: a fifth of 5 % where the headline shows no difference; where it does, the
# parts are the next question and share all of it.
PARTS_ALONE = 5
# End to end, against the same request on the baseline: an arm that loses a tenth, 15 % apart from prompt to prompt, has
# one such in three thousand.
FAR_LONGER = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OneLook:
    """`level` is what all that is said at this look holds at together; `prompt_counts` are the workload's, of which a
    lap sends some. `is_one_launch` where servers are of one launch whatever is done, as those of somebody else are:
    what launches add is not in the interval then."""

    level: float
    prompt_counts: PromptCounts
    is_one_launch: bool = False


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
        prompt_of: PromptOf = ALL_DISTINCT,
        look: OneLook | None = None,
    ) -> None:
        """`bar` is the speedup asked for; `arm_count` how many arms compete, for simultaneous intervals; `look` where
        the study is measured in laps and this is one look of several at it."""
        self._metric_asked, self._bar, self._totals = metric, bar, totals
        self._level = CONFIDENCE if look is None else look.level
        self._prompt_counts = AS_MEASURED if look is None else look.prompt_counts
        # Each lap met only some of the prompts: parts take from the whole how much launches differ.
        self._shares_launches = look is not None and not look.is_one_launch
        self._arm_count, self._by_temperature, self._prompt_of = arm_count, by_temperature, prompt_of
        self._by_setting: dict[tuple[str, Stratum], list[Record]] = defaultdict(list)
        for record in records:
            if record.place.phase is not Phase.WARMUP:
                place = record.place
                setting = Stratum(place.segment, place.load, place.temperature)
                self._by_setting[(place.arm, setting)].append(record)
        self._tables: dict[tuple[str, str], PairTable] = {}
        self._metric = self._usable(metric)

    def evidence(self, arm: Arm, conditions: Conditions) -> Evidence:
        """Cells (over all segments) and tails are left out on a part of the traffic that misses the bar."""
        everything = self._table(arm.name, self._metric, ALL_TRAFFIC)
        scoped = self._table(arm.name, self._metric, conditions)
        succeeded = self._table(arm.name, RAW_E2E, conditions)
        whole = self._table(arm.name, RAW_E2E, ALL_TRAFFIC)
        whole_traffic = self._traffic(whole)
        is_whole = len(succeeded) == len(whole)
        cut = _parts(scoped)
        family = self._arm_count * max(1, len(_parts(everything)), len(cut))
        # On all traffic only the choice of arm is a search; a part is picked from every part of every arm.
        overall_count = self._arm_count / HEADLINE_SHARE if is_whole else family / (1.0 - HEADLINE_SHARE)
        compare = _Comparison(
            arm=arm.name,
            metric=self._metric,
            bar=self._bar,
            by_temperature=self._by_temperature,
            level=self._level,
            prompt_counts=self._prompt_counts,
            launches=self._launches(everything),
            family=family if is_whole else None,
        )
        overall = compare(scoped, Part.ALL, "all", overall_count)
        part_count = family if _shows_difference(overall) else family * PARTS_ALONE
        both = self._records(arm.name, conditions)
        # A part that misses the bar is out whatever else it shows, and a search meets hundreds of those.
        is_shown = is_whole or not self._misses(overall)
        shown = both if is_shown else []
        all_cells = cells(
            shown,
            by_temperature=self._by_temperature,
            by_segment=is_whole,
            # The engine's totals are of all traffic.
            totals=self._totals if is_whole else NO_TOTALS,
            arms=(arm,),
        )
        comparisons = (compare(members, part, label, part_count) for part, label, members in cut)
        return Evidence(
            arm=arm,
            conditions=conditions,
            overall=overall,
            by_metric=tuple(self._by_metric(compare, conditions, overall_count)) if is_shown else (),
            parts=tuple(comparison for comparison in comparisons if comparison is not None),
            tails=tail_ratios(shown, arm.name, prompt_of=self._prompt_of, level=self._level),
            cells=_over_all_segments(all_cells, arm.name),
            baseline_cells=_over_all_segments(all_cells, BASELINE),
            segment_cells=tuple(cell for cell in all_cells if cell.segment != ALL),
            traffic_share=self._traffic(succeeded) / whole_traffic if whole_traffic else 0.0,
            prompts=succeeded.prompt_count,
            completeness=Completeness(
                asked=asked_of_both(both, arm.name),
                used=len(scoped),
                metric_asked=self._metric_asked,
                metric=self._metric,
                without_steps=answered_in_one_token(both, arm.name) if self._metric == "tpot" else 0,
            ),
            degenerate=degenerate_segments(shown),
            slow_pairs=self._table(arm.name, "e2e", conditions).count_below(-math.log(FAR_LONGER)),
        )

    def _launches(self, everything: PairTable) -> LaunchSpread | None:
        if not self._shares_launches or not len(everything):
            return None
        return launch_spread(fit_table(everything, by_temperature=self._by_temperature))

    def _traffic(self, table: PairTable) -> float:
        """Pairs, each counting for as many as its segment would have if all its prompts had been measured."""
        prompts = table.prompts_by_segment()
        return math.fsum(
            count
            * self._prompt_counts.get(setting.segment, prompts[setting.segment])
            / prompts[setting.segment]
            for setting, count in table.counts().items()
        )

    def _by_metric(self, compare: _Comparison, conditions: Conditions, count: float) -> Iterator[Comparison]:
        for metric in SPEEDUP_METRICS:
            table = self._table(compare.arm, metric, conditions)
            launches = self._launches(self._table(compare.arm, metric, ALL_TRAFFIC))
            own = replace(compare, metric=metric, launches=launches, family=None)
            found = own(table, Part.ALL, "all", count)
            if found is not None:
                yield found

    def _misses(self, overall: Comparison | None) -> bool:
        return overall is None or overall.simultaneous.low < self._bar

    def _usable(self, metric: str) -> str:
        """End to end instead of time per token, for every arm, where some arm has that for too few of its pairs and
        all of them have the other."""
        if metric == "tpot" and not self._is_known("tpot") and self._is_known("e2e"):
            return "e2e"
        return metric

    def _is_known(self, metric: str) -> bool:
        arms = {arm for arm, _ in self._by_setting} - {BASELINE}
        return all(
            is_complete(
                asked=len(self._table(arm, RAW_E2E, ALL_TRAFFIC)),
                used=len(self._table(arm, metric, ALL_TRAFFIC)),
            )
            for arm in arms
        )

    def _records(self, arm: str, conditions: Conditions) -> list[Record]:
        return [
            record
            for (name, setting), members in self._by_setting.items()
            if name in (arm, BASELINE) and admits(conditions, setting)
            for record in members
        ]

    def _table(self, arm: str, metric: str, conditions: Conditions) -> PairTable:
        if metric == THROUGHPUT:
            # A block's rate is that of the requests admitted, so its pairs are formed anew.
            admitted = self._records(arm, conditions)
            return _table_of(pairs(admitted, arm, metric, prompt_of=self._prompt_of))
        if (arm, metric) not in self._tables:
            found = pairs(self._records(arm, ALL_TRAFFIC), arm, metric, prompt_of=self._prompt_of)
            self._tables[(arm, metric)] = _table_of(found)
        return self._tables[(arm, metric)].within(lambda setting: admits(conditions, setting))


def _shows_difference(overall: Comparison | None) -> bool:
    return overall is not None and overall.simultaneous.excludes(1.0)


def _over_all_segments(found: Iterable[Cell], arm: str) -> tuple[Cell, ...]:
    return tuple(cell for cell in found if cell.arm == arm and cell.segment == ALL)


def admits(conditions: Conditions, place: Place | Stratum) -> bool:
    """A request without a temperature runs at one we do not know, so no ceiling admits it."""
    if conditions.segments is not None and place.segment not in conditions.segments:
        return False
    ceiling = conditions.max_temperature
    if ceiling is not None and (place.temperature is None or place.temperature > ceiling):
        return False
    if isinstance(place.load, Concurrency):
        return conditions.max_concurrency is None or place.load.streams <= conditions.max_concurrency
    return conditions.max_qps is None or place.load.per_s <= conditions.max_qps


def idle_tax(
    records: Sequence[Record], arm: str, metric: str = "tpot", *, prompt_of: PromptOf = ALL_DISTINCT
) -> Comparison | None:
    """The arm against the baseline on requests for which it drafted nothing: what speculation costs by being on."""
    idle = {pair_key(r.place) for r in records if r.place.arm == arm and r.drafted == 0}
    found = [pair for pair in pairs(records, arm, metric, prompt_of=prompt_of) if pair.key in idle]
    compare = _Comparison(
        arm=arm, metric=metric, bar=1.0, by_temperature=False, level=CONFIDENCE, prompt_counts=AS_MEASURED
    )
    return compare(_table_of(found), Part.ALL, "without drafts", 1)


def _table_of(found: Sequence[Pair]) -> PairTable:
    return pair_table(
        [
            Observation(
                pair.round,
                pair.prompt,
                Stratum(pair.segment, pair.load, pair.temperature),
                pair.log_speedup,
                pair.node,
            )
            for pair in found
        ]
    )


def _parts(table: PairTable) -> list[tuple[Part, str, PairTable]]:
    """The ways to cut the traffic that leave more than one piece."""
    by_part: dict[Part, dict[str, set[Stratum]]] = {
        Part.SEGMENT: defaultdict(set),
        Part.LOAD: defaultdict(set),
        Part.TEMPERATURE: defaultdict(set),
    }
    present = sorted(table.counts(), key=lambda setting: load_size(setting.load))
    for setting in present:
        by_part[Part.SEGMENT][setting.segment].add(setting)
        by_part[Part.LOAD][setting.load.label].add(setting)
    for label, members in temperature_groups(present):
        by_part[Part.TEMPERATURE][label] |= members
    cuts = {part: groups for part, groups in by_part.items() if len(groups) > 1}
    if Part.SEGMENT in cuts and Part.TEMPERATURE in cuts and repeat_segments(present):
        del cuts[Part.TEMPERATURE]  # every segment has its own temperature: the same question twice
    return [
        (part, label, table.within(members.__contains__))
        for part, groups in cuts.items()
        for label, members in groups.items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    arm: str
    metric: str
    bar: float
    by_temperature: bool
    level: float
    prompt_counts: PromptCounts
    launches: LaunchSpread | None = None
    # Comparisons a part is picked from; None where nobody asks what would bring an interval clear of the bar.
    family: int | None = None

    def __call__(self, table: PairTable, part: Part, label: str, count: float) -> Comparison | None:
        if not len(table):
            return None
        fit = fit_table(
            table,
            by_temperature=self.by_temperature,
            prompt_counts=self.prompt_counts,
            launches=self.launches,
        )
        speedup = _exponentiated(interval_of(fit, level=self.level))
        simultaneous = _exponentiated(interval_of(fit, level=bonferroni(self.level, count)))
        margin = abs(fit.mean - math.log(self.bar))
        is_open = margin > 0 and simultaneous.low < self.bar <= speedup.high
        plans = self.family is not None and is_open
        # To clear the bar takes the interval that a claim is judged by; to miss it, the plain one.
        is_above = fit.mean > math.log(self.bar)
        level = bonferroni(self.level, min(count, self.family or count)) if is_above else self.level
        return Comparison(
            arm=self.arm,
            metric=self.metric,
            part=part,
            label=label,
            speedup=speedup,
            simultaneous=simultaneous,
            prompts=fit.prompts,
            launches=table.launch_count,
            nodes=table.node_count,
            prompts_needed=prompts_needed(fit, margin, level=level) if plans else None,
            launches_needed=launches_needed(fit, margin, level=level) if plans else None,
            launch_share=fit.launch_share,
            prompts_unsent=max(0, self._prompts_there(part, label) - fit.prompts),
        )

    def _prompts_there(self, part: Part, label: str) -> int:
        """Of the workload; 0 where nobody has to know."""
        if part is Part.ALL:
            return sum(self.prompt_counts.values())
        return self.prompt_counts.get(label, 0) if part is Part.SEGMENT else 0


def _exponentiated(estimate: Estimate) -> Estimate:
    return Estimate(
        value=math.exp(estimate.value),
        low=math.exp(estimate.low),
        high=math.exp(min(estimate.high, 700.0)),  # exp(710) overflows; unknown stays unknown
        n=estimate.n,
        method=estimate.method,
        level=estimate.level,
    )
