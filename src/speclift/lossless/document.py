"""The gate as JSON: what verify prints, and what decide keeps in a study and reads back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NotRequired, TypeAlias, TypedDict, final

from speclift.core.documents import AnswerDocument, FindingDocument, answer_document, finding_document
from speclift.core.errors import StudyError
from speclift.core.results import Finding, Level
from speclift.core.typed_json import Keywords, finite, read_as
from speclift.lossless.calibration import SetTest
from speclift.lossless.gate import ArmGate, Example, Gate
from speclift.lossless.gate_answer import gate_answer
from speclift.lossless.greedy import Control, Greedy, GreedyCheck
from speclift.lossless.rates import Hazard
from speclift.lossless.result import Result
from speclift.lossless.sampled import Sampled
from speclift.lossless.soak.document import SoakDocument, soak_document
from speclift.lossless.soak.rates import SoakResult
from speclift.lossless.two_sample import TextTest

# Under this name a study keeps it.
LOSSLESS = "lossless"
# Of an arm and of the gate: parts that were skipped do not speak.
Settled: TypeAlias = Annotated[
    Result, Keywords(enum=[Result.PASS.value, Result.FAIL.value, Result.INCONCLUSIVE.value])
]


class HazardDocument(TypedDict):
    divergences: int
    tokens: float
    per_1000_tokens: float
    # Null where no token was compared.
    upper_per_1000_tokens: float | None


class GreedyCheckDocument(HazardDocument):
    name: str
    answers: int
    control: HazardDocument
    p_value: float


@final
class SkippedPartDocument(TypedDict):
    """A part of the gate that was not asked for, or that an arm which is lossy by design never came to."""

    result: Literal[Result.SKIPPED]


@final
class GreedyDocument(TypedDict):
    result: Result
    message: str
    tokens: float
    checks: list[GreedyCheckDocument]
    ties: int
    wide: int
    faults: int
    unknown_margin: int
    refused: int


class SetTestDocument(TypedDict):
    name: str
    tokens: int
    observed: float
    expected: float
    deviation: float
    z: float
    p_value: float
    used: bool


class TextTestDocument(TypedDict):
    name: str
    pairs: int
    baseline: float
    arm: float
    p_value: float


@final
class SampledDocument(TypedDict):
    result: Result
    message: str
    method: Annotated[str, Keywords(enum=["same-seed", "calibration", "texts"])]
    detect: float
    tokens: int
    tokens_needed: int
    detectable: float | None
    identity: HazardDocument | None
    tests: list[SetTestDocument]
    control_tests: list[SetTestDocument]
    foreign_tokens_p: float | None
    text_tests: list[TextTestDocument]
    notes: list[str]


class EdgeDocument(TypedDict):
    name: str
    result: Result
    message: str


class ArmGateDocument(TypedDict):
    arm: str
    method: str
    result: Settled
    greedy: GreedyDocument | SkippedPartDocument
    sampled: SampledDocument | SkippedPartDocument
    edges: list[EdgeDocument]
    findings: list[FindingDocument]


class ExampleDocument(TypedDict):
    arm: str
    case: str
    why: str
    prompt: str
    baseline: str
    answer: str
    # In nats; null where it is not known, or beyond all.
    margin: float | None


class GateDocument(TypedDict):
    """`greedy` and `sampled` are those of the arm that decides; every arm's own are under `arms`."""

    schema: Literal[1]
    result: Settled
    arm: str | None
    depth: str
    detect: float
    planned_tokens: int
    greedy: GreedyDocument | SkippedPartDocument
    sampled: SampledDocument | SkippedPartDocument
    # The hazards by shape, such as "alone", beside the margins and the noise in nats.
    control: dict[str, HazardDocument | list[float] | float]
    arms: list[ArmGateDocument]
    examples: list[ExampleDocument]
    findings: list[FindingDocument]
    notes: list[str]
    wall_s: float
    # Under load, with tools and turns, over time; where it was asked for.
    soak: NotRequired[SoakDocument]
    # What verify says of it first; a study's own answer is the verdict's.
    answer: NotRequired[AnswerDocument]


@final
class KeptGateDocument(GateDocument):
    """As a study keeps it: quick, full, or from its records alone."""

    mode: NotRequired[str]


@final
class SkippedGateDocument(TypedDict):
    result: Result
    why: NotRequired[str]
    mode: NotRequired[str]


LosslessDocument: TypeAlias = KeptGateDocument | SkippedGateDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmOutcome:
    """`message` is of the parts that decided this arm."""

    arm: str
    result: Result
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOutcome:
    """What a study has to show of the gate: what the verdict takes of it, and the document as it was kept, since the
    report of a study shows what its gate found at the time."""

    result: Result
    mode: str
    # Why there is nothing to show.
    why: str
    # None where no gate ran.
    arms: tuple[ArmOutcome, ...] | None
    examples: tuple[Example, ...]
    document: LosslessDocument


def gate_outcome(gate: Gate, *, mode: str) -> GateOutcome:
    return _outcome({**gate_document(gate), "mode": mode})


def skipped_outcome(why: str, *, mode: str) -> GateOutcome:
    return _outcome({"result": Result.SKIPPED, "why": why, "mode": mode})


def kept_outcome(kept: object) -> GateOutcome:
    """StudyError where what was kept is no gate's document."""
    try:
        if isinstance(kept, dict) and "arms" in kept:
            return _outcome(read_as(KeptGateDocument, kept))
        return _outcome(read_as(SkippedGateDocument, kept))
    except ValueError as error:
        raise StudyError(
            f"the stored result of the lossless gate is damaged: {error}", hint="run speclift verify again"
        ) from error


def worst_outcome(outcomes: Sequence[GateOutcome | None]) -> GateOutcome | None:
    """Of several studies the one that says the least good, with the arms of all; None where one of them has no gate to
    show."""
    shown = [outcome for outcome in outcomes if outcome is not None]
    if len(shown) < len(outcomes) and not any(outcome.result is Result.FAIL for outcome in shown):
        return None
    if not shown:
        return None
    least = min(shown, key=lambda outcome: _how_good(outcome.result)).document
    if "arms" not in least:
        return _outcome(least)
    documents = [arm for outcome in shown if "arms" in outcome.document for arm in outcome.document["arms"]]
    arms: dict[str, ArmGateDocument] = {}
    for arm in sorted(documents, key=lambda arm: _how_good(arm["result"])):
        arms.setdefault(arm["arm"], arm)
    return _outcome({**least, "arms": list(arms.values())})


def _how_good(result: Result) -> int:
    return (Result.FAIL, Result.INCONCLUSIVE, Result.SKIPPED, Result.PASS).index(result)


def _outcome(document: LosslessDocument) -> GateOutcome:
    if "arms" not in document:
        return GateOutcome(
            result=document["result"],
            mode=document.get("mode", ""),
            why=document.get("why", ""),
            arms=None,
            examples=(),
            document=document,
        )
    return GateOutcome(
        result=document["result"],
        mode=document.get("mode", ""),
        why="",
        arms=tuple(_arm_outcome(arm, document.get("soak")) for arm in document["arms"]),
        examples=tuple(Example(**example) for example in document["examples"]),
        document=document,
    )


def _arm_outcome(arm: ArmGateDocument, soak: SoakDocument | None) -> ArmOutcome:
    """An arm that fails under load has failed, whatever it says when it is asked politely."""
    found = [] if soak is None else [fault for fault in soak["faults"] if fault["arm"] == arm["arm"]]
    words = [f"{fault['name']}: {fault['message']}" for fault in found if fault["result"] is SoakResult.FOUND]
    failed = [] if soak is None else [each for each in soak["arms"] if each["arm"] == arm["arm"]]
    words += [
        finding["message"]
        for each in failed
        for finding in each["findings"]
        if finding["level"] is Level.FAIL
    ]
    if not words or arm["result"] is Result.FAIL:
        return ArmOutcome(arm=arm["arm"], result=arm["result"], message=_message(arm))
    return ArmOutcome(arm=arm["arm"], result=Result.FAIL, message="; ".join(words))


def _message(arm: ArmGateDocument) -> str:
    words = [
        f"{name}: {part['message']}"
        for name, part in (("greedy", arm["greedy"]), ("sampled", arm["sampled"]))
        if "message" in part and part["result"] is arm["result"]
    ]
    words += [f"{edge['name']}: {edge['message']}" for edge in arm["edges"] if edge["result"] is Result.FAIL]
    words += [finding["message"] for finding in arm["findings"] if finding["level"] is Level.FAIL]
    return "; ".join(words) or arm["result"].value


def verify_document(gate: Gate, argv: Sequence[str], *, kept: GateDocument | None = None) -> GateDocument:
    """Of verify itself; `argv` is its command line. `kept` is the document of the polite part, where that was asked
    before and the soak goes on."""
    document = gate_document(gate)
    if kept is not None:
        polite = {name: value for name, value in kept.items() if name not in ("result", "soak", "answer")}
        document = read_as(GateDocument, {**document, **polite})
    return {**document, "answer": answer_document(gate_answer(gate, argv))}


def kept_gate(document: GateDocument) -> Gate:
    """The result of each arm and why, without the counts behind it."""
    return Gate(
        depth=document["depth"],
        detect=document["detect"],
        planned_tokens=document["planned_tokens"],
        control=None,
        arms=tuple(
            ArmGate(
                arm=arm["arm"],
                method=arm["method"],
                result=arm["result"],
                greedy=None,
                sampled=None,
                findings=tuple(Finding(**finding) for finding in arm["findings"]),
            )
            for arm in document["arms"]
        ),
        wall_s=document["wall_s"],
        notes=tuple(document["notes"]),
    )


def gate_document(gate: Gate) -> GateDocument:
    deciding = next((arm for arm in gate.arms if arm.result is gate.result), None)
    arms = [_arm(arm) for arm in gate.arms]
    document: GateDocument = {
        "schema": 1,
        "result": gate.result,
        "arm": deciding.arm if deciding else None,
        "depth": gate.depth,
        "detect": gate.detect,
        "planned_tokens": gate.planned_tokens,
        "greedy": _greedy(deciding.greedy if deciding else None),
        "sampled": _sampled(deciding.sampled if deciding else None),
        "control": _control(gate.control),
        "arms": arms,
        "examples": [_example(example) for example in gate.examples],
        "findings": [finding for arm in arms for finding in arm["findings"]],
        "notes": list(gate.notes),
        "wall_s": gate.wall_s,
    }
    if gate.soak is not None:
        document["soak"] = soak_document(gate.soak)
    return finite(document)


def _arm(arm: ArmGate) -> ArmGateDocument:
    return {
        "arm": arm.arm,
        "method": arm.method,
        "result": arm.result,
        "greedy": _greedy(arm.greedy),
        "sampled": _sampled(arm.sampled),
        "edges": [{"name": edge.name, "result": edge.result, "message": edge.message} for edge in arm.edges],
        "findings": [finding_document(finding) for finding in arm.findings],
    }


def _greedy(greedy: Greedy | None) -> GreedyDocument | SkippedPartDocument:
    if greedy is None:
        return {"result": Result.SKIPPED}
    return {
        "result": greedy.result,
        "message": greedy.message,
        "tokens": greedy.tokens,
        "checks": [_check(check) for check in greedy.checks],
        "ties": greedy.ties,
        "wide": greedy.wide,
        "faults": greedy.faults,
        "unknown_margin": greedy.unknown,
        "refused": greedy.refused,
    }


def _check(check: GreedyCheck) -> GreedyCheckDocument:
    return {
        "name": check.name,
        "answers": check.answers,
        **_hazard(check.hazard),
        "control": _hazard(check.control),
        "p_value": check.p_value,
    }


def _sampled(sampled: Sampled | None) -> SampledDocument | SkippedPartDocument:
    if sampled is None:
        return {"result": Result.SKIPPED}
    return {
        "result": sampled.result,
        "message": sampled.message,
        "method": sampled.method,
        "detect": sampled.detect,
        "tokens": sampled.tokens,
        "tokens_needed": sampled.tokens_needed,
        "detectable": sampled.detectable,
        "identity": _hazard(sampled.identity) if sampled.identity else None,
        "tests": [_test(test) for test in sampled.tests],
        "control_tests": [_test(test) for test in sampled.control_tests],
        "foreign_tokens_p": sampled.foreign_p,
        "text_tests": [_text_test(test) for test in sampled.text_tests],
        "notes": list(sampled.notes),
    }


def _control(control: Control | None) -> dict[str, HazardDocument | list[float] | float]:
    if control is None:
        return {}
    return {
        **{shape: _hazard(hazard) for shape, hazard in control.hazards.items()},
        "margins": list(control.margins),
        "noise_tokens": control.noise_tokens,
        "noise_nats_p999": control.noise_nats,
        "noise_nats_max": control.noise_nats_max,
        "tie_nats": control.tie_nats,
        "fault_nats": control.fault_nats,
    }


def _hazard(hazard: Hazard) -> HazardDocument:
    return {
        "divergences": hazard.events,
        "tokens": hazard.tokens,
        "per_1000_tokens": 1000 * hazard.per_token,
        "upper_per_1000_tokens": 1000 * hazard.upper() if hazard.tokens else None,
    }


def _test(test: SetTest) -> SetTestDocument:
    return {
        "name": test.name,
        "tokens": test.tokens,
        "observed": test.observed,
        "expected": test.expected,
        "deviation": test.deviation,
        "z": test.z,
        "p_value": test.p_value,
        "used": test.is_usable,
    }


def _text_test(test: TextTest) -> TextTestDocument:
    return {
        "name": test.name,
        "pairs": test.pairs,
        "baseline": test.baseline,
        "arm": test.arm,
        "p_value": test.p_value,
    }


def _example(example: Example) -> ExampleDocument:
    return {
        "arm": example.arm,
        "case": example.case,
        "why": example.why,
        "prompt": example.prompt,
        "baseline": example.baseline,
        "answer": example.answer,
        "margin": example.margin,
    }
