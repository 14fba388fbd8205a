"""What a replay found, and the document it is shown and stored as."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal, NotRequired, TypeAlias, TypedDict

from speclift.core.documents import LoadDocument, load_document
from speclift.core.results import Finding, Level
from speclift.core.typed_json import Keywords
from speclift.core.units import Tokens
from speclift.replayer.estimates import METHOD, LengthEstimate, SegmentEstimate
from speclift.replayer.methods import DrafterSetting
from speclift.replayer.speedup import StepCost, speedups

Count: TypeAlias = Annotated[int, Keywords(minimum=0)]
Share: TypeAlias = Annotated[float | None, Keywords(minimum=0, maximum=1)]


@dataclass(slots=True)
class RefusedRequests:
    """Requests that an engine answers with 400 once it speculates, and the parameters that it is for."""

    requests: int = 0
    parameters: Counter[str] = field(default_factory=Counter)

    def add(self, parameters: Sequence[str]) -> None:
        if parameters:
            self.requests += 1
            self.parameters.update(parameters)

    def merge(self, other: RefusedRequests) -> None:
        self.requests += other.requests
        self.parameters.update(other.parameters)


@dataclass(slots=True)
class LogCounts:
    """What the log held. Everything counted is either replayed or skipped for one of the reasons."""

    requests: int = 0
    replayed: int = 0
    no_response: int = 0
    unreadable: int = 0
    other_segment: int = 0
    # Of a gateway's log: failed, or passed on unread.
    no_generation: int = 0
    greedy: int = 0
    sampled: int = 0
    temperature_unknown: int = 0
    tokens: Tokens = 0
    # Where prompts came from: ids, template, joined, plain.
    prompts: dict[str, int] = field(default_factory=dict)
    # By engine, of those that refuse any.
    refused: dict[str, RefusedRequests] = field(default_factory=dict)

    def merge(self, other: LogCounts) -> None:
        """What another part of the log held."""
        for name in (each.name for each in fields(self) if isinstance(getattr(self, each.name), int)):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for source, count in other.prompts.items():
            self.prompts[source] = self.prompts.get(source, 0) + count
        for engine, refused in other.refused.items():
            self.refused.setdefault(engine, RefusedRequests()).merge(refused)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterResult:
    """Segments with 'all' first."""

    setting: DrafterSetting
    segments: tuple[SegmentEstimate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    log: LogCounts
    drafters: tuple[DrafterResult, ...]
    tokenizer: str | None
    findings: tuple[Finding, ...]
    costs: tuple[StepCost, ...] = ()
    # Parts of the log that no node could read, each with the node and the reason; nothing else hangs on them.
    unread: tuple[str, ...] = ()


class AcceptedLengthDocument(TypedDict):
    """One entry per k in each list; empty where no answer had a decode step."""

    k: list[Annotated[int, Keywords(minimum=1)]]
    value: list[Annotated[float, Keywords(minimum=1)]]
    low: list[Annotated[float | None, Keywords(minimum=1)]]
    high: list[Annotated[float | None, Keywords(minimum=1)]]
    per_request: list[Annotated[float | None, Keywords(minimum=1)]]


class PredictedSpeedupDocument(TypedDict):
    """One entry per k in each list."""

    load: LoadDocument | None
    cost_per_drafted_token: Annotated[float, Keywords(minimum=0)]
    source: str
    k: list[Annotated[int, Keywords(minimum=1)]]
    value: list[float]
    low: list[float | None]
    high: list[float | None]


class ReplayedSegmentDocument(TypedDict):
    segment: str
    engine: str
    method: str
    ngram: Annotated[int | None, Keywords(minimum=1)]
    ngram_min: Annotated[int | None, Keywords(minimum=1)]
    requests: Count
    tokens: Count
    accepted_length: AcceptedLengthDocument
    draft_share: Annotated[
        Share, Keywords(description="share of decode steps with a draft, at the largest k")
    ]
    draft_shares: list[Share]
    drafted_per_step: list[Annotated[float | None, Keywords(minimum=0)]]
    acceptance_rate: list[Share]
    predicted_speedup: list[PredictedSpeedupDocument]


class TemperaturesDocument(TypedDict):
    greedy: Count
    sampled: Count
    unknown: Count


class LogDocument(TypedDict):
    requests: Count
    no_response: Count
    unreadable: Count
    other_segment: Count
    # Since gateways write logs.
    no_generation: NotRequired[
        Annotated[int, Keywords(minimum=0, description="of a gateway's log: failed, or passed on unread")]
    ]
    tokens: Count
    # By where they came from.
    prompts: Annotated[
        dict[str, Count], Keywords(propertyNames={"enum": ["ids", "template", "joined", "plain"]})
    ]
    temperature: TemperaturesDocument


class RefusedRequestsDocument(TypedDict):
    requests: Count
    parameters: dict[str, Count]


class ReplayFindingDocument(TypedDict):
    check: str
    level: Level
    message: str
    next_step: str


class ReplayDocument(TypedDict):
    schema: Literal[1]
    requests: Annotated[int, Keywords(minimum=1, description="requests replayed")]
    segments: list[ReplayedSegmentDocument]
    log: LogDocument
    # By engine.
    refused: dict[str, RefusedRequestsDocument]
    tokenizer: Annotated[str | None, Keywords(description="null where the log held token ids only")]
    interval: str
    findings: list[ReplayFindingDocument]


def replay_document(result: ReplayResult) -> ReplayDocument:
    log = result.log
    return {
        "schema": 1,
        "requests": log.replayed,
        "segments": [
            _segment(drafter.setting, segment, result.costs)
            for drafter in result.drafters
            for segment in drafter.segments
        ],
        "log": {
            "requests": log.requests,
            "no_response": log.no_response,
            "unreadable": log.unreadable,
            "other_segment": log.other_segment,
            "no_generation": log.no_generation,
            "tokens": log.tokens,
            "prompts": dict(sorted(log.prompts.items())),
            "temperature": {
                "greedy": log.greedy,
                "sampled": log.sampled,
                "unknown": log.temperature_unknown,
            },
        },
        "refused": {
            engine: {
                "requests": refused.requests,
                "parameters": dict(sorted(refused.parameters.items())),
            }
            for engine, refused in sorted(log.refused.items())
        },
        "tokenizer": result.tokenizer,
        "interval": METHOD,
        "findings": [
            {
                "check": finding.check,
                "level": finding.level,
                "message": finding.message,
                "next_step": finding.next_step,
            }
            for finding in result.findings
        ],
    }


def _segment(
    setting: DrafterSetting, segment: SegmentEstimate, costs: tuple[StepCost, ...]
) -> ReplayedSegmentDocument:
    # Answers of one token have no decode step: nothing to say about any k.
    valued = [(length, length.value) for length in segment.lengths if length.value is not None]
    known = [length for length, _ in valued]
    return {
        "segment": segment.segment,
        "engine": setting.engine,
        "method": setting.method,
        "ngram": setting.n,
        "ngram_min": setting.n_min or setting.n,
        "requests": segment.requests,
        "tokens": segment.tokens,
        "accepted_length": {
            "k": [length.k for length in known],
            "value": [value for _, value in valued],
            "low": [length.low for length in known],
            "high": [length.high for length in known],
            "per_request": [length.per_request for length in known],
        },
        # At the largest k; draft_shares has every k.
        "draft_share": known[-1].draft_share if known else None,
        "draft_shares": [length.draft_share for length in known],
        "drafted_per_step": [length.drafted_per_step for length in known],
        "acceptance_rate": [length.acceptance_rate for length in known],
        "predicted_speedup": [_speedup(known, cost) for cost in costs],
    }


def _speedup(lengths: list[LengthEstimate], cost: StepCost) -> PredictedSpeedupDocument:
    found = speedups(lengths, cost)
    return {
        "load": None if cost.load is None else load_document(cost.load),
        "cost_per_drafted_token": cost.per_token,
        "source": cost.source,
        "k": [each.k for each in found],
        "value": [each.value for each in found],
        "low": [each.low for each in found],
        "high": [each.high for each in found],
    }
