"""Which requests of two arms form a pair, and what does each say about the speedup?

A pair is the same request (and repeat) at the same load, temperature and round on both arms and on one machine, so that
what makes a prompt or a machine slow cancels. What both arms were asked and no estimate can use is counted, never
dropped without a word.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

from speclift.core.arm import BASELINE
from speclift.core.records import Phase, Place, Record
from speclift.core.results import RAW_E2E
from speclift.core.traffic import Concurrency, Load
from speclift.core.units import Seconds, Tokens

THROUGHPUT = "throughput"
MIXED = "mixed"
# Round, request, load, temperature, node and repeat: a repeat pairs with the same repeat of the other arm.
PairKey: TypeAlias = tuple[int, str, Load, float | None, str, int]
# Requests that say the same as an earlier one, and which: repeats under another name are one prompt.
PromptOf: TypeAlias = Mapping[str, str]
ALL_DISTINCT: PromptOf = MappingProxyType({})
# Answers of unlike length do not compare end to end; the same share makes the finding output-length.
LENGTH_SHARE = 0.05

Sides: TypeAlias = dict[str, Record]
# The baseline's time and the arm's, in which they compare; None where one of them is unknown.
Times: TypeAlias = tuple[Seconds | None, Seconds | None]


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

    @property
    def node(self) -> str:
        return self.key[4]


def pairs(
    records: Iterable[Record], arm: str, metric: str, *, prompt_of: PromptOf = ALL_DISTINCT
) -> list[Pair]:
    """Pairs of successes that have the metric."""
    if metric == THROUGHPUT:
        return _throughput_pairs(records, arm, prompt_of)
    return _latency_pairs(records, arm, TIMES_OF[metric], prompt_of)


def asked_of_both(records: Iterable[Record], arm: str) -> int:
    """How many pairs there would be had every request succeeded."""
    return sum(_both(sides, arm) is not None for sides in _sides(records).values())


def answered_in_one_token(records: Iterable[Record], arm: str) -> int:
    """Pairs of successes without a decode step: they have no time per token, and no draft could have helped them."""
    found = (_both(sides, arm) for sides in _sides(records).values())
    return sum(
        both is not None and all(record.is_ok and record.output_tokens == 1 for record in both)
        for both in found
    )


def paired_lengths(records: Iterable[Record], arm: str) -> list[tuple[Tokens, Tokens]]:
    """Output tokens of the baseline and of the arm, where both answered and are counted."""
    found = (_both(sides, arm) for sides in _sides(records).values())
    return [
        (both[0].output_tokens, both[1].output_tokens)
        for both in found
        if both is not None
        and all(record.is_ok for record in both)
        and both[0].output_tokens
        and both[1].output_tokens
    ]


def pair_key(place: Place) -> PairKey:
    return place.round, place.request_id, place.load, place.temperature, place.node, place.repeat


def _sides(records: Iterable[Record]) -> dict[PairKey, Sides]:
    found: dict[PairKey, Sides] = defaultdict(dict)
    for record in records:
        if record.place.phase is Phase.MEASURED:
            found[pair_key(record.place)][record.place.arm] = record
    return found


def _both(sides: Sides, arm: str) -> tuple[Record, Record] | None:
    baseline, other = sides.get(BASELINE), sides.get(arm)
    return None if baseline is None or other is None else (baseline, other)


def _e2e(baseline: Record, other: Record) -> Times:
    """TTFT + TPOT x (the baseline's tokens - 1), so that answers of unlike length compare.

    Where a time per token is unknown, as long as both took, if both answers are about as long.
    """
    tokens = baseline.output_tokens
    if tokens is not None:
        before, after = _at_length(baseline, tokens), _at_length(other, tokens)
        if before is not None and after is not None:
            return before, after
    return (baseline.e2e_s, other.e2e_s) if _is_alike(baseline, other) else (None, None)


def _at_length(record: Record, tokens: Tokens) -> Seconds | None:
    """How long this answer would have taken with so many tokens."""
    if record.ttft_s is None or tokens < 2:
        return record.ttft_s if tokens == 1 else None
    return None if record.tpot_s is None else record.ttft_s + record.tpot_s * (tokens - 1)


def _is_alike(baseline: Record, other: Record) -> bool:
    before, after = baseline.output_tokens, other.output_tokens
    if before is None or after is None:
        # The same text is as long, unless something was counted that nobody saw.
        return bool(baseline.text) and baseline.text == other.text and not (baseline.refused or other.refused)
    return bool(before and after and abs(after / before - 1) <= LENGTH_SHARE)


TIMES_OF: Mapping[str, Callable[[Record, Record], Times]] = MappingProxyType(
    {
        "ttft": lambda baseline, other: (baseline.ttft_s, other.ttft_s),
        "tpot": lambda baseline, other: (baseline.tpot_s, other.tpot_s),
        "e2e": _e2e,
        RAW_E2E: lambda baseline, other: (baseline.e2e_s, other.e2e_s),
    }
)


def _latency_pairs(
    records: Iterable[Record], arm: str, times_of: Callable[[Record, Record], Times], prompt_of: PromptOf
) -> list[Pair]:
    result = []
    for key, sides in _sides(records).items():
        both = _both(sides, arm)
        log_speedup = None if both is None else _log_ratio(*both, times_of)
        if log_speedup is not None:
            segment = sides[arm].place.segment
            prompt = prompt_of.get(key[1], key[1])
            result.append(Pair(key=key, prompt=prompt, segment=segment, log_speedup=log_speedup))
    return result


def _log_ratio(baseline: Record, other: Record, times_of: Callable[[Record, Record], Times]) -> float | None:
    if not baseline.is_ok or not other.is_ok:
        return None
    slow, fast = times_of(baseline, other)
    return math.log(slow / fast) if slow and fast and slow > 0 and fast > 0 else None


# Throughput: a rate belongs to a block, and its requests share it out


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """What one arm served of a block."""

    tokens: dict[PairKey, float]
    seconds: dict[PairKey, float]
    # In an open loop the rate is the one offered, whatever the requests: nothing is shared out.
    window_s: float | None

    @property
    def log_rate(self) -> float:
        """Streams that are kept full serve tokens / seconds over their requests; how long the last of them drains,
        after the others have nothing left to do, is the block's shape and no rate."""
        return math.log(sum(self.tokens.values()) / (self.window_s or sum(self.seconds.values())))

    def moved_by(self, key: PairKey) -> float:
        """How far this request moves the log of the rate."""
        if self.window_s is not None or key not in self.tokens:
            return 0.0
        share = self.tokens[key] / sum(self.tokens.values())
        return share - self.seconds[key] / sum(self.seconds.values())


def _throughput_pairs(records: Iterable[Record], arm: str, prompt_of: PromptOf) -> list[Pair]:
    """The log ratio of a block's token rates, given to each of its requests with what that request moved it by.

    Their mean is the block's, and their spread is what other prompts would have changed, which blocks of the same
    prompts in every launch cannot show.
    """
    blocks: dict[tuple[int, int, Load, str], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record.place.phase is not Phase.WARMUP:
            place = record.place
            blocks[(place.round, place.block, place.load, place.node)][place.arm].append(record)
    result, segments = [], []
    for sides in blocks.values():
        before, after = _served(sides.get(BASELINE, [])), _served(sides.get(arm, []))
        if before is None or after is None:
            continue
        places = {pair_key(r.place): r.place for r in (*sides[BASELINE], *sides[arm])}
        asked = [key for key in places if key in before.tokens or key in after.tokens]
        segments.append({places[key].segment for key in asked})
        whole = after.log_rate - before.log_rate
        for key in asked:
            moved = len(asked) * (after.moved_by(key) - before.moved_by(key))
            prompt, segment = prompt_of.get(key[1], key[1]), places[key].segment
            result.append(Pair(key=key, prompt=prompt, segment=segment, log_speedup=whole + moved))
    # A rate of several segments is none of theirs; a prompt belongs to one stratum at every load, so all are mixed.
    is_mixed = any(len(names) > 1 for names in segments)
    return [replace(pair, segment=MIXED) for pair in result] if is_mixed else result


def _served(turn: Sequence[Record]) -> _Served | None:
    """None where nothing was served."""
    good = {
        pair_key(r.place): r
        for r in turn
        if r.is_ok and (r.output_tokens or 0) > 0 and r.e2e_s is not None and r.e2e_s > 0
    }
    if not good:
        return None
    is_open = not isinstance(turn[0].place.load, Concurrency)
    window_s = _window_s(turn) if is_open else None
    if window_s is not None and window_s <= 0:
        return None
    return _Served(
        tokens={key: float(record.output_tokens or 0) for key, record in good.items()},
        seconds={key: record.e2e_s or 0.0 for key, record in good.items()},
        window_s=window_s,
    )


def _window_s(turn: Sequence[Record]) -> float:
    """The time the turn ran; one that was interrupted ran in two launches, and not in between."""
    runs: dict[int, list[Record]] = defaultdict(list)
    for record in turn:
        runs[record.place.launch].append(record)
    return sum(max(r.end_s for r in run) - min(r.sent_s for r in run) for run in runs.values())
