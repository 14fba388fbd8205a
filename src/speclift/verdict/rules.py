"""The named rules. Measured rules decide; rules of thumb inform and never overturn a measurement.

[S0] tuning guide, [S1] enabling guide, [S2] vLLM set-up, [S3] when it pays, [S4] configuration and decision
framework: the articles behind each rule of thumb, listed in docs/method.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from speclift.core.arm import BASELINE
from speclift.core.goals import Goals, Slo
from speclift.core.results import (
    Cell,
    Comparison,
    Estimate,
    Evidence,
    Level,
    Part,
    Percentiles,
    Reason,
    TailRatio,
    by_temperature,
    cell_of,
    over_temperatures,
)
from speclift.core.speculation import is_lossy
from speclift.core.traffic import Load

# No part may lose more than measurement can tell from nothing.
NO_PART_LOSES = 0.97
PART_PROMPTS_MIN = 10
# Distinct prompts under which nothing ships, on all traffic or on a part.
PROMPTS_MIN = 8
# How a part is said to stand that is told apart from 1 if looked at alone, and one that is not.
_ALONE = ("likely faster", "likely slower")
_NEITHER = "no clear difference"
# An accepted length of 1.1 is what a launch must show to count as drafting (engines/probe.py); where the engine
# keeps no count, the speedup has to show as much. Of 100,000 simulated studies of an arm that is the baseline no
# lower bound got there where server starts differ by 2 %, and 2 where they differ by 4 %.
UNSEEN_DRAFTS_SPEEDUP_MIN = 1.1
# Of a plain token's time. No step of speculation is cheaper than a plain one; medians differ by so much by chance.
STEP_COST_MIN = 0.9
# One request in a hundred: fewer more failures than that are chance in a study of some hundred requests.
FAILED_SHARE_MORE = 0.01
# From how many requests on a percentile is compared at all, and how many times over nobody measures.
TAIL_REQUESTS_MIN = 50
TAIL_TIMES_MAX = 20
# Of all pairs, those that take far longer by chance on a busy machine; how likely chance may leave so few in a part.
SLOW_PAIRS_FEW = 0.01
SLOW_PAIRS_CHANCE = 0.001
ALL = "all"
UNKNOWN_BECAUSE = {"e2e": "a time per token is unknown and the two answers are of unlike length"}


def min_speedup(evidence: Evidence, goals: Goals) -> Reason:
    """The lower bound clears the bar on all the traffic admitted."""
    overall = evidence.overall
    if overall is None:
        return _reason(
            "min-speedup", Level.FAIL, f"no request succeeded on both {evidence.arm.name} and the baseline"
        )
    bound = overall.simultaneous
    # Equal speed is no gain, whatever bar was set.
    passes = bound.low >= goals.min_speedup and bound.low > 1.0
    return _reason(
        "min-speedup",
        Level.PASS if passes else Level.FAIL,
        f"{evidence.arm.name}: {overall.metric} speedup {_interval(overall)}, the lower bound must be at "
        f"least {goals.min_speedup:g}x ({overall.prompts} prompts, {overall.launches_seen})",
    )


def drafts_seen(evidence: Evidence) -> Reason:
    """An arm that had no draft accepted did the baseline's work: where it looks faster, that is chance.

    Where the engine does not say, only the speed itself can tell the arm from the baseline.
    """
    name, floor = "no-drafts", UNSEEN_DRAFTS_SPEEDUP_MIN
    if is_idle(evidence):
        message = f"{evidence.arm.name}: no draft token was accepted, so it works like the baseline"
        return _reason(name, Level.FAIL, message)
    if any(cell.acceptance_rate is not None for cell in evidence.cells):
        return _reason(name, Level.PASS, "draft tokens were accepted")
    low = evidence.overall.simultaneous.low if evidence.overall is not None else 0.0
    message = f"the engine reports no draft counts, so the speedup's lower bound must be at least {floor:g}x"
    return _reason(name, Level.WARN if low >= floor else Level.FAIL, message)


def is_idle(evidence: Evidence) -> bool:
    """The engine counts drafts, and counted none that was accepted."""
    is_counted = any(cell.accepted_length is not None for cell in evidence.cells)
    rates = [cell.acceptance_rate for cell in evidence.cells if cell.acceptance_rate is not None]
    return is_counted and not any(rate.mean > 0 for rate in rates)


def no_part_loses(evidence: Evidence) -> Reason:
    """The lower bound is at least 0.97 at every load and every segment with enough prompts."""
    losing = losing_parts(evidence)
    if losing:
        named = ", ".join(f"{part.where} {_interval(part)}" for part in losing)
        return _reason("no-part-loses", Level.FAIL, f"may be slower on: {named}")
    thin = [part.where for part in _below_the_floor(evidence) if part.part is Part.SEGMENT]
    unjudged = f" with {PART_PROMPTS_MIN} prompts; too few to judge: {', '.join(thin)}" if thin else ""
    message = f"the lower bound is at least {NO_PART_LOSES}x on every part{unjudged}"
    return _reason("no-part-loses", Level.PASS, message)


def losing_parts(evidence: Evidence) -> list[Comparison]:
    return [
        part
        for part in _below_the_floor(evidence)
        if part.part is Part.LOAD or (part.part is Part.SEGMENT and part.prompts_there >= PART_PROMPTS_MIN)
    ]


def _below_the_floor(evidence: Evidence) -> list[Comparison]:
    return [part for part in evidence.parts if part.speedup.low < NO_PART_LOSES]


def slo_kept(evidence: Evidence, goals: Goals) -> Iterator[Reason]:
    """No limit is missed that the baseline meets, at any load. What cannot be measured is not kept."""
    for slo in goals.slos:
        for cell in by_temperature(evidence.cells):
            beside = cell_of(evidence.baseline_cells, BASELINE, cell.load, cell.segment, cell.temperature)
            yield _slo_reason(slo, cell, beside)


def _slo_reason(slo: Slo, cell: Cell, baseline: Cell | None) -> Reason:
    seen = percentile_of(cell, slo.metric, slo.percentile)
    before = percentile_of(baseline, slo.metric, slo.percentile) if baseline else None
    where = f"{slo.label} at {cell.load.label}"
    if seen is None or before is None:
        needs = ": P99 needs 100 requests per cell" if slo.percentile == "p99" else ""
        message = f"{where} is unknown{needs} ({cell.requests} requests were sent)"
        return _reason("slo", Level.FAIL, message)
    figures = f"{where}: {_ms(seen)}, limit {_ms(slo.limit_s)}, baseline {_ms(before)}"
    if seen > slo.limit_s and before <= slo.limit_s:
        return _reason("slo", Level.FAIL, f"missed, and the baseline meets it. {figures}")
    if seen > slo.limit_s:
        return _reason("slo", Level.WARN, f"missed, also by the baseline. {figures}")
    return _reason("slo", Level.PASS, figures)


def tail_not_slower(evidence: Evidence, goals: Goals) -> Reason:
    """Shown slower fails, shown within the tolerance passes, else a warning that names the percentile [S4: P50 better,
    P99 worse is no win]. What is below the tolerance by the best estimate ships nothing either: with few requests it is
    rarely shown, and more often true than not."""
    tails, tolerance = evidence.tails, goals.tail_tolerance
    slower = [tail for tail in tails if tail.ratio.high < 1.0]
    if slower:
        return _reason("tail", Level.FAIL, f"the slowest requests are slower: {_tails(slower)}")
    if not tails:
        requests = min((cell.requests for cell in over_temperatures(evidence.cells)), default=0)
        seen = f"this study has {requests} requests per load from {evidence.prompts} prompts"
        return _reason("tail", Level.WARN, f"not compared: {tail_settled_by(evidence, goals)}, {seen}")
    unsure = unsure_tails(evidence, goals)
    below = [tail for tail in unsure if tail.ratio.value < tolerance]
    if below:
        message = f"the slowest requests are probably slower than {tolerance:g}x allows: {_tails(below)}"
        return _reason("tail", Level.FAIL, f"{message}; {tail_settled_by(evidence, goals)}")
    if unsure:
        message = f"not proven to be at least {tolerance:g}x as fast as the baseline's tail: {_tails(unsure)}"
        return _reason("tail", Level.WARN, f"{message}; {tail_settled_by(evidence, goals)}")
    named = " and ".join(dict.fromkeys(tail.statistic for tail in tails))
    return _reason("tail", Level.PASS, f"{named} at least {tolerance:g}x as fast as the baseline's")


def leaves_slow_pairs_behind(part: Evidence, whole: Evidence) -> bool:
    """Whether requests that took far longer lie outside the part, by more than the choice of a part with few of them
    would do: one-sided, Fisher's exact test. Where there are hardly any, the tail is slower because segments are."""
    slow, pairs = whole.slow_pairs, whole.completeness.used
    if slow <= SLOW_PAIRS_FEW * pairs:
        return True
    inside, size = part.slow_pairs, part.completeness.used
    ways = math.comb(pairs, slow)
    as_few = sum(
        math.comb(size, count) * math.comb(pairs - size, slow - count) for count in range(inside + 1)
    )
    return as_few / ways <= SLOW_PAIRS_CHANCE


def tail_is_slower(evidence: Evidence) -> bool:
    return any(tail.ratio.high < 1.0 for tail in evidence.tails)


def unsure_tails(evidence: Evidence, goals: Goals) -> list[TailRatio]:
    """Neither shown slower nor shown to be within the tolerance, the least sure first."""
    tolerance = goals.tail_tolerance
    unsure = [tail for tail in evidence.tails if tail.ratio.low < tolerance and tail.ratio.high >= 1.0]
    return sorted(unsure, key=lambda tail: prompts_to_settle(tail, tolerance), reverse=True)


def tail_settled_by(evidence: Evidence, goals: Goals) -> str:
    """How many requests would show the tail to be slower or within the tolerance, whichever is nearer."""
    unsure = unsure_tails(evidence, goals)
    if not unsure:
        return f"P90 needs about {TAIL_REQUESTS_MIN} requests with different prompts"
    needed, now = prompts_to_settle(unsure[0], goals.tail_tolerance), unsure[0].ratio.n
    if needed > TAIL_TIMES_MAX * now:
        return (
            f"more than {TAIL_TIMES_MAX * now} requests with different prompts would be needed to settle it"
        )
    return f"about {needed:.0f} requests with different prompts would settle it (now {now})"


def prompts_to_settle(tail: TailRatio, tolerance: float) -> float:
    """Distances from value to bound shrink with the root of the number of prompts; infinite on the tolerance."""
    ratio = tail.ratio
    above = math.log(ratio.high / ratio.value)
    below = math.log(ratio.value / ratio.low) if ratio.low > 0 else above
    margins = (below, math.log(ratio.value / tolerance)), (above, -math.log(ratio.value))
    times = [(distance / margin) ** 2 for distance, margin in margins if margin > 0]
    return max(tail.prompts_min, math.ceil(min(times) * ratio.n)) if times else math.inf


def _tails(tails: Sequence[TailRatio]) -> str:
    return ", ".join(f"{tail.metric} {tail.statistic} {tail.where} {_bounds(tail.ratio)}" for tail in tails)


def enough_prompts(evidence: Evidence) -> Iterator[Reason]:
    """Fewer distinct prompts than this say nothing about the next one, however often they were sent."""
    if evidence.prompts < PROMPTS_MIN:
        plural = "s" if evidence.prompts != 1 else ""
        message = f"{evidence.prompts} distinct prompt{plural}; SHIP needs at least {PROMPTS_MIN}"
        yield _reason("few-prompts", Level.FAIL, message)


def pairs_complete(evidence: Evidence) -> Iterator[Reason]:
    """What both arms were asked and the estimate cannot use is counted; beyond a few per cent nothing ships."""
    found = evidence.completeness
    if found.metric != found.metric_asked:
        message = f"{found.metric_asked} is unknown for too many answers; {found.metric} is judged instead"
        yield _reason("metric", Level.WARN, message)
    missing = found.asked - found.used
    if missing:
        level = Level.INFO if found.is_complete else Level.FAIL
        unknown = UNKNOWN_BECAUSE.get(found.metric, f"its {found.metric} is unknown")
        message = f"{missing} of {found.asked} pairs are left out: a request failed, or {unknown}"
        yield _reason("left-out", level, message)


def answers_are_real(evidence: Evidence) -> Iterator[Reason]:
    """A loop accepts every draft: a segment full of them shows a speed that nobody's traffic has."""
    for found in evidence.degenerate:
        message = (
            f"{found.looping} of {found.answers} answers in {found.segment} end in a repetition loop, "
            "which accepts every draft token: its speedup is not real"
        )
        yield _reason("degenerate-output", Level.FAIL, message)


def text_is_real(evidence: Evidence) -> Iterator[Reason]:
    """A method that gives up the target's own text measures cost; however fast, it is nothing to ship."""
    if is_lossy(evidence.arm.speculation):
        message = f"{evidence.arm.name} forces acceptance: its text is not the model's, it only measures cost"
        yield _reason("lossy-method", Level.FAIL, message)


def failures_not_more(evidence: Evidence) -> Reason:
    """Requests that fail under speculation and not without it are not a speedup."""
    failed, requests = _failures(evidence.cells)
    before, before_requests = _failures(evidence.baseline_cells)
    share = failed / requests if requests else 1.0
    share_before = before / before_requests if before_requests else 1.0
    message = f"{failed} of {requests} requests failed, baseline {before} of {before_requests}"
    more = share > share_before + FAILED_SHARE_MORE
    return _reason("failures", Level.FAIL if more else Level.PASS, message)


def _failures(cells: tuple[Cell, ...]) -> tuple[int, int]:
    whole = over_temperatures(cells)
    return sum(cell.failed for cell in whole), sum(cell.requests for cell in whole)


def parts_of_condition(evidence: Evidence) -> Iterator[Reason]:
    """A condition names what each of its segments gains: the mean of a strong one and a weak one is neither's."""
    segments = [part for part in evidence.parts if part.part is Part.SEGMENT]
    if segments:
        named = ", ".join(f"{part.where} {_interval(part)}" for part in segments)
        yield _reason("conditions", Level.INFO, f"speedup of each allowed segment: {named}")


# What informs: the parts in one line, then the rules of thumb

Rule = Callable[[Evidence], Iterator[Reason]]


# Below the first limit that holds: rule, level, what the articles say, and which.
ACCEPTANCE_BANDS = (
    (0.4, "acceptance-low", Level.WARN, "below 40 % it is usually slower than no speculation", "S3"),
    (0.5, "acceptance-low", Level.WARN, "below 50 % the usual advice is to turn it off", "S4"),
    (0.65, "acceptance-middling", Level.INFO, "50-65 % is usually near break-even", "S4"),
    (float("inf"), "acceptance-good", Level.INFO, "above 65 % it usually pays off", "S4"),
)


def acceptance_bands(evidence: Evidence) -> Iterator[Reason]:
    """One line per band, whichever loads fall into it: acceptance hardly depends on load."""
    seen = [
        (cell.acceptance_rate, cell.load.label)
        for cell in by_temperature(evidence.cells)
        if cell.acceptance_rate is not None
    ]
    yield from _bands_of([(rate.mean, load) for rate, load in seen])
    tenths = (rate.p10 for rate, _ in seen if rate.mean >= 0.5 and rate.p10 is not None)
    lowest = min((tenth for tenth in tenths if tenth < 0.5), default=None)
    if lowest is not None:
        message = f"P10 of the acceptance rate is {lowest:.0%}: part of the traffic is probably slower"
        yield _reason("acceptance-p10", Level.WARN, message, "S4")


def _bands_of(means: Sequence[tuple[float, str]]) -> Iterator[Reason]:
    floor = 0.0
    for limit, rule, level, saying, source in ACCEPTANCE_BANDS:
        inside = [(mean, load) for mean, load in means if floor <= mean < limit]
        floor = limit
        if inside:
            shares = " to ".join(dict.fromkeys(f"{edge(inside)[0]:.0%}" for edge in (min, max)))
            loads = ", ".join(dict.fromkeys(load for _, load in inside))
            yield _reason(rule, level, f"acceptance rate {shares} at {loads}: {saying}", source)


def short_outputs(evidence: Evidence) -> Iterator[Reason]:
    means = [c.output_tokens_mean for c in by_temperature(evidence.cells) if c.output_tokens_mean]
    if means and min(means) < 50:
        message = f"outputs average {min(means):.0f} tokens: below about 50 the gain is usually small"
        yield _reason("short-outputs", Level.INFO, message, "S3")


def ttft_bound(evidence: Evidence) -> Iterator[Reason]:
    for cell in by_temperature(evidence.cells):
        if cell.ttft_s is None or cell.e2e_s is None:
            continue
        if cell.ttft_s.p50 and cell.e2e_s.p50 and cell.ttft_s.p50 > 0.5 * cell.e2e_s.p50:
            share = cell.ttft_s.p50 / cell.e2e_s.p50
            message = f"TTFT is {share:.0%} of the end-to-end time; speculation does not reduce TTFT"
            yield _reason("ttft-bound", Level.WARN, message, "S4")


def typical_k(evidence: Evidence) -> Iterator[Reason]:
    if evidence.arm.method.startswith(("draft", "eagle", "mtp")) and not 3 <= evidence.arm.k <= 7:
        message = f"k={evidence.arm.k} is outside the usual range 3-7"
        yield _reason("k-range", Level.INFO, message, "S2")


def where_it_pays(evidence: Evidence) -> Iterator[Reason]:
    """What can be said of each part while all of it holds together at 95 %, and what only if it is looked at alone."""
    groups: dict[str, list[str]] = {side: [] for side in ("faster", "slower", *_ALONE, _NEITHER)}
    for part in evidence.parts:
        side = _side(part.simultaneous)
        if side == _NEITHER and (alone := _side(part.speedup)) != _NEITHER:
            side = f"likely {alone}"
        groups[side].append(f"{part.where} {part.speedup.value:.2f}x")
    said = [f"{side} on {', '.join(parts)}" for side, parts in groups.items() if parts]
    likely = " (likely: significant alone, but not when all parts are tested together)"
    note = likely if any(groups[side] for side in _ALONE) else ""
    if said:
        yield _reason("where-it-pays", Level.INFO, f"{evidence.arm.name}: {'; '.join(said)}{note}")


def _side(bound: Estimate) -> str:
    return "faster" if bound.low > 1 else "slower" if bound.high < 1 else _NEITHER


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """A step takes as long as `cost` tokens of the baseline at this load: it pays where it says more of them."""

    load: Load
    cost: float
    # Accepted length by segment.
    lengths: Mapping[str, float]


def break_evens(cells: Sequence[Cell]) -> tuple[BreakEven, ...]:
    """Of one arm's cells and the baseline's. Time per token times tokens per step is the time of a step; segments
    differ little in it, so their median stands for the load. None where a step would be cheaper than a plain one."""
    return tuple(found for found in _counted_break_evens(cells) if found.cost >= STEP_COST_MIN)


def _counted_break_evens(cells: Sequence[Cell]) -> Iterator[BreakEven]:
    for load, segments in _step_costs(cells).items():
        cost = median(cost for _, cost in segments.values())
        yield BreakEven(
            load=load,
            # A step gives a token at least, and what is less by chance is that.
            cost=max(1.0, cost) if cost >= STEP_COST_MIN else cost,
            lengths={segment: length for segment, (length, _) in segments.items()},
        )


def _step_costs(cells: Sequence[Cell]) -> dict[Load, dict[str, tuple[float, float]]]:
    """By load and part of the traffic: accepted length, and a step's time in tokens of the baseline."""
    known = {(cell.arm, cell.load, cell.segment, cell.temperature): cell for cell in by_temperature(cells)}
    by_load: dict[Load, dict[str, tuple[float, float]]] = {}
    for (arm, load, segment, temperature), cell in known.items():
        beside = known.get((BASELINE, load, segment, temperature))
        if arm == BASELINE or cell.accepted_length is None or beside is None:
            continue
        tpot_s, base_s = percentile_of(cell, "tpot", "p50"), percentile_of(beside, "tpot", "p50")
        if tpot_s and base_s:
            length = cell.accepted_length.value
            part = segment if temperature is None else f"{segment} at temperature {temperature:g}"
            by_load.setdefault(load, {})[part] = (length, length * tpot_s / base_s)
    return by_load


def break_even(evidence: Evidence) -> Iterator[Reason]:
    for found in _counted_break_evens(evidence.segment_cells):
        if found.cost < STEP_COST_MIN:
            message = (
                f"{evidence.arm.name} has no break-even at {found.load.label}: by the server's draft counts a step "
                f"takes the time of {found.cost:.2f} plain tokens, and none is that cheap; they count too few"
            )
            yield _reason("break-even", Level.WARN, message)
            continue
        groups: dict[str, list[str]] = {"above it": [], "below it": []}
        for segment, length in found.lengths.items():
            groups["above it" if length > found.cost else "below it"].append(f"{segment} {length:.2f}")
        said = "; ".join(f"{side}: {', '.join(parts)}" for side, parts in groups.items() if parts)
        message = (
            f"{evidence.arm.name} breaks even at an accepted length of {found.cost:.2f} "
            f"at {found.load.label}; {said}"
        )
        yield _reason("break-even", Level.INFO, message)


def e2e_speedup(evidence: Evidence) -> Iterator[Reason]:
    e2e = evidence.speedup_in("e2e")
    if e2e is not None and evidence.overall is not None and evidence.overall.metric != "e2e":
        message = f"end-to-end speedup {_interval(e2e)}; below 1.3x the usual advice is not to ship"
        level = Level.INFO if e2e.speedup.value >= 1.3 else Level.WARN
        yield _reason("e2e", level, message, "S3")


# What is said of every arm that was compared, not of the best alone.
PLACING: tuple[Rule, ...] = (where_it_pays, break_even)
INFORMING: tuple[Rule, ...] = (
    *PLACING,
    acceptance_bands,
    short_outputs,
    ttft_bound,
    typical_k,
    e2e_speedup,
)


def percentile_of(cell: Cell, metric: str, percentile: str) -> float | None:
    held: Percentiles | None = {"ttft": cell.ttft_s, "tpot": cell.tpot_s, "e2e": cell.e2e_s}[metric]
    if held is None:
        return None
    value: float | None = getattr(held, percentile)
    return value


def _interval(comparison: Comparison) -> str:
    return _bounds(comparison.simultaneous if comparison.part is Part.ALL else comparison.speedup)


def _bounds(estimate: Estimate) -> str:
    if estimate.high > 1e6:
        return f"{estimate.value:.2f}x (interval unknown)"
    low = f"{estimate.low:.2f}" if estimate.low > 0 else "unknown"
    return f"{estimate.value:.2f}x [{low}, {estimate.high:.2f}]"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _reason(rule: str, level: Level, message: str, source: str = "measured") -> Reason:
    return Reason(rule=rule, level=level, message=message, source=source)
