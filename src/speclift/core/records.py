"""What was measured: one record per request, the launch it ran on, and where it all happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from speclift.core.fleet import NodeFacts
from speclift.core.traffic import Load
from speclift.core.units import Bytes, Seconds, Tokens


class Outcome(StrEnum):
    OK = "ok"
    HTTP_ERROR = "http-error"
    CUT = "cut"  # the stream ended before its finish marker
    TIMEOUT = "timeout"
    DISCONNECTED = "disconnected"  # refused, reset or never connected
    MALFORMED = "malformed"  # bytes that are not the protocol


class Phase(StrEnum):
    MEASURED = "measured"
    WARMUP = "warm-up"
    # Sent only to hold the load while the unfinished rest of an interrupted turn is measured.
    FILLER = "filler"


class Step(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One decode step of one request: tokens drafted and how many of them the target accepted."""

    drafted: Tokens
    accepted: Tokens


# Hidden reasoning and special tokens are counted and not sent: possible, but no time per token can be had from it.
NO_TEXT_FOR_IT = "more-tokens-than-text"


class Refused(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A number that a server reported and that cannot be true: which rule it breaks, and what was said."""

    rule: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    name: str
    # As the server wrote them: whether they are JSON is what is asked.
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerChoice:
    """One of an answer's choices: text as a caller reads it, thoughts and calls of tools apart."""

    text: str
    finish_reason: str | None
    thoughts: str = ""
    calls: tuple[ToolCall, ...] = ()

    @property
    def whole(self) -> str:
        """Everything the model wrote."""
        return self.thoughts + self.text + "".join(call.name + call.arguments for call in self.calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in the study a record belongs. Records at the same place of two arms form a pair."""

    arm: str
    launch: int
    round: int
    block: int
    load: Load
    request_id: str
    segment: str
    # What was really asked for; None means the server's default.
    temperature: float | None
    phase: Phase = Phase.MEASURED
    # How often the cell had sent this request before: 0 is the first time.
    repeat: int = 0
    # Which machine of a fleet it ran on; empty where there is one. Only records of one node form a pair.
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRead:
    """One answer as far as it came; None is what it does not say, or what cannot be true."""

    outcome: Outcome
    error: str = ""
    # Set for a stream; an answer that comes whole has no first token.
    first_token_s: Seconds | None = None
    # The finish where the text ended by itself: the end token is counted and carries no text.
    last_token_s: Seconds | None = None
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    finish_reason: str | None = None
    text: str = ""
    drafted: Tokens | None = None
    accepted: Tokens | None = None
    steps: tuple[Step, ...] | None = None
    # Numbers that the server reported and that cannot be true.
    refused: tuple[Refused, ...] = ()

    @property
    def tpot_s(self) -> Seconds | None:
        """None too where all of it came at once: held back on the way, or a single step."""
        first, last, tokens = self.first_token_s, self.last_token_s, self.output_tokens
        if first is None or last is None or tokens is None or tokens < 2 or last <= first:
            return None
        return (last - first) / (tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(AnswerRead):
    """One request as measured. Times are seconds since the Unix epoch on a monotonic clock."""

    place: Place
    intended_s: Seconds
    sent_s: Seconds
    end_s: Seconds
    # Whether its tokens came together; only beside other answers can that be told (statistics/bursts.py).
    is_in_one_burst: bool = False

    @property
    def is_ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def ttft_s(self) -> Seconds | None:
        """From the intended send time, so that a late client or a full queue is not hidden."""
        return None if self.first_token_s is None else self.first_token_s - self.intended_s

    @property
    def tpot_s(self) -> Seconds | None:
        """(last - first) / (tokens - 1); None without the server's token count.

        None too where the tokens came all at once: then the time between them was spent where nobody saw it, and what
        is left is how fast a buffer empties. Zero would be the best time per token there is.
        """
        if self.first_token_s is None or self.last_token_s is None or self.is_in_one_burst:
            return None
        if self.output_tokens is None or self.output_tokens < 2:
            return None
        span_s = self.last_token_s - self.first_token_s
        return span_s / (self.output_tokens - 1) if span_s > 0 else None

    @property
    def e2e_s(self) -> Seconds | None:
        return None if self.last_token_s is None else self.last_token_s - self.intended_s

    @property
    def lag_s(self) -> Seconds:
        """How late the client itself was."""
        return self.sent_s - self.intended_s

    @property
    def decode_steps(self) -> int | None:
        """tokens - 1 - accepted: each step adds one token that was not drafted, the first is prefill's.

        At least the steps that were seen: vLLM counts as accepted what the end of an answer cut off (0.32), which is
        one step's draft at most. More were seen where a server sends its chunks token by token: those are no steps.
        """
        if self.output_tokens is None or self.output_tokens < 1 or self.accepted is None:
            return None
        steps = self.steps or ()
        counted = self.output_tokens - 1 - self.accepted
        cut_off = max((step.accepted for step in steps), default=0)
        return max(0, counted, min(len(steps), counted + cut_off))

    @property
    def told_steps(self) -> tuple[Step, ...]:
        """Without those, at the end, that chunks alone speak for and the draft counts against."""
        return (self.steps or ())[: self.decode_steps]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnHealth:
    """How far the client itself stood in the way during one turn."""

    load: Load
    # How long bytes lay unread; with the kernel's time stamps that alone moves none.
    loop_lag_p99_s: Seconds
    # Of the busiest process that sent.
    cpu_s: Seconds
    wall_s: Seconds
    # How late a first token's time stamp may be: several chunks read at once share the last one's.
    stamp_blur_p99_s: Seconds = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Engine totals at one moment; only differences between two readings mean anything."""

    values: dict[str, float] = field(default_factory=dict)

    def since(self, earlier: Counters) -> Counters:
        keys = self.values.keys() & earlier.values.keys()
        return Counters(values={key: self.values[key] - earlier.values[key] for key in keys})

    def plus(self, other: Counters) -> Counters:
        """What two stretches of time counted together."""
        keys = self.values.keys() | other.values.keys()
        return Counters(values={key: self.values.get(key, 0.0) + other.values.get(key, 0.0) for key in keys})

    def total(self, name: str) -> float | None:
        """The metric summed over its label sets; None where there is no such metric."""
        found = [value for key, value in self.values.items() if key.partition("{")[0] == name]
        return sum(found) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTotals:
    """What the engine itself counted during one turn; a study's (launch, block) names the turn."""

    launch: int
    block: int
    counters: Counters


class Usage(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How full a server was at one moment, as it said itself."""

    at_s: Seconds
    running: int
    waiting: int
    kv_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One start of a server, and how it ended: '' while it lives or stopped cleanly."""

    id: int
    arm: str
    round: int
    command: tuple[str, ...]
    engine_version: str
    started_s: Seconds
    ready_s: Seconds | None = None
    failure: str = ""
    log_tail: str = ""
    # Engine totals over the launch, where the engine reports them.
    counters: Counters = Counters()
    # What the engine says it really runs with: a request is not always granted.
    settings: dict[str, str] = field(default_factory=dict)
    # What it warned of while it started.
    notices: tuple[str, ...] = ()
    usage: tuple[Usage, ...] = ()
    # The most it was seen to hold.
    gpu_memory_peak_bytes: Bytes | None = None
    # Of a fleet; empty where there is one machine.
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Enough to run the study again and to refuse to merge it with an unlike one."""

    speclift_version: str
    engine: str
    engine_version: str
    model: str
    model_sha256: str
    prompts_sha256: str
    seed: int
    host: Mapping[str, object]
    commands: tuple[tuple[str, ...], ...]
    argv: tuple[str, ...]
    # The machines of a fleet; none where `host` is the one it ran on.
    nodes: tuple[NodeFacts, ...] = ()

    def environment(self) -> dict[str, object]:
        """The fields that must agree before two studies may be pooled."""
        return {
            "engine": self.engine,
            "engine_version": self.engine_version,
            "model_sha256": self.model_sha256,
            "prompts_sha256": self.prompts_sha256,
            "cpu": self.host.get("cpu"),
            "cores": self.host.get("cores"),
            "gpus": self.host.get("gpus"),
        }
