"""What engines count about themselves, under one name each: engines and their versions differ in the words."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from speclift.core.engine_facts import metric_names
from speclift.core.records import Counters, Refused, Usage
from speclift.core.units import Seconds

_NAMES = metric_names()
DRAFTED, ACCEPTED, PREEMPTIONS = _NAMES.drafted, _NAMES.accepted, _NAMES.preemptions
PREFIX_QUERIES, PREFIX_HITS = _NAMES.prefix_queries, _NAMES.prefix_hits
# What is read of an engine's totals, and so must be possible.
USED = frozenset((*DRAFTED, *ACCEPTED, *PREEMPTIONS, *PREFIX_QUERIES, *PREFIX_HITS, *_NAMES.accepted_at))
# Beyond this a float no longer counts by ones.
TOTAL_MAX = 2.0**53
_POSITION = re.compile(r'position="(\d{1,6})"', re.ASCII)


def engine_total(counters: Counters, names: tuple[str, ...]) -> float | None:
    """The first of the names that this engine has; None where it counts no such thing."""
    totals = (counters.total(name) for name in names)
    return next((total for total in totals if total is not None), None)


def usage_of(reading: Counters, *, at_s: Seconds) -> Usage | None:
    """How full the server was at this reading; None where it does not say, or says what cannot be."""
    shares = [value for key, value in reading.values.items() if _name(key) in _NAMES.kv_used]
    running, waiting = (engine_total(reading, names) or 0.0 for names in (_NAMES.running, _NAMES.waiting))
    counts_are_possible = all(0 <= count <= TOTAL_MAX for count in (running, waiting))
    # Of several engines behind one page, the fullest.
    if not shares or not all(0 <= share <= 1 for share in shares) or not counts_are_possible:
        return None
    return Usage(at_s=at_s, running=int(running), waiting=int(waiting), kv_share=max(shares))


def counted_between(before: Counters, after: Counters) -> tuple[Counters, tuple[Refused, ...]]:
    """What an engine counted between two readings; where any of what is used cannot be true none of it is left, and
    what was said instead."""
    refused = tuple(_refused_readings(before, after))
    counted = after.since(before)
    if not refused:
        refused = tuple(_refused_shares(counted))
    if refused:
        counted = Counters(values={key: n for key, n in counted.values.items() if _name(key) not in USED})
    return counted, refused


def _refused_readings(before: Counters, after: Counters) -> Iterator[Refused]:
    """Each reading by itself, and each beside the one before."""
    for reading in (before, after):
        for key, value in reading.values.items():
            if _name(key) in USED and not (math.isfinite(value) and 0 <= value <= TOTAL_MAX):
                yield Refused(rule="not-a-total", said=f"{key} is {value:g}")
    for key, value in after.values.items():
        earlier = before.values.get(key, value)
        if _name(key) in USED and value < earlier:
            yield Refused(rule="total-fell", said=f"{key} fell from {earlier:g} to {value:g}")


def _refused_shares(counted: Counters) -> Iterator[Refused]:
    """What was counted beside what it is a part of."""
    for part, whole, words in ((ACCEPTED, DRAFTED, "accepted"), (PREFIX_HITS, PREFIX_QUERIES, "hits")):
        some, all_of_it = engine_total(counted, part), engine_total(counted, whole)
        if some is not None and all_of_it is not None and some > all_of_it:
            yield Refused(
                rule=f"{words}-over-all", said=f"{part[0]} rose by {some:g}, {whole[0]} by {all_of_it:g}"
            )
    by_position: dict[int, float] = defaultdict(float)
    for key, value in counted.values.items():
        position = _POSITION.search(key) if _name(key) in _NAMES.accepted_at else None
        if position is not None:
            by_position[int(position[1])] += value
    reached = [by_position[position] for position in sorted(by_position)]
    if any(later > earlier for earlier, later in pairwise(reached)):
        said = ", ".join(f"{value:g}" for value in reached)
        yield Refused(
            rule="later-over-earlier", said=f"more drafts accepted at a later position: {said}"[:200]
        )


def _name(key: str) -> str:
    return key.partition("{")[0]
