"""What the gate found, as somebody reads it who has to act on it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from speclift.core.answer import NextCommand, ShortAnswer, answered
from speclift.core.own_command import CommandLine
from speclift.core.quantities import printable
from speclift.lossless.gate import ArmGate, Gate
from speclift.lossless.questions import FULL
from speclift.lossless.rates import tokens_for_rate
from speclift.lossless.result import PROMPTS_MIN, Result

NAME_CHARACTERS = 40
NAMES_SHOWN = 3
# Nobody asks more than this many times over.
TIMES_MAX = 20


def gate_answer(gate: Gate, argv: Sequence[str]) -> ShortAnswer:
    """`argv` is the command that asked, so that one which asks more can be told."""
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
    greedy = [arm.greedy for arm in gate.arms if arm.greedy is not None and arm.greedy.checks]
    answers = sum(check.answers for part in greedy for check in part.checks)
    differing = sum(check.hazard.events for part in greedy for check in part.checks)
    sampled = sum(arm.sampled.tokens for arm in gate.arms if arm.sampled is not None)
    said = f"{differing} of {answers} answers at temperature 0 differ from the baseline's" if answers else ""
    if differing and gate.result is Result.PASS:
        said += ", no more than its own from run to run"
    more = f"{sampled:,} sampled tokens were compared" if sampled else ""
    return "; ".join(filter(None, (said, more))) or "nothing could be compared"


def _because(arms: Sequence[ArmGate]) -> Iterator[str]:
    for arm in arms:
        for name, part in (("temperature 0", arm.greedy), ("sampled", arm.sampled)):
            if part is not None and part.result is arm.result:
                yield f"{_short(arm.arm)}, {name}: {part.message}"
        edges = [edge for edge in arm.edges if edge.result is arm.result]
        if edges and arm.result is Result.PASS:
            yield f"{_short(arm.arm)}, kept: {', '.join(edge.name for edge in edges)}"
        else:
            yield from (f"{_short(arm.arm)}, {edge.name}: {edge.message}" for edge in edges)
        yield from (f"{_short(arm.arm)}: {finding.message}" for finding in arm.findings)


def _next(gate: Gate, argv: Sequence[str]) -> NextCommand | None:
    """As many prompts as it takes to see the deviation that was asked for, in the time that these took each."""
    line = CommandLine(argv)
    times = max((_times_needed(arm, gate.detect) for arm in gate.arms), default=0.0)
    if gate.result is not Result.INCONCLUSIVE or not line.can_be_repeated or not 1 < times <= TIMES_MAX:
        return None
    prompts = int(line.value("--requests") or FULL.sampled_prompts)
    command = line.changed({"--requests": [str(max(PROMPTS_MIN, math.ceil(times * prompts)))]})
    return NextCommand(command=command, seconds=times * gate.wall_s)


def _times_needed(arm: ArmGate, detect: float) -> float:
    """How many times as much has to be asked; 0 where that is not what is missing."""
    if arm.result is not Result.INCONCLUSIVE:
        return 0.0
    needed = [0.0]
    if arm.greedy is not None and arm.greedy.result is Result.INCONCLUSIVE and arm.greedy.tokens:
        needed.append(tokens_for_rate(detect) / arm.greedy.tokens)
    if arm.sampled is not None and arm.sampled.result is Result.INCONCLUSIVE and arm.sampled.tokens:
        needed.append(arm.sampled.tokens_needed / arm.sampled.tokens)
    return max(needed)


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(_short(name) for name in names[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"


def _short(name: str) -> str:
    return printable(name, limit=NAME_CHARACTERS)
