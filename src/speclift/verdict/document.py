"""The JSON documents of decide, tune, compare and measure: their types, and how they come from what was judged.

Fields may be added; those here stay, and unknown is null. A field with a default is not in documents of speclift 0.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec

from speclift.core.answer import ShortAnswer
from speclift.core.arm import BASELINE, Arm
from speclift.core.document import Document
from speclift.core.fleet import NodeFacts
from speclift.core.goals import Goals
from speclift.core.judged import StudyPrices
from speclift.core.records import Provenance
from speclift.core.results import (
    SPEEDUP_METRICS,
    AtTemperature,
    Bounds,
    Cell,
    Comparison,
    Conditions,
    Crossover,
    Decision,
    Evidence,
    Finding,
    Interval,
    OpenPart,
    Part,
    Reason,
    Resources,
    TailRatio,
    Upgrade,
    over_temperatures,
)
from speclift.core.speculation import Attached
from speclift.core.traffic import Load
from speclift.lossless.gate import Gate
from speclift.search.tuning import ConfirmedTuning
from speclift.verdict.answer import answer_to
from speclift.verdict.articles import Article, check_articles
from speclift.verdict.judgement import (
    AcceptanceBucket,
    AcceptanceHistogram,
    Judgement,
    NodeGroupSpeedups,
    OwnLineChange,
    Served,
)

DESIGN = "paired-log-ratio"
ALL = "all"
T = TypeVar("T")
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Speedup(Bounds, frozen=True, kw_only=True):
    """One arm over the baseline on all the traffic in question; its interval holds beside those of all arms."""

    level: float
    metric: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(SPEEDUP_METRICS)})]
    arm: str
    design: str
    method: str
    launches: int
    n: int


class SpeedupByMetric(Document, frozen=True, kw_only=True):
    """`e2e` is at the baseline's output lengths, `e2e_raw` as it came. Null where a metric is not known."""

    e2e: Speedup | None
    tpot: Speedup | None
    ttft: Speedup | None
    e2e_raw: Speedup | None
    throughput: Speedup | None


class Limits(Document, frozen=True, kw_only=True):
    low: float | None
    high: float | None


class PartSpeedup(Interval, frozen=True, kw_only=True):
    """One arm on one part of the traffic, and the limits that hold beside those of all other parts."""

    part: Part
    label: str
    simultaneous: Limits
    prompts: int
    launches: int


class TailSpeedup(Interval, frozen=True, kw_only=True):
    """The slowest requests; `load` is null over all loads together."""

    metric: str
    statistic: str
    load: Load | None


class Pairs(Document, frozen=True, kw_only=True):
    asked: int
    used: int


class ArmSpeedups(Document, frozen=True, kw_only=True):
    arm: str
    overall: Speedup | None
    e2e: Speedup | None
    parts: tuple[PartSpeedup, ...]
    tail_ratios: tuple[TailSpeedup, ...]
    pairs: Pairs
    prompts: int
    by_metric: SpeedupByMetric | None = None


class OpenPartSpeedup(Bounds, frozen=True, kw_only=True):
    arm: str
    part: Part
    label: str
    settle: str


class Winner(Document, frozen=True, kw_only=True):
    """Method, k and config are null where somebody else started the server."""

    arm: str
    method: str | None
    k: int | None
    command: str | None
    config: Mapping[str, object] | None


class GoalsDocument(Document, frozen=True, kw_only=True):
    min_speedup: float
    metric: str
    tail_tolerance: float
    slo: dict[str, float]


class Ceiling(Document, frozen=True, kw_only=True):
    """Of the speedup per token, on one segment."""

    arm: str
    segment: str
    ceiling: float
    measured: float
    metric: str | None = None


class KvTokens(Document, frozen=True, kw_only=True):
    baseline: int | None
    winner: int | None


class KvPeak(Document, frozen=True, kw_only=True):
    """The fullest the KV cache was seen, as a share."""

    baseline: Share | None
    winner: Share | None


class NodeSpeedup(Bounds, frozen=True, kw_only=True):
    arm: str
    launches: int


class NodeGroupDocument(Document, frozen=True, kw_only=True):
    """Nodes of one kind, where a fleet has several; the verdict is on those that are judged."""

    nodes: tuple[str, ...]
    kind: dict[str, str]
    judged: bool
    speedups: tuple[NodeSpeedup, ...]


class ProvenanceDocument(Document, frozen=True, kw_only=True):
    """`nodes` are those of a fleet; none where the study ran on `host`."""

    speclift: str
    engine: str
    engine_version: str
    model: str
    model_sha256: str
    host: Mapping[str, object]
    commands: tuple[tuple[str, ...], ...]
    argv: tuple[str, ...]
    prompts_sha256: str
    seed: int
    nodes: tuple[NodeFacts, ...] = ()


class VerdictDocument(Document, frozen=True, kw_only=True):
    """What decide, tune and compare print with --json, and what every page and screen of a verdict shows."""

    schema: Literal[1]
    verdict: Decision
    answer: ShortAnswer | None = None
    reasons: tuple[Reason, ...]
    conditions: Conditions | None
    open: tuple[OpenPartSpeedup, ...]
    winner: Winner | None
    goals: GoalsDocument
    speedup: Speedup | None
    e2e_speedup: Speedup | None
    speedup_by_metric: SpeedupByMetric | None = None
    speedups: tuple[ArmSpeedups, ...]
    cells: tuple[Cell, ...]
    by_temperature: tuple[AtTemperature, ...] = ()
    acceptance_by_temperature: tuple[AcceptanceBucket, ...]
    acceptance_histograms: tuple[AcceptanceHistogram, ...]
    ceiling: tuple[Ceiling, ...]
    # By form, such as command, python and yaml.
    configuration: Mapping[str, str] | None
    crossover: tuple[Crossover, ...]
    kv_tokens: KvTokens
    kv_peak: KvPeak
    resources: tuple[Resources, ...] = ()
    lossless: Gate
    articles: tuple[Article, ...] = ()
    findings: tuple[Finding, ...]
    failed_arms: tuple[str, ...]
    tuning: ConfirmedTuning | None
    line: Annotated[
        OwnLineChange | None,
        msgspec.Meta(description="Of the user's own command; null where none was given."),
    ] = None
    # Of compare, where two studies are of unlike versions of the engine.
    upgrade: Upgrade | msgspec.UnsetType = msgspec.UNSET
    provenance: ProvenanceDocument
    # Empty unless the nodes of a fleet were unlike.
    node_groups: tuple[NodeGroupDocument, ...] = ()
    study: str

    @property
    def by_metric(self) -> tuple[Speedup, ...]:
        """The headline in every metric that is known; documents of speclift 0.2 have the end-to-end time alone."""
        found = self.speedup_by_metric
        known = (self.e2e_speedup,) if found is None else msgspec.structs.astuple(found)
        return tuple(speedup for speedup in known if speedup is not None)


class JudgedStudy(StudyPrices, frozen=True, kw_only=True):
    """What a study's folder keeps of its verdict."""

    document: VerdictDocument


class MeasureDocument(Document, frozen=True, kw_only=True):
    schema: Literal[1]
    study: str
    cells: tuple[Cell, ...]
    resources: tuple[Resources, ...]
    findings: tuple[Finding, ...]


class ExportedFile(Document, frozen=True, kw_only=True):
    name: str
    text: str


class ExportDocument(Document, frozen=True, kw_only=True):
    """`node_hours` is what running a study file costs."""

    schema: Literal[1]
    format: str
    study: str
    files: tuple[ExportedFile, ...]
    node_hours: Annotated[float, msgspec.Meta(ge=0)] | msgspec.UnsetType = msgspec.UNSET


def verdict_document(judgement: Judgement) -> VerdictDocument:
    verdict, served = judgement.verdict, judgement.served
    evidence = verdict.evidence
    return VerdictDocument(
        schema=1,
        verdict=verdict.decision,
        answer=answer_to(judgement),
        reasons=verdict.reasons,
        conditions=verdict.conditions,
        open=tuple(_open_part(part) for part in verdict.open),
        winner=_winner(verdict.winner, served),
        goals=_goals(judgement.goals),
        speedup=_speedup(evidence.overall if evidence else None),
        e2e_speedup=_speedup(evidence.speedup_in("e2e") if evidence else None),
        speedup_by_metric=_by_metric(evidence),
        speedups=tuple(_arm_speedups(evidence) for evidence in judgement.on_all),
        cells=judgement.cells,
        by_temperature=judgement.at_temperatures,
        acceptance_by_temperature=judgement.acceptance_by_temperature,
        acceptance_histograms=judgement.acceptance_histograms,
        ceiling=tuple(_ceilings(judgement.cells, judgement.on_all)),
        configuration=served.forms if served is not None else None,
        crossover=judgement.crossovers,
        kv_tokens=KvTokens(**_of_both(judgement.kv_tokens, verdict.winner)),
        kv_peak=KvPeak(**_of_both(judgement.kv_peaks, verdict.winner)),
        resources=judgement.resources,
        lossless=judgement.lossless,
        articles=check_articles(judgement),
        findings=judgement.findings,
        failed_arms=judgement.failed_arms,
        tuning=judgement.tuning,
        line=judgement.line,
        upgrade=judgement.upgrade or msgspec.UNSET,
        provenance=_provenance(judgement.provenance),
        node_groups=tuple(_node_group(group) for group in judgement.node_groups),
        study=judgement.study,
    )


def measure_document(judgement: Judgement) -> MeasureDocument:
    return MeasureDocument(
        schema=1,
        study=judgement.study,
        cells=judgement.cells,
        resources=judgement.resources,
        findings=judgement.findings,
    )


def _provenance(provenance: Provenance) -> ProvenanceDocument:
    return ProvenanceDocument(
        speclift=provenance.speclift_version,
        engine=provenance.engine,
        engine_version=provenance.engine_version,
        model=provenance.model,
        model_sha256=provenance.model_sha256,
        host=provenance.host,
        commands=provenance.commands,
        argv=provenance.argv,
        prompts_sha256=provenance.prompts_sha256,
        seed=provenance.seed,
        nodes=provenance.nodes,
    )


def _node_group(group: NodeGroupSpeedups) -> NodeGroupDocument:
    return NodeGroupDocument(
        nodes=tuple(group.group.names),
        kind=dict(group.group.kind),
        judged=group.is_judged,
        speedups=tuple(
            NodeSpeedup(
                arm=overall.arm,
                launches=overall.launches,
                value=overall.speedup.value,
                low=overall.speedup.shown_low,
                high=overall.speedup.shown_high,
            )
            for overall in group.overall
        ),
    )


def _speedup(comparison: Comparison | None) -> Speedup | None:
    if comparison is None:
        return None
    estimate = comparison.simultaneous
    return Speedup(
        value=estimate.value,
        low=estimate.shown_low,
        high=estimate.shown_high,
        level=estimate.level,
        metric=comparison.metric,
        arm=comparison.arm,
        design=DESIGN,
        method=estimate.method,
        launches=comparison.launches,
        n=comparison.prompts,
    )


def _by_metric(evidence: Evidence | None) -> SpeedupByMetric:
    found = {} if evidence is None else {each.metric: _speedup(each) for each in evidence.by_metric}
    return SpeedupByMetric(**{metric: found.get(metric) for metric in SPEEDUP_METRICS})


def _arm_speedups(evidence: Evidence) -> ArmSpeedups:
    completeness = evidence.completeness
    return ArmSpeedups(
        arm=evidence.arm.name,
        overall=_speedup(evidence.overall),
        e2e=_speedup(evidence.speedup_in("e2e")),
        by_metric=_by_metric(evidence),
        parts=tuple(_part(part) for part in evidence.parts),
        tail_ratios=tuple(_tail(tail) for tail in evidence.tails),
        pairs=Pairs(asked=completeness.asked, used=completeness.used),
        prompts=evidence.prompts,
    )


def _part(part: Comparison) -> PartSpeedup:
    return PartSpeedup(
        **msgspec.structs.asdict(part.speedup.interval),
        part=part.part,
        label=part.label,
        simultaneous=Limits(low=part.simultaneous.shown_low, high=part.simultaneous.shown_high),
        prompts=part.prompts,
        launches=part.launches,
    )


def _tail(tail: TailRatio) -> TailSpeedup:
    return TailSpeedup(
        **msgspec.structs.asdict(tail.ratio.interval),
        metric=tail.metric,
        statistic=tail.statistic,
        load=tail.load,
    )


def _open_part(part: OpenPart) -> OpenPartSpeedup:
    comparison = part.comparison
    return OpenPartSpeedup(
        value=comparison.speedup.value,
        low=comparison.speedup.shown_low,
        high=comparison.speedup.shown_high,
        arm=comparison.arm,
        part=comparison.part,
        label=comparison.label,
        settle=part.settle,
    )


def _winner(arm: Arm | None, served: Served | None) -> Winner | None:
    if arm is None or served is None:
        return None
    is_known = not isinstance(arm.speculation, Attached)
    return Winner(
        arm=arm.name,
        method=arm.method if is_known else None,
        k=arm.k if is_known else None,
        command=served.forms.get("command"),
        config=served.config if is_known else None,
    )


def _goals(goals: Goals) -> GoalsDocument:
    return GoalsDocument(
        min_speedup=goals.min_speedup,
        metric=goals.metric,
        tail_tolerance=goals.tail_tolerance,
        slo={slo.label: slo.limit_s for slo in goals.slos},
    )


def _ceilings(cells: Sequence[Cell], comparisons: Sequence[Evidence]) -> list[Ceiling]:
    """Accepted length is the speedup if drafting and verifying cost nothing ("acceptance times speed ratio is
    the ceiling" [S3]); measured speedup beside it, at the lightest load."""
    rows: list[Ceiling] = []
    for evidence in comparisons:
        measured = {part.label: part.speedup.value for part in evidence.parts if part.part is Part.SEGMENT}
        if evidence.overall is not None:
            measured[ALL] = evidence.overall.speedup.value
        lengths = {
            cell.segment: cell.accepted_length.value
            # The first cell of a segment, at the lightest load, stays.
            for cell in reversed(over_temperatures(cells))
            if cell.arm == evidence.arm.name and cell.accepted_length is not None
        }
        rows += [
            Ceiling(
                arm=evidence.arm.name,
                segment=segment,
                ceiling=lengths[segment],
                measured=speedup,
                metric=evidence.completeness.metric,
            )
            for segment, speedup in measured.items()
            if segment in lengths
        ]
    return rows


def _of_both(by_arm: Mapping[str, T], winner: Arm | None) -> dict[str, T | None]:
    return {
        "baseline": by_arm.get(BASELINE),
        "winner": by_arm.get(winner.name) if winner is not None else None,
    }
