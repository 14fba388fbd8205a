"""The JSON documents of decide, tune, compare and measure, as types. Fields may be added; those here stay, and unknown
is null. Those of the other verbs are described beside the function that writes them; `schema.py` lists them all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, NotRequired, TypedDict

from speclift.core.documents import AnswerDocument, BoundsDocument, FindingDocument, LoadDocument
from speclift.core.results import SPEEDUP_METRICS, Decision, Level, Moved, Part
from speclift.core.typed_json import Keywords
from speclift.lossless.document import LosslessDocument
from speclift.search.tuning_document import ConfirmedTuningDocument
from speclift.verdict.articles import ArticleOutcome


class EstimateDocument(BoundsDocument):
    n: int
    method: str
    level: float


class SpeedupDocument(BoundsDocument):
    level: float
    metric: Annotated[str, Keywords(enum=list(SPEEDUP_METRICS))]
    arm: str
    design: str
    method: str
    launches: int
    n: int


class SpeedupByMetricDocument(TypedDict):
    """`e2e` is at the baseline's output lengths, `e2e_raw` as it came. Null where a metric is not known."""

    e2e: SpeedupDocument | None
    tpot: SpeedupDocument | None
    ttft: SpeedupDocument | None
    e2e_raw: SpeedupDocument | None
    throughput: SpeedupDocument | None


class LimitsDocument(TypedDict):
    low: float | None
    high: float | None


class PartSpeedupDocument(EstimateDocument):
    part: Annotated[Part, Keywords(enum=[part.value for part in Part if part is not Part.ALL])]
    label: str
    simultaneous: LimitsDocument
    prompts: int
    launches: int


class TailRatioDocument(EstimateDocument):
    metric: str
    statistic: str
    # null over all loads together.
    load: LoadDocument | None


class PairsDocument(TypedDict):
    asked: int
    used: int


class ArmSpeedupsDocument(TypedDict):
    arm: str
    overall: SpeedupDocument | None
    e2e: SpeedupDocument | None
    by_metric: NotRequired[SpeedupByMetricDocument]
    parts: list[PartSpeedupDocument]
    tail_ratios: list[TailRatioDocument]
    pairs: PairsDocument
    prompts: int


class PercentilesDocument(TypedDict):
    p50: float | None
    p95: float | None
    p99: float | None
    intervals: dict[str, list[float | None]]


class AcceptanceDocument(TypedDict):
    p10: float | None
    p50: float | None
    p90: float | None
    mean: float
    requests: int


class AtTemperatureDocument(TypedDict):
    """One arm at one temperature, or at those of one bucket, as the prompts or `--temperature` say."""

    arm: str
    temperature: str
    speedup: EstimateDocument | None
    acceptance_rate: AcceptanceDocument | None
    accepted_length: EstimateDocument | None
    requests: int
    prompts: int


class CellDocument(TypedDict):
    arm: str
    load: LoadDocument
    segment: str
    temperature: float | None
    ttft_s: PercentilesDocument | None
    tpot_s: PercentilesDocument | None
    e2e_s: PercentilesDocument | None
    throughput_tok_s: float | None
    acceptance_rate: AcceptanceDocument | None
    accepted_length: EstimateDocument | None
    per_position: list[float] | None
    output_tokens_mean: float | None
    requests: int
    prompts: int | None
    failed: int


class ReasonDocument(TypedDict):
    rule: str
    level: Level
    message: str
    source: str


class ConditionsDocument(TypedDict):
    segments: list[str] | None
    max_concurrency: int | None
    max_qps: float | None
    max_temperature: float | None


class OpenPartDocument(BoundsDocument):
    arm: str
    part: Part
    label: str
    settle: str


class WinnerDocument(TypedDict):
    """Method, k and config are null where somebody else started the server."""

    arm: str
    method: str | None
    k: int | None
    command: str | None
    config: Mapping[str, object] | None


class GoalsDocument(TypedDict):
    min_speedup: float
    metric: str
    tail_tolerance: float
    slo: dict[str, float]


class AcceptanceBucketDocument(AcceptanceDocument):
    arm: str
    above: float
    # Null where the bucket has no upper edge.
    up_to: float | None


class AcceptanceHistogramDocument(TypedDict):
    arm: str
    by: Literal["segment", "temperature"]
    label: str
    requests: int
    counts: Annotated[list[int], Keywords(minItems=10, maxItems=10)]


class CeilingDocument(TypedDict):
    arm: str
    segment: str
    # Of the speedup per token.
    ceiling: float
    measured: float
    metric: NotRequired[str]


class CrossoverDocument(TypedDict):
    metric: str
    axis: Literal["concurrency", "qps"]
    value: float | None
    low: float | None
    high: float | None
    arm: str
    note: str


class KvTokensDocument(TypedDict):
    baseline: int | None
    winner: int | None


class KvPeakDocument(TypedDict):
    """The fullest the KV cache was seen, as a share."""

    baseline: Annotated[float | None, Keywords(minimum=0, maximum=1)]
    winner: Annotated[float | None, Keywords(minimum=0, maximum=1)]


class ResourcesDocument(TypedDict):
    """What one arm took while it was measured, over all its launches."""

    arm: str
    kv_tokens: int | None
    kv_used_peak: Annotated[float | None, Keywords(minimum=0, maximum=1)]
    prefix_hit_rate: Annotated[float | None, Keywords(minimum=0, maximum=1)]
    gpu_memory_peak_bytes: int | None


class NodeDocument(TypedDict):
    """One machine of a fleet, as it was when it joined."""

    name: str
    engine_version: str
    host: Mapping[str, object]


class NodeSpeedupDocument(TypedDict):
    arm: str
    value: float
    low: float | None
    high: float | None
    launches: int


class NodeGroupDocument(TypedDict):
    """Nodes of one kind, where a fleet has several; the verdict is on those that are judged."""

    nodes: list[str]
    kind: dict[str, str]
    judged: bool
    speedups: list[NodeSpeedupDocument]


class ProvenanceDocument(TypedDict):
    speclift: str
    engine: str
    engine_version: str
    model: str
    model_sha256: str
    host: Mapping[str, object]
    commands: list[list[str]]
    argv: list[str]
    prompts_sha256: str
    seed: int
    # Of a fleet; none where the study ran on `host`.
    nodes: NotRequired[list[NodeDocument]]


class ArticleDocument(TypedDict):
    """A rule of thumb, and what this study has to say to it; the measurement decides."""

    rule: str
    source: str
    says: str
    outcome: ArticleOutcome
    seen: str


class OwnLineDocument(TypedDict):
    """The user's own text, and with the speculation that is recommended; `diff` is empty where nothing changes."""

    before: str
    after: str
    diff: str


class UpgradeSideDocument(TypedDict):
    engine_version: str
    # Per token.
    speedup: float


class UpgradeDocument(TypedDict):
    """One arm on two versions of its engine. Changes are after / before; speedup = accepted length / step cost."""

    arm: str
    before: UpgradeSideDocument
    after: UpgradeSideDocument
    speedup: BoundsDocument
    # Null where answers do not say how many of their tokens were drafted.
    accepted_length: BoundsDocument | None
    step_cost: BoundsDocument | None
    moved: list[Moved]
    sentence: str


class VerdictDocument(TypedDict):
    schema: Literal[1]
    verdict: Decision
    # Not in documents of speclift 0.2.
    answer: NotRequired[AnswerDocument]
    reasons: list[ReasonDocument]
    conditions: ConditionsDocument | None
    open: list[OpenPartDocument]
    winner: WinnerDocument | None
    goals: GoalsDocument
    speedup: SpeedupDocument | None
    e2e_speedup: SpeedupDocument | None
    # Not in documents of speclift 0.2.
    speedup_by_metric: NotRequired[SpeedupByMetricDocument]
    speedups: list[ArmSpeedupsDocument]
    cells: list[CellDocument]
    # Not in documents of speclift 0.2.
    by_temperature: NotRequired[list[AtTemperatureDocument]]
    acceptance_by_temperature: list[AcceptanceBucketDocument]
    acceptance_histograms: list[AcceptanceHistogramDocument]
    ceiling: list[CeilingDocument]
    # By form, such as command, python and yaml.
    configuration: Annotated[dict[str, str], Keywords(required=["command"])] | None
    crossover: list[CrossoverDocument]
    kv_tokens: KvTokensDocument
    kv_peak: KvPeakDocument
    # Not in documents of speclift 0.2.
    resources: NotRequired[list[ResourcesDocument]]
    lossless: LosslessDocument
    # Not in documents of speclift 0.2.
    articles: NotRequired[list[ArticleDocument]]
    findings: list[FindingDocument]
    failed_arms: list[str]
    tuning: ConfirmedTuningDocument | None
    line: NotRequired[
        Annotated[
            OwnLineDocument | None,
            Keywords(description="Of the user's own command; null where none was given."),
        ]
    ]
    # Of compare, where two studies are of unlike versions of the engine.
    upgrade: NotRequired[UpgradeDocument]
    provenance: ProvenanceDocument
    # Empty unless the nodes of a fleet were unlike.
    node_groups: NotRequired[list[NodeGroupDocument]]
    study: str


def metric_speedups(document: VerdictDocument) -> list[SpeedupDocument]:
    """Documents of speclift 0.2 know of the end-to-end time alone."""
    found = document.get("speedup_by_metric")
    each = (
        (found["e2e"], found["tpot"], found["ttft"], found["e2e_raw"], found["throughput"])
        if found
        else (document["e2e_speedup"],)
    )
    return [speedup for speedup in each if speedup is not None]


class MeasureDocument(TypedDict):
    schema: Literal[1]
    study: str
    cells: list[CellDocument]
    resources: list[ResourcesDocument]
    findings: list[FindingDocument]


class ExportedFileDocument(TypedDict):
    name: str
    text: str


class ExportDocument(TypedDict):
    schema: Literal[1]
    format: str
    study: str
    files: list[ExportedFileDocument]
    # Of a study file: what running it costs.
    node_hours: NotRequired[Annotated[float, Keywords(minimum=0)]]
