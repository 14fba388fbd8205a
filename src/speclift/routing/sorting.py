"""The few bounds that tell live requests apart as a study measured them in segments. From its own prompts. Pure.

What matters is spec or plain: two segments of one pool may be mixed up. A rule takes the requests of one segment that
goes to spec, and keeps out those that speculation makes slower. Whether it holds is seen on prompts that it was made
without.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from speclift.core.routing import RequestFeatures
from speclift.routing.policy import SPEEDUP_MIN, SegmentRule

# What a reader can hold in mind; prompts in the tens bear no more.
BOUNDS_MAX = 4
# For what the first rule of a segment does not take: it may consist of two kinds of requests.
RULES_MAX = 2
# Fewer own prompts than these within a rule are a coincidence.
PROMPTS_MIN = 3
# Parts that the prompts are cut into, each in turn left out: of ten prompts, one at a time.
FOLDS = 10
# Where several features tell as well, the first: what a model is asked to do shows in its temperature and in what it is
# given to read before it shows in how long it may talk.
FEATURES = ("temperature", "prompt_characters", "repetition", "turns", "max_tokens")
# Nothing is taken to be known of values between those that were measured: a bound stays at what was.
STRICT = ("temperature", "turns")
# Of a rounded bound: numbers that are closer than this are one.
DIGITS_MAX = 8
WHOLE = ("prompt_characters", "turns", "max_tokens")

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPrompt:
    """A prompt of the study, and what sending it to spec changes: the log of its segment's speedup. That of a segment
    that goes to plain is its lower bound's, so that doubt counts against spec."""

    segment: str
    features: RequestFeatures
    log_speedup: float
    is_spec: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedSegment:
    """No rules where nothing tells the segment apart. Shares are of prompts that rules were made without."""

    rules: tuple[SegmentRule, ...]
    # Of its own prompts, those that rules send to spec.
    found: float
    # Of all prompts of plain segments, those that its rule would send to spec.
    mistaken: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedPrompts:
    segments: Mapping[str, SortedSegment]
    # Of all prompts, those that go to the right pool.
    right: float


def sorted_prompts(prompts: Sequence[SegmentPrompt], *, names: Sequence[str] = FEATURES) -> SortedPrompts:
    """Rules for every segment that goes to spec, held against prompts that they were made without."""
    spec = tuple(dict.fromkeys(prompt.segment for prompt in prompts if prompt.is_spec))
    held_out = {segment: _held_out(prompts, segment, names) for segment in spec}
    worthwhile = [segment for segment in spec if _gains(prompts, held_out[segment])]
    while worthwhile and not _is_safe(
        prompts, _any([held_out[segment] for segment in worthwhile], len(prompts))
    ):
        worthwhile.remove(max(worthwhile, key=lambda segment: _mistaken(prompts, held_out[segment])))
    sent = _any([held_out[segment] for segment in worthwhile], len(prompts))
    is_spec = np.array([prompt.is_spec for prompt in prompts], dtype=bool)
    return SortedPrompts(
        segments={
            segment: SortedSegment(
                rules=_rules(prompts, segment, names) if segment in worthwhile else (),
                found=_share(sent, [prompt.segment == segment for prompt in prompts]),
                mistaken=_mistaken(prompts, held_out[segment]),
            )
            for segment in spec
        },
        right=float(np.mean(sent == is_spec)) if len(prompts) else 0.0,
    )


def _held_out(prompts: Sequence[SegmentPrompt], segment: str, names: Sequence[str]) -> Flags:
    """The prompts sent to spec by a rule that was made without them."""
    fold = _folds(prompts)
    sent = np.zeros(len(prompts), dtype=bool)
    for number in range(FOLDS):
        out = np.flatnonzero(fold == number).tolist()
        others = [prompt for prompt, at in zip(prompts, fold, strict=True) if at != number]
        rules = _rules(others, segment, names)
        sent[out] = [any(rule.holds(prompts[place].features) for rule in rules) for place in out]
    return sent


def _folds(prompts: Sequence[SegmentPrompt]) -> NDArray[np.int64]:
    """Every segment in each of them, as far as it goes."""
    seen: dict[str, int] = {}
    folds = []
    for prompt in prompts:
        seen[prompt.segment] = seen.get(prompt.segment, -1) + 1
        folds.append(seen[prompt.segment] % FOLDS)
    return np.array(folds, dtype=np.int64)


def _gains(prompts: Sequence[SegmentPrompt], sent: Flags) -> bool:
    return _gain(prompt for prompt, is_sent in zip(prompts, sent, strict=True) if is_sent) > 0


def _is_safe(prompts: Sequence[SegmentPrompt], sent: Flags) -> bool:
    """True if each plain segment, with what the rule takes of it, stays above the contract's floor on average."""
    plain: dict[str, list[float]] = {}
    for prompt, is_sent in zip(prompts, sent, strict=True):
        if not prompt.is_spec:
            plain.setdefault(prompt.segment, []).append(prompt.log_speedup if is_sent else 0.0)
    return all(sum(logs) / len(logs) >= math.log(SPEEDUP_MIN) for logs in plain.values())


def _mistaken(prompts: Sequence[SegmentPrompt], sent: Flags) -> float:
    return _share(sent, [not prompt.is_spec for prompt in prompts])


def _share(sent: Flags, members: Iterable[bool]) -> float:
    chosen = sent[np.array(list(members), dtype=bool)]
    return float(chosen.mean()) if len(chosen) else 0.0


def _any(each: Sequence[Flags], count: int) -> Flags:
    return np.any(each, axis=0) if each else np.zeros(count, dtype=bool)


def _rules(prompts: Sequence[SegmentPrompt], segment: str, names: Sequence[str]) -> tuple[SegmentRule, ...]:
    """Rules from the segment's own prompts and plain ones; those of other spec segments may fall on either side."""
    members = [prompt for prompt in prompts if prompt.segment == segment or not prompt.is_spec]
    first = SegmentRule(temperature_max=_highest_temperature(members))
    rules: list[SegmentRule] = []
    while len(rules) < RULES_MAX:
        rule = _rule(members, names, first)
        if rule is None:
            break
        rules.append(rule)
        members = [prompt for prompt in members if not (prompt.is_spec and rule.holds(prompt.features))]
    return tuple(
        rule for rule in rules if not any(other.takes_all_of(rule) for other in rules if other is not rule)
    )


def _highest_temperature(members: Iterable[SegmentPrompt]) -> float | None:
    """The highest temperature at which spec was measured to pay; None if some requests leave it to the server."""
    temperatures = [prompt.features.temperature for prompt in members if prompt.is_spec]
    given = [temperature for temperature in temperatures if temperature is not None]
    return max(given) if given and len(given) == len(temperatures) else None


def _rule(members: Sequence[SegmentPrompt], names: Sequence[str], first: SegmentRule) -> SegmentRule | None:
    """`first` holds whatever else does."""
    gains = np.array([prompt.log_speedup for prompt in members])
    columns = {name: _column(members, name) for name in names}
    rule = first
    for _ in range(BOUNDS_MAX):
        inside = np.array([rule.holds(prompt.features) for prompt in members], dtype=bool)
        best = _best_cut({name: values[inside] for name, values in columns.items()}, gains[inside], rule)
        if best is None or best.gained <= 0:
            break
        rule = msgspec.structs.replace(rule, **{best.bound: best.value})
    rule = _without_idle_bounds(rule, first, members)
    within = [prompt for prompt in members if rule.holds(prompt.features)]
    is_coincidence = sum(prompt.is_spec for prompt in within) < PROMPTS_MIN
    return None if rule.is_empty or is_coincidence or _gain(within) <= 0 else rule


def _best_cut(columns: Mapping[str, Floats], gains: Floats, rule: SegmentRule) -> _Cut | None:
    cuts = (cut for name, values in columns.items() for cut in _cuts(name, values, gains, rule))
    return max(cuts, key=lambda cut: cut.gained, default=None)


def _without_idle_bounds(
    rule: SegmentRule, first: SegmentRule, members: Sequence[SegmentPrompt]
) -> SegmentRule:
    """Without bounds that those set after them made idle."""
    for bound, value in msgspec.structs.asdict(rule).items():
        wider = msgspec.structs.replace(rule, **{bound: getattr(first, bound)})
        if (
            value is not None
            and not wider.is_empty
            and _taken_gain(wider, members) >= _taken_gain(rule, members)
        ):
            rule = wider
    return rule


def _taken_gain(rule: SegmentRule, members: Iterable[SegmentPrompt]) -> float:
    return _gain(prompt for prompt in members if rule.holds(prompt.features))


def _gain(prompts: Iterable[SegmentPrompt]) -> float:
    return sum(prompt.log_speedup for prompt in prompts)


def _column(prompts: Sequence[SegmentPrompt], name: str) -> Floats:
    """The feature of each prompt; an absent one is beyond every bound."""
    values = (getattr(prompt.features, name) for prompt in prompts)
    return np.array([math.nan if value is None else value for value in values], dtype=float)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    bound: str
    value: float
    gained: float


def _cuts(name: str, values: Floats, gains: Floats, rule: SegmentRule) -> Iterable[_Cut]:
    """The best lower and the best upper bound. Where a value is not known, any bound leaves it out."""
    is_given = ~np.isnan(values)
    distinct, place = np.unique(values[is_given], return_inverse=True)
    if len(distinct) < 2:
        return
    before = (_positive(gains), _positive(-gains))
    faster, slower = (
        np.bincount(place, weights=np.maximum(part, 0.0), minlength=len(distinct)).astype(np.float64)
        for part in (gains[is_given], -gains[is_given])
    )
    low, high = rule.bounds(name)
    if low is None:
        sums = (_sums_from(faster), _sums_from(slower))
        yield _best(name, distinct, _foil_gain(before, sums), is_lower=True)
    if high is None:
        sums = (_sums_from(faster[::-1])[::-1], _sums_from(slower[::-1])[::-1])
        yield _best(name, distinct, _foil_gain(before, sums), is_lower=False)


def _best(name: str, distinct: Floats, gained: Floats, *, is_lower: bool) -> _Cut:
    at = int(np.argmax(gained))
    value = _between(name, float(distinct[at]), float(distinct[at + 1]), is_lower=is_lower)
    return _Cut(bound=f"{name}_{'min' if is_lower else 'max'}", value=value, gained=float(gained[at]))


def _sums_from(values: Floats) -> Floats:
    """Sums from each place on, the first place apart."""
    return np.asarray(np.cumsum(values[::-1], dtype=np.float64)[::-1][1:])


def _positive(values: Floats) -> float:
    return float(np.maximum(values, 0.0).sum())


def _foil_gain(before: tuple[float, float], kept: tuple[Floats, Floats]) -> Floats:
    """How much purer a cut leaves what is inside, times what is gained there: FOIL's (Quinlan, 1990), with what spec
    gains and loses in place of counts. Mere gain would be greatest where next to nothing is left."""
    (faster_before, slower_before), (faster, slower) = before, kept
    if faster_before <= 0:
        return np.zeros(len(faster))
    purity_before = faster_before / (faster_before + slower_before)
    purity = np.divide(faster, faster + slower, out=np.zeros(len(faster)), where=faster > 0)
    bits = np.log2(purity, out=np.zeros(len(purity)), where=purity > 0) - math.log2(purity_before)
    return np.where(faster > 0, faster * bits, 0.0)


def _between(name: str, left: float, right: float, *, is_lower: bool) -> float:
    """The roundest number that divides the two, near their middle; at the one within where nothing between counts."""
    within = right if is_lower else left
    if name in STRICT:
        return int(within) if name in WHOLE else within
    for digits in range(1, DIGITS_MAX):
        value = float(f"{(left + right) / 2:.{digits}g}")
        if left < value < right and (name not in WHOLE or value.is_integer()):
            return int(value) if name in WHOLE else value
    return int(within) if name in WHOLE else within
