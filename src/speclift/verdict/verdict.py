"""The verdict, first match wins: output-changed, ship, ship-on-conditions, do-not-ship, inconclusive."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from speclift.core.arm import Arm
from speclift.core.goals import Goals
from speclift.core.results import (
    ALL_TRAFFIC,
    TEMPERATURE_DASH,
    Comparison,
    Conditions,
    Decision,
    Estimate,
    Evidence,
    Finding,
    Level,
    MoreData,
    OpenPart,
    Part,
    Reason,
    Verdict,
    fail,
)
from speclift.core.traffic import Concurrency
from speclift.lossless.gate import ArmOutcome, Gate, Result
from speclift.verdict import rules


@dataclass(frozen=True, slots=True, kw_only=True)
class GateWord:
    result: Result = Result.SKIPPED
    note: str = ""
    # Whoever asked for the full gate wants proof, not the absence of a disproof.
    is_proof_required: bool = False


NOT_ASKED = GateWord()


def changed_arms(outcome: Gate) -> tuple[ArmOutcome, ...]:
    return tuple(arm for arm in outcome.outcomes if arm.result is Result.FAIL)


def changed_findings(outcome: Gate) -> tuple[Finding, ...]:
    """For arms that are out while others stay in."""
    return tuple(
        fail(
            "output-changed",
            f"{arm.arm}: {arm.message}",
            then="the report shows both outputs side by side",
            arm=arm.arm,
        )
        for arm in changed_arms(outcome)
    )


def gate_for_verdict(outcome: Gate, standing: Sequence[Arm], competing: Sequence[Arm]) -> GateWord:
    is_full = outcome.mode == "full"
    if not outcome.arms:
        return GateWord(result=outcome.result, note=outcome.why, is_proof_required=is_full)
    result, note = _of_arms(outcome.outcomes, [arm.name for arm in (standing or competing)])
    return GateWord(result=result, note=note, is_proof_required=is_full)


def _of_arms(arms: Sequence[ArmOutcome], wanted: Sequence[str]) -> tuple[Result, str]:
    judged = {arm.arm: arm for arm in arms}
    seen = [judged[name] for name in wanted if name in judged]
    unseen = [name for name in wanted if name not in judged]
    if unseen and not any(arm.result is Result.FAIL for arm in seen):
        return Result.INCONCLUSIVE, f"not compared with the baseline: {', '.join(unseen)}"
    for result in (Result.FAIL, Result.INCONCLUSIVE, Result.PASS):
        deciding = [arm for arm in seen if arm.result is result]
        if deciding:
            return result, "; ".join(f"{arm.arm}: {arm.message}" for arm in deciding[:2])
    return Result.INCONCLUSIVE, ""


EvidenceFor = Callable[[Arm, Conditions], Evidence]


def best_part(
    on_all: Sequence[Evidence], evidence_for: EvidenceFor, *, ships: Callable[[Evidence], bool], bar: float
) -> Evidence | None:
    """The largest part of the traffic on which an arm ships; ties go to the higher lower bound."""
    best: Evidence | None = None
    for whole in on_all:
        for ceiling in ceilings(whole):
            within = whole if ceiling == ALL_TRAFFIC else evidence_for(whole.arm, ceiling)
            if best is not None and _size(within) < _size(best):
                continue  # whatever segments are taken from it, it stays smaller
            for evidence in _parts_within(within, evidence_for, bar=bar):
                if ships(evidence):
                    best = evidence if best is None or _rank(evidence) > _rank(best) else best
                    break
    return best


def ceilings(whole: Evidence) -> Iterator[Conditions]:
    """No ceiling first, then every measured load and temperature but the highest, alone and together."""
    loads = {cell.load for cell in whole.cells}
    streams = sorted({load.streams for load in loads if isinstance(load, Concurrency)}, reverse=True)
    rates = sorted({load.per_s for load in loads if not isinstance(load, Concurrency)}, reverse=True)
    labels = [part.label for part in whole.parts if part.part is Part.TEMPERATURE]
    # A bucket of temperatures is named by its lowest and highest; a ceiling is its highest.
    temperatures = sorted({float(label.rpartition(TEMPERATURE_DASH)[2]) for label in labels}, reverse=True)
    for concurrency, qps, temperature in product(
        (None, *streams[1:]), (None, *rates[1:]), (None, *temperatures[1:])
    ):
        yield Conditions(max_concurrency=concurrency, max_qps=qps, max_temperature=temperature)


def _parts_within(within: Evidence, evidence_for: EvidenceFor, *, bar: float) -> Iterator[Evidence]:
    """All segments, then the surest ones, fewer and fewer: those whose mean reaches the bar at all. A segment whose
    answers are loops is in none of them."""
    if within.conditions != ALL_TRAFFIC:
        yield within
    looping = {found.segment for found in within.degenerate}
    segments = [part for part in within.parts if part.part is Part.SEGMENT]
    surest = sorted(
        (part for part in segments if part.label not in looping),
        key=lambda part: part.speedup.low,
        reverse=True,
    )
    for count in range(min(len(surest), len(segments) - 1), 0, -1):
        if _mean_speedup(surest[:count]) >= bar:
            names = tuple(part.label for part in surest[:count])
            yield evidence_for(within.arm, replace(within.conditions, segments=names))


def _mean_speedup(parts: Sequence[Comparison]) -> float:
    prompts = sum(part.prompts_there for part in parts)
    return math.exp(sum(part.prompts_there * math.log(part.speedup.value) for part in parts) / prompts)


def _size(evidence: Evidence) -> float:
    # Shares of one part in two arms may differ by a failed request.
    return round(evidence.traffic_share, 3)


def _rank(evidence: Evidence) -> tuple[float, float]:
    low = evidence.overall.simultaneous.low if evidence.overall is not None else 0.0
    return _size(evidence), low


# Enough to act on; the table of speedups has the rest.
ADVICE_MAX = 3
# Nobody measures more than this many times over.
TIMES_MAX = 20


def decide(
    arms: Sequence[Arm],
    evidence_for: EvidenceFor,
    *,
    goals: Goals,
    findings: Sequence[Finding] = (),
    gate: GateWord = NOT_ASKED,
) -> Verdict:
    """`arms` are the speculative arms with at least one record; `evidence_for` compares one within conditions."""
    on_all = [evidence_for(arm, ALL_TRAFFIC) for arm in arms]
    verdict = partial(_verdict, goals=goals, beside=on_all)
    best = max(on_all, key=_speedup, default=None)
    invalid = [finding for finding in findings if finding.level is Level.FAIL and finding.arm is None]
    notes = (_lossless_reason(gate), *(_finding_reason(finding) for finding in invalid))
    if gate.result is Result.FAIL:
        return verdict(Decision.OUTPUT_CHANGED, best, notes)
    if invalid or (gate.is_proof_required and gate.result is not Result.PASS):
        return verdict(Decision.INCONCLUSIVE, best, notes)
    winner = _winner(on_all, evidence_for, goals)
    if winner is not None:
        ships = Decision.SHIP if winner.conditions == ALL_TRAFFIC else Decision.SHIP_ON_CONDITIONS
        return verdict(ships, winner, notes, wins=True)
    still_open = _open_parts(on_all, goals)
    if best is not None and all(_cannot_pay(evidence, goals) for evidence in on_all):
        return verdict(Decision.DO_NOT_SHIP, best, (*notes, *_said_open(still_open)), still_open=still_open)
    unsure = _unsure_parts(on_all, still_open)
    notes = (*notes, *_what_would_settle_it(on_all, still_open, unsure, goals))
    return verdict(Decision.INCONCLUSIVE, best, notes, still_open=still_open, unsure=unsure)


def _winner(on_all: Sequence[Evidence], evidence_for: EvidenceFor, goals: Goals) -> Evidence | None:
    """The best arm that ships on all traffic, else the best part on which one does."""
    shipping = [evidence for evidence in on_all if _ships(evidence, goals)]
    if shipping:
        return max(shipping, key=_lower_bound)
    slow = {evidence.arm: evidence for evidence in on_all if rules.tail_is_slower(evidence)}

    def ships(part: Evidence) -> bool:
        """Where the tail is slower on all traffic a part must leave it behind: with fewer requests none is shown to be
        slow."""
        whole = slow.get(part.arm)
        return _ships(part, goals) and (whole is None or rules.leaves_slow_pairs_behind(part, whole))

    return best_part(on_all, evidence_for, ships=ships, bar=goals.min_speedup)


def deciding_rules(evidence: Evidence, goals: Goals) -> Iterator[Reason]:
    yield rules.min_speedup(evidence, goals)
    yield from rules.enough_prompts(evidence)
    yield from rules.pairs_complete(evidence)
    yield rules.drafts_seen(evidence)
    yield from rules.text_is_real(evidence)
    yield from rules.answers_are_real(evidence)
    yield rules.no_part_loses(evidence)
    yield from rules.slo_kept(evidence, goals)
    yield rules.tail_not_slower(evidence, goals)
    yield rules.failures_not_more(evidence)


def _ships(evidence: Evidence, goals: Goals) -> bool:
    return all(reason.level is not Level.FAIL for reason in deciding_rules(evidence, goals))


def _cannot_pay(evidence: Evidence, goals: Goals) -> bool:
    """The upper bound lies under the bar on all traffic; parts that might still reach it are listed as open."""
    overall = evidence.overall
    is_known = overall is not None and evidence.completeness.could_pay_no_more
    return is_known and overall is not None and overall.speedup.high < goals.min_speedup


def _verdict(
    decision: Decision,
    evidence: Evidence | None,
    notes: Sequence[Reason],
    *,
    goals: Goals,
    beside: Sequence[Evidence],
    wins: bool = False,
    still_open: Sequence[OpenPart] = (),
    unsure: Sequence[OpenPart] = (),
) -> Verdict:
    reasons = list(notes)
    is_conditional = decision is Decision.SHIP_ON_CONDITIONS
    if evidence is not None:
        reasons = [*deciding_rules(evidence, goals), *reasons]
        if is_conditional:
            reasons += rules.parts_of_condition(evidence)
        reasons += [reason for rule in rules.INFORMING for reason in rule(evidence)]
        others = [other for other in beside if other.arm != evidence.arm]
        reasons += [reason for other in others for rule in rules.PLACING for reason in rule(other)]
    return Verdict(
        decision=decision,
        reasons=tuple(reasons),
        conditions=evidence.conditions if evidence is not None and is_conditional else None,
        winner=evidence.arm if evidence is not None and wins else None,
        evidence=evidence,
        open=tuple(still_open),
        unsure=tuple(unsure),
    )


def _open_parts(on_all: Sequence[Evidence], goals: Goals) -> tuple[OpenPart, ...]:
    """What more data might show to pay, the most promising arm first. An arm that drafts nothing, and a segment of
    loops, would not ship whatever they showed."""
    compared = sorted((e for e in on_all if e.overall is not None), key=_speedup, reverse=True)
    return tuple(
        _open_part(comparison, goals)
        for evidence in compared
        if not rules.is_idle(evidence)
        for comparison in (evidence.overall, *evidence.parts)
        if comparison is not None
        and _straddles(comparison, goals)
        and comparison.label not in {found.segment for found in evidence.degenerate}
    )


def _unsure_parts(on_all: Sequence[Evidence], still_open: Sequence[OpenPart]) -> tuple[OpenPart, ...]:
    """Of the most promising arm, the parts whose interval reaches below the floor; where others are open, those are to
    be settled first."""
    best = max((e for e in on_all if e.overall is not None), key=_speedup, default=None)
    if best is None or still_open:
        return ()
    return tuple(_thin_part(part) for part in rules.losing_parts(best))


def _said_open(still_open: Sequence[OpenPart]) -> Iterator[Reason]:
    for part in still_open[:ADVICE_MAX]:
        yield Reason(rule="open", level=Level.INFO, message=part.settle)
    if len(still_open) > ADVICE_MAX:
        message = f"{len(still_open) - ADVICE_MAX} more parts are undecided; see the speedup table"
        yield Reason(rule="open", level=Level.INFO, message=message)


def _what_would_settle_it(
    on_all: Sequence[Evidence], still_open: Sequence[OpenPart], unsure: Sequence[OpenPart], goals: Goals
) -> Iterator[Reason]:
    compared = sorted((e for e in on_all if e.overall is not None), key=_speedup, reverse=True)
    if not compared:
        message = "no speculative arm could be compared with the baseline"
        yield Reason(rule="evidence", level=Level.WARN, message=message)
        return
    settling = [part.settle for part in (still_open or unsure)]
    failed = {r.rule for r in deciding_rules(compared[0], goals) if r.level is Level.FAIL}
    otherwise = f"more data would not change the verdict; failed rules: {', '.join(sorted(failed))}"
    for message in (settling or [otherwise])[:ADVICE_MAX]:
        yield Reason(rule="more-data", level=Level.INFO, message=message)


def _straddles(comparison: Comparison, goals: Goals) -> bool:
    return comparison.simultaneous.low < goals.min_speedup <= comparison.speedup.high


def _open_part(comparison: Comparison, goals: Goals) -> OpenPart:
    where = f"{comparison.arm} {'overall' if comparison.part is Part.ALL else f'on {comparison.where}'}"
    if comparison.simultaneous.low <= 0:
        seen = f"{comparison.prompts} prompts and {comparison.launches} launches"
        return OpenPart(
            comparison=comparison, settle=f"{where}: {seen} are too few for a confidence interval"
        )
    needs, bar = _needs(comparison, goals), f"{goals.min_speedup:g}x"
    if needs is None:
        return OpenPart(
            comparison=comparison, settle=f"{where}: too close to {bar} to decide with a reasonable sample"
        )
    if needs.together:
        options = [f"about {needs.prompts} prompts and {needs.launches} launches"]
    else:
        options = [
            f"about {needed} {what} (now {now})"
            for needed, what, now in (
                (needs.prompts, "prompts", comparison.prompts),
                # Launches on a machine that was seen already say little of other machines.
                (needs.launches, "launches", comparison.launches)
                if comparison.nodes == 1
                else (needs.launches, "nodes with a launch each", comparison.nodes),
            )
            if needed is not None
        ]
    settle = f"{where}: measure {' or '.join(options)} to decide whether it reaches {bar}"
    return OpenPart(comparison=comparison, settle=settle, needs=needs)


def _needs(comparison: Comparison, goals: Goals) -> MoreData | None:
    """None where no reasonable sample would do."""
    if comparison.prompts_needed is not None or comparison.launches_needed is not None:
        return MoreData(prompts=comparison.prompts_needed, launches=comparison.launches_needed)
    # Neither alone is enough; widths fall at least with the root of how much there is of both.
    times = _times_needed(comparison.simultaneous, goals.min_speedup)
    if times > TIMES_MAX:
        return None
    prompts, launches = (math.ceil(times * n) for n in (comparison.prompts, comparison.launches))
    return MoreData(prompts=prompts, launches=launches, together=True)


def _thin_part(part: Comparison) -> OpenPart:
    """An interval that reaches below the floor of a part."""
    where, floor = f"{part.arm} on {part.where}", rules.NO_PART_LOSES
    if part.speedup.value <= floor:
        settle = f"{where}: it is slower, and no condition without it was proven faster"
        return OpenPart(comparison=part, settle=settle)
    times = _times_needed(part.speedup, floor)
    if times > TIMES_MAX:
        return OpenPart(
            comparison=part, settle=f"{where}: too close to {floor:g}x to decide with a reasonable sample"
        )
    needed = math.ceil(times * part.prompts)
    settle = f"{where}: measure about {needed} prompts (now {part.prompts}) to decide whether it stays above {floor:g}x"
    return OpenPart(comparison=part, settle=settle, needs=MoreData(prompts=needed))


def _times_needed(estimate: Estimate, bar: float) -> float:
    """How many times as much data brings the interval clear of the bar; infinite where none would."""
    margin = abs(math.log(estimate.value / bar))
    if not margin > 0 or estimate.low <= 0:
        return math.inf
    ratio = math.log(estimate.high / estimate.low) / 2 / margin
    return ratio**2 if ratio < TIMES_MAX else math.inf


def _lossless_reason(gate: GateWord) -> Reason:
    level, said = {
        Result.FAIL: (Level.FAIL, "the output changed under speculation"),
        Result.PASS: (Level.PASS, "the output did not change"),
    }.get(gate.result, (Level.WARN, f"not proven that the output is the same ({gate.result})"))
    return Reason(rule="lossless", level=level, message=f"{said}: {gate.note}" if gate.note else said)


def _finding_reason(finding: Finding) -> Reason:
    message = f"{finding.message}; {finding.next_step}" if finding.next_step else finding.message
    return Reason(rule=finding.check, level=finding.level, message=message)


def _speedup(evidence: Evidence) -> float:
    return evidence.overall.speedup.value if evidence.overall is not None else 0.0


def _lower_bound(evidence: Evidence) -> float:
    return evidence.overall.simultaneous.low if evidence.overall is not None else 0.0
