"""Where a fault shows: from how many streams on, after how many requests, in which kind, on which launch.

A place is named only where chance would hardly have left everything outside of it clean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from math import exp, lgamma

from speclift.lossless.soak.faults import SoakObservation
from speclift.lossless.soak.values import Stage

# Shared by all the places that could be named.
PLACE_ALPHA = 0.01
_PLACES = 6


def places_of(observations: Sequence[SoakObservation]) -> tuple[str, ...]:
    """In words; the narrowest first. Nothing where nothing was seen, or too little to tell."""
    return tuple(_places(observations))


def _places(observations: Sequence[SoakObservation]) -> Iterator[str]:
    kinds = _only_in(observations, lambda each: each.kind)
    if kinds:
        yield f"only in {_listed(kinds)} requests"
    streams = _only_from(observations, lambda each: each.exposure.streams_max)
    if streams:
        yield f"only from {streams} streams on"
    if _only_from(observations, lambda each: min(1, each.exposure.joined)):
        yield "only where another prompt was read meanwhile"
    launches = _only_in(observations, lambda each: each.exposure.launch)
    if launches:
        yield f"only on launch {_listed(launches)}"
    before = _only_from(observations, lambda each: each.exposure.before)
    if before and not launches:
        yield f"only after {before} requests to one launch"
    stages = _only_in(observations, lambda each: each.exposure.stage)
    if stages == [Stage.AFTER]:
        yield "only after the load"
    elif stages == [Stage.DURING] and not streams:
        yield "only under load"
    elif stages == [Stage.AFTER, Stage.DURING]:
        yield "not before the load, and still after it"


def _only_in(
    observations: Sequence[SoakObservation], value_of: Callable[[SoakObservation], Hashable]
) -> list[Hashable]:
    """The values with faults, where the others were exposed enough to be called clean."""
    faulty = {value_of(each) for each in observations if each.is_faulty}
    exposed = Counter(value_of(each) for each in observations)
    if not faulty or set(exposed) == faulty:
        return []
    outside = sum(count for value, count in exposed.items() if value not in faulty)
    # As many choices of values as there are sets of this size: the more one could have named, the less it says.
    choices = exp(log_ways(len(exposed), len(faulty)))
    return sorted(faulty, key=str) if _is_telling(observations, outside, choices) else []


def _only_from(observations: Sequence[SoakObservation], value_of: Callable[[SoakObservation], int]) -> int:
    """The least value with a fault, where enough was exposed below it; 0 where that says nothing."""
    faulty = [value_of(each) for each in observations if each.is_faulty]
    if not faulty:
        return 0
    outside = sum(value_of(each) < min(faulty) for each in observations)
    choices = len({value_of(each) for each in observations})
    return min(faulty) if _is_telling(observations, outside, choices) else 0


def _is_telling(observations: Sequence[SoakObservation], outside: int, choices: float) -> bool:
    """All faults inside by chance: as many ways to choose them there over all ways."""
    count = len({each.unit for each in observations if each.is_faulty})
    inside = len(observations) - outside
    if not outside or count > inside:
        return False
    chance = exp(log_ways(inside, count) - log_ways(len(observations), count))
    return chance * choices < PLACE_ALPHA / _PLACES


def log_ways(total: int, chosen: int) -> float:
    """Of choosing so many out of all."""
    return lgamma(total + 1) - lgamma(chosen + 1) - lgamma(total - chosen + 1)


def _listed(values: Sequence[Hashable]) -> str:
    words = [str(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
