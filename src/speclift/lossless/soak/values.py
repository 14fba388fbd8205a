"""Requests of a soak, what came back and under which load, and which faults that shows.

A soak is one long sequence of requests, each known by its `index`; every server gets the same sequence, the baseline
as the control. Whatever is true of one request alone stands in `SoakRequest`; what was going on around it, in
`Exposure`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from speclift.core.records import AnswerChoice
from speclift.core.units import Seconds, Tokens
from speclift.lossless.gate import SoakFault

# Room for the turns of a session: the turn t of slot s has the index s * TURNS_MAX + t.
TURNS_MAX = 4


def slot_of(index: int) -> int:
    """The place in the sequence that all turns of a session share."""
    return index // TURNS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Promises that a working server keeps, whatever the model would like to say; None where nothing was promised."""

    tokens_max: Tokens | None = None
    tokens_min: Tokens | None = None
    choices: int = 1
    # Texts at which the answer had to end: none may stand in it, nor anything after one.
    stops: tuple[str, ...] = ()
    # JSON schema, as JSON, that the text has to fit; and a regular expression that it has to match whole (a grammar).
    schema: str | None = None
    pattern: str | None = None
    # Tools by name, each with the JSON schema of its arguments, as JSON.
    tools: tuple[tuple[str, str], ...] = ()
    # Whether the server keeps their arguments to the schemas; else they are the model's own.
    is_strict: bool = True
    # Tokens that logit_bias forbids, as text.
    banned: tuple[str, ...] = ()
    thinking_max: Tokens | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakRequest:
    """One request of the soak. `body` is its JSON without `model`; `nonce` stands in the prompts of its session and in
    no other's, and is "" for the user's own prompts, which are sent as they are."""

    index: int
    kind: str
    nonce: str
    path: str
    body: str
    promise: Promise
    temperature: float
    # Of the user's own prompts, which one; "" where it is ours.
    prompt_id: str = ""
    # The text that the prompt says to copy, "" where it says nothing of the kind.
    copies: str = ""
    # Another model of the same server, such as a LoRA adapter; None is the server's own.
    model: str | None = None
    # Asked twice of one server, it has to say the same: greedy, or seeded where the engine honours seeds.
    is_repeatable: bool = False
    # Turns of one conversation share a session; a later turn is asked once the earlier one was answered.
    session: str | None = None
    turn: int = 0
    # The caller goes away after so many chunks, or after so many seconds without the end of the answer.
    leaves_after_chunks: int | None = None
    leaves_after_s: Seconds | None = None


class Stage(StrEnum):
    """One at a time before the load and after it: what that did, and what it left behind."""

    BEFORE = "before"
    DURING = "during"
    AFTER = "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Everything that one request was put through, as the sender saw it."""

    arm: str
    launch: int
    stage: Stage
    # Since the soak of this arm began, over its launches.
    sent_s: Seconds
    ended_s: Seconds
    # Requests under way at this server when it was sent, itself included, and the most while it ran.
    streams: int
    streams_max: int
    # Requests that this launch had been sent before it, and those whose prompts were read while it was answered.
    before: int
    joined: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakAnswer:
    """One answer. `error` is what the server said instead; `left` that the caller went away as planned."""

    index: int
    exposure: Exposure
    choices: tuple[AnswerChoice, ...] = ()
    tokens: Tokens | None = None
    thinking_tokens: Tokens | None = None
    drafted: Tokens | None = None
    accepted: Tokens | None = None
    error: str = ""
    # Of the HTTP response, where there was one.
    status: int | None = None
    left: bool = False
    # It did not end within its time, and the caller gave up; `error` says so too.
    is_hung: bool = False

    @property
    def is_whole(self) -> bool:
        return not self.error and not self.left

    @property
    def is_refusal(self) -> bool:
        """The server says that it does not do this; too slow and too many are no such words."""
        return self.status is not None and 400 <= self.status < 500 and self.status not in (408, 429)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSeen:
    """One fault of one answer, with what shows it."""

    fault: SoakFault
    index: int
    evidence: str
