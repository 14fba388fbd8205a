"""Judgements made by hand in every state that a verdict can be in, for the tests of what is said of them first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from samples import provenance
from simulated import ARM, OTHER, cell, comparison, estimate, evidence, verdict_on
from speclift.core.arm import Arm
from speclift.core.goals import Goals
from speclift.core.results import (
    ALL_TRAFFIC,
    Comparison,
    Conditions,
    Evidence,
    Finding,
    Level,
    Part,
    TailRatio,
    Verdict,
)
from speclift.core.speculation import Attached
from speclift.core.traffic import Concurrency
from speclift.lossless.gate import ArmGate, Gate, Greedy, Result
from speclift.verdict.judgement import Effort, Judgement, Served
from speclift.verdict.verdict import GateWord, decide

ARGV = (
    "decide",
    "--engine",
    "fake",
    "--method",
    "ngram",
    "--k",
    "4",
    "--segment",
    "chat",
    "--requests",
    "12",
)
EFFORT = Effort(
    arms=2,
    requests=12,
    launches=3,
    planned=72,
    asked=72,
    starts=6,
    starting_s=12.0,
    asking_s=36.0,
    checking_s=4.0,
    ready_s={"baseline": 1.5, "arm": 2.0},
    segments=("chat", "copy"),
    max_tokens=64,
    pool=None,
)
SPEC = Arm(name="spec", speculation=Attached())
SERVED = Served(forms={"command": "llama-server --model m.gguf --port 8080"}, config={})
UNKNOWN = comparison(0.0, 1.5, float("inf"), prompts=1, launches=1)


def gate(result: Result, message: str = "12 answers are the same", *, mode: str = "quick") -> Gate:
    if result is Result.SKIPPED:
        return Gate(why="not asked for", mode=mode)
    greedy = Greedy(result=result, message=message)
    arm = ArmGate(arm=ARM.name, method="ngram", result=result, greedy=greedy)
    return Gate(depth="quick", arms=(arm,), mode=mode)


def part(low: float, value: float, high: float, label: str = "copy", **changes: Any) -> Comparison:
    return comparison(low, value, high, part=Part.SEGMENT, label=label, **changes)


def judgement(verdict: Verdict, on_all: Sequence[Evidence] = (), **changes: Any) -> Judgement:
    compared = tuple(on_all) or ((verdict.evidence,) if verdict.evidence is not None else ())
    ordinary = Judgement(
        study="studies/mine",
        goals=Goals(),
        provenance=provenance(argv=ARGV),
        verdict=verdict,
        served=SERVED if verdict.winner is not None else None,
        on_all=compared,
        cells=(),
        acceptance_by_temperature=(),
        acceptance_histograms=(),
        findings=(),
        crossovers=(),
        kv_tokens={},
        kv_peaks={},
        failed_arms=(),
        weight_bytes={},
        effort=EFFORT,
        lossless=gate(Result.PASS),
        tuning=None,
    )
    return replace(ordinary, **changes)


def judged(*whole: Evidence, goals: Goals | None = None, **changes: Any) -> Judgement:
    """What the real rules say of these arms."""
    goals = goals or Goals()
    findings = changes.get("findings", ())
    return judgement(verdict_on(*whole, goals=goals, findings=findings), whole, goals=goals, **changes)


def on_conditions(conditions: Conditions, *, arm: Arm = ARM) -> Judgement:
    """An arm that is too slow on everything and ships within these conditions."""
    whole = evidence(arm=arm, overall=comparison(1.0, 1.1, 1.2, arm=arm.name))
    within = evidence(
        arm=arm, conditions=conditions, overall=comparison(1.5, 1.7, 1.9, arm=arm.name), traffic_share=0.3
    )
    loads = (cell(arm=arm.name), cell(arm=arm.name, load=Concurrency(streams=8)))
    segments = tuple(part(1.5, 1.7, 1.9, name) for name in conditions.segments or ())
    losing = part(0.5, 0.6, 0.7, "talk")
    whole = replace(whole, cells=loads, parts=(*segments, losing))

    def evidence_for(_arm: Arm, asked: Conditions) -> Evidence:
        return whole if asked == ALL_TRAFFIC else replace(within, conditions=asked)

    verdict = decide((arm,), evidence_for, goals=Goals())
    assert verdict.conditions is not None
    return judgement(replace(verdict, conditions=conditions), (whole,))


def needing(low: float, value: float, high: float, **changes: Any) -> Comparison:
    """An interval around the bar that more prompts or launches would clear."""
    return comparison(low, value, high, **{"prompts_needed": 60, "launches_needed": 5, **changes})


STATES: dict[str, Judgement] = {
    "ship": judged(evidence()),
    "ship, not checked": judged(evidence(), lossless=gate(Result.SKIPPED)),
    "ship, tpot": judged(evidence(overall=comparison(1.4, 1.5, 1.6, metric="tpot"))),
    "ship, throughput": judged(evidence(overall=comparison(1.4, 1.5, 1.6, metric="throughput"))),
    "ship, two arms": judged(
        evidence(), evidence(arm=OTHER, overall=comparison(1.5, 1.6, 1.7, arm=OTHER.name))
    ),
    "ship, the user's own line": judged(
        evidence(arm=replace(ARM, name="yours"), overall=comparison(1.4, 1.5, 1.6, arm="yours"))
    ),
    "ship, attach": judged(
        evidence(arm=SPEC, overall=comparison(1.4, 1.5, 1.6, arm="spec")),
        served=Served(forms={}, config={}),
        effort=replace(EFFORT, ready_s={}, starts=0, starting_s=0.0),
    ),
    "conditions, segments": on_conditions(Conditions(segments=("summarise",))),
    "conditions, many long segments": on_conditions(
        Conditions(
            segments=tuple(f"a-segment-with-a-very-long-name-{n}" for n in range(6)),
            max_concurrency=64,
            max_temperature=0.5,
        ),
        arm=replace(ARM, name="an-arm-" + "x" * 80),
    ),
    "do not ship": judged(evidence(overall=comparison(1.0, 1.1, 1.18), parts=(part(0.9, 1.0, 1.1),))),
    "do not ship, just under": judged(evidence(overall=comparison(1.0, 1.1, 1.2999))),
    "do not ship, slower": judged(evidence(overall=comparison(0.5, 0.6, 0.7))),
    "do not ship, a part is open": judged(
        evidence(
            overall=comparison(1.0, 1.1, 1.18),
            parts=(part(1.2, 1.45, 1.7, prompts_needed=24), part(0.8, 0.9, 1.0, "chat")),
        )
    ),
    "do not ship, a slow part is open": judged(
        evidence(overall=comparison(0.8, 0.9, 1.0), parts=(part(0.3, 0.6, 1.4, prompts_needed=24),))
    ),
    "open": judged(evidence(overall=needing(1.1, 1.25, 1.45))),
    "open, maybe no gain": judged(evidence(overall=needing(0.9, 1.1, 1.4))),
    "open, a part may pay": judged(
        evidence(overall=needing(0.9, 1.1, 1.4), parts=(part(1.2, 1.5, 1.9, prompts_needed=40),))
    ),
    "open, too close": judged(evidence(overall=comparison(1.29, 1.2999, 1.31))),
    "open, fast but a part may lose": judged(evidence(parts=(part(0.9, 1.05, 1.2),))),
    "open, fast but the tail loses": judged(
        evidence(
            tails=(
                TailRatio(
                    arm=ARM.name,
                    load=Concurrency(streams=1),
                    metric="e2e",
                    statistic="P95",
                    ratio=estimate(0.7, 0.6, 0.8),
                ),
            )
        )
    ),
    "open, one prompt": judged(evidence(overall=UNKNOWN, prompts=1)),
    "open, invalid": judged(
        evidence(),
        findings=(
            Finding(
                check="client-reading",
                level=Level.FAIL,
                message="at c=1 the client read first tokens late; the rest does not matter",
                next_step="free a core for the client",
            ),
        ),
    ),
    "open, proof wanted": judgement(
        decide(
            (ARM,),
            lambda _arm, _conditions: evidence(),
            goals=Goals(),
            gate=GateWord(result=Result.INCONCLUSIVE, is_proof_required=True),
        ),
        lossless=gate(Result.INCONCLUSIVE, mode="full"),
    ),
    "open, cut short": judged(evidence(overall=needing(0.9, 1.1, 1.4)), effort=replace(EFFORT, asked=30)),
    "open, started from Python": judged(
        evidence(overall=needing(0.9, 1.1, 1.4)), provenance=provenance(argv=())
    ),
    "all arms failed": judgement(
        decide((), lambda _arm, _conditions: evidence(), goals=Goals()),
        failed_arms=("draft-k4",),
        findings=(
            Finding(
                check="launch", level=Level.FAIL, message="draft-k4 did not start: no memory", arm="draft-k4"
            ),
        ),
    ),
    "baseline failed midway": judged(evidence(overall=needing(0.9, 1.1, 1.4)), failed_arms=("baseline",)),
    "nothing in common": judged(evidence(overall=None)),
    "output changed": judgement(
        decide(
            (ARM,), lambda _arm, _conditions: evidence(), goals=Goals(), gate=GateWord(result=Result.FAIL)
        ),
        lossless=gate(Result.FAIL, "greedy: 7 of 24 answers differ"),
    ),
}
