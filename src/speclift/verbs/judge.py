"""From what a study holds to a judgement: cells, findings, verdict; and what its folder keeps.

Reads, never measures.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Literal

from msgspec import structs
from scipy.stats import theilslopes

from speclift import __version__
from speclift.core.arm import BASELINE, CONTROL, Arm, baseline_arm
from speclift.core.goals import Goals
from speclift.core.judged import (
    ROUTING_BAR,
    LoadRunning,
    PlainTime,
    RoutingFacts,
    SegmentSpeedup,
    StudyBreakEvens,
)
from speclift.core.records import Phase, Record
from speclift.core.results import (
    ALL_TRAFFIC,
    CONFIDENCE,
    Comparison,
    Conditions,
    Crossover,
    Evidence,
    Finding,
    Part,
    inform,
    over_temperatures,
    warn,
)
from speclift.core.speculation import DraftModel, drafters_of
from speclift.core.traffic import Concurrency, Load
from speclift.core.units import Seconds
from speclift.engines.build import build_engine, losing_scheduling
from speclift.engines.kind import engine_kind
from speclift.engines.protocol import Engine
from speclift.lossless.gate import LOSSLESS, Gate, read_gate, worst_gate
from speclift.lossless.recorded import gate_from_records
from speclift.search.tuning import (
    TUNING,
    ConfirmedBest,
    ConfirmedTuning,
    Tuning,
    confirmed_errors,
    kept_tuning,
)
from speclift.statistics.cells import (
    acceptance,
    acceptance_histogram,
    cells,
)
from speclift.statistics.checks import check_client, check_records
from speclift.statistics.compare import idle_tax
from speclift.statistics.control import explained_gains
from speclift.statistics.crossover import crossovers
from speclift.statistics.engine_checks import check_engines, kv_peaks, resources_of
from speclift.statistics.nodes import node_findings
from speclift.statistics.pairs import PromptOf
from speclift.statistics.repeats import check_repeats
from speclift.statistics.schedule_gain import schedule_without_gain
from speclift.statistics.slow_requests import explained_tails
from speclift.statistics.temperatures import at_temperatures
from speclift.studies.outputs import relative
from speclift.studies.study import Study
from speclift.studies.texts import budget_finding, no_text_finding
from speclift.studies.verdict_file import write_verdict
from speclift.verbs.study_data import Ending, StudyData, comparer_of, effort_of, ending_of, read_data
from speclift.verdict.break_even import crossover_running, load_break_evens, requests_under_way
from speclift.verdict.document import JudgedStudy, verdict_document
from speclift.verdict.judgement import (
    AcceptanceBucket,
    AcceptanceHistogram,
    Judgement,
    NodeGroupSpeedups,
    OwnLineChange,
    Served,
)
from speclift.verdict.rules import ALL
from speclift.verdict.verdict import (
    EvidenceFor,
    GateWord,
    changed_arms,
    changed_findings,
    decide,
    gate_for_verdict,
)

# What weights are stored as in a Hugging Face folder.
WEIGHT_FILES = ("*.safetensors", "*.bin")


def drafts_of(arms: Iterable[Arm]) -> Iterator[str]:
    for arm in arms:
        for drafter in drafters_of(arm.speculation):
            if isinstance(drafter, DraftModel):
                yield drafter.model


def weight_bytes(models: Iterable[str]) -> dict[str, int]:
    """By name; what is no file or folder here is left out."""
    return {model: found for model in models if model and (found := _bytes_at(Path(model)))}


def _bytes_at(path: Path) -> int:
    try:
        if path.is_file():
            return path.stat().st_size
        files = [file for pattern in WEIGHT_FILES for file in path.glob(pattern)] if path.is_dir() else []
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0  # gone, or not ours to read: as good as not here


def group_speedups(
    held: StudyData, goals: Goals, on_all: Sequence[Evidence]
) -> tuple[NodeGroupSpeedups, ...]:
    """The group that is judged first; none where all nodes are alike."""
    if held.group is None:
        return ()
    judged = tuple(each.overall for each in on_all if each.overall is not None)
    found = [NodeGroupSpeedups(group=held.group, is_judged=True, overall=judged)]
    for group, records in held.unlike:
        comparer = comparer_of(replace(held, records=records), goals, level=CONFIDENCE)
        evidence = [comparer.evidence(arm, ALL_TRAFFIC) for arm in held.competing]
        overall = tuple(each.overall for each in evidence if each.overall is not None)
        found.append(NodeGroupSpeedups(group=group, is_judged=False, overall=overall))
    return tuple(found)


def fleet_findings(held: StudyData, goals: Goals, groups: Sequence[NodeGroupSpeedups]) -> list[Finding]:
    """How nodes that are alike differ, and which are not."""
    found = node_findings(
        held.records, [arm.name for arm in held.competing], metric=goals.metric, prompt_of=held.prompt_of
    )
    if groups:
        found.append(_unlike_nodes(*groups))
    return found


def _unlike_nodes(judged: NodeGroupSpeedups, *others: NodeGroupSpeedups) -> Finding:
    parts = [
        f"{', '.join(each.group.names)} ({each.group.unlike(judged.group)}): {_speedups(each.overall)}"
        for each in others
    ]
    return warn(
        "unlike-nodes",
        f"nodes are unlike and were not pooled: the verdict is on {', '.join(judged.group.names)} "
        f"({judged.group.unlike(others[0].group)}); beside it {'; '.join(parts)}",
        then="for a verdict on the others, run a study on a cluster of those alone",
    )


def _speedups(overall: Sequence[Comparison]) -> str:
    words = (
        f"{each.arm} {each.speedup.value:.2f}x [{each.speedup.low:.2f}, {each.speedup.high:.2f}]"
        if each.speedup.high < 1e6
        else f"{each.arm} {each.speedup.value:.2f}x (too few launches for an interval)"
        for each in overall
    )
    return ", ".join(words) or "nothing was measured on both sides"


# Upper edges of the temperature buckets in which acceptance is reported; 0.5 and 0.7 are S4's limits.
TEMPERATURE_BUCKETS = (0.0, 0.5, 0.7, 1.0, float("inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """A judgement, and what it takes to judge the same data by other goals."""

    judgement: Judgement
    held: StudyData
    arms: Sequence[Arm]
    level: float
    gate: GateWord


def judge(studies: Sequence[Study], *, goals: Goals | None = None) -> Judgement:
    """The verdict on one study, or on several of like environment pooled."""
    return _judge(studies, goals).judgement


def judge_and_keep(study: Study, *, goals: Goals | None = None) -> tuple[Judgement, JudgedStudy]:
    """The verdict on one study, which its folder keeps from then on as verdict.json."""
    judged = _judge([study], goals)
    judgement, held = judged.judgement, judged.held
    running = {
        evidence.arm.name: requests_under_way(held.records, evidence.arm) for evidence in judgement.on_all
    }
    best, effort = judgement.verdict.evidence, judgement.effort
    kept = JudgedStudy(
        speclift=__version__,
        goals=judgement.goals,
        has_own_goals=judgement.goals == study.goals,
        best=None if best is None else best.arm.name,
        arms=tuple(
            _break_evens(judgement, held, evidence, running[evidence.arm.name], seed=study.plan.seed)
            for evidence in judgement.on_all
        ),
        seconds=effort.starting_s + effort.asking_s + effort.checking_s,
        argv=judgement.provenance.argv,
        routing=_routing_facts(judged, running),
        document=verdict_document(judgement),
    )
    study.settle()
    write_verdict(study.path, kept)
    return judgement, kept


def _break_evens(
    judgement: Judgement, held: StudyData, evidence: Evidence, running: Mapping[Load, float], *, seed: int
) -> StudyBreakEvens:
    crossed = crossovers(held.records, evidence.arm.name, seed=seed, prompt_of=held.prompt_of)
    overall = evidence.overall
    return StudyBreakEvens(
        arm=evidence.arm,
        engine=judgement.provenance.engine,
        engine_version=judgement.provenance.engine_version,
        loads=load_break_evens(evidence, running),
        crossover=crossover_running(crossed, running, metric=judgement.goals.metric),
        metric="" if overall is None else overall.metric,
        speedup=None if overall is None else overall.speedup.interval,
    )


def _routing_facts(judged: _Judged, running: Mapping[str, Mapping[Load, float]]) -> RoutingFacts:
    """The servers that speculate are there already: whatever is shown to be faster on them belongs there. The bar that
    the study was given is for a launch of speculation for everybody."""
    held, goals = judged.held, judged.judgement.goals
    goals = replace(goals, min_speedup=min(goals.min_speedup, ROUTING_BAR))
    evidence_for = cache(comparer_of(held, goals, level=judged.level).evidence)
    findings = judged.judgement.findings
    verdict = decide(judged.arms, evidence_for, goals=goals, findings=findings, gate=judged.gate)
    arm = None if verdict.evidence is None else verdict.evidence.arm
    whole = None if arm is None else evidence_for(arm, ALL_TRAFFIC)
    return RoutingFacts(
        verdict=verdict.decision,
        arm=arm,
        winner=None if verdict.winner is None else verdict.winner.name,
        conditions=verdict.conditions,
        whole=_by_segment(whole),
        admitted=_by_segment(verdict.evidence),
        plain=tuple(
            PlainTime(segment=cell.segment, load=cell.load, e2e_s=cell.e2e_s.p50)
            for cell in (over_temperatures(whole.segment_cells) if whole is not None else ())
            if cell.arm == BASELINE and cell.e2e_s is not None and cell.e2e_s.p50 is not None
        ),
        running=tuple(
            LoadRunning(load=load, running=count)
            for load, count in (running[arm.name].items() if arm is not None else ())
        ),
        prefill_s_per_1000_tokens=prefill_s_per_1000(held.records),
    )


def _by_segment(evidence: Evidence | None) -> dict[str, SegmentSpeedup]:
    parts = evidence.parts if evidence is not None else ()
    return {
        part.label: SegmentSpeedup(**structs.asdict(part.speedup.interval), prompts=part.prompts)
        for part in parts
        if part.part is Part.SEGMENT and part.label != ALL
    }


def _judge(studies: Sequence[Study], goals: Goals | None) -> _Judged:
    first, held = studies[0], read_data(studies)
    goals, records = goals or first.goals, held.records
    ending = ending_of(studies, held)
    evidence_for = _evidence_for(held, ending, goals, settled_by=first.goals)
    lossless = _lossless(studies, held)
    tuning = _kept_tuning(first) if len(studies) == 1 else None
    no_gain = _schedule_findings(tuning, held, metric=goals.metric)
    without_gain = {finding.arm for finding in no_gain}
    out = {*without_gain, *(arm.arm for arm in changed_arms(lossless))}
    standing = [arm for arm in held.competing if arm.name not in out]
    on_all = tuple(evidence_for(arm, Conditions()) for arm in held.competing)
    groups = group_speedups(held, goals, on_all)
    findings = (
        *_findings(studies, held),
        *_repeat_findings(first, held),
        *explained_gains(
            held.everything, _losing_scheduling(first, held.competing), held.launches, metric=goals.metric
        ),
        *no_gain,
        *_taxes(records, held.competing, held.prompt_of),
        *explained_tails(records, on_all, prompt_of=held.prompt_of),
        *fleet_findings(held, goals, groups),
        *(changed_findings(lossless) if standing else ()),
    )
    arms, gate = standing or held.competing, gate_for_verdict(lossless, standing, held.competing)
    verdict = decide(arms, evidence_for, goals=goals, findings=findings, gate=gate)
    engine = build_engine(first.engine, version=first.provenance.engine_version)
    worthwhile = [evidence for evidence in on_all if evidence.arm.name not in without_gain]
    judgement = Judgement(
        study=relative(first.path),
        goals=goals,
        provenance=replace(first.provenance, nodes=first.nodes),
        node_groups=groups,
        verdict=verdict,
        served=None if verdict.winner is None else _served(engine, verdict.winner),
        on_all=on_all,
        cells=cells(records, by_temperature=held.by_temperature, totals=held.totals, arms=held.arms),
        acceptance_by_temperature=_acceptance_by_temperature(records),
        acceptance_histograms=_acceptance_histograms(records),
        findings=findings,
        crossovers=_crossovers(held, verdict.evidence, seed=first.plan.seed),
        kv_tokens=_kv_tokens(studies),
        kv_peaks=kv_peaks(held.launches),
        failed_arms=held.failed_arms,
        weight_bytes=weight_bytes((first.provenance.model, *drafts_of(held.competing))),
        effort=effort_of(studies, held.everything, lossless, is_settled=ending.is_settled),
        lossless=lossless,
        tuning=None if tuning is None else _confirmed(tuning, records, worthwhile, engine),
        line=_line_change(first, engine, verdict.winner or baseline_arm()),
        resources=resources_of(held.launches, _kv_tokens(studies)),
        at_temperatures=at_temperatures(records, on_all),
    )
    return _Judged(judgement=judgement, held=held, arms=arms, level=ending.level, gate=gate)


def _evidence_for(held: StudyData, ending: Ending, goals: Goals, *, settled_by: Goals) -> EvidenceFor:
    """The evidence that settled the study, where the goals are the same; else new evidence."""
    if goals == settled_by and ending.evidence_for is not None:
        return ending.evidence_for
    return cache(comparer_of(held, goals, level=ending.level).evidence)


def _repeat_findings(study: Study, held: StudyData) -> Sequence[Finding]:
    reuses_prompts = engine_kind(study.engine.kind).reuses_prompts
    return tuple(
        check_repeats(held.records, held.arms, launches=held.launches, reuses_prompts=reuses_prompts)
    )


def _line_change(study: Study, engine: Engine, arm: Arm) -> OwnLineChange | None:
    """What becomes of the line that the user brought: with the winner's speculation, or without any."""
    line = study.engine.settings.line
    if line is None:
        return None
    from speclift.verbs.user_command import changed_line  # reads commands: only some studies began with one

    return changed_line(line, study.engine.kind, _served(engine, arm), arm.speculation)


def _losing_scheduling(study: Study, arms: Sequence[Arm]) -> tuple[Arm, ...]:
    shared = replace(study.engine, by_arm=())
    return losing_scheduling(build_engine(shared, version=study.provenance.engine_version), tuple(arms))


def _lossless(studies: Sequence[Study], held: StudyData) -> Gate:
    """As the studies' gates found it, else what the answers of the first say by themselves."""
    documents = [study.kept(LOSSLESS) for study in studies]
    worst = worst_gate([None if kept is None else read_gate(kept) for kept in documents])
    return worst or _recorded_outcome(studies[0], held.records, held.arms)


def _recorded_outcome(study: Study, records: Sequence[Record], arms: Sequence[Arm]) -> Gate:
    """For studies that were only measured: what their answers say by themselves."""
    if not study.keeps_text:
        return Gate(why="answers were not stored (--no-text)", mode="records")
    gate = gate_from_records(
        records,
        arms,
        study.plan.requests,
        settings=study.engine.settings.engine_args,
        seed=study.plan.seed,
    )
    return structs.replace(gate, mode="records")


def _kept_tuning(study: Study) -> Tuning | None:
    kept = study.kept(TUNING)
    return None if kept is None else kept_tuning(kept)


def _schedule_findings(tuning: Tuning | None, held: StudyData, *, metric: str) -> tuple[Finding, ...]:
    """Empty where no schedule was measured beside its static rival, or it is worth it."""
    schedule = tuning.schedule if tuning is not None else None
    if schedule is None:
        return ()
    by_name = {arm.name: arm for arm in held.competing}
    scheduled, static = by_name.get(schedule.arm or ""), by_name.get(schedule.static)
    if scheduled is None or static is None:
        return ()
    finding = schedule_without_gain(scheduled, static, held.records, metric=metric, prompt_of=held.prompt_of)
    return () if finding is None else (finding,)


def _confirmed(
    tuning: Tuning, records: Sequence[Record], worthwhile: Sequence[Evidence], engine: Engine
) -> ConfirmedTuning:
    """With the arm that was confirmed to be fastest, whether or not it clears the bar."""
    compared = [
        (evidence.overall.speedup, evidence.arm) for evidence in worthwhile if evidence.overall is not None
    ]
    best = None
    if compared:
        speedup, arm = max(compared, key=lambda pair: pair[0].value)
        served = _served(engine, arm)
        best = ConfirmedBest(
            arm=arm.name, speedup=speedup.bounds, command=served.forms["command"], config=served.config
        )
    return ConfirmedTuning(
        **{part.name: getattr(tuning, part.name) for part in fields(tuning)},
        confirmed_errors=confirmed_errors(tuning, records),
        best=best,
    )


def _served(engine: Engine, arm: Arm) -> Served:
    return Served(forms=engine.configurations(arm), config=engine.config(arm))


def _crossovers(held: StudyData, evidence: Evidence | None, *, seed: int) -> tuple[Crossover, ...]:
    if evidence is None:
        return ()
    return crossovers(held.records, evidence.arm.name, seed=seed, prompt_of=held.prompt_of)


# Below this many prompts without a draft their mean is no finding.
IDLE_PROMPTS_MIN = 8


def _taxes(records: Sequence[Record], arms: Sequence[Arm], prompt_of: PromptOf) -> Iterator[Finding]:
    for arm in arms:
        tax = idle_tax(records, arm.name, prompt_of=prompt_of)
        if tax is not None and tax.prompts >= IDLE_PROMPTS_MIN and tax.speedup.high < 1.0:
            yield inform(
                "speculation-tax",
                f"{arm.name}: {tax.prompts} prompts without any draft token were still "
                f"{1 / tax.speedup.value - 1:.1%} slower per token: speculation has a fixed cost",
                then="route traffic that rarely drafts to a server without speculation",
                arm=arm.name,
            )


def _findings(studies: Sequence[Study], held: StudyData) -> tuple[Finding, ...]:
    records = held.records
    health = [turn for study in studies for turn in study.turn_health()]
    found = [
        *(finding for study in studies for finding in study.findings()),
        *check_records(held.records, prompt_counts=held.prompt_counts if held.has_laps else None),
        *check_client(health, records),
        *check_engines([launch for launch, _ in studies[0].launches() if launch.arm != CONTROL], records),
        *(budget_finding(words) for study in studies if (words := study.left_out)),
        *(no_text_finding() for study in studies if not study.keeps_text),
    ]
    return tuple(dict.fromkeys(found))


def _acceptance_by_temperature(records: Sequence[Record]) -> tuple[AcceptanceBucket, ...]:
    measured = [r for r in records if r.place.phase is Phase.MEASURED and r.is_ok]
    buckets = []
    for arm in dict.fromkeys(record.place.arm for record in measured):
        low = -1.0
        for high in TEMPERATURE_BUCKETS:
            members = [
                record
                for record in measured
                if record.place.arm == arm
                and record.place.temperature is not None
                and low < record.place.temperature <= high
            ]
            found = acceptance(members)
            if found is not None:
                up_to = high if math.isfinite(high) else None
                buckets.append(AcceptanceBucket(arm=arm, above=max(low, 0.0), up_to=up_to, **asdict(found)))
            low = high
    return tuple(buckets)


def _acceptance_histograms(records: Sequence[Record]) -> tuple[AcceptanceHistogram, ...]:
    groups: dict[tuple[str, Literal["segment", "temperature"], str], list[Record]] = defaultdict(list)
    for record in records:
        if record.place.phase is Phase.MEASURED and record.is_ok and record.drafted:
            groups[(record.place.arm, "segment", record.place.segment)].append(record)
            if record.place.temperature is not None:
                groups[(record.place.arm, "temperature", f"{record.place.temperature:g}")].append(record)
    return tuple(
        AcceptanceHistogram(arm=arm, by=by, label=label, requests=sum(counts), counts=counts)
        for (arm, by, label), members in groups.items()
        for counts in (acceptance_histogram(members),)
    )


def _kv_tokens(studies: Sequence[Study]) -> dict[str, int]:
    return {
        launch.arm: kv_tokens
        for study in studies
        for launch, kv_tokens in study.launches()
        if kv_tokens is not None
    }


# Below this many lengths of prompts a slope of first tokens over them says nothing.
ANSWERS_MIN = 8
ANSWERS_MAX = 500


def prefill_s_per_1000(records: Sequence[Record]) -> Seconds:
    """How much longer the plain server's first token takes for a thousand tokens more of prompt, at the lightest load:
    the median of slopes, which a few slow answers do not move. 0 where prompts are too alike to tell."""
    plain = [record for record in records if _is_plain_answer(record)]
    lightest = min((_lightness(record.place.load) for record in plain), default=None)
    times = [
        (record.prompt_tokens, record.ttft_s)
        for record in plain
        if _lightness(record.place.load) == lightest and record.prompt_tokens and record.ttft_s is not None
    ][:ANSWERS_MAX]
    lengths, firsts = [length for length, _ in times], [first for _, first in times]
    if len(set(lengths)) < ANSWERS_MIN:
        return 0.0
    slope = float(theilslopes(firsts, lengths).slope)
    return max(0.0, slope * 1000)


def _is_plain_answer(record: Record) -> bool:
    return record.place.arm == BASELINE and record.place.phase is Phase.MEASURED and record.is_ok


def _lightness(load: Load) -> tuple[bool, float]:
    is_open = not isinstance(load, Concurrency)
    return (is_open, load.per_s if not isinstance(load, Concurrency) else float(load.streams))
