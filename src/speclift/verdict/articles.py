"""What the articles say, and what was seen here: each rule of thumb held against this study's own figures. Pure.

A rule holds here, does not hold here, or could not be tested, and says by which figure. None of it decides anything:
where an article and a measurement differ, the measurement is what the verdict rests on.

[S0] tuning guide, [S1] enabling guide, [S2] vLLM set-up, [S3] when it pays, [S4] configuration and decision framework;
docs/method.md names them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import mean
from typing import TypeAlias

from speclift.core.arm import BASELINE
from speclift.core.document import Document
from speclift.core.quantities import printable, size
from speclift.core.results import (
    TEMPERATURE_DASH,
    Cell,
    Comparison,
    Estimate,
    Evidence,
    Part,
    cell_of,
    over_temperatures,
)
from speclift.core.speculation import DraftModel, NGram, drafters_of
from speclift.core.traffic import Concurrency, Load
from speclift.verdict.judgement import Judgement

ALL = "all"
# Accepted or drafted shares that an article calls typical are met within this many points.
POINTS = 0.05
# Streams from which on a load is what the articles call high.
HIGH_STREAMS = 16
# As near to break-even as an article can mean.
NEAR_EVEN = 0.1


class ArticleOutcome(StrEnum):
    HOLDS = "holds"
    DOES_NOT_HOLD = "does-not-hold"
    NOT_TESTED = "not-tested"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What this study has to say to a rule."""

    outcome: ArticleOutcome
    seen: str


Look: TypeAlias = Callable[[Judgement], Sighting]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArticleRule:
    name: str
    source: str
    says: str
    look: Look


class Article(Document, frozen=True, kw_only=True):
    """A rule of thumb, and what this study has to say to it; the measurement decides."""

    rule: str
    source: str
    says: str
    outcome: ArticleOutcome
    seen: str


def check_articles(judgement: Judgement) -> tuple[Article, ...]:
    sightings = [(rule, rule.look(judgement)) for rule in ARTICLE_RULES]
    return tuple(
        Article(
            rule=rule.name, source=rule.source, says=rule.says, outcome=sighting.outcome, seen=sighting.seen
        )
        for rule, sighting in sightings
    )


def _holds(seen: str) -> Sighting:
    return Sighting(outcome=ArticleOutcome.HOLDS, seen=seen)


def _fails(seen: str) -> Sighting:
    return Sighting(outcome=ArticleOutcome.DOES_NOT_HOLD, seen=seen)


def _untested(why: str) -> Sighting:
    return Sighting(outcome=ArticleOutcome.NOT_TESTED, seen=why)


# Acceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """A part of the traffic with what was accepted on it and what that gained."""

    where: str
    rate: float
    speedup: Estimate

    @property
    def is_faster(self) -> bool:
        return self.speedup.low > 1

    @property
    def is_slower(self) -> bool:
        return self.speedup.high < 1

    @property
    def told(self) -> str:
        return f"{self.where}: {self.rate:.0%} accepted, {_interval(self.speedup)}"


def _points(judgement: Judgement) -> list[_Point]:
    """Every segment of every arm, or the arm as a whole where it has one segment alone."""
    points = []
    for whole in judgement.on_all:
        segments = [part for part in whole.parts if part.part is Part.SEGMENT]
        compared = segments or [part for part in (whole.overall,) if part is not None]
        for part in compared:
            label = part.label if part.part is Part.SEGMENT else ALL
            rate = _rate(judgement.cells, whole.arm.name, label)
            if rate is not None:
                where = _name(whole.arm.name) + ("" if label == ALL else f" on {_name(label)}")
                points.append(_Point(where=where, rate=rate, speedup=part.speedup))
    return points


def _rate(cells: Sequence[Cell], arm: str, segment: str) -> float | None:
    rates = [
        cell.acceptance_rate.mean
        for cell in over_temperatures(cells)
        if (cell.arm, cell.segment) == (arm, segment) and cell.acceptance_rate is not None
    ]
    return mean(rates) if rates else None


def _band(low: float, high: float, *, is_faster: bool) -> Look:
    """Within these acceptance rates an article expects a gain, or a loss."""

    def look(judgement: Judgement) -> Sighting:
        points = _points(judgement)
        inside = [point for point in points if low <= point.rate < high]
        if not inside:
            return _untested(_rates_seen(points))
        against = [point for point in inside if (point.is_slower if is_faster else point.is_faster)]
        if against:
            return _fails(max(against, key=lambda point: abs(point.speedup.value - 1)).told)
        support = [point for point in inside if (point.is_faster if is_faster else point.is_slower)]
        if support:
            return _holds(support[0].told)
        return _untested(f"no clear difference; {inside[0].told}")

    return look


def _near_even(judgement: Judgement) -> Sighting:
    points = _points(judgement)
    inside = [point for point in points if 0.5 <= point.rate <= 0.65]
    if not inside:
        return _untested(_rates_seen(points))
    far = [
        point
        for point in inside
        if not point.speedup.low <= 1 + NEAR_EVEN or point.speedup.high < 1 - NEAR_EVEN
    ]
    if far:
        return _fails(far[0].told)
    near = [point for point in inside if abs(point.speedup.value - 1) <= NEAR_EVEN]
    return _holds(near[0].told) if near else _untested(f"no clear difference; {inside[0].told}")


def _even_at_half(judgement: Judgement) -> Sighting:
    """Above it faster, below it slower, and near it neither by much."""
    clear = [point for point in _points(judgement) if point.is_faster or point.is_slower]
    if not clear:
        return _untested("no part was clearly faster or slower")
    against = [
        point
        for point in clear
        if point.is_faster != (point.rate >= 0.5)
        or (abs(point.rate - 0.5) <= POINTS and abs(point.speedup.value - 1) > NEAR_EVEN)
    ]
    if against:
        return _fails(against[0].told)
    sides = {point.is_faster: point for point in clear}
    if len(sides) < 2:
        return _untested(f"only one side of it was seen; {clear[0].told}")
    return _holds(f"{sides[True].told}; {sides[False].told}")


def _lowest_tenth(judgement: Judgement) -> Sighting:
    low = [
        (whole, cell.acceptance_rate.p10)
        for whole in judgement.on_all
        for cell in over_temperatures(whole.cells)
        if cell.acceptance_rate is not None
        and cell.acceptance_rate.p10 is not None
        and cell.acceptance_rate.p10 < 0.5
    ]
    if not low:
        return _untested("no arm has a P10 of acceptance under 50 %, or requests do not tell it")
    whole, tenth = low[0]
    losing = [part for part in whole.parts if part.speedup.high < 1]
    where = f"{_name(whole.arm.name)}: P10 {tenth:.0%}"
    if losing:
        return _holds(f"{where}, {_part(losing[0])}")
    gaining = bool(whole.parts) and all(part.speedup.low > 1 for part in whole.parts)
    return (
        _fails(f"{where}, and every part is faster")
        if gaining
        else _untested(f"{where}, no part is clearly slower")
    )


def _typical_rates(judgement: Judgement) -> Sighting:
    typical = (("creative", 0.4, 0.5), ("qa", 0.7, 0.8))
    seen = [
        (
            f"{_name(whole.arm.name)} on {_name(cell.segment)}: {cell.acceptance_rate.mean:.0%}",
            low,
            high,
            cell,
        )
        for whole in _drafting_models(judgement)
        for cell in over_temperatures(judgement.cells)
        for word, low, high in typical
        if cell.arm == whole.arm.name and word in cell.segment and cell.acceptance_rate is not None
    ]
    outside = [
        told
        for told, low, high, cell in seen
        if cell.acceptance_rate is not None and not low - POINTS <= cell.acceptance_rate.mean <= high + POINTS
    ]
    if not seen:
        return _untested("no draft model was measured on creative writing or on questions")
    return _fails(outside[0]) if outside else _holds(seen[0][0])


def _rates_seen(points: Sequence[_Point]) -> str:
    if not points:
        return "the engine reports no acceptance"
    rates = sorted(point.rate for point in points)
    edges = dict.fromkeys(f"{rate:.0%}" for rate in (rates[0], rates[-1]))
    return f"acceptance here was {' to '.join(edges)}"


# Draft length


# Lower bound, value, upper bound.
_Bounds: TypeAlias = tuple[float, float, float]


def _by_k(judgement: Judgement) -> list[tuple[str, dict[int, _Bounds]]]:
    """Measured speedups by way of drafting and k, where there are several k; the confirmed ones win."""
    found: dict[str, dict[int, _Bounds]] = defaultdict(dict)
    if judgement.tuning is not None:
        cells = judgement.tuning.cells
        lightest = cells[0].load if cells else None
        for cell in cells:
            if cell.is_measured and cell.drafter is not None and cell.load == lightest:
                low, high = (
                    cell.speedup * (rate or cell.rate_tok_s) / cell.rate_tok_s
                    for rate in (cell.low, cell.high)
                )
                found[cell.method][cell.k] = (low, cell.speedup, high)
    for whole in judgement.on_all:
        # Per token, as the search measures.
        per_token = whole.speedup_in("tpot")
        if per_token is not None and whole.arm.k:
            speedup = per_token.speedup
            found[whole.arm.method][whole.arm.k] = (speedup.low, speedup.value, speedup.high)
    return [(method, ks) for method, ks in found.items() if len(ks) > 1]


def _best_k(low: int, high: int | None) -> Look:
    """The best k of this range against the best of those outside it, where both were measured."""

    def look(judgement: Judgement) -> Sighting:
        close = ""
        for method, ks in _by_k(judgement):
            inside = [k for k in ks if low <= k <= (high or k)]
            outside = [k for k in ks if k not in inside]
            if not inside or not outside:
                continue
            within, beyond = (max(group, key=lambda k: ks[k][1]) for group in (inside, outside))
            told = f"{_name(method)}: k={within} {ks[within][1]:.2f}x, k={beyond} {ks[beyond][1]:.2f}x"
            if ks[within][0] > ks[beyond][2]:
                return _holds(told)
            if ks[within][2] < ks[beyond][0]:
                return _fails(told)
            close = f"too close to tell; {told}"
        return _untested(close or "draft lengths inside and outside of it were not both measured")

    return look


def _short_drafts(judgement: Judgement) -> Sighting:
    short = [whole for whole in judgement.on_all if 0 < whole.arm.k < 3 and whole.overall is not None]
    if not short:
        return _untested("no arm drafts fewer than 3 tokens")
    faster = [whole for whole in short if whole.overall is not None and whole.overall.speedup.low > 1]
    if faster:
        return _fails(_arm(faster[0]))
    slower = [whole for whole in short if whole.overall is not None and whole.overall.speedup.high < 1]
    return _holds(_arm(slower[0])) if slower else _untested(f"no clear difference; {_arm(short[0])}")


# The draft and the memory


def _drafting_models(judgement: Judgement) -> list[Evidence]:
    return [
        whole
        for whole in judgement.on_all
        if any(isinstance(drafter, DraftModel) for drafter in drafters_of(whole.arm.speculation))
    ]


def _ratios(judgement: Judgement) -> list[tuple[Evidence, float]]:
    """How many times the draft's weights the target's take; by the files, which are not on every machine."""
    target = judgement.weight_bytes.get(judgement.provenance.model)
    return [
        (whole, target / draft)
        for whole in _drafting_models(judgement)
        for drafter in drafters_of(whole.arm.speculation)
        if isinstance(drafter, DraftModel) and target and (draft := judgement.weight_bytes.get(drafter.model))
    ]


def _sweet_spot(judgement: Judgement) -> Sighting:
    """Inside 1:8 to 1:12 it should gain; outside it should not."""
    for whole, ratio in _ratios(judgement):
        told = f"weights 1:{ratio:.1f}, {_arm(whole)}"
        is_inside = 8 <= ratio <= 12
        if whole.overall is not None and whole.overall.speedup.low > 1:
            return _holds(told) if is_inside else _fails(told)
        if whole.overall is not None and whole.overall.speedup.high < 1:
            return _fails(told) if is_inside else _holds(told)
        return _untested(f"no clear difference; {told}")
    return _untested(_no_draft(judgement))


def _more_memory(judgement: Judgement) -> Sighting:
    for whole, ratio in _ratios(judgement):
        told = f"{_name(whole.arm.name)}: its weights are {1 / ratio:.0%} of the target's"
        return _holds(told) if 0.2 <= 1 / ratio <= 0.4 else _fails(told)
    return _untested(_no_draft(judgement))


def _tiny_target(judgement: Judgement) -> Sighting:
    target = judgement.weight_bytes.get(judgement.provenance.model)
    if target is None or target > TINY_BYTES:
        return _untested("the target is no tiny model" if target else "the target's files are not here")
    faster = [
        whole for whole in judgement.on_all if whole.overall is not None and whole.overall.speedup.low > 1
    ]
    compared = [whole for whole in judgement.on_all if whole.overall is not None]
    if not compared:
        return _untested("nothing was compared")
    told = f"weights of {size(target)}, {_arm((faster or compared)[0])}"
    return _fails(told) if faster else _holds(told)


# Two gigabytes hold 4B parameters at 4 bits: nobody's large model.
TINY_BYTES = 2_000_000_000


def _no_draft(judgement: Judgement) -> str:
    return "the models' files are not here" if _drafting_models(judgement) else "no draft model was measured"


# Traffic


def _hot(judgement: Judgement) -> Sighting:
    return _by_temperature(
        judgement, lambda high: high > 0.7, is_faster=False, missing="no part is above 0.7"
    )


def _cool(judgement: Judgement) -> Sighting:
    return _by_temperature(
        judgement, lambda high: high <= 0.5, is_faster=True, missing="no part is at most 0.5"
    )


def _by_temperature(
    judgement: Judgement, applies: Callable[[float], bool], *, is_faster: bool, missing: str
) -> Sighting:
    parts = [
        part
        for whole in judgement.on_all
        for part in whole.parts
        if part.part is Part.TEMPERATURE and applies(float(part.label.rpartition(TEMPERATURE_DASH)[2]))
    ]
    if not parts:
        return _untested(f"temperatures were not compared: {missing}")
    against = [part for part in parts if (part.speedup.high < 1 if is_faster else part.speedup.low > 1)]
    if against:
        return _fails(_part(against[0]))
    support = [part for part in parts if (part.speedup.low > 1 if is_faster else part.speedup.high < 1)]
    return _holds(_part(support[0])) if support else _untested(f"no clear difference; {_part(parts[0])}")


def _short_outputs(judgement: Judgement) -> Sighting:
    for whole in judgement.on_all:
        means = [
            cell.output_tokens_mean for cell in over_temperatures(whole.cells) if cell.output_tokens_mean
        ]
        if whole.overall is None or not means or min(means) >= 50:
            continue
        told = f"{min(means):.0f} tokens, {_arm(whole)}"
        if whole.overall.speedup.low > 1 + NEAR_EVEN:
            return _fails(told)
        return (
            _holds(told)
            if whole.overall.speedup.high < 1 + NEAR_EVEN
            else _untested(f"no clear difference; {told}")
        )
    return _untested("answers have 50 tokens or more")


def _heaviest(judgement: Judgement) -> Iterator[Comparison]:
    """Of every arm, the part at the heaviest of several loads, where that is a high one."""
    for whole in judgement.on_all:
        loads = [part for part in whole.parts if part.part is Part.LOAD]
        order = {cell.load.label: _weight(cell.load) for cell in whole.cells}
        if len(loads) > 1:
            heaviest = max(loads, key=lambda part: order.get(part.label, 0.0))
            if order.get(heaviest.label, 0.0) >= HIGH_STREAMS:
                yield heaviest


def _weight(load: Load) -> float:
    """Of a rate nobody knows whether it is high for this server; the heaviest that was asked for is taken to be."""
    return float(load.streams) if isinstance(load, Concurrency) else HIGH_STREAMS + load.per_s


def _under_load(low: float, high: float) -> Look:
    """At the heaviest load an article expects a speedup in this range; one load alone tells nothing of others."""

    def look(judgement: Judgement) -> Sighting:
        parts = list(_heaviest(judgement))
        if not parts:
            return _untested(f"no load of {HIGH_STREAMS} streams or more beside a lighter one")
        best = max(parts, key=lambda part: part.speedup.value)
        if best.speedup.low > high or best.speedup.high < low:
            return _fails(_part(best))
        if low <= best.speedup.value <= high:
            return _holds(_part(best))
        return _untested(f"no clear difference; {_part(best)}")

    return look


def _look_up_or_draft(judgement: Judgement) -> Sighting:
    """Both measured on the same segments: where more of the text was copied, the look-up should be ahead."""
    for look_up in judgement.on_all:
        if not all(isinstance(drafter, NGram) for drafter in drafters_of(look_up.arm.speculation)):
            continue
        for model in _drafting_models(judgement):
            beside, copied = _segments(model), _most_copied(judgement, look_up, _segments(model))
            if copied is not None:
                other = beside[copied.label]
                told = f"{_part(copied)}, {_part(other)}"
                return _holds(told) if copied.speedup.value > other.speedup.value else _fails(told)
    return _untested("needs a look-up and a draft model on the same segments")


def _segments(whole: Evidence) -> dict[str, Comparison]:
    return {part.label: part for part in whole.parts if part.part is Part.SEGMENT}


def _most_copied(
    judgement: Judgement, look_up: Evidence, among: Mapping[str, Comparison]
) -> Comparison | None:
    """The segment on which the look-up had most accepted."""
    shared = [part for label, part in _segments(look_up).items() if label in among]
    return max(
        shared,
        key=lambda part: _rate(judgement.cells, look_up.arm.name, part.label) or 0.0,
        default=None,
    )


def _mixed_tail(judgement: Judgement) -> Sighting:
    for whole in judgement.on_all:
        worse = [tail for tail in whole.tails if tail.ratio.high < 1]
        if whole.overall is not None and whole.overall.speedup.low > 1 and worse:
            tail = worse[0]
            return _holds(f"{_arm(whole)}, {tail.statistic} {_interval(tail.ratio)}")
    if any(whole.tails for whole in judgement.on_all):
        return _untested("no arm is faster with a slower tail")
    return _untested("too few requests to compare the slowest")


# The ceiling and the first token


def _ceiling(judgement: Judgement) -> Sighting:
    for whole in judgement.on_all:
        lengths = [c.accepted_length.value for c in over_temperatures(whole.cells) if c.accepted_length]
        per_token = whole.speedup_in("tpot")
        if per_token is None or not lengths:
            continue
        speedup = f"{_name(whole.arm.name)} {_interval(per_token.speedup)} per token"
        told = f"{speedup}, {max(lengths):.2f} tokens per step"
        return _fails(told) if per_token.speedup.low > max(lengths) else _holds(told)
    return _untested("the engine reports no accepted length")


def _first_token(judgement: Judgement) -> Sighting:
    """Medians whose intervals do not overlap, at the same load."""
    for whole in _drafting_models(judgement):
        for cell in over_temperatures(whole.cells):
            beside = cell_of(whole.baseline_cells, BASELINE, cell.load)
            bounds, plain = _median_bounds(cell), _median_bounds(beside)
            if bounds is None or plain is None:
                continue
            told = (
                f"{_name(whole.arm.name)} at {cell.load.label}: {bounds[1]:.3f} s, baseline {plain[1]:.3f} s"
            )
            if bounds[0] > plain[2]:
                return _holds(told)
            return _fails(told) if bounds[2] < plain[0] else _untested(f"no clear difference; {told}")
    return _untested("no draft model was measured")


def _median_bounds(cell: Cell | None) -> tuple[float, float, float] | None:
    if cell is None or cell.ttft_s is None or cell.ttft_s.p50 is None:
        return None
    low, high = cell.ttft_s.intervals.get("p50", (None, None))
    return None if low is None or high is None else (low, cell.ttft_s.p50, high)


def _only(why: str) -> Look:
    """Advice that no study of one deployment can test."""
    return lambda _judgement: _untested(why)


def _monitored(judgement: Judgement) -> Sighting:
    is_counted = any(cell.acceptance_rate is not None for cell in judgement.cells if cell.arm != BASELINE)
    counted = (
        "acceptance was counted here, so it can be watched"
        if is_counted
        else "the engine reports no acceptance"
    )
    return _untested(f"advice for running it; {counted}")


# Words


def _name(text: str) -> str:
    return printable(text, limit=40)


def _interval(estimate: Estimate) -> str:
    return f"{estimate.value:.2f}x ({estimate.low:.2f} to {estimate.high:.2f})"


def _arm(whole: Evidence) -> str:
    assert whole.overall is not None
    return f"{_name(whole.arm.name)} {_interval(whole.overall.speedup)}"


def _part(part: Comparison) -> str:
    return f"{_name(part.arm)} on {_name(part.where)} {_interval(part.speedup)}"


def _rule(name: str, source: str, says: str, look: Look) -> ArticleRule:
    return ArticleRule(name=name, source=source, says=says, look=look)


ARTICLE_RULES: tuple[ArticleRule, ...] = (
    _rule(
        "acceptance-below-40",
        "S3",
        "under 40 % accepted it is slower than no speculation",
        _band(0.0, 0.4, is_faster=False),
    ),
    _rule("acceptance-below-50", "S4", "under 50 % accepted: turn it off", _band(0.0, 0.5, is_faster=False)),
    _rule("acceptance-50-65", "S4", "50 to 65 % accepted is near break-even", _near_even),
    _rule(
        "acceptance-above-65", "S4", "above 65 % accepted it likely pays", _band(0.65, 1.01, is_faster=True)
    ),
    _rule(
        "acceptance-above-70",
        "S0",
        "above 70 % accepted the draft is well matched",
        _band(0.7, 1.01, is_faster=True),
    ),
    _rule("even-at-50", "S3", "it breaks even at about 50 % accepted", _even_at_half),
    _rule(
        "acceptance-by-kind", "S2", "creative text 40 to 50 %, questions 70 to 80 % accepted", _typical_rates
    ),
    _rule("acceptance-p10", "S4", "a P10 of acceptance under 50 %: part of the traffic loses", _lowest_tenth),
    _rule("ceiling", "S3", "tokens per step are the ceiling of the speedup", _ceiling),
    _rule("k-at-least-5", "S0", "draft at least 5 tokens", _best_k(5, None)),
    _rule("k-3-7", "S2", "3 to 7 drafted tokens are typical", _best_k(3, 7)),
    _rule("k-under-3", "S0", "fewer than 3 drafted tokens only add overhead", _short_drafts),
    _rule("ratio", "S4", "a draft of 1/8 to 1/12 of the target is the sweet spot", _sweet_spot),
    _rule("memory", "S1", "the draft takes 20 to 40 % more memory", _more_memory),
    _rule("tiny-target", "S2 S3", "tiny targets rarely gain", _tiny_target),
    _rule("temperature-low", "S4", "use it at a temperature of at most 0.5", _cool),
    _rule("temperature-high", "S4", "leave it off above a temperature of 0.7", _hot),
    _rule("short-outputs", "S3", "answers under about 50 tokens barely gain", _short_outputs),
    _rule(
        "ngram-or-draft",
        "S4",
        "look-ups where answers repeat the prompt, draft models elsewhere",
        _look_up_or_draft,
    ),
    _rule("load-gains", "S3", "20 to 27 % faster also at high concurrency", _under_load(1.2, 1.27)),
    _rule("load-slows", "S4", "1.4 to 1.8 times slower at high load", _under_load(1 / 1.8, 1 / 1.4)),
    _rule("tail", "S4", "a better median with a worse tail is a mixed workload and no win", _mixed_tail),
    _rule("ttft", "S4", "the draft's prefill delays the first token", _first_token),
    _rule(
        "quantised-target",
        "S4",
        "five points less acceptance after quantising: step back",
        _only("needs one arm with the target quantised and one without"),
    ),
    _rule(
        "quantise-order",
        "S4",
        "quantise the draft before the target, INT8 before INT4",
        _only("needs several quantisations of both models"),
    ),
    _rule(
        "late",
        "S3",
        "a late optimisation: quantisation, batching and prompts first",
        _only("a study compares speculation with the same server without it"),
    ),
    _rule("monitoring", "S4", "leave it off without acceptance monitoring", _monitored),
)
