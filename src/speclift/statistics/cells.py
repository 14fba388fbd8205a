"""Cells: arm x load x segment x temperature, each summarised with percentiles and acceptance."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from speclift.arithmetic.acceptance import survival
from speclift.core.arm import Arm
from speclift.core.engine_totals import ACCEPTED, DRAFTED, engine_total
from speclift.core.records import Counters, Phase, Record
from speclift.core.results import Acceptance, Cell, Interval, Percentiles
from speclift.core.speculation import draft_limit
from speclift.core.traffic import Concurrency, Load
from speclift.core.units import Seconds
from speclift.statistics.stats import independent_count, quantile_interval, ratio_of_totals

# One arm's go at one block: launch and block.
Turn = tuple[int, int]
# What the engine counted during each turn.
Totals = Mapping[Turn, Counters]
NO_TOTALS: Totals = MappingProxyType({})

ALL = "all"
HISTOGRAM_BINS = 10
P99_REQUESTS_MIN = 100  # below this a P99 is the maximum under another name

METRIC_OF: dict[str, Callable[[Record], float | None]] = {
    "ttft": lambda record: record.ttft_s,
    "tpot": lambda record: record.tpot_s,
    "e2e": lambda record: record.e2e_s,
}


def cells(
    records: Iterable[Record],
    *,
    by_temperature: bool,
    by_segment: bool = True,
    totals: Totals = NO_TOTALS,
    arms: Iterable[Arm] = (),
) -> tuple[Cell, ...]:
    """Every cell with at least one measured request, in the order arms and loads first appear.

    `by_temperature` where the study swept temperatures itself: then there are cells of each beside those over all,
    whose temperature is None. Without `by_segment` only the cells over all segments. `totals` tell the acceptance of an
    engine whose answers do not; `arms` how many tokens a step can give.
    """
    groups: dict[tuple[str, Load, str, float | None], list[Record]] = defaultdict(list)
    limits = {arm.name: draft_limit(arm.speculation) for arm in arms}
    turn_sizes: Counter[Turn] = Counter()
    for record in records:
        if record.place.phase is Phase.WARMUP:
            continue
        place = record.place
        turn_sizes[_turn(record)] += 1
        temperatures = dict.fromkeys((None, place.temperature)) if by_temperature else (None,)
        for segment in dict.fromkeys((ALL, place.segment)) if by_segment else (ALL,):
            for temperature in temperatures:
                groups[(place.arm, place.load, segment, temperature)].append(record)
    built = [
        _cell(members, turn_sizes, totals, segment=segment, temperature=temperature, limit=limits.get(arm))
        for (arm, _, segment, temperature), members in groups.items()
        if any(record.place.phase is Phase.MEASURED for record in members)
    ]
    return tuple(sorted(built, key=lambda cell: cell.segment != ALL))


def told_by_totals(records: Sequence[Record], totals: Totals) -> tuple[Record, ...]:
    """What an answer does not tell about its drafts, from the engine's totals, where a turn was that one request."""
    sizes = Counter(_turn(record) for record in records if record.place.phase is not Phase.WARMUP)

    def told(record: Record) -> Record:
        turn = _turn(record)
        is_alone = sizes[turn] == 1 and record.place.phase is not Phase.WARMUP
        if record.drafted is not None or not record.is_ok or not is_alone or turn not in totals:
            return record
        drafted, accepted = engine_total(totals[turn], DRAFTED), engine_total(totals[turn], ACCEPTED)
        if drafted is None:
            return record
        return replace(record, drafted=int(drafted), accepted=int(accepted or 0))

    return tuple(told(record) for record in records)


def _turn(record: Record) -> Turn:
    return record.place.launch, record.place.block


def _cell(
    members: Sequence[Record],
    turn_sizes: Counter[Turn],
    totals: Totals,
    *,
    segment: str,
    temperature: float | None,
    limit: int | None,
) -> Cell:
    measured = [record for record in members if record.place.phase is Phase.MEASURED]
    good = [record for record in measured if record.is_ok]
    tokens = [record.output_tokens for record in good if record.output_tokens is not None]
    counted = _counted_acceptance(members, turn_sizes, totals, limit=limit)
    return Cell(
        arm=members[0].place.arm,
        load=members[0].place.load,
        segment=segment,
        temperature=temperature,
        requests=len(measured),
        failed=len(measured) - len(good),
        ttft_s=percentiles(good, "ttft"),
        tpot_s=percentiles(good, "tpot"),
        e2e_s=percentiles(good, "e2e"),
        throughput_tok_s=_throughput(members, turn_sizes),
        acceptance_rate=acceptance(good) or counted[0],
        accepted_length=accepted_length(good, limit=limit) or counted[1],
        per_position=per_position(good),
        output_tokens_mean=float(np.mean(tokens)) if tokens else None,
        prompts=len({record.place.request_id for record in measured}),
    )


def values_of(records: Iterable[Record], metric: str) -> list[float]:
    values = (METRIC_OF[metric](record) for record in records)
    return [value for value in values if value is not None]


def percentiles(records: Iterable[Record], metric: str) -> Percentiles | None:
    """Every request counts; the intervals know that those of one prompt are slow together."""
    known = [(r, value) for r in records if (value := METRIC_OF[metric](r)) is not None]
    if not known:
        return None
    values = np.array([value for _, value in known])
    _, prompt = np.unique([record.place.request_id for record, _ in known], return_inverse=True)
    p50, p95, p99 = (float(value) for value in np.percentile(values, (50, 95, 99)))
    enough = len(values) >= P99_REQUESTS_MIN
    intervals = {
        name: quantile_interval(values, q, count=independent_count(values, prompt, q))
        for name, q in (("p50", 0.50), ("p95", 0.95), ("p99", 0.99))
        if enough or name != "p99"
    }
    return Percentiles(p50=p50, p95=p95, p99=p99 if enough else None, intervals=intervals)


def acceptance(records: Iterable[Record]) -> Acceptance | None:
    """accepted/drafted per request that had drafts; None where no request had any or the engine is silent."""
    counts = [(r.accepted, r.drafted) for r in records if r.drafted and r.accepted is not None]
    if not counts:
        return None
    rates = [accepted / drafted for accepted, drafted in counts]
    p10, p50, p90 = (float(value) for value in np.percentile(rates, (10, 50, 90)))
    pooled = sum(accepted for accepted, _ in counts) / sum(drafted for _, drafted in counts)
    return Acceptance(p10=p10, p50=p50, p90=p90, mean=pooled, requests=len(counts))


def _counted_acceptance(
    members: Sequence[Record], turn_sizes: Counter[Turn], totals: Totals, *, limit: int | None
) -> tuple[Acceptance | None, Interval | None]:
    """Acceptance and accepted length from the engine's totals, where no answer tells them."""
    turns = _by_turn(members)
    if not _are_counted(turns, turn_sizes, totals):
        return None, None
    drafted = sum(engine_total(totals[turn], DRAFTED) or 0.0 for turn in turns)
    if not drafted:
        return None, None
    accepted = {turn: engine_total(totals[turn], ACCEPTED) or 0.0 for turn in turns}
    rate = Acceptance(
        p10=None, p50=None, p90=None, mean=sum(accepted.values()) / drafted, requests=len(members)
    )
    counts = []
    for turn, own in turns.items():
        tokens = sum((record.output_tokens or 0) - 1 for record in own)
        _, block = turn
        counts.append((block, float(tokens), max(1.0, tokens - accepted[turn])))
    return rate, _ratio_over(counts, limit=limit)


def _are_counted(turns: Mapping[Turn, Sequence[Record]], turn_sizes: Counter[Turn], totals: Totals) -> bool:
    """Totals are of whole turns: a share of a turn, or one with a failed request in it, has none of its own."""
    records = [record for members in turns.values() for record in members]
    return (
        _are_whole(turns, turn_sizes)
        and all(turn in totals for turn in turns)
        and all(record.is_ok and record.output_tokens is not None for record in records)
        and all(record.drafted is None for record in records)
    )


def acceptance_histogram(records: Iterable[Record]) -> tuple[int, ...]:
    """Requests by acceptance rate in ten equal bins, the last one closed."""
    rates = [r.accepted / r.drafted for r in records if r.drafted and r.accepted is not None]
    counts, _ = np.histogram(rates, bins=HISTOGRAM_BINS, range=(0.0, 1.0))
    return tuple(int(count) for count in counts)


def accepted_length(records: Iterable[Record], *, limit: int | None) -> Interval | None:
    """(tokens - 1) / decode steps over requests, steps without a draft included; no step drafts more than `limit`."""
    counts = (
        (record.place.request_id, float(record.output_tokens - 1), float(record.decode_steps))
        for record in records
        if record.output_tokens is not None and record.output_tokens > 1 and record.decode_steps
    )
    return _ratio_over(counts, limit=limit)


def _ratio_over(counts: Iterable[tuple[Hashable, float, float]], *, limit: int | None) -> Interval | None:
    """Tokens over steps. A prompt (or a block of them) is drafted alike in every launch, so it counts once. A step
    gives a token at least, and its draft and one more at most."""
    tokens: dict[Hashable, float] = defaultdict(float)
    steps: dict[Hashable, float] = defaultdict(float)
    for unit, unit_tokens, unit_steps in counts:
        tokens[unit] += unit_tokens
        steps[unit] += unit_steps
    if not tokens:
        return None
    found = ratio_of_totals(list(tokens.values()), list(steps.values()))
    low, high = max(1.0, found.low), found.high if limit is None else min(limit + 1.0, found.high)
    # A server may count in another way than that; the interval keeps its value.
    return replace(found, low=min(found.value, low), high=max(found.value, high)).interval


def per_position(records: Iterable[Record]) -> tuple[float, ...] | None:
    """Survival S_1, S_2, ... over all decode steps of the records that carry step counts."""
    steps = [step for record in records for step in record.told_steps]
    longest = max((step.drafted for step in steps), default=0)
    return survival(steps, longest) if longest else None


def _throughput(members: Sequence[Record], turn_sizes: Counter[Turn]) -> float | None:
    """Output tokens of successful requests / (last byte - first send), summed over the turns.

    Requests that only held the load count, they were served too. A share of a turn (one segment of several, one
    temperature of several) has no window of its own, unless requests ran one at a time.
    """
    turns = _by_turn(members)
    windows = list(turns.values())
    if not _are_whole(turns, turn_sizes):
        if members[0].place.load != Concurrency(streams=1):
            return None
        windows = [[record] for record in members]
    good = [record for record in members if record.is_ok]
    if any(record.output_tokens is None for record in good):
        return None
    tokens = sum(record.output_tokens or 0 for record in good)
    seconds = sum(_span_s(window) for window in windows)
    return tokens / seconds if seconds > 0 and tokens else None


def _by_turn(records: Iterable[Record]) -> dict[Turn, list[Record]]:
    turns: dict[Turn, list[Record]] = defaultdict(list)
    for record in records:
        turns[_turn(record)].append(record)
    return turns


def _are_whole(turns: Mapping[Turn, Sequence[Record]], turn_sizes: Counter[Turn]) -> bool:
    """Whether these are all requests of their turns, and not one segment or temperature of several."""
    return all(len(members) >= turn_sizes[turn] for turn, members in turns.items())


def _span_s(window: Sequence[Record]) -> Seconds:
    return max(record.end_s for record in window) - min(record.sent_s for record in window)


def loads_of(records: Iterable[Record]) -> tuple[Load, ...]:
    """Distinct loads, lightest first."""
    distinct = {record.place.load for record in records}
    return tuple(sorted(distinct, key=load_size))


def load_size(load: Load) -> float:
    return float(load.streams) if isinstance(load, Concurrency) else load.per_s
