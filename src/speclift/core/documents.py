"""A load as JSON."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypeAlias, TypedDict, final

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
