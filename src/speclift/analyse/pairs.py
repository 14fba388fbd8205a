"""Which requests of two arms form a pair, and what does each say about the speedup?

A pair is the same request (and repeat) at the same load, temperature and round on both arms, so that what makes a
prompt slow cancels. What both arms were asked and no estimate can use is counted, never dropped without a word.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from speclift.analyse.cells import METRIC_OF
from speclift.core.arm import BASELINE
from speclift.core.records import Phase, Place, Record
from speclift.core.traffic import Concurrency, Load

THROUGHPUT = "throughput"
MIXED = "mixed"
# Round, request, load, temperature and repeat: a repeat pairs with the same repeat of the other arm.
PairKey: TypeAlias = tuple[int, str, Load, float | None, int]
# Requests that say the same as an earlier one, and which: repeats under another name are one prompt.
PromptOf: TypeAlias = Mapping[str, str]
ALL_DISTINCT: PromptOf = MappingProxyType({})
# Answers of unlike length do not compare end to end; the same share makes the finding output-length.
LENGTH_SHARE = 0.05

Sides: TypeAlias = dict[str, Record]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """log(speedup) of one prompt in one round at one setting."""

    key: PairKey
    prompt: str
    segment: str
    log_speedup: float

    @property
    def round(self) -> int:
        return self.key[0]

    @property
    def load(self) -> Load:
        return self.key[2]

    @property
    def temperature(self) -> float | None:
        return self.key[3]


def pairs(
    records: Iterable[Record], arm: str, metric: str, *, prompt_of: PromptOf = ALL_DISTINCT
) -> list[Pair]:
    """Pairs of successes that have the metric."""
    if metric == THROUGHPUT:
        return _throughput_pairs(records, arm, prompt_of)
    return _latency_pairs(records, arm, METRIC_OF[metric], prompt_of)


def alike_pairs(records: Iterable[Record], arm: str, *, prompt_of: PromptOf = ALL_DISTINCT) -> list[Pair]:
    """End to end, where both answers are known to be about as long."""
    alike = [
        record
        for sides in _sides(records).values()
        if (both := _both(sides, arm)) is not None and _is_alike(*both)
        for record in both
    ]
    return _latency_pairs(alike, arm, METRIC_OF["e2e"], prompt_of)


def asked_of_both(records: Iterable[Record], arm: str) -> int:
    """How many pairs there would be had every request succeeded."""
    return sum(_both(sides, arm) is not None for sides in _sides(records).values())


def pair_key(place: Place) -> PairKey:
    return place.round, place.request_id, place.load, place.temperature, place.repeat


def _sides(records: Iterable[Record]) -> dict[PairKey, Sides]:
    found: dict[PairKey, Sides] = defaultdict(dict)
    for record in records:
        if record.place.phase is Phase.MEASURED:
            found[pair_key(record.place)][record.place.arm] = record
    return found


def _both(sides: Sides, arm: str) -> tuple[Record, Record] | None:
    baseline, other = sides.get(BASELINE), sides.get(arm)
    return None if baseline is None or other is None else (baseline, other)


def _is_alike(baseline: Record, other: Record) -> bool:
    before, after = baseline.output_tokens, other.output_tokens
    return bool(before and after and abs(after / before - 1) <= LENGTH_SHARE)


def _latency_pairs(
    records: Iterable[Record], arm: str, value_of: Callable[[Record], float | None], prompt_of: PromptOf
) -> list[Pair]:
    result = []
    for key, sides in _sides(records).items():
        both = _both(sides, arm)
        log_speedup = None if both is None else _log_ratio(*both, value_of)
        if log_speedup is not None:
            segment = sides[arm].place.segment
            prompt = prompt_of.get(key[1], key[1])
            result.append(Pair(key=key, prompt=prompt, segment=segment, log_speedup=log_speedup))
    return result


def _log_ratio(baseline: Record, other: Record, value_of: Callable[[Record], float | None]) -> float | None:
    if not baseline.is_ok or not other.is_ok:
        return None
    slow, fast = value_of(baseline), value_of(other)
    return math.log(slow / fast) if slow and fast and slow > 0 and fast > 0 else None


# Throughput: a rate belongs to a block, and its requests share it out


def _throughput_pairs(records: Iterable[Record], arm: str, prompt_of: PromptOf) -> list[Pair]:
    """The log ratio of a block's token rates, given to each of its requests with what that request moved it by.

    Their mean is the block's, and their spread is what other prompts would have changed, which blocks of the same
    prompts in every launch cannot show.
    """
    blocks: dict[tuple[int, int, Load], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record.place.phase is not Phase.WARMUP:
            place = record.place
            blocks[(place.round, place.block, place.load)][place.arm].append(record)
    compared = []
    for sides in blocks.values():
        baseline, other = sides.get(BASELINE, []), sides.get(arm, [])
        before, after = _token_rate(baseline), _token_rate(other)
        if before and after:
            compared.append((math.log(after / before), baseline, other))
    segments = [{record.place.segment for record in (*b, *o)} for _, b, o in compared]
    # A rate of several segments is none of theirs; a prompt belongs to one stratum at every load, so all are mixed.
    is_mixed = any(len(names) > 1 for names in segments)
    return [
        Pair(
            key=pair_key(place),
            prompt=prompt_of.get(place.request_id, place.request_id),
            segment=MIXED if is_mixed else place.segment,
            log_speedup=log_speedup + moved,
        )
        for log_speedup, baseline, other in compared
        for place, moved in _moved_by(baseline, other)
    ]


def _moved_by(baseline: Sequence[Record], other: Sequence[Record]) -> list[tuple[Place, float]]:
    """How far each request of a block moves log(rate of other / rate of baseline), times their number.

    Streams that are kept full serve tokens / seconds over their requests; in an open loop the rate is the one offered,
    whatever the requests.
    """
    before, after = _by_request(baseline), _by_request(other)
    places = {key: record.place for key, record in {**before, **after}.items()}
    count = len(places)
    is_open = not isinstance(next(iter(places.values())).load, Concurrency)
    if is_open or count == 1:
        return [(place, 0.0) for place in places.values()]
    sides = [(1.0, after, *_sums(after)), (-1.0, before, *_sums(before))]
    return [
        (
            place,
            count
            * sum(
                sign * ((side[key].output_tokens or 0) / tokens - (side[key].e2e_s or 0.0) / seconds)
                for sign, side, tokens, seconds in sides
                if key in side
            ),
        )
        for key, place in places.items()
    ]


def _by_request(turn: Sequence[Record]) -> dict[PairKey, Record]:
    return {pair_key(r.place): r for r in turn if r.is_ok and r.output_tokens and r.e2e_s}


def _sums(turn: Mapping[PairKey, Record]) -> tuple[float, float]:
    return (
        float(sum(record.output_tokens or 0 for record in turn.values())),
        sum(record.e2e_s or 0.0 for record in turn.values()),
    )


def _token_rate(turn: Sequence[Record]) -> float | None:
    """Over the time the turn ran; one that was interrupted ran in two launches, and not in between."""
    good = [record for record in turn if record.is_ok and record.output_tokens]
    runs: dict[int, list[Record]] = defaultdict(list)
    for record in turn:
        runs[record.place.launch].append(record)
    seconds = sum(max(r.end_s for r in run) - min(r.sent_s for r in run) for run in runs.values())
    return sum(record.output_tokens or 0 for record in good) / seconds if good and seconds > 0 else None
