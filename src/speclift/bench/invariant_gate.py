"""The lossless gate on servers, and what it leaves open asked again where arithmetic cannot be the cause.

Open are differences at temperature 0 that are neither ties nor faults. With batch-invariant kernels a token comes out
the same whether it was verified with a draft or alone, so an arm that keeps the output is equal to the baseline, token
for token. Ordinary servers were asked before: these only settle what those left open. One request at a time: in a batch
of 16 the baseline of vLLM 0.26 parted from itself with them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from speclift.bench.gate_run import GateAsk, GateRun
from speclift.bench.observer import Observer
from speclift.core.deadline import Deadline
from speclift.core.errors import EngineError
from speclift.core.traffic import Request
from speclift.engines.kind import engine_kind
from speclift.lossless.gate import Gate, with_equality


async def run_gate(ask: GateAsk, *, logs: Path, observer: Observer, deadline: Deadline) -> tuple[Gate, bool]:
    """In full, and whether it was cut short before its last question."""
    run = GateRun(ask, logs=logs, observer=observer, deadline=deadline)
    gate = await run.run()
    if not run.is_cut_short:
        apart = logs / "invariant"
        gate = await settle_by_equality(gate, ask, logs=apart, observer=observer, deadline=deadline)
    return gate, run.is_cut_short


def arms_left_open(gate: Gate) -> frozenset[str]:
    """By arithmetic alone."""
    return frozenset(
        arm.arm for arm in gate.arms if arm.greedy is not None and arm.greedy.is_open_by_arithmetic
    )


async def settle_by_equality(
    gate: Gate, ask: GateAsk, *, logs: Path, observer: Observer, deadline: Deadline
) -> Gate:
    """The gate as it was where the engine has no such kernels."""
    open_arms = arms_left_open(gate)
    arms = [arm for arm in ask.arms if arm.name in open_arms]
    kind = engine_kind(ask.engine_spec.kind)
    invariant = kind.batch_invariant(ask.engine_spec) if arms else None
    if invariant is None:
        return gate
    launches = len(arms) + 2
    if not deadline.has(launches * ask.launch_s):
        return _noted(gate, f"{launches} launches did not fit the time that was left; try --verify full")
    observer.say(f"lossless gate: asking {', '.join(open_arms)} again with batch-invariant kernels")
    again = replace(
        ask,
        engine_spec=invariant,
        arms=arms,
        requests=_parted_first(gate, ask.requests),
        temperatures=(0.0,),
        depth=replace(ask.depth, batch=1),
    )
    run = GateRun(again, logs=logs, observer=observer, deadline=deadline)
    try:
        found = await run.run()
    except EngineError as error:
        # Not every version takes them with every method; what ordinary servers said stands.
        return _noted(gate, f"no server started with them: {error}")
    return with_equality(gate, found)


def _noted(gate: Gate, why: str) -> Gate:
    return replace(gate, notes=(*gate.notes, f"batch-invariant kernels were not asked: {why}"))


def _parted_first(gate: Gate, requests: Sequence[Request]) -> tuple[Request, ...]:
    """A gate asks as many prompts as its depth says: those whose answers differed are the ones to settle."""
    parted = {each.case for arm in gate.arms if arm.greedy is not None for each in arm.greedy.examples}
    return tuple(sorted(requests, key=lambda request: request.id not in parted))
