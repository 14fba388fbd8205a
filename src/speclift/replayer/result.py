"""What a replay found: the document it is shown and written as."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal, TypeAlias, TypeVar

from msgspec import Meta

from speclift.core.document import Document
from speclift.core.results import Finding, inform, warn
from speclift.core.traffic import Load
from speclift.core.units import Tokens
from speclift.replayer.estimates import METHOD, LengthEstimate, SegmentEstimate, StepCost
from speclift.replayer.methods import DrafterSetting, LogDrafters

Count: TypeAlias = Annotated[int, Meta(ge=0)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)] | None
DraftLength: TypeAlias = Annotated[int, Meta(ge=1)]
Length: TypeAlias = Annotated[float, Meta(ge=1)]
PromptSource: TypeAlias = Literal["ids", "template", "joined", "plain"]
Name = TypeVar("Name", bound=str)


@dataclass(slots=True)
class RefusedRequests:
    """Requests that an engine answers with 400 once it speculates, and the parameters that it is for."""

    requests: Count = 0
    parameters: dict[str, Count] = field(default_factory=dict)

    def add(self, parameters: Sequence[str]) -> None:
        if parameters:
            self.merge(RefusedRequests(1, dict.fromkeys(parameters, 1)))

    def merge(self, other: RefusedRequests) -> None:
        self.requests += other.requests
        self.parameters = _summed(self.parameters, other.parameters)


@dataclass(slots=True)
class Temperatures:
    """How many answers were greedy, were sampled, or do not say."""

    greedy: Count = 0
    sampled: Count = 0
    unknown: Count = 0


@dataclass(slots=True)
class LogCounts:
    """What the log held. Everything counted is either replayed or skipped for one of the reasons."""

    requests: Count = 0
    replayed: Count = 0
    no_response: Count = 0
    unreadable: Count = 0
    other_segment: Count = 0
    no_generation: Annotated[Count, Meta(description="of a gateway's log: failed, or passed on unread")] = 0
    tokens: Annotated[Tokens, Meta(ge=0)] = 0
    # By where they came from.
    prompts: dict[PromptSource, Count] = field(default_factory=dict)
    temperature: Temperatures = field(default_factory=Temperatures)

    def merge(self, other: LogCounts) -> None:
        """Adds what another part of the log held."""
        _add(self, other)
        _add(self.temperature, other.temperature)
        self.prompts = _summed(self.prompts, other.prompts)


def _add(counts: LogCounts | Temperatures, more: LogCounts | Temperatures) -> None:
    for name in (each.name for each in fields(counts)):
        if isinstance(getattr(counts, name), int):
            setattr(counts, name, getattr(counts, name) + getattr(more, name))


def _summed(counts: Mapping[Name, int], more: Mapping[Name, int]) -> dict[Name, int]:
    """Both together, in the order of their names whichever came first."""
    return dict(sorted((Counter(counts) + Counter(more)).items()))


class AcceptedLength(Document, frozen=True, kw_only=True):
    """One entry per k in each list; empty where no answer had a decode step."""

    k: tuple[DraftLength, ...]
    value: tuple[Length, ...]
    low: tuple[Length | None, ...]
    high: tuple[Length | None, ...]
    per_request: tuple[Length | None, ...]


class PredictedSpeedup(Document, frozen=True, kw_only=True):
    """One entry per k in each list. The interval is the accepted length's alone; the cost is taken as known."""

    load: Load | None
    cost_per_drafted_token: Annotated[float, Meta(ge=0)]
    source: str
    k: tuple[DraftLength, ...]
    value: tuple[float, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]


class ReplayedSegment(Document, frozen=True, kw_only=True):
    segment: str
    engine: str
    method: str
    ngram: DraftLength | None
    ngram_min: DraftLength | None
    requests: Count
    tokens: Count
    accepted_length: AcceptedLength
    draft_share: Annotated[Share, Meta(description="share of decode steps with a draft, at the largest k")]
    draft_shares: tuple[Share, ...]
    drafted_per_step: tuple[Annotated[float, Meta(ge=0)] | None, ...]
    acceptance_rate: tuple[Share, ...]
    predicted_speedup: tuple[PredictedSpeedup, ...]


class ReplayResult(Document, frozen=True, kw_only=True):
    schema: Literal[1]
    requests: Annotated[int, Meta(ge=1, description="requests replayed")]
    # Of each drafter 'all' first.
    segments: tuple[ReplayedSegment, ...]
    log: LogCounts
    # By engine, of those that refuse any.
    refused: dict[str, RefusedRequests]
    tokenizer: Annotated[str | None, Meta(description="null where the log held token ids only")]
    interval: str = METHOD
    findings: tuple[Finding, ...]
    # Parts of the log that no node could read, each with the node and the reason; nothing else hangs on them.
    unread: tuple[str, ...] = ()


def replayed_segment(
    setting: DrafterSetting, segment: SegmentEstimate, costs: Sequence[StepCost]
) -> ReplayedSegment:
    # Answers of one token have no decode step: nothing to say about any k.
    valued = [(length, length.value) for length in segment.lengths if length.value is not None]
    lengths = [length for length, _ in valued]
    return ReplayedSegment(
        segment=segment.segment,
        engine=setting.engine,
        method=setting.method,
        ngram=setting.n,
        ngram_min=setting.n_min or setting.n,
        requests=segment.requests,
        tokens=segment.tokens,
        accepted_length=AcceptedLength(
            k=tuple(length.k for length in lengths),
            value=tuple(value for _, value in valued),
            low=tuple(length.low for length in lengths),
            high=tuple(length.high for length in lengths),
            per_request=tuple(length.per_request for length in lengths),
        ),
        draft_share=lengths[-1].draft_share if lengths else None,
        draft_shares=tuple(length.draft_share for length in lengths),
        drafted_per_step=tuple(length.drafted_per_step for length in lengths),
        acceptance_rate=tuple(length.acceptance_rate for length in lengths),
        predicted_speedup=tuple(predicted_speedup(lengths, cost) for cost in costs),
    )


def predicted_speedup(lengths: Sequence[LengthEstimate], cost: StepCost) -> PredictedSpeedup:
    """Tokens per step over what such a step costs."""
    costed = [
        (length, length.value, 1.0 + cost.per_token * length.drafted_per_step)
        for length in lengths
        if length.value is not None and length.drafted_per_step is not None
    ]
    return PredictedSpeedup(
        load=cost.load,
        cost_per_drafted_token=cost.per_token,
        source=cost.source,
        k=tuple(length.k for length, _, _ in costed),
        value=tuple(value / step for _, value, step in costed),
        low=tuple(None if length.low is None else length.low / step for length, _, step in costed),
        high=tuple(None if length.high is None else length.high / step for length, _, step in costed),
    )


# Below this many requests an interval over requests is wide and its coverage poor.
REQUESTS_MIN = 30


def replay_findings(
    log: LogCounts,
    refused: Mapping[str, RefusedRequests],
    settings: Sequence[DrafterSetting],
    known: Sequence[LogDrafters],
    *,
    first_fault: str,
    tokenizer: str | None,
) -> tuple[Finding, ...]:
    return (
        *_skipped(log, first_fault),
        *_sampling(log),
        *_refused(refused, log, settings),
        *_tokens(log, tokenizer),
        *(found for each in known for found in each.findings(_of(each, settings))),
        *_few(log),
    )


def _of(engine: LogDrafters, settings: Sequence[DrafterSetting]) -> list[DrafterSetting]:
    return [setting for setting in settings if setting.engine == engine.engine]


def _skipped(log: LogCounts, first_fault: str) -> Iterator[Finding]:
    if log.no_response:
        yield warn(
            "no-response",
            f"{log.no_response} of {log.requests} requests have no response and were left out",
            then="log 'response' or 'response_token_ids'; failed requests need none",
        )
    if log.no_generation:
        yield inform(
            "no-generation",
            f"{log.no_generation} of {log.requests} logged requests failed or are no generation",
            then="nothing to do: only answers can be replayed",
        )
    if log.unreadable:
        yield warn(
            "unreadable",
            f"{log.unreadable} of {log.requests} entries could not be read; the first: {first_fault}",
            then="if there are many, the result may not represent your traffic",
        )


def _sampling(log: LogCounts) -> Iterator[Finding]:
    if log.temperature.sampled:
        yield inform(
            "sampled",
            f"{log.temperature.sampled} of {log.replayed} answers were sampled (temperature above 0): they "
            "represent the sampling settings of the log only",
            then="replay a log with the settings that you will serve",
        )
    if log.temperature.unknown:
        yield inform(
            "temperature-unknown",
            f"{log.temperature.unknown} of {log.replayed} answers have no temperature in the log",
            then="the counts are valid only for the settings that produced them",
        )


def _refused(
    by_engine: Mapping[str, RefusedRequests], log: LogCounts, settings: Sequence[DrafterSetting]
) -> Iterator[Finding]:
    for engine in sorted({setting.engine for setting in settings} & by_engine.keys()):
        refused = by_engine[engine]
        if not refused.requests:
            continue
        names = ", ".join(f"{name} {count}" for name, count in sorted(refused.parameters.items()))
        yield warn(
            "refused-sampling",
            f"with speculation {engine} rejects {refused.requests} of {log.replayed} requests (HTTP 400) "
            f"({names})",
            then="route them to a server without speculation, or drop the parameters",
        )


def _tokens(log: LogCounts, tokenizer: str | None) -> Iterator[Finding]:
    if tokenizer is None:
        return
    yield inform(
        "tokenizer",
        f"text was tokenized with {tokenizer}; the served model may have used other tokens",
        then="give the served model's tokenizer with --tokenizer, or log response_token_ids and prompt_token_ids",
    )
    if log.prompts.get("joined"):
        yield warn(
            "chat-template",
            f"{log.prompts['joined']} prompts are messages joined by line breaks: the tokenizer has "
            "no chat template for them",
            then="give --tokenizer a GGUF file or a folder with the model's chat template",
        )


def _few(log: LogCounts) -> Iterator[Finding]:
    if log.replayed < REQUESTS_MIN:
        yield warn(
            "few-requests",
            f"{log.replayed} requests: with fewer than {REQUESTS_MIN} the intervals are unreliable",
            then="replay more of the log",
        )
