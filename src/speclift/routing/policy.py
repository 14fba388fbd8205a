"""Which requests a study allows on servers that speculate, up to which load, and what a kept prefix is worth. Pure.

A policy is what its file says (policy_text.py); what would make things worse is named by `faults`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum

from speclift.core.quantities import printable
from speclift.core.results import Decision
from speclift.core.routing import SEGMENT_FIELD, RequestFeatures, ServerPool
from speclift.core.units import Seconds, Tokens

SCHEMA = 1
# Of requests that match no segment.
ELSEWHERE = "elsewhere"
SHIPS = (Decision.SHIP, Decision.SHIP_ON_CONDITIONS)
# What no part of the traffic may fall below where something ships: the contract's floor.
SPEEDUP_MIN = 0.97
# How long a prefix is taken to stay in a server's cache: OpenAI keeps one for five to ten minutes of silence.
KEEP_S: Seconds = 300.0
# Of what a request may wait for a look at its prompt.
REPETITION_LIMIT_MS = 2.0


class CountedLoad(StrEnum):
    """Whose requests under way are the load: the server's own, or those of both pools where they share a machine."""

    SERVER = "server"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySource:
    """The study that a policy is from, and what was judged there."""

    study: str
    arm: str
    engine: str
    engine_version: str
    model: str
    verdict: Decision
    metric: str
    written: str
    # Whether it ships on traffic of every kind, load apart: then, and only then, elsewhere may be spec.
    is_for_all_traffic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLimit:
    """Requests under way at a server that speculates, the new one among them: above `leave` it goes to plain, and from
    `back` down the next ones return. None: there is no limit."""

    leave: int | None = None
    back: int | None = None
    counted: CountedLoad = CountedLoad.SERVER
    # The most requests under way at which it was measured to pay.
    pays_to: float | None = None

    @property
    def returns_at(self) -> int | None:
        return self.back if self.back is not None or self.leave is None else back_of(self.leave)


def back_of(leave: int) -> int:
    """Lower by the standard deviation of what is under way where requests come at random, so that chance alone rarely
    leads from one to the other and back."""
    return max(1, leave - math.ceil(math.sqrt(leave)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixWorth:
    """What a server saves that has read the beginning of a conversation already, and for how long it is kept."""

    saves_s_per_1000_tokens: Seconds = 0.0
    keep_s: Seconds = KEEP_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionLook:
    """The look-up drafter that is tried on prompts, as `--method` says it, and how long that may take."""

    engine: str
    drafter: str
    limit_ms: float = REPETITION_LIMIT_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRule:
    """Conditions that all have to hold; bounds are part of what they bound. What a request does not say is within no
    bounds, but no response_format is "text"."""

    temperature_min: float | None = None
    temperature_max: float | None = None
    max_tokens_min: Tokens | None = None
    max_tokens_max: Tokens | None = None
    prompt_characters_min: int | None = None
    prompt_characters_max: int | None = None
    repetition_min: float | None = None
    repetition_max: float | None = None
    turns_min: int | None = None
    turns_max: int | None = None
    response_format: str | None = None
    tools: bool | None = None
    path: str | None = None
    model: str | None = None
    # As "name: value", the name in lower case; without a value it has to be there.
    header: str | None = None

    @property
    def is_empty(self) -> bool:
        return all(getattr(self, field.name) is None for field in fields(self))

    def holds(self, features: RequestFeatures) -> bool:
        return all(self._within(name, getattr(features, name)) for name in BOUNDED) and self._is_alike(
            features
        )

    def _within(self, name: str, value: float | None) -> bool:
        low, high = self.bounds(name)
        if low is None and high is None:
            return True
        return value is not None and (low is None or low <= value) and (high is None or value <= high)

    def bounds(self, name: str) -> tuple[float | None, float | None]:
        return getattr(self, f"{name}_min"), getattr(self, f"{name}_max")

    def _is_alike(self, features: RequestFeatures) -> bool:
        return (
            self.response_format in (None, features.response_format or "text")
            and self.tools in (None, features.has_tools)
            and self.path in (None, features.path)
            and self.model in (None, features.model)
            and (self.header is None or _has_field(features, self.header))
        )

    def takes_all_of(self, other: SegmentRule) -> bool:
        """Whether whatever holds for the other holds for this one."""
        return all(
            (low is None or (other_low is not None and other_low >= low))
            and (high is None or (other_high is not None and other_high <= high))
            for (low, high), (other_low, other_high) in (
                (self.bounds(name), other.bounds(name)) for name in BOUNDED
            )
        ) and all(getattr(self, name) in (None, getattr(other, name)) for name in EXACT)

    def words(self) -> str:
        """As the file says it: what is not said is not there."""
        said = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ", ".join(f"{name} = {_plain(value)}" for name, value in said if value is not None)


# Features with a lower and an upper bound.
BOUNDED = ("temperature", "max_tokens", "prompt_characters", "repetition", "turns")
EXACT = ("response_format", "tools", "path", "model", "header")
# Of these nothing is below: an upper bound under it can never hold.
LOWEST = {"temperature": 0.0, "max_tokens": 0, "prompt_characters": 0, "repetition": 0.0, "turns": 1}
REPETITION_MAX = 1.0


def _has_field(features: RequestFeatures, header: str) -> bool:
    name, _, wanted = (part.strip() for part in header.partition(":"))
    seen = features.fields.get(name.lower())
    return seen is not None and (not wanted or seen.strip() == wanted)


def _plain(value: object) -> str:
    return (
        repr(value)
        if isinstance(value, str)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value).lower()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySegment:
    """A class of requests, the pool it goes to, and what was measured of it; None was not."""

    name: str
    pool: ServerPool
    # plain / spec of the study's metric with its interval, over so many prompts.
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    prompts: int | None = None
    # What a request takes from the plain server on average.
    e2e_s: Seconds | None = None
    # Of spec: the highest temperature at which it was measured to pay.
    max_temperature: float | None = None
    # In place of the policy's own.
    leave: int | None = None
    back: int | None = None
    # Of the study's prompts, the share that rules made without them send to the right pool.
    sorted_right: float | None = None
    # One of these has to hold; without any the segment is reached by the header alone.
    when: tuple[SegmentRule, ...] = ()

    @property
    def is_measured(self) -> bool:
        return self.low is not None and self.high is not None

    @property
    def gain_s(self) -> Seconds | None:
        """What spec saves of a request's time; None where that was not measured."""
        if self.speedup is None or self.e2e_s is None or self.speedup <= 0:
            return None
        return self.e2e_s * (1.0 - 1.0 / self.speedup)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Segments in the order in which they are tried."""

    elsewhere: ServerPool = ServerPool.PLAIN
    source: PolicySource | None = None
    load: LoadLimit = LoadLimit()
    prefix: PrefixWorth = PrefixWorth()
    repetition: RepetitionLook | None = None
    segments: tuple[PolicySegment, ...] = ()

    @property
    def is_measured(self) -> bool:
        return self.source is not None

    def segment(self, name: str) -> PolicySegment | None:
        return next((segment for segment in self.segments if segment.name == name), None)

    def limit_of(self, segment: PolicySegment | None) -> LoadLimit:
        if segment is None or segment.leave is None:
            return self.load
        return LoadLimit(leave=segment.leave, back=segment.back, counted=self.load.counted)


def faults(policy: Policy) -> Iterator[str]:
    """Why this policy must not be followed, one fact each, with what to do; nothing where it may be."""
    yield from _source_faults(policy)
    yield from _name_faults(policy)
    yield from _load_faults("load", policy.load, policy.load.pays_to)
    yield from _amount_faults(policy)
    for segment in policy.segments:
        yield from _segment_faults(segment)
        if segment.leave is not None or segment.back is not None:
            own = LoadLimit(leave=segment.leave, back=segment.back)
            yield from _load_faults(f"segment {segment.name!r}", own, policy.load.pays_to)
        for rule in segment.when:
            yield from _rule_faults(segment.name, rule)
    yield from _order_faults(policy)


def _source_faults(policy: Policy) -> Iterator[str]:
    if policy.source is None:
        return
    verdict, study = policy.source.verdict, printable(policy.source.study)
    if verdict is Decision.OUTPUT_CHANGED:
        yield f"study {study}: speculation changed the output: repair that first; speclift verify shows where"
        return
    spec = [segment.name for segment in policy.segments if segment.pool is ServerPool.SPEC]
    if verdict not in SHIPS and spec:
        yield (
            f"study {study} is {verdict.value}, so nothing may go to spec, but {', '.join(map(repr, spec))} would: "
            'say pool = "plain"; --learn finds out on live traffic'
        )
    if policy.elsewhere is ServerPool.SPEC and not (policy.source.is_for_all_traffic and verdict in SHIPS):
        yield (
            f'elsewhere = "spec", but study {study} is {verdict.value} and does not ship on all traffic: '
            'say elsewhere = "plain"'
        )


def _name_faults(policy: Policy) -> Iterator[str]:
    seen: set[str] = set()
    for segment in policy.segments:
        if not segment.name.strip() or segment.name == ELSEWHERE:
            yield f"segment {segment.name!r}: this is no name for a segment: choose another"
        if segment.name in seen:
            yield f"segment {segment.name!r} stands there twice: give each a name of its own"
        seen.add(segment.name)


def _amount_faults(policy: Policy) -> Iterator[str]:
    amounts = {
        "prefix.saves_s_per_1000_tokens": policy.prefix.saves_s_per_1000_tokens,
        "prefix.keep_s": policy.prefix.keep_s,
        "load.pays_to": policy.load.pays_to,
        "repetition.limit_ms": None if policy.repetition is None else policy.repetition.limit_ms,
    }
    for name, amount in amounts.items():
        if amount is not None and amount < 0:
            yield f"{name} = {amount:g} is less than nothing"


def _segment_faults(segment: PolicySegment) -> Iterator[str]:
    place = f"segment {segment.name!r}"
    figures = (segment.low, segment.speedup, segment.high)
    known = [figure for figure in figures if figure is not None]
    if known != sorted(known) or any(figure <= 0 for figure in known):
        yield f"{place}: low <= speedup <= high does not hold: copy them from the study"
    if (segment.low is None) != (segment.high is None):
        yield f"{place}: an interval needs both low and high"
    if segment.pool is ServerPool.SPEC and segment.low is not None and segment.high is not None:
        measured = f"measured {segment.low:.2f}x to {segment.high:.2f}x"
        if segment.high < 1.0:
            yield f'{place}: speculation is slower there ({measured}): say pool = "plain"'
        elif segment.low < SPEEDUP_MIN:
            yield (
                f"{place}: speculation was not shown to be no slower there ({measured}, it takes at least "
                f'{SPEEDUP_MIN}x): say pool = "plain", or measure more prompts of it'
            )


def _load_faults(place: str, limit: LoadLimit, pays_to: float | None) -> Iterator[str]:
    if limit.leave is not None and limit.leave < 1:
        yield f'{place}: leave = {limit.leave} lets nothing through: say pool = "plain" for that'
    if limit.back is not None and limit.leave is None:
        yield f"{place}: back = {limit.back} without leave: say both, or none"
    if limit.back is not None and limit.leave is not None and not 1 <= limit.back <= limit.leave:
        yield f"{place}: back = {limit.back} must lie in 1..leave = {limit.leave}"
    if pays_to is not None and (limit.leave is None or limit.leave > pays_to):
        above = "there is no leave" if limit.leave is None else f"leave = {limit.leave}"
        yield (
            f"{place}: {above}, but speculation was measured to pay up to {pays_to:g} requests under way: "
            f"say leave = {max(1, math.floor(pays_to))}, or measure higher loads"
        )


def _order_faults(policy: Policy) -> Iterator[str]:
    """Rules that come too late: whatever they take was taken before."""
    before: list[tuple[str, SegmentRule]] = []
    for segment in policy.segments:
        for rule in segment.when:
            first = next((name for name, other in before if other.takes_all_of(rule)), None)
            if first is not None:
                yield (
                    f"segment {segment.name!r}: its rule {rule.words()!r} can never hold: {first!r} stands before it "
                    "and takes all of that: change their order, or leave the rule out"
                )
            before.append((segment.name, rule))


def _rule_faults(name: str, rule: SegmentRule) -> Iterator[str]:
    place = f"segment {name!r}"
    if rule.is_empty:
        yield f"{place}: a rule without conditions takes every request: give it one, or say elsewhere"
    for feature in BOUNDED:
        low, high = rule.bounds(feature)
        lowest = LOWEST[feature]
        if low is not None and high is not None and low > high:
            yield f"{place}: {feature}_min = {low:g} is above {feature}_max = {high:g}: no request is between"
        elif high is not None and high < lowest:
            yield f"{place}: {feature}_max = {high:g} can never hold: {feature} is at least {lowest:g}"
    if rule.repetition_min is not None and rule.repetition_min > REPETITION_MAX:
        yield f"{place}: repetition_min = {rule.repetition_min:g} can never hold: it is a share, at most 1"
    if rule.path is not None and not rule.path.startswith("/"):
        yield f"{place}: path = {rule.path!r} can never hold: a path begins with /"
    if rule.header is not None and rule.header.partition(":")[0].strip().lower() == SEGMENT_FIELD:
        yield f"{place}: the header {SEGMENT_FIELD} names segments by itself: leave this rule out"
