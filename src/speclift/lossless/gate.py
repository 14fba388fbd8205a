"""The document of verify, as values: what the gate and a soak found, read by whoever shows, keeps or judges it.

The fields are the document's. What follows from others stands beside them, so that a reader of the JSON need not know
how; it is worked out anew whenever such a value is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import force_setattr, replace
from scipy import special

from speclift.core.answer import ShortAnswer
from speclift.core.document import Document, read
from speclift.core.errors import StudyError
from speclift.core.results import Finding, Level
from speclift.core.units import Seconds

# Under this name a study keeps it.
LOSSLESS = "lossless"
# How one prompt is answered says little about the next: fewer distinct ones never pass, as they never ship.
PROMPTS_MIN = 8
# Findings whose messages quote answers and logs.
QUOTING_CHECKS = ("edge", "arm-failed")


class Result(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    SKIPPED = "skipped"


def few_prompts(prompts: int) -> str:
    """Why so many do not carry a pass; empty where they do."""
    if prompts >= PROMPTS_MIN:
        return ""
    return f"{prompts} distinct prompt{'' if prompts == 1 else 's'} compared, {PROMPTS_MIN} needed"


def worst(results: Iterable[Result]) -> Result:
    """The least good of them; skipped parts do not count, and nothing at all is inconclusive."""
    settled = {*results}
    return next(
        (result for result in (Result.FAIL, Result.INCONCLUSIVE, Result.PASS) if result in settled),
        Result.INCONCLUSIVE,
    )


# Temperature 0


class Hazard(Document, rename={"events": "divergences"}, frozen=True, kw_only=True):
    """Divergences over tokens compared, which are Poisson: how often two servers part company."""

    events: int
    tokens: float
    per_1000_tokens: float = 0.0
    # Excluded at 95 % is whatever lies above; null where no token was compared.
    upper_per_1000_tokens: float | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "per_1000_tokens", 1000 * self.per_token)
        force_setattr(self, "upper_per_1000_tokens", 1000 * self.upper() if self.tokens else None)

    @property
    def per_token(self) -> float:
        return self.events / self.tokens if self.tokens else 0.0

    def upper(self, level: float = 0.95) -> float:
        """The largest rate that these events do not contradict, one-sided (Garwood)."""
        if not self.tokens:
            return float("inf")
        return float(special.gammaincinv(self.events + 1, level)) / self.tokens


class GreedyCheck(Hazard, frozen=True, kw_only=True):
    """One way of asking at temperature 0: alone, batched, streamed, in turns."""

    name: str
    answers: int
    control: Hazard
    p_value: float


class Greedy(Document, rename={"unknown": "unknown_margin"}, frozen=True, kw_only=True):
    """The part at temperature 0; skipped where it was not asked, or by an arm that is lossy by design."""

    result: Result = Result.SKIPPED
    message: str = ""
    tokens: float = 0.0
    # Distinct ones that both servers answered.
    prompts: int = 0
    checks: tuple[GreedyCheck, ...] = ()
    ties: int = 0
    wide: int = 0
    faults: int = 0
    unknown: int = 0
    refused: int = 0
    # Prompts whose answers differ, the worst first, and those of them without a margin.
    parted: tuple[str, ...] = ()
    without_margin: tuple[str, ...] = ()

    @property
    def is_open_by_arithmetic(self) -> bool:
        """Not settled because of differences whose cause is not known, not for want of answers."""
        return self.result is Result.INCONCLUSIVE and bool(self.wide or self.unknown or self.faults)


# Above temperature 0


class SetTest(Document, rename={"is_usable": "used"}, frozen=True, kw_only=True):
    """Hits of one family of sets against what the target's probabilities promise; `counts_test` makes one."""

    name: str
    tokens: int
    observed: float
    expected: float
    # Probability by which the hits miss the promise, per token.
    deviation: float
    z: float
    p_value: float
    is_usable: bool
    # How far bounds on the probabilities leave the expectation open. Older documents say neither.
    slack: float = 0.0
    variance: float = 0.0


class TextTest(Document, frozen=True, kw_only=True):
    name: str
    pairs: int
    baseline: float
    arm: float
    p_value: float


class Sampled(Document, rename={"foreign_p": "foreign_tokens_p"}, frozen=True, kw_only=True):
    """The part above temperature 0; skipped where it was not asked."""

    result: Result = Result.SKIPPED
    message: str = ""
    method: Literal["", "same-seed", "calibration", "texts"] = ""
    detect: float = 0.0
    tokens: int = 0
    tokens_needed: int = 0
    detectable: float | None = None
    identity: Hazard | None = None
    tests: tuple[SetTest, ...] = ()
    control_tests: tuple[SetTest, ...] = ()
    foreign_p: float | None = None
    text_tests: tuple[TextTest, ...] = ()
    # Greedy part of the same traffic was enough, the server cannot score, ...
    notes: tuple[str, ...] = ()


# An arm


class EdgeCheck(Document, frozen=True, kw_only=True):
    name: str
    result: Result
    message: str


class Example(Document, frozen=True, kw_only=True):
    """One prompt with both outputs."""

    arm: str
    case: str
    why: str
    prompt: str
    baseline: str
    answer: str
    # In nats; null where it is not known, or beyond all.
    margin: float | None = None


class ArmGate(Document, frozen=True, kw_only=True):
    arm: str
    method: str
    result: Result
    greedy: Greedy = Greedy()
    sampled: Sampled = Sampled()
    edges: tuple[EdgeCheck, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def message(self) -> str:
        """The messages of the parts that decided it."""
        words = [
            f"{name}: {part.message}"
            for name, part in (("greedy", self.greedy), ("sampled", self.sampled))
            if part.result is self.result
        ]
        words += [f"{edge.name}: {edge.message}" for edge in self.edges if edge.result is Result.FAIL]
        words += [finding.message for finding in self.findings if finding.level is Level.FAIL]
        return "; ".join(words) or self.result.value


# Under load


class SoakFault(StrEnum):
    """Faults that a single answer shows; what only many show (a shifted distribution) is the gate's."""

    SPECIAL_TOKEN = "special-token"  # a token of the chat template in the text
    AFTER_STOP = "text-after-stop"
    TRUNCATED = "truncated"  # ended by neither the model, a stop string nor the limit: no reason, or an error
    BROKEN_OFF = "broken-off"  # a copy that ends before its text does, as a model might end it too
    REPEATED = "repeated-span"
    CROSS_TALK = "cross-talk"  # another request's nonce
    INVALID_JSON = "invalid-json"
    TOOL_ARGUMENTS = "tool-arguments"  # of a call that was made, of tools whose arguments are to fit (strict)
    LOOSE_ARGUMENTS = "loose-arguments"  # of other tools: a model may get them wrong by itself
    NO_CALL = "no-call"  # though one is required: not every server keeps a model to that
    BUDGET = "budget-ignored"  # more or fewer tokens, thoughts or choices than asked for
    BANNED_TOKEN = "banned-token"
    ALTERED = "altered-copy"  # other words than the text to copy has, as a model might write them too
    BROKEN_TEXT = "broken-text"  # replacement characters, garbled or looping text
    OTHER_TEXT = "other-text"  # greedy and seeded text that the same server gave otherwise when it was alone
    REFUSED = "refused"  # an error instead of an answer
    HUNG = "hung"  # no end within its time


# Any answer could show these: where even of them too few were exposed, the soak was too short to say anything.
SHOWN_BY_ANY = frozenset({SoakFault.SPECIAL_TOKEN, SoakFault.BROKEN_TEXT, SoakFault.REFUSED, SoakFault.HUNG})


class SoakResult(StrEnum):
    FOUND = "found"
    INCONCLUSIVE = "inconclusive"
    CLEAN = "clean"


class FaultRate(Document, frozen=True, kw_only=True):
    """One fault of one arm. `count` of `exposed` requests showed it, a conversation counting once; `low` and `high` are
    the exact 95 % interval of `rate`. `script` reproduces it, null where nothing was found to reproduce."""

    arm: str
    name: SoakFault
    result: SoakResult
    message: str
    count: int
    exposed: int
    rate: float
    low: float
    high: float
    control_count: int
    control_exposed: int
    control_rate: float
    p_value: float
    # Seconds since this arm's soak began; null where it was not seen.
    first_seen_s: float | None = None
    # Where it shows, as far as the answers say so: "only from 9 streams on".
    places: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    # Requests to be exposed for a result, where these were too few.
    needed: int = 0
    script: str | None = None
    # Whether the script's setup showed it again on a fresh launch.
    reproduced: bool = False


class Distribution(Document, frozen=True, kw_only=True):
    """The gate's sampled test on answers given under load; too few tokens are inconclusive, and stop no pass."""

    result: Result
    message: str
    tokens: int
    tokens_needed: int
    detectable: float | None


class SoakArm(Document, frozen=True, kw_only=True):
    """One arm against the control; `requests` and `launches` are its own."""

    arm: str
    method: str
    result: Result
    requests: int
    launches: int
    # Of the draft tokens; null where the server does not say.
    acceptance_rate: float | None = None
    # Null where nothing was sampled, or the server cannot tell probabilities.
    distribution: Distribution | None = None
    findings: tuple[Finding, ...] = ()


class Soak(Document, frozen=True, kw_only=True):
    """`seconds` is what it took over all servers, launching them and the reproductions included."""

    result: Result
    seconds: Seconds
    # As asked for.
    planned_s: Seconds
    # Whether less was asked than the time was meant for.
    partial: bool
    requests: int
    launches: int
    concurrency: tuple[int, ...]
    # Those that something could have shown.
    faults: tuple[FaultRate, ...]
    arms: tuple[SoakArm, ...]
    # How many were asked of each kind, and in each stage.
    kinds: dict[str, int] = msgspec.field(default_factory=dict)
    stages: dict[str, int] = msgspec.field(default_factory=dict)
    # Kinds that the baseline refuses, with its words.
    refused_kinds: dict[str, str] = msgspec.field(default_factory=dict)
    # Of full length, for most answers: below 1 where the engine had no time for more.
    scale: float = 1.0
    findings: tuple[Finding, ...] = ()
    # Where its answers lie, as one would type it.
    study: str = ""
    # By a signal.
    interrupted: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "findings", tuple(finding for arm in self.arms for finding in arm.findings))

    def faults_of(self, arm: str) -> tuple[FaultRate, ...]:
        return tuple(rate for rate in self.faults if rate.arm == arm)

    def found_in(self, arm: str) -> tuple[FaultRate, ...]:
        return tuple(rate for rate in self.faults_of(arm) if rate.result is SoakResult.FOUND)


# All of it


class ArmOutcome(NamedTuple):
    """The outcome of an arm; `message` is of the parts that decided it."""

    arm: str
    result: Result
    message: str


class Gate(Document, frozen=True, kw_only=True):
    """`greedy` and `sampled` are those of the arm that decides; every arm's own are under `arms`. Skipped where no gate
    ran, with `why`."""

    arms: tuple[ArmGate, ...] = ()
    depth: str = ""
    detect: float = 0.0
    planned_tokens: int = 0
    # The baseline against itself: the hazards by shape, such as "alone", beside the margins and the noise in nats.
    control: dict[str, Hazard | tuple[float, ...] | int | float] = msgspec.field(default_factory=dict)
    examples: tuple[Example, ...] = ()
    notes: tuple[str, ...] = ()
    wall_s: Seconds = 0.0
    # Under load, with tools and turns, over time; where it was asked for.
    soak: Soak | UnsetType = UNSET
    # What verify says of it first; a study's own answer is the verdict's.
    answer: ShortAnswer | UnsetType = UNSET
    # In a study: quick, full, or from its records alone; and why there is nothing to show.
    mode: str = ""
    why: str = ""
    schema: Literal[1] = 1
    # Of all arms and the soak the worst.
    result: Result = Result.SKIPPED
    # The one that decides.
    arm: str | None = None
    greedy: Greedy = Greedy()
    sampled: Sampled = Sampled()
    # Of all arms.
    findings: tuple[Finding, ...] = ()

    def __post_init__(self) -> None:
        results = [arm.result for arm in self.arms] + ([self.soak.result] if self.soak else [])
        result = worst(results) if self.depth else Result.SKIPPED
        deciding = next((arm for arm in self.arms if arm.result is result), None)
        follows = {
            "result": result,
            "arm": deciding.arm if deciding else None,
            "greedy": deciding.greedy if deciding else Greedy(),
            "sampled": deciding.sampled if deciding else Sampled(),
            "findings": tuple(finding for arm in self.arms for finding in arm.findings),
        }
        for name, value in follows.items():
            force_setattr(self, name, value)

    @property
    def outcomes(self) -> tuple[ArmOutcome, ...]:
        """The outcome of each arm; one that fails under load has failed, whatever it says without."""
        return tuple(_outcome(arm, self.soak or None) for arm in self.arms)

    def without_text(self, *, instead: str) -> Gate:
        """Without the prompts and answers that it shows side by side; `instead` stands where others were quoted."""
        return replace(self, arms=tuple(_arm_without_text(arm, instead) for arm in self.arms), examples=())


def _outcome(arm: ArmGate, soak: Soak | None) -> ArmOutcome:
    words = [f"{fault.name}: {fault.message}" for fault in soak.found_in(arm.arm)] if soak else []
    words += [
        finding.message
        for soaked in (soak.arms if soak else ())
        if soaked.arm == arm.arm
        for finding in soaked.findings
        if finding.level is Level.FAIL
    ]
    if not words or arm.result is Result.FAIL:
        return ArmOutcome(arm=arm.arm, result=arm.result, message=arm.message)
    return ArmOutcome(arm=arm.arm, result=Result.FAIL, message="; ".join(words))


def _arm_without_text(arm: ArmGate, instead: str) -> ArmGate:
    silent = (Result.PASS, Result.SKIPPED)
    return replace(
        arm,
        edges=tuple(
            edge if edge.result in silent else replace(edge, message=f"changed; {instead}")
            for edge in arm.edges
        ),
        findings=tuple(
            dataclasses.replace(
                finding,
                message=f"{finding.check}; {instead}"
                if finding.check.startswith(QUOTING_CHECKS)
                else finding.message.partition("\n")[0],
            )
            for finding in arm.findings
        ),
    )


def read_gate(kept: object) -> Gate:
    """The gate that was kept as `kept`; StudyError where that is no gate's document."""
    try:
        gate = read(Gate, kept)
        # What it says has to follow from what it holds: a document that lost its arms would pass for one not asked.
        result = kept.get("result") if isinstance(kept, dict) else None
        if result != gate.result:
            raise ValueError(f"it says {result!r}, and its arms {gate.result.value!r}")
    except ValueError as error:
        raise StudyError(
            f"the stored result of the lossless gate is damaged: {error}", hint="run speclift verify again"
        ) from error
    return gate


def worst_gate(gates: Sequence[Gate | None]) -> Gate | None:
    """The gate of several studies that says the least good, with the arms of all; None where one of them has none to
    show, unless another failed."""
    shown = [gate for gate in gates if gate is not None]
    if not shown or (len(shown) < len(gates) and not any(gate.result is Result.FAIL for gate in shown)):
        return None
    least = min(shown, key=lambda gate: _how_good(gate.result))
    if not least.arms:
        return least
    arms: dict[str, ArmGate] = {}
    for arm in sorted((arm for gate in shown for arm in gate.arms), key=lambda arm: _how_good(arm.result)):
        arms.setdefault(arm.arm, arm)
    return replace(least, arms=tuple(arms.values()))


def _how_good(result: Result) -> int:
    return (Result.FAIL, Result.INCONCLUSIVE, Result.SKIPPED, Result.PASS).index(result)
