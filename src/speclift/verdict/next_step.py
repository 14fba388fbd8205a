"""What to type after a verdict: the server to start, the study to continue, or the one that would settle it. Pure.

Every command runs as it stands, and its time comes from what this study took; where nothing was measured that tells
it, there is no command.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from speclift.core.answer import NextCommand
from speclift.core.arm import YOURS
from speclift.core.goals import Goals
from speclift.core.rerun_command import ARMS, TRAFFIC, CommandLine
from speclift.core.results import Decision, Finding, Level, OpenPart, Part
from speclift.core.speculation import method_text
from speclift.verdict import rules
from speclift.verdict.judgement import Judgement

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
