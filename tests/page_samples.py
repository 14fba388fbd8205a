"""Documents of studies that never ran, in every state a report can be in, with all the figures a page can show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from msgspec import structs

from answers import EFFORT, judgement
from samples import provenance
from simulated import cell, comparison, estimate, evidence
from speclift.core.arm import BASELINE, Arm
from speclift.core.goals import Goals
from speclift.core.results import (
    ALL_TRAFFIC,
    Acceptance,
    AtTemperature,
    Cell,
    Comparison,
    Conditions,
    Crossover,
    Evidence,
    Finding,
    Level,
    Part,
    Percentiles,
    Resources,
    TailRatio,
)
from speclift.core.speculation import Attached, NGram
from speclift.core.traffic import Concurrency, Load
from speclift.lossless.gate import ArmGate, Example, Gate, Greedy, Result
from speclift.verdict.articles import Article, ArticleOutcome
from speclift.verdict.document import VerdictDocument, verdict_document
from speclift.verdict.judgement import AcceptanceBucket, AcceptanceHistogram, Judgement, OwnLineChange, Served
from speclift.verdict.verdict import GateWord, decide
from tuning_samples import CONFIRMED

LONG = "an-arm-with-a-name-that-somebody-made-of-every-flag-there-is-" + "x" * 60
FORMS = {
    "command": "vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 4 --speculative-config "
    '\'{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}\'',
    "python": 'from vllm import LLM\n\nllm = LLM(\n    model="meta-llama/Llama-3.1-70B-Instruct",\n)',
    "yaml": "model: meta-llama/Llama-3.1-70B-Instruct\ntensor-parallel-size: 4\n",
}
LINE = OwnLineChange(
    before="vllm serve meta-llama/Llama-3.1-70B-Instruct --speculative-model draft --num-speculative-tokens 5",
    after='vllm serve meta-llama/Llama-3.1-70B-Instruct --speculative-config \'{"method": "ngram"}\'',
    diff="--- yours\n+++ recommended\n@@ -1 +1 @@\n"
    "-vllm serve meta-llama/Llama-3.1-70B-Instruct --speculative-model draft --num-speculative-tokens 5\n"
    '+vllm serve meta-llama/Llama-3.1-70B-Instruct --speculative-config \'{"method": "ngram"}\'\n',
)
ARTICLES = tuple(
    Article(
        rule=f"rule-{outcome.value}",
        source="S3",
        says="Below 50 % acceptance speculation slows decoding down.",
        outcome=outcome,
        seen="ngram-k4 on chat: 41 % accepted, 1.12x [1.05, 1.20]",
    )
    for outcome in ArticleOutcome
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """How much an arm gains on each segment; half of it is gone at each fourfold load."""

    gains: Mapping[str, float]
    streams: Sequence[int] = (1, 4, 16)
    width: float = 0.05
    prompts: int = 36

    @property
    def loads(self) -> tuple[Load, ...]:
        return tuple(Concurrency(streams=streams) for streams in self.streams)

    def gain(self, segment: str | None, streams: int | None, factor: float) -> float:
        chosen = [self.gains[segment]] if segment is not None else list(self.gains.values())
        at = [streams] if streams is not None else list(self.streams)
        values = [
            1 + (factor * gain - 1) / math.sqrt(math.sqrt(at_once)) for gain in chosen for at_once in at
        ]
        return sum(values) / len(values)


GOOD = Traffic(gains={"chat": 1.9, "summarise": 2.3, "code-editing": 2.6})
MIXED = Traffic(gains={"chat": 0.8, "summarise": 2.2, "creative": 0.7})
POOR = Traffic(gains={"chat": 0.9, "summarise": 1.05, "creative": 0.7})
CLOSE = Traffic(gains={"chat": 1.35, "summarise": 1.7, "creative": 1.15}, width=0.3)


def arms_named(*names: str) -> tuple[Arm, ...]:
    return tuple(Arm(name=name, speculation=NGram(k=4 + index)) for index, name in enumerate(names))


def evidence_on(traffic: Traffic, arm: Arm, factor: float, conditions: Conditions = ALL_TRAFFIC) -> Evidence:
    wanted = [name for name in traffic.gains if not conditions.segments or name in conditions.segments]
    within = replace(traffic, gains={name: traffic.gains[name] for name in wanted})
    if conditions.max_concurrency is not None:
        within = replace(within, streams=[n for n in traffic.streams if n <= conditions.max_concurrency])

    def compared(part: Part, label: str, gain: float, metric: str = "e2e") -> Comparison:
        low, high = gain * (1 - traffic.width), gain * (1 + traffic.width)
        if traffic.prompts == 1:
            # What one prompt says of others is not known.
            low, high = 0.0, math.inf
        needs = {"prompts_needed": 4 * traffic.prompts, "launches_needed": 6}
        return comparison(
            low,
            gain,
            high,
            part=part,
            label=label,
            arm=arm.name,
            metric=metric,
            prompts=traffic.prompts,
            **needs,
        )

    overall = within.gain(None, None, factor)
    parts = [compared(Part.SEGMENT, name, within.gain(name, None, factor)) for name in within.gains]
    parts += [
        compared(Part.LOAD, load.label, within.gain(None, n, factor))
        for n, load in zip(within.streams, within.loads, strict=True)
    ]
    cells = cells_on(within, {BASELINE: None, arm.name: factor})
    whole = [cell for cell in cells if cell.segment == "all"]
    return evidence(
        arm=arm,
        conditions=conditions,
        overall=compared(Part.ALL, "all", overall),
        by_metric=tuple(
            compared(Part.ALL, "all", gain * overall, metric)
            for metric, gain in (("e2e", 1.0), ("tpot", 1.05), ("ttft", 0.7), ("throughput", 1.0))
        ),
        parts=tuple(parts) if len(within.gains) * len(within.streams) > 1 else (),
        tails=tuple(
            TailRatio(
                arm=arm.name,
                load=load,
                metric="e2e",
                statistic="P95",
                ratio=estimate(0.95 * overall, 0.85 * overall, 1.1 * overall),
            )
            for load in within.loads
        ),
        cells=tuple(cell for cell in whole if cell.arm != BASELINE),
        baseline_cells=tuple(cell for cell in whole if cell.arm == BASELINE),
        segment_cells=tuple(cell for cell in cells if cell.segment != "all"),
        prompts=traffic.prompts,
        traffic_share=1.0 if conditions == ALL_TRAFFIC else 0.4,
    )


def cells_on(traffic: Traffic, factors: Mapping[str, float | None]) -> tuple[Cell, ...]:
    return tuple(
        _cell(name, traffic, streams, segment, factor)
        for name, factor in factors.items()
        for streams in traffic.streams
        for segment in (None, *traffic.gains)
    )


def _cell(name: str, traffic: Traffic, streams: int, segment: str | None, factor: float | None) -> Cell:
    gain = 1.0 if factor is None else traffic.gain(segment, streams, factor)
    tpot = 0.012 * streams**0.3 / gain
    rate = min(max(0.35 * gain, 0.05), 0.95)
    return cell(
        arm=name,
        load=Concurrency(streams=streams),
        segment=segment or "all",
        ttft_s=_spread(0.08 * streams**0.5 * (1.0 if factor is None else 1.06)),
        tpot_s=_spread(tpot),
        e2e_s=_spread(0.08 * streams**0.5 + 180 * tpot),
        throughput_tok_s=streams * 0.9 / tpot,
        acceptance_rate=None
        if factor is None
        else Acceptance(p10=rate * 0.6, p50=rate, p90=min(rate * 1.3, 1), mean=rate, requests=400),
        accepted_length=None
        if factor is None
        else estimate(1.25 * gain + 0.1, 1.2 * gain, 1.3 * gain + 0.2).interval,
        per_position=None if factor is None else tuple(rate**position for position in range(1, 5)),
        prompts=traffic.prompts,
    )


def _spread(median: float) -> Percentiles:
    return Percentiles(
        p50=median,
        p95=1.6 * median,
        p99=2.2 * median,
        intervals={
            "p50": (0.97 * median, 1.03 * median),
            "p95": (1.5 * median, 1.75 * median),
            "p99": (1.9 * median, None),
        },
    )


def made(
    traffic: Traffic,
    arms: Sequence[Arm] = arms_named("ngram-k4"),
    *,
    result: Result = Result.PASS,
    message: str = "12 answers are the same",
    **changes: Any,
) -> VerdictDocument:
    """The document of what the real rules say of this traffic; each further arm gains a little less."""
    factors = {arm.name: 1 - 0.04 * index for index, arm in enumerate(arms)}

    @cache
    def evidence_for(arm: Arm, conditions: Conditions) -> Evidence:
        return evidence_on(traffic, arm, factors[arm.name], conditions)

    verdict = decide(tuple(arms), evidence_for, goals=Goals(), gate=GateWord(result=result))
    cells = cells_on(traffic, {BASELINE: None, **factors})
    shown: Judgement = judgement(
        verdict,
        [evidence_for(arm, ALL_TRAFFIC) for arm in arms],
        cells=cells,
        served=Served(forms=FORMS, config={}) if verdict.winner is not None else None,
        **_acceptance(traffic, arms),
        crossovers=tuple(_crossing(traffic, arm, factors[arm.name]) for arm in arms),
        kv_tokens={BASELINE: 412_000, **{arm.name: 387_500 for arm in arms}},
        kv_peaks={BASELINE: 0.41, **{arm.name: 0.44 for arm in arms}},
        findings=FINDINGS,
        lossless=gate_of(arms, result, message),
        effort=replace(EFFORT, ready_s={BASELINE: 71.0, **{arm.name: 84.0 for arm in arms}}),
        provenance=PROVENANCE,
    )
    return verdict_document(replace(shown, **changes))


def _acceptance(traffic: Traffic, arms: Sequence[Arm]) -> dict[str, Any]:
    rates = Acceptance(p10=0.4, p50=0.6, p90=0.8, mean=0.6, requests=90)
    return {
        "acceptance_histograms": tuple(
            AcceptanceHistogram(
                arm=arm.name, by="segment", label=name, requests=43, counts=(0, 1, 3, 8, 13, 9, 6, 2, 1, 0)
            )
            for arm in arms
            for name in traffic.gains
        ),
        "at_temperatures": tuple(
            AtTemperature(
                arm=arm.name,
                temperature=label,
                speedup=estimate(gain, 0.9 * gain, 1.1 * gain).interval,
                acceptance_rate=rates,
                accepted_length=estimate(2.2, 2.0, 2.4).interval,
                requests=90,
                prompts=30,
            )
            for arm in arms
            for label, gain in (("0", 1.6), ("0.3–0.5", 1.2))
        ),
        "resources": tuple(
            Resources(
                arm=name,
                kv_tokens=412_000,
                kv_used_peak=0.44,
                prefix_hit_rate=None if name == BASELINE else 0.12,
                gpu_memory_peak_bytes=71_000_000_000,
            )
            for name in (BASELINE, *(arm.name for arm in arms))
        ),
        "acceptance_by_temperature": tuple(
            AcceptanceBucket(arm=arm.name, above=low, up_to=high, **asdict(rates))
            for arm in arms
            for low, high in ((0.0, 0.0), (0.0, 0.5))
        ),
    }


PROVENANCE = provenance(
    engine="vllm",
    engine_version="vLLM 0.32.0",
    model="meta-llama/Llama-3.1-70B-Instruct",
    model_sha256="ab" * 32,
    prompts_sha256="cd" * 32,
    argv=("decide", "--engine", "vllm", "--model", "meta-llama/Llama-3.1-70B-Instruct", "--method", "ngram"),
)
FINDINGS = (
    Finding(
        check="machine-noise",
        level=Level.WARN,
        message="the baseline's own speed varied by 6 % between launches",
        next_step="close other programs and measure again",
    ),
    Finding(check="loops", level=Level.INFO, message="2 of 1,200 answers end in a loop"),
)


def _crossing(traffic: Traffic, arm: Arm, factor: float) -> Crossover:
    is_lost = traffic.gain(None, max(traffic.streams), factor) < 1.2
    return Crossover(
        metric="e2e",
        axis="concurrency",
        value=11.3 if is_lost else None,
        low=8.0,
        high=None,
        arm=arm.name,
        note="" if is_lost else "faster up to the largest load measured",
    )


def gate_of(arms: Sequence[Arm], result: Result, message: str) -> Gate:
    example = Example(
        arm=arms[0].name,
        case="greedy c=1",
        why="another token, 14 nats apart",
        prompt="Name the capital of France.",
        baseline="The capital of France is Paris.",
        answer="The capital of France is Paris Paris Paris.",
        margin=14.0,
    )
    greedy = Greedy(result=result, message=message)
    return Gate(
        depth="quick",
        arms=tuple(ArmGate(arm=arm.name, method="ngram", result=result, greedy=greedy) for arm in arms),
        examples=(example,),
        mode="quick",
    )


def failed(*names: str) -> VerdictDocument:
    """No arm came far enough to be compared."""
    verdict = decide((), lambda _arm, _conditions: evidence(), goals=Goals())
    findings = tuple(
        Finding(
            check="launch",
            level=Level.FAIL,
            message=f"{name} did not start: CUDA out of memory",
            next_step="lower --gpu-memory-utilization",
            arm=name,
        )
        for name in names
    )
    return verdict_document(judgement(verdict, failed_arms=names, findings=findings))


SPEC = Arm(name="spec", speculation=Attached())
DOCUMENTS: dict[str, VerdictDocument] = {
    "ship": made(GOOD, line=LINE),
    "conditions": structs.replace(made(MIXED), articles=ARTICLES),
    "do-not-ship": made(POOR),
    "inconclusive": made(CLOSE),
    "output-changed": made(GOOD, result=Result.FAIL, message="7 of 24 answers differ"),
    "all-failed": failed("ngram-k4", "draft-k8"),
    "baseline-failed": failed(BASELINE),
    "attach": made(
        replace(GOOD, streams=(1,)), (SPEC,), served=Served(forms={}, config={}), acceptance_histograms=()
    ),
    "one-prompt": made(replace(GOOD, gains={"chat": 1.9}, streams=(1,), prompts=1)),
    "many-loads": made(replace(GOOD, streams=(1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64))),
    "tune": made(
        GOOD,
        arms_named("ngram-n4-k8", "ngram-n8-k8"),
        tuning=CONFIRMED,
    ),
    "long-names": made(
        replace(MIXED, gains={"s" * 90: 0.8, "summarise the minutes of a meeting of many people": 2.2}),
        arms_named(LONG, LONG[::-1]),
    ),
    "six-arms": made(GOOD, arms_named("ngram-k4", "ngram-k8", "draft-k3", "draft-k5", "eagle-k3", "suffix")),
}
