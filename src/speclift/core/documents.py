"""What every JSON document says alike: the answer, a load, a finding, a value with its bounds."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypeAlias, TypedDict, final

from speclift.core.answer import BECAUSE_MAX, ShortAnswer
from speclift.core.results import Finding, Level
from speclift.core.traffic import Concurrency, Load, Rate
from speclift.core.typed_json import Keywords


@final
class StreamsDocument(TypedDict):
    concurrency: Annotated[int, Keywords(minimum=1)]


@final
class RateDocument(TypedDict):
    qps: Annotated[float, Keywords(exclusiveMinimum=0)]
    # Poisson where nothing is said.
    arrivals: NotRequired[Literal["poisson", "constant", "replay"]]


LoadDocument: TypeAlias = StreamsDocument | RateDocument


class NextCommandDocument(TypedDict):
    """A command to paste, and how long it takes by what was measured."""

    command: str
    seconds: Annotated[float, Keywords(minimum=0)]


class AnswerDocument(TypedDict):
    sentence: str
    because: Annotated[list[str], Keywords(maxItems=BECAUSE_MAX)]
    next: NextCommandDocument | None


class FindingDocument(TypedDict):
    check: str
    level: Level
    message: str
    next_step: str
    arm: str | None


class BoundsDocument(TypedDict):
    """A bound that is not known is null."""

    value: float
    low: float | None
    high: float | None


def answer_document(answer: ShortAnswer) -> AnswerDocument:
    following = answer.next
    return {
        "sentence": answer.sentence,
        "because": list(answer.because),
        "next": None if following is None else {"command": following.command, "seconds": following.seconds},
    }


def load_document(load: Load) -> LoadDocument:
    match load:
        case Concurrency(streams=streams):
            return {"concurrency": streams}
        case Rate(per_s=per_s, arrivals="poisson"):
            return {"qps": per_s}
        case Rate(per_s=per_s, arrivals=arrivals):
            return {"qps": per_s, "arrivals": arrivals}


def load_of(document: LoadDocument) -> Load:
    if "concurrency" in document:
        return Concurrency(streams=document["concurrency"])
    return Rate(per_s=document["qps"], arrivals=document.get("arrivals", "poisson"))


def finding_document(finding: Finding) -> FindingDocument:
    return {
        "check": finding.check,
        "level": finding.level,
        "message": finding.message,
        "next_step": finding.next_step,
        "arm": finding.arm,
    }
