"""The gate in words for somebody who has to act on it. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from speclift.core.answer import NextCommand, ShortAnswer, answered
from speclift.core.quantities import duration, printable
from speclift.core.rerun_command import CommandLine
from speclift.core.results import Level
from speclift.lossless.answers import tokens_for_rate
from speclift.lossless.gate import PROMPTS_MIN, SHOWN_BY_ANY, ArmGate, Gate, Result, Soak, SoakArm, SoakResult
from speclift.lossless.questions import FULL

NAME_CHARACTERS = 40
NAMES_SHOWN = 3
# Nobody asks more than this many times over.
TIMES_MAX = 20
# A reproduction is a handful of requests.
SCRIPT_S = 30.0


def gate_answer(gate: Gate, argv: Sequence[str]) -> ShortAnswer:
    """`argv` is the command that asked, so that one which asks more can be told."""
    if gate.soak:
        return soak_answer(gate, gate.soak, argv)
    return polite_answer(gate, argv)


def polite_answer(gate: Gate, argv: Sequence[str]) -> ShortAnswer:
    """The answer of what was asked one at a time and in one batch."""
    deciding = [arm for arm in gate.arms if arm.result is gate.result]
    names = _names([arm.arm for arm in deciding])
    match gate.result:
        case Result.PASS:
            sentence = f"The answers stay the same with {names}: {_compared(gate)}."
        case Result.FAIL:
            sentence = f"Do not use {names}: the answers change; {_compared(gate)}."
        case Result.INCONCLUSIVE | Result.SKIPPED:
            sentence = f"No change was seen with {names or 'speculation'}, but one could not be ruled out."
    return answered(sentence, _because(deciding), _next(gate, argv))


def _compared(gate: Gate) -> str:
    checks = [check for arm in gate.arms for check in arm.greedy.checks]
    answers, differing = sum(check.answers for check in checks), sum(check.events for check in checks)
    sampled = sum(arm.sampled.tokens for arm in gate.arms)
    differences = (
        f"{differing} of {answers} answers at temperature 0 differ from the baseline's" if answers else ""
    )
    if differing and gate.result is Result.PASS:
        differences += ", no more than its own from run to run"
    more = f"{sampled:,} sampled tokens were compared" if sampled else ""
    return "; ".join(filter(None, (differences, more))) or "nothing could be compared"


def _because(arms: Sequence[ArmGate]) -> Iterator[str]:
    for arm in arms:
        for name, part in (("temperature 0", arm.greedy), ("sampled", arm.sampled)):
            if part.result is arm.result:
                yield f"{_short(arm.arm)}, {name}: {part.message}"
        edges = [edge for edge in arm.edges if edge.result is arm.result]
        if edges and arm.result is Result.PASS:
            yield f"{_short(arm.arm)}, kept: {', '.join(edge.name for edge in edges)}"
        else:
            yield from (f"{_short(arm.arm)}, {edge.name}: {edge.message}" for edge in edges)
        yield from (f"{_short(arm.arm)}: {finding.message}" for finding in arm.findings)


def _next(gate: Gate, argv: Sequence[str]) -> NextCommand | None:
    """A command with as many prompts as it takes to see the deviation that was asked for, in the time that these took
    each."""
    line = CommandLine(argv)
    times = max((_times_needed(arm, gate.detect) for arm in gate.arms), default=0.0)
    if gate.result is not Result.INCONCLUSIVE or not line.can_be_repeated or not 1 < times <= TIMES_MAX:
        return None
    prompts = int(line.value("--requests") or FULL.sampled_prompts)
    command = line.changed({"--requests": [str(max(PROMPTS_MIN, math.ceil(times * prompts)))]})
    return NextCommand(command=command, seconds=round(times * gate.wall_s, 1))


def _times_needed(arm: ArmGate, detect: float) -> float:
    """How many times as much has to be asked; 0 where that is not what is missing."""
    if arm.result is not Result.INCONCLUSIVE:
        return 0.0
    needed = [0.0]
    if arm.greedy.result is Result.INCONCLUSIVE and arm.greedy.tokens:
        needed.append(tokens_for_rate(detect) / arm.greedy.tokens)
    if arm.sampled.result is Result.INCONCLUSIVE and arm.sampled.tokens:
        needed.append(arm.sampled.tokens_needed / arm.sampled.tokens)
    return max(needed)


def soak_answer(gate: Gate, soak: Soak, argv: Sequence[str]) -> ShortAnswer:
    """The answer of both: what the load showed first, and whether the gate before it agrees."""
    polite = replace(gate, soak=UNSET)
    deciding = [arm for arm in soak.arms if arm.result is soak.result]
    names = _names([arm.arm for arm in deciding])
    amount = f"{soak.requests:,} requests in {duration(soak.seconds)}"
    if soak.result is Result.FAIL:
        return answered(
            f"Do not use {names}: faults under load in {amount}.",
            _found_faults(soak, deciding),
            _again(soak, argv),
        )
    if polite.result is Result.FAIL:
        before = polite_answer(polite, argv)
        return answered(before.sentence, (*before.because, f"under load nothing more showed: {amount}"))
    if soak.result is Result.PASS and polite.result is Result.PASS:
        below = max(rate.high for rate in soak.faults if rate.name in SHOWN_BY_ANY)
        return answered(
            f"No fault of {names} under load beyond the baseline's own: {amount}.",
            (
                f"a fault that any answer could show is rarer than {below:.1%} (95 % confidence)",
                *polite_answer(polite, argv).because,
            ),
        )
    if soak.result is Result.PASS:
        before = polite_answer(polite, argv)
        return answered(
            before.sentence, (f"under load no fault showed: {amount}", *before.because), before.next
        )
    return answered(
        f"No fault of {names or 'speculation'} was proven, but {amount} are too few to rule one out.",
        _open_faults(soak, deciding),
        _again(soak, argv),
    )


def _found_faults(soak: Soak, arms: Sequence[SoakArm]) -> Iterator[str]:
    for arm in arms:
        for rate in soak.found_in(arm.arm):
            where = f"; {', '.join(rate.places)}" if rate.places else ""
            yield f"{_short(arm.arm)}, {rate.name}: {rate.message}{where}"
        if arm.distribution is not None and arm.distribution.result is Result.FAIL:
            yield f"{_short(arm.arm)}, sampled under load: {arm.distribution.message}"
        failed = [finding for finding in arm.findings if finding.level is Level.FAIL]
        yield from (finding.message.partition("\n")[0] for finding in failed)


def _open_faults(soak: Soak, arms: Sequence[SoakArm]) -> Iterator[str]:
    for arm in arms:
        doubtful = [rate for rate in soak.faults_of(arm.arm) if rate.result is SoakResult.INCONCLUSIVE]
        for rate in sorted(doubtful, key=lambda rate: (not rate.count, rate.name not in SHOWN_BY_ANY)):
            yield f"{_short(arm.arm)}, {rate.name}: {rate.message}"
        if not arm.requests:
            yield f"{_short(arm.arm)} was not asked anything"


def _again(soak: Soak, argv: Sequence[str]) -> NextCommand | None:
    """The next command: what was found has a script; what is open needs more of the same, as long as that is within
    reach."""
    script = next((rate.script for rate in soak.faults if rate.script), None)
    if script is not None:
        return NextCommand(command=f"python {shlex.quote(script)} URL", seconds=SCRIPT_S)
    line = CommandLine(argv)
    if soak.result is not Result.INCONCLUSIVE or not line.can_be_repeated or not soak.seconds:
        return None
    if soak.partial:
        return NextCommand(
            command=f"{line.changed({})} --study {shlex.quote(soak.study)} --resume",
            seconds=round(max(0.0, soak.planned_s - soak.seconds), 1),
        )
    needed = [rate.needed / rate.exposed for rate in soak.faults if rate.needed and rate.name in SHOWN_BY_ANY]
    times = 1.2 * max(needed, default=2.0)
    if times > TIMES_MAX:
        return None
    seconds = math.ceil(times * soak.planned_s / 60) * 60
    return NextCommand(command=line.changed({"--soak": [f"{seconds // 60}m"]}), seconds=seconds)


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(_short(name) for name in names[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"


def _short(name: str) -> str:
    return printable(name, limit=NAME_CHARACTERS)
