"""The verdict as somebody reads it who has to act on it: what to do, why, and which command comes next. Pure.

It decides nothing: every figure is one that the verdict rests on.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence

from speclift.core.answer import SENTENCE_CHARACTERS_MAX, NextCommand, ShortAnswer, answered
from speclift.core.arm import BASELINE, YOURS
from speclift.core.document import UNKNOWN_FROM
from speclift.core.goals import Goals
from speclift.core.quantities import printable
from speclift.core.rerun_command import ARMS, TRAFFIC, CommandLine
from speclift.core.results import (
    Comparison,
    Conditions,
    Decision,
    Estimate,
    Evidence,
    Finding,
    Level,
    OpenPart,
    Part,
    Reason,
    TailRatio,
    over_temperatures,
)
from speclift.core.speculation import Attached, method_text
from speclift.lossless.gate import Result
from speclift.verdict import rules
from speclift.verdict.judgement import Judgement
from speclift.verdict.verdict import changed_arms

# An article's lower end of how many prompts of real traffic are enough to judge [S3].
PROMPTS_TO_START = 30
# A P99 is known from this many requests of a cell on.
P99_REQUESTS = 100
# A limit must not cut off what was estimated; estimates are off by less than this.
BUDGET_MARGIN = 1.5
# What a search varies beside the arms; a command that names one arm would have to name these too.
VARIED = ("--target-quant", "--draft-quant", "--draft-tp", "--token-budget")


def next_step(judgement: Judgement) -> NextCommand | None:
    if invalid_findings(judgement) and judgement.verdict.decision is Decision.INCONCLUSIVE:
        return None  # what they say has to be put right first
    match judgement.verdict.decision:
        case Decision.SHIP | Decision.SHIP_ON_CONDITIONS:
            return _serve(judgement)
        case Decision.OUTPUT_CHANGED:
            return None
        case Decision.DO_NOT_SHIP:
            return _settle(judgement, [part for part in judgement.verdict.open if is_promising(part)])
        case Decision.INCONCLUSIVE:
            waiting = (*judgement.verdict.open, *judgement.verdict.unsure)
            return _resume(judgement) or _settle(judgement, waiting) or _measure_enough(judgement)


def invalid_findings(judgement: Judgement) -> list[Finding]:
    """What makes the figures of every arm worthless."""
    return [found for found in judgement.findings if found.level is Level.FAIL and found.arm is None]


def is_promising(part: OpenPart) -> bool:
    """A part of the traffic that was seen to be faster: that a slow one may turn out fast is no reason to go on."""
    return part.comparison.part is not Part.ALL and part.comparison.speedup.value > 1


def _serve(judgement: Judgement) -> NextCommand | None:
    """The winner's server, as long as it took to be ready."""
    winner, served = judgement.verdict.winner, judgement.served
    command = served.forms.get("command") if served is not None else None
    seconds = judgement.effort.ready_s.get(winner.name) if winner is not None else None
    return None if command is None or seconds is None else NextCommand(command=command, seconds=seconds)


def _resume(judgement: Judgement) -> NextCommand | None:
    """A study that a budget or Ctrl-C cut short goes on where it was."""
    effort, line = judgement.effort, CommandLine(judgement.provenance.argv)
    seconds = effort.seconds_to_end()
    if not effort.missing or seconds is None:
        return None
    words = ["speclift", line.verb or "decide", "--resume", "--study", judgement.study]
    if line.has("--budget") or not line.has(*TRAFFIC):
        words += ["--budget", _budget(seconds)]
    return NextCommand(command=shlex.join(words), seconds=seconds)


def _settle(judgement: Judgement, waiting: Sequence[OpenPart]) -> NextCommand | None:
    """More prompts or more launches for the first part that they would settle, whichever takes less time."""
    for part in waiting:
        steps = [step for step in _ways_to_settle(judgement, part) if step is not None]
        if steps:
            return min(steps, key=lambda step: step.seconds)
    return None


def _ways_to_settle(judgement: Judgement, part: OpenPart) -> list[NextCommand | None]:
    effort, comparison, needs = judgement.effort, part.comparison, part.needs
    if needs is None:
        return []
    segment = comparison.label if comparison.part is Part.SEGMENT else None
    now = comparison.prompts if segment is not None else effort.requests
    if needs.together:
        ways = [(needs.prompts, needs.launches)]
    else:
        ways = [(needs.prompts, effort.launches), (now, needs.launches)]
    return [
        # With fewer prompts than the rule wants nothing would ship whatever they showed.
        _measure(
            judgement,
            arm=comparison.arm,
            segment=segment,
            requests=max(requests, rules.PROMPTS_MIN),
            launches=launches,
        )
        for requests, launches in ways
        if requests is not None and launches is not None
    ]


def _measure_enough(judgement: Judgement) -> NextCommand | None:
    """Where a rule fails for want of requests, what it asks for."""
    evidence, effort = judgement.verdict.evidence, judgement.effort
    if evidence is None:
        return None
    failed = {reason.rule for reason in judgement.verdict.reasons if reason.level is Level.FAIL}
    requests = int(min(PROMPTS_TO_START, _pool(judgement))) if evidence.prompts < rules.PROMPTS_MIN else 0
    if "slo" in failed and effort.requests < P99_REQUESTS:
        requests = P99_REQUESTS
    if requests < rules.PROMPTS_MIN:
        return None
    return _measure(
        judgement, arm=evidence.arm.name, segment=None, requests=requests, launches=effort.launches
    )


def _measure(
    judgement: Judgement, *, arm: str, segment: str | None, requests: int, launches: int
) -> NextCommand | None:
    """The study's own command with so many prompts and launches; None where there is none, or not so many prompts."""
    effort, line = judgement.effort, CommandLine(judgement.provenance.argv)
    segments = effort.segments if segment is None else (segment,)
    if not line.can_be_repeated or not _has_prompts(judgement, segments, requests):
        return None
    method = _named(judgement, arm, line)
    arms = effort.arms if method is None else 2
    seconds = effort.seconds_for(arms=arms, requests=requests, launches=launches)
    if seconds is None:
        return None
    values = _scope(line, judgement, segments)
    values |= {"--requests": [str(requests)], "--launches": [str(launches)]}
    if judgement.tuning is not None and method is None:
        seconds += judgement.tuning.spent_s  # it searches again
    if line.has("--budget"):
        values["--budget"] = [_budget(seconds)]
    if method is None:
        return NextCommand(command=line.changed(values), seconds=seconds)
    command = line.changed({**values, "--method": [method]}, without=ARMS, verb="decide")
    return NextCommand(command=command, seconds=seconds)


def _named(judgement: Judgement, arm: str, line: CommandLine) -> str | None:
    """What a search found to be in question, so that it alone is measured; None where all of it is measured again: a
    study without a search, a server setting that was searched too, a user's line with an arm of its own."""
    names = {whole.arm.name for whole in judgement.on_all}
    is_varied = any("," in (line.value(flag) or "") for flag in VARIED)
    if judgement.tuning is None or is_varied or YOURS in names:
        return None
    return next(
        (method_text(whole.arm.speculation) for whole in judgement.on_all if whole.arm.name == arm), None
    )


def _scope(line: CommandLine, judgement: Judgement, segments: tuple[str, ...]) -> dict[str, list[str]]:
    """The flags that keep the traffic and the goals as they were: a quick look chose its own traffic, and `compare` may
    have asked for another bar."""
    values: dict[str, list[str]] = {}
    effort, goals, ordinary = judgement.effort, judgement.goals, Goals()
    is_quick_look = not line.has(*TRAFFIC)
    if is_quick_look or segments != effort.segments:
        values["--segment"] = list(segments)
    if is_quick_look and effort.max_tokens is not None:
        values["--max-tokens"] = [str(effort.max_tokens)]
    if line.has("--min-speedup") or goals.min_speedup != ordinary.min_speedup:
        values["--min-speedup"] = [f"{goals.min_speedup:g}"]
    if line.has("--metric") or goals.metric != ordinary.metric:
        values["--metric"] = [goals.metric]
    return values


def _has_prompts(judgement: Judgement, segments: tuple[str, ...], requests: int) -> bool:
    """Prompts that come again say nothing new of the next one."""
    return requests <= _pool(judgement, segments)


def _pool(judgement: Judgement, segments: tuple[str, ...] | None = None) -> float:
    """Distinct prompts to be had; without end where only their file knows."""
    pool = judgement.effort.pool
    if pool is None:
        return math.inf
    return sum(pool.get(segment, 0) for segment in segments or judgement.effort.segments)


def _budget(seconds: float) -> str:
    return f"{max(1, -(-seconds * BUDGET_MARGIN // 60)):.0f}m"


NAME_CHARACTERS = 40
SEGMENT_CHARACTERS = 24
NAMES_SHOWN = 3
# Of an arm's name, of each segment's, and how many of these: shorter and shorter, until the figures have room too.
CONDITION_SIZES = ((NAME_CHARACTERS, SEGMENT_CHARACTERS, NAMES_SHOWN), (24, 16, 2), (16, 12, 1))
# What stands in the way of an arm that is fast enough, by the rule that says so.
IN_THE_WAY = {
    "no-part-loses": "part of the traffic may get slower",
    "tail": "the slowest requests get slower",
    "slo": "a latency limit is not kept",
    "few-prompts": "too few prompts were asked",
    "left-out": "too many requests could not be compared",
    "no-drafts": "no draft token was seen to be accepted",
    "degenerate-output": "answers run in loops",
    "lossy-method": "its text is not the model's own",
    "failures": "more requests fail",
}


def answer_to(judgement: Judgement) -> ShortAnswer:
    match judgement.verdict.decision:
        case Decision.SHIP | Decision.SHIP_ON_CONDITIONS:
            sentence, because = _to_ship(judgement), _why_ship(judgement)
        case Decision.DO_NOT_SHIP:
            sentence, because = _to_leave_off(judgement), _why_not(judgement)
        case Decision.OUTPUT_CHANGED:
            sentence, because = _changed(judgement), _why_changed(judgement)
        case Decision.INCONCLUSIVE:
            sentence, because = _certain_so_far(judgement), _why_unsettled(judgement)
    return answered(sentence, because, next_step(judgement))


# The sentence


def _to_ship(judgement: Judgement) -> str:
    verdict = judgement.verdict
    assert verdict.evidence is not None
    assert verdict.evidence.overall is not None
    gain, conditions = _gain(verdict.evidence.overall), verdict.conditions
    act = "Keep" if verdict.evidence.arm.name == YOURS else "Switch on"
    if conditions is None:
        return f"{act} {_arm(verdict.evidence)}: {gain}."
    said = [
        f"{act} {_short(_arm(verdict.evidence), name)} only for {_conditions(conditions, each, shown)}: {gain}."
        for name, each, shown in CONDITION_SIZES
    ]
    return next((text for text in said if len(text) <= SENTENCE_CHARACTERS_MAX), said[-1])


def _to_leave_off(judgement: Judgement) -> str:
    evidence = judgement.verdict.evidence
    assert evidence is not None
    assert evidence.overall is not None
    bar = judgement.goals.min_speedup
    highest = max(_upper(whole.overall, bar) for whole in _standing(judgement) if whole.overall is not None)
    if highest < 1:
        said = f"Leave it off: {_gain(evidence.overall)}"
    else:
        said = f"Leave it off: at most {_below(highest, bar)}"
    return f"{said}{_where_it_may_pay(judgement)}."


def _changed(judgement: Judgement) -> str:
    names = [arm.arm for arm in changed_arms(judgement.lossless)] or [
        whole.arm.name for whole in judgement.on_all
    ]
    plural = "change" if len(names) > 1 else "changes"
    return f"Leave it off: {_names(names)} {plural} what the model answers."


def _certain_so_far(judgement: Judgement) -> str:
    """What is certain while the verdict is open, and where it may pay."""
    evidence = judgement.verdict.evidence
    if evidence is None or evidence.overall is None:
        return _nothing_compared(judgement)
    invalid = invalid_findings(judgement)
    if invalid:
        return f"Do not act on these figures: {_first_clause(invalid[0])}."
    overall, bar = evidence.overall, judgement.goals.min_speedup
    if not _is_known(overall.simultaneous):
        seen = f"{_times(overall.simultaneous.value)} so far, on {_seen(overall)}"
        return f"Too early to tell: {seen}, which is too little to say what the next requests will see."
    if judgement.lossless.mode == "full" and judgement.lossless.result is not Result.PASS:
        unproven = "Leave it off for now: the answers were not proven to stay the same"
        return f"{unproven}. With {_arm(evidence)} {_gain(overall)}."
    low, high = overall.simultaneous.low, overall.simultaneous.high
    if low >= bar and low > 1:
        return f"Not for all traffic yet: with {_arm(evidence)} {_gain(overall)}, but {_obstacle(judgement)}."
    if overall.speedup.high < bar:
        said = f"Not for all traffic: at most {_below(_upper(overall, bar), bar)} with {_arm(evidence)}"
    elif low > 1:
        said = (
            f"Faster for certain, but not yet shown to be {_times(bar)}: {_arm(evidence)} lies between "
            f"{_times(low)} and {_times(high)}"
        )
    else:
        why = " (the baseline's server failed)" if BASELINE in judgement.failed_arms else ""
        said = (
            f"Do not switch it on yet{why}: {_arm(evidence)} lies between {_times(low)} and {_times(high)}, "
            f"{_times(bar)} was asked for"
        )
    return f"{said}{_where_it_may_pay(judgement)}."


def _nothing_compared(judgement: Judgement) -> str:
    if judgement.failed_arms:
        return f"Nothing to switch on: {_names(judgement.failed_arms)} did not run."
    names = [whole.arm.name for whole in judgement.on_all]
    if not names:
        return "Nothing to switch on: no server with speculation was measured."
    return f"Nothing to switch on: no request succeeded both on {_names(names)} and on the baseline."


def _where_it_may_pay(judgement: Judgement) -> str:
    parts = [part.comparison for part in judgement.verdict.open if is_promising(part)]
    if not parts:
        return ""
    best = max(parts, key=lambda part: part.speedup.value)
    return f"; it may pay on {_where(best)} ({_times(best.speedup.value)} so far)"


def _obstacle(judgement: Judgement) -> str:
    for reason in _failed_rules(judgement):
        if reason.rule in IN_THE_WAY:
            return IN_THE_WAY[reason.rule]
    return "not every rule is met"


# The reasons, the strongest first


def _why_ship(judgement: Judgement) -> Iterator[str]:
    evidence = judgement.verdict.evidence
    assert evidence is not None
    if judgement.verdict.conditions is not None:
        yield from _on_all_traffic(judgement, evidence)
    yield from (reason.message for reason in _reasons(judgement, Level.WARN) if reason.rule == "slo")
    yield _lossless(judgement)
    yield from _unsettled_tail(judgement, evidence)
    yield from _weakest_part(evidence)
    yield from _steps(judgement, evidence)
    yield from _tail(evidence)


def _why_not(judgement: Judgement) -> Iterator[str]:
    evidence = judgement.verdict.evidence
    assert evidence is not None
    yield from _each_arm(judgement)
    yield from _steps(judgement, evidence)
    yield from (part.settle for part in judgement.verdict.open if is_promising(part))
    yield from _parts(evidence)


def _why_changed(judgement: Judgement) -> Iterator[str]:
    for arm in changed_arms(judgement.lossless):
        yield f"{arm.arm}: {arm.message}"
    yield from _each_arm(judgement)


def _why_unsettled(judgement: Judgement) -> Iterator[str]:
    evidence = judgement.verdict.evidence
    yield from (found.next_step for found in invalid_findings(judgement))
    if evidence is None or evidence.overall is None:
        failed = [found for found in judgement.findings if found.level is Level.FAIL]
        yield from (text for found in failed for text in (found.message, found.next_step))
        return
    if judgement.effort.missing:
        yield f"{judgement.effort.asked} of the {judgement.effort.planned} planned requests were measured"
    yield from (reason.message for reason in _failed_rules(judgement))
    yield from _settling(judgement)
    yield from _parts(evidence)
    yield from _steps(judgement, evidence)
    yield _lossless(judgement)


def _settling(judgement: Judgement) -> Iterator[str]:
    waiting: Sequence[OpenPart] = judgement.verdict.open or judgement.verdict.unsure
    yield from (part.settle for part in waiting[:1])


def _on_all_traffic(judgement: Judgement, evidence: Evidence) -> Iterator[str]:
    for whole in judgement.on_all:
        if whole.arm == evidence.arm and whole.overall is not None:
            asked = _times(judgement.goals.min_speedup)
            yield f"on all traffic it is {_interval(whole.overall)}, {asked} was asked for"


def _each_arm(judgement: Judgement) -> Iterator[str]:
    compared = sorted(
        (whole.overall for whole in judgement.on_all if whole.overall is not None),
        key=lambda overall: overall.speedup.value,
        reverse=True,
    )
    if len(compared) == 1 and judgement.verdict.decision is not Decision.OUTPUT_CHANGED:
        yield f"measured with {_short(compared[0].arm)} on {_seen(compared[0])}: {_interval(compared[0])}"
    elif compared:
        said = ", ".join(f"{_short(overall.arm)} {_interval(overall)}" for overall in compared[:2])
        more = f" and {len(compared) - 2} slower ones" if len(compared) > 2 else ""
        yield f"{said}{more}; {_seen(compared[0])}"


def _weakest_part(evidence: Evidence) -> Iterator[str]:
    parts = [part for part in evidence.parts if _is_known(part.speedup)]
    if parts:
        weakest = min(parts, key=lambda part: part.speedup.low)
        yield f"its weakest part is {_where(weakest)} with {_times(weakest.speedup.value)} ({_range(weakest.speedup)})"


def _parts(evidence: Evidence) -> Iterator[str]:
    parts = [part for part in evidence.parts if _is_known(part.speedup)]
    if len(parts) > 1:
        best, worst = (pick(parts, key=lambda part: part.speedup.value) for pick in (max, min))
        yield (
            f"{_where(best)} {_times(best.speedup.value)} ({_range(best.speedup)}), "
            f"{_where(worst)} {_times(worst.speedup.value)} ({_range(worst.speedup)})"
        )


def _steps(judgement: Judgement, evidence: Evidence) -> Iterator[str]:
    """What a step costs and what it yields; a part's own cells are not by segment, so the arm's on all traffic are."""
    whole = next((other for other in judgement.on_all if other.arm == evidence.arm), evidence)
    for found in rules.break_evens(whole.segment_cells)[:1]:
        best, worst = (pick(found.lengths, key=lambda name: found.lengths[name]) for pick in (max, min))
        yields = f"{found.lengths[best]:.2f} on {_short(best, SEGMENT_CHARACTERS)}"
        if best != worst:
            yields += f", {found.lengths[worst]:.2f} on {_short(worst, SEGMENT_CHARACTERS)}"
        yield f"a step takes the time of {found.cost:.2f} plain tokens at {found.load.label} and gives {yields}"
        return
    rates = [c.acceptance_rate.mean for c in over_temperatures(whole.cells) if c.acceptance_rate is not None]
    if rates:
        yield f"{max(rates):.0%} of the drafted tokens were accepted"


def _unsettled_tail(judgement: Judgement, evidence: Evidence) -> Iterator[str]:
    """What the figure cannot say of the slowest requests, and what would."""
    if not any(reason.rule == "tail" for reason in _reasons(judgement, Level.WARN)):
        return
    unsure = rules.unsure_tails(evidence, judgement.goals)
    seen = f": {_tail_words(unsure[0])} is not settled" if unsure else " were not compared"
    yield f"slowest requests{seen}; {rules.tail_settled_by(evidence, judgement.goals)}"


def _tail(evidence: Evidence) -> Iterator[str]:
    known = [tail for tail in evidence.tails if _is_known(tail.ratio)]
    if known:
        yield f"slowest requests: {_tail_words(min(known, key=lambda tail: tail.ratio.low))}"


def _tail_words(tail: TailRatio) -> str:
    known = f" ({_range(tail.ratio)})" if _is_known(tail.ratio) else ""
    return f"{tail.metric} {tail.statistic} {tail.where} {_times(tail.ratio.value)}{known}"


def _lossless(judgement: Judgement) -> str:
    if judgement.lossless.result is Result.PASS:
        notes = [arm.message for arm in judgement.lossless.outcomes if arm.result is Result.PASS]
        return f"the answers stay the same: {notes[0]}" if notes else "the answers stay the same"
    if judgement.lossless.result is Result.SKIPPED:
        return "whether the answers stay the same was not checked"
    return "whether the answers stay the same was checked and is not certain"


# Words


def _reasons(judgement: Judgement, level: Level) -> list[Reason]:
    return [reason for reason in judgement.verdict.reasons if reason.level is level]


def _failed_rules(judgement: Judgement) -> list[Reason]:
    return [reason for reason in _reasons(judgement, Level.FAIL) if reason.rule in IN_THE_WAY]


def _standing(judgement: Judgement) -> list[Evidence]:
    out = {arm.arm for arm in changed_arms(judgement.lossless)}
    return [whole for whole in judgement.on_all if whole.arm.name not in out] or list(judgement.on_all)


def _gain(comparison: Comparison) -> str:
    """The speedup as what a user notices, with its interval."""
    estimate = comparison.simultaneous
    value = _times(estimate.value)
    match comparison.metric:
        case "throughput":
            said = f"the server gives {value} the tokens per second"
        case metric:
            what = "answers come" if metric == "e2e" else "tokens come"
            said = f"{what} {value} faster" if estimate.value >= 1 else f"{what} at {value} the speed"
    return f"{said} (95 % sure: {_range(estimate)})" if _is_known(estimate) else said


def _interval(comparison: Comparison) -> str:
    estimate = comparison.simultaneous
    known = f" ({_range(estimate)})" if _is_known(estimate) else ""
    return f"{_times(estimate.value)}{known}"


def _range(estimate: Estimate) -> str:
    return f"{estimate.low:.2f} to {estimate.high:.2f}"


def _times(value: float) -> str:
    return f"{value:.2f}x"


def _below(value: float, bar: float) -> str:
    """A bound under the bar must not look as if it reached it."""
    digits = next((n for n in (2, 3, 4) if float(f"{value:.{n}f}") < bar), 5)
    return f"{value:.{digits}f}x of the {_times(bar)} asked for"


def _upper(overall: Comparison, bar: float) -> float:
    """The bound that holds for all arms together, where it is under the bar too."""
    together = overall.simultaneous.high
    return together if together < bar else overall.speedup.high


def _is_known(estimate: Estimate) -> bool:
    return estimate.low > 0 and math.isfinite(estimate.high) and estimate.high < UNKNOWN_FROM


def _seen(comparison: Comparison) -> str:
    prompts = comparison.prompts
    return f"{prompts} prompt{'s' if prompts != 1 else ''}, {comparison.launches_seen}"


def _arm(evidence: Evidence) -> str:
    if isinstance(evidence.arm.speculation, Attached):
        return "the server with speculation"
    if evidence.arm.name == YOURS:
        return "your line's speculation"
    return _short(evidence.arm.name)


def _short(text: str, limit: int = NAME_CHARACTERS) -> str:
    return printable(text, limit=limit)


def _names(names: Sequence[str], limit: int = NAME_CHARACTERS, shown: int = NAMES_SHOWN) -> str:
    said = ", ".join(_short(name, limit) for name in names[:shown])
    return said if len(names) <= shown else f"{said} and {len(names) - shown} more"


def _where(part: Comparison) -> str:
    return _short(part.where, SEGMENT_CHARACTERS)


def _conditions(conditions: Conditions, limit: int, shown: int) -> str:
    said = []
    if conditions.segments is not None:
        said.append(_names(conditions.segments, limit, shown))
    if conditions.max_concurrency is not None:
        plural = "s" if conditions.max_concurrency != 1 else ""
        said.append(f"at most {conditions.max_concurrency} request{plural} at once")
    if conditions.max_qps is not None:
        said.append(f"at most {conditions.max_qps:g} requests/s")
    if conditions.max_temperature is not None:
        said.append(f"temperature up to {conditions.max_temperature:g}")
    return ", ".join(said)


def _first_clause(finding: Finding) -> str:
    return finding.message.split(";")[0].split(". ")[0].rstrip(".")
