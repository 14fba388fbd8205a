"""Why requests failed: the causes among records, how often each, and what came instead of an answer. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from speclift.core.records import Outcome, Record

CAUSES_SHOWN = 3
EXAMPLE_CHARACTERS = 200
# A failure of a server that lived on is a result: it is not measured again in the same study.
ANEW = "after fixing it, measure again with a new --study"
# What to do about an HTTP status.
STATUS_HINTS = {
    "301": "the server has moved: give its new address",
    "302": "the server has moved: give its new address",
    "307": "the server has moved: give its new address",
    "308": "the server has moved: give its new address",
    "400": "the server rejects these requests: try one with curl",
    "401": "give the environment variable with the server's key: --api-key-env NAME",
    "403": "give the environment variable with the server's key: --api-key-env NAME",
    "404": "is it an OpenAI-compatible server? give its address without /v1",
    "429": "the server limits the request rate: raise its limit, or lower --concurrency or --qps",
}
OUTCOME_HINTS = {
    Outcome.HTTP_ERROR: f"see the server's log; {ANEW}",
    Outcome.CUT: "the server or a proxy ends streams early; see its log",
    Outcome.TIMEOUT: "the server hangs or is too slow for this load; try one request with curl",
    Outcome.DISCONNECTED: f"is the server up, and does it accept this many connections? {ANEW}",
    Outcome.MALFORMED: "does a login page, a proxy or another server answer? try one request with curl -N",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Requests that failed alike."""

    outcome: Outcome
    count: int
    # What the first of them was told, or what became of it.
    example: str

    def __str__(self) -> str:
        return f"{self.count} x {self.outcome.value}: {self.example or 'no details'}"

    @property
    def hint(self) -> str:
        return STATUS_HINTS.get(_kind(self.example)) or OUTCOME_HINTS[self.outcome]


def causes_of(records: Iterable[Record]) -> tuple[Cause, ...]:
    """The most frequent first. Alike is what begins alike: a status, the name of an error; the rest may differ in a
    request's number or a moment."""
    counts: Counter[tuple[Outcome, str]] = Counter()
    examples: dict[tuple[Outcome, str], str] = {}
    for record in records:
        if record.outcome is not Outcome.OK:
            key = record.outcome, _kind(record.error)
            counts[key] += 1
            examples.setdefault(key, record.error)
    return tuple(
        Cause(outcome=key[0], count=count, example=_one_line(examples[key]))
        for key, count in counts.most_common()
    )


def told(causes: Sequence[Cause]) -> str:
    """One line for each cause, beginning with a line break."""
    lines = [str(cause) for cause in causes[:CAUSES_SHOWN]]
    if len(causes) > CAUSES_SHOWN:
        others = causes[CAUSES_SHOWN:]
        lines.append(f"{sum(cause.count for cause in others)} x {len(others)} other causes")
    return "".join(f"\n  {line}" for line in lines)


def _kind(error: str) -> str:
    return error.partition(":")[0].rstrip("0123456789 ,.")[:60] if not error[:3].isdigit() else error[:3]


def _one_line(text: str) -> str:
    shown = " ".join(text.split())
    return shown if len(shown) <= EXAMPLE_CHARACTERS else shown[:EXAMPLE_CHARACTERS] + " …"
