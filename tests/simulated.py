"""Studies drawn from a known truth, and evidence made by hand, for the tests of analyse and decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from speclift.core.arm import BASELINE, Arm
from speclift.core.goals import Goals
from speclift.core.records import Place, Record
from speclift.core.results import (
    ALL_TRAFFIC,
    Acceptance,
    Cell,
    Comparison,
    Completeness,
    Conditions,
    Estimate,
    Evidence,
    Part,
    Percentiles,
    Verdict,
)
from speclift.core.speculation import NGram
from speclift.core.traffic import Concurrency, Load
from speclift.statistics.compare import Comparer
from speclift.statistics.pairs import ALL_DISTINCT, PromptOf
from speclift.testing.simulated_study import ArmTruth, SpeedupOf, StudyTruth, simulate_study
from speclift.verdict.verdict import decide

SEGMENTS = ("copy", "chat", "code")
ONE_STREAM = (Concurrency(streams=1),)
LOADS = tuple(Concurrency(streams=streams) for streams in (1, 4, 16))
FOUR_STREAMS = LOADS[1]
ARM = Arm(name="arm", speculation=NGram(k=4))
OTHER = Arm(name="other", speculation=NGram(k=8))
# Noise so small that a study of 36 prompts knows every speedup to within about 1 %.
DRAFTING = ArmTruth(prompt_sd=0.02, drafted_per_step=4, acceptance=0.6)
QUIET = StudyTruth(launch_sd=0.002, residual_sd=0.01)


def study_places(
    *,
    arms: Sequence[Arm] = (ARM,),
    prompts: int = 36,
    segments: Sequence[str] = SEGMENTS,
    loads: Sequence[Load] = ONE_STREAM,
    temperatures: Sequence[float | None] = (None,),
    rounds: int = 3,
    requests: int | None = None,
) -> tuple[Place, ...]:
    """Request by request on every arm, the arms in the opposite order each time, as the plan runs one stream."""
    names = [BASELINE, *(arm.name for arm in arms)]
    items = [
        (load, number, temperature)
        for load in loads
        for number in range(prompts if requests is None else requests)
        for temperature in temperatures
    ]
    return tuple(
        Place(
            arm=name,
            launch=round_index * len(names) + names.index(name),
            round=round_index,
            block=block,
            load=load,
            request_id=f"p{number % prompts}",
            segment=segments[number % prompts % len(segments)],
            temperature=temperature,
            repeat=number // prompts,
        )
        for round_index in range(rounds)
        for block, (load, number, temperature) in enumerate(items)
        for name in (names if (block + round_index) % 2 == 0 else names[::-1])
    )


def drawn(places: Sequence[Place], truth: StudyTruth, *, seed: int = 1) -> tuple[Record, ...]:
    return simulate_study(places, truth, np.random.default_rng(seed))


def quiet_truth(speedup: SpeedupOf, **changes: Any) -> StudyTruth:
    """One arm, little noise."""
    return replace(QUIET, arms={ARM.name: replace(DRAFTING, speedup=speedup, **changes)})


def constant(value: float) -> SpeedupOf:
    return lambda _segment, _load, _temperature: value


def by_segment(**speedups: float) -> SpeedupOf:
    return lambda segment, _load, _temperature: speedups[segment]


def by_streams(speedups: dict[int, float]) -> SpeedupOf:
    def speedup(_segment: str, load: Load, _temperature: float | None) -> float:
        assert isinstance(load, Concurrency)
        return speedups[load.streams]

    return speedup


def comparer(
    records: Sequence[Record],
    *,
    goals: Goals | None = None,
    arm_count: int = 1,
    by_temperature: bool = False,
    prompt_of: PromptOf = ALL_DISTINCT,
) -> Comparer:
    goals = goals or Goals()
    return Comparer(
        records,
        metric=goals.metric,
        bar=goals.min_speedup,
        arm_count=arm_count,
        by_temperature=by_temperature,
        prompt_of=prompt_of,
    )


def judged(
    records: Sequence[Record],
    *,
    arms: Sequence[Arm] = (ARM,),
    goals: Goals | None = None,
    by_temperature: bool = False,
    **settings: Any,
) -> Verdict:
    goals = goals or Goals()
    source = comparer(records, goals=goals, arm_count=len(arms), by_temperature=by_temperature)
    return decide(arms, cache(source.evidence), goals=goals, **settings)


# By hand


def estimate(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, n=36, method="made")


def comparison(
    low: float, value: float, high: float, *, part: Part = Part.ALL, label: str = "all", **changes: Any
) -> Comparison:
    ordinary = Comparison(
        arm=ARM.name,
        metric="e2e",
        part=part,
        label=label,
        speedup=estimate(value, low, high),
        simultaneous=estimate(value, low, high),
        prompts=36,
        launches=3,
    )
    return replace(ordinary, **changes)


def cell(**changes: Any) -> Cell:
    """1,000 requests, a tenth of a second each, drafts accepted."""
    spread = Percentiles(p50=0.1, p95=0.2, p99=0.3)
    ordinary = Cell(
        arm=ARM.name,
        load=Concurrency(streams=1),
        segment="all",
        temperature=None,
        requests=1000,
        failed=0,
        ttft_s=spread,
        tpot_s=spread,
        e2e_s=Percentiles(p50=1.0, p95=2.0, p99=3.0),
        throughput_tok_s=100.0,
        acceptance_rate=Acceptance(p10=0.6, p50=0.7, p90=0.8, mean=0.7, requests=1000),
        accepted_length=estimate(2.0, 1.9, 2.1).interval,
        per_position=None,
        output_tokens_mean=100.0,
    )
    return replace(ordinary, **changes)


def evidence(**changes: Any) -> Evidence:
    """An arm that ships: 1.5x [1.4, 1.6]."""
    ordinary = Evidence(
        arm=ARM,
        conditions=ALL_TRAFFIC,
        overall=comparison(1.4, 1.5, 1.6),
        by_metric=(comparison(1.4, 1.5, 1.6), comparison(1.55, 1.6, 1.65, metric="tpot")),
        parts=(),
        tails=(),
        cells=(cell(),),
        baseline_cells=(cell(arm=BASELINE, acceptance_rate=None),),
        segment_cells=(),
        traffic_share=1.0,
        prompts=36,
        completeness=Completeness(asked=108, used=108, metric_asked="e2e", metric="e2e"),
    )
    return replace(ordinary, **changes)


def verdict_on(*whole: Evidence, goals: Goals | None = None, **settings: Any) -> Verdict:
    """The verdict where nothing is known but what each arm does on all traffic."""
    known = {each.arm: each for each in whole}

    def evidence_for(arm: Arm, conditions: Conditions) -> Evidence:
        if conditions == ALL_TRAFFIC:
            return known[arm]
        return replace(known[arm], conditions=conditions, overall=None, parts=(), traffic_share=0.5)

    return decide(tuple(known), evidence_for, goals=goals or Goals(), **settings)
