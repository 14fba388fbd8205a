"""The gate as JUnit XML, for whatever shows test results in CI: one test case for each check of an arm and each fault
of a soak. Pure.

A failure carries its evidence. What is not settled is an error where the arm is not settled for it, else skipped.
What servers said is somebody's text: characters that XML has no place for are written as escapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from speclift.core.results import Level
from speclift.lossless.gate import (
    ArmGate,
    Example,
    FaultRate,
    Gate,
    Result,
    Soak,
    SoakResult,
)

MESSAGE_CHARACTERS = 400
EVIDENCE_CHARACTERS = 4000
# XML 1.0, section 2.2: everything else may not even be written as a reference.
_FOREIGN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SOAK_RESULTS = {
    SoakResult.FOUND: Result.FAIL,
    SoakResult.INCONCLUSIVE: Result.INCONCLUSIVE,
    SoakResult.CLEAN: Result.PASS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckCase:
    """One test case; `part` is what of the gate it belongs to."""

    part: str
    name: str
    result: Result
    message: str = ""
    evidence: str = ""


def verify_junit(document: Gate) -> str:
    suites = [(arm.arm, arm.result, list(_cases(arm, document))) for arm in document.arms]
    root = ElementTree.Element("testsuites", {"name": "speclift verify"})
    seconds = document.wall_s + (document.soak.seconds if document.soak else 0.0)
    for name, result, cases in suites:
        suite = ElementTree.SubElement(root, "testsuite", {"name": _shown(name, MESSAGE_CHARACTERS)})
        for case in cases:
            _add(suite, name, case, is_open=result is Result.INCONCLUSIVE)
        _count(suite, [suite])
    _count(root, list(root))
    root.set("time", f"{seconds:.3f}")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _cases(arm: ArmGate, document: Gate) -> Iterator[CheckCase]:
    examples = [example for example in document.examples if example.arm == arm.arm]
    for part, value in (("greedy", arm.greedy), ("sampled", arm.sampled)):
        if value.result is Result.SKIPPED:
            yield CheckCase(part=part, name=part, result=Result.SKIPPED, message="not asked")
            continue
        yield CheckCase(
            part=part,
            name=part,
            result=value.result,
            message=value.message,
            evidence=_side_by_side(examples) if value.result is Result.FAIL else "",
        )
    for edge in arm.edges:
        yield CheckCase(part="edges", name=edge.name, result=edge.result, message=edge.message)
    for finding in arm.findings:
        result = Result.FAIL if finding.level is Level.FAIL else Result.INCONCLUSIVE
        yield CheckCase(part="findings", name=finding.check, result=result, message=finding.message)
    if document.soak:
        yield from _soak_cases(arm.arm, document.soak)


def _soak_cases(arm: str, soak: Soak) -> Iterator[CheckCase]:
    for fault in soak.faults:
        if fault.arm == arm:
            yield CheckCase(
                part="soak",
                name=fault.name,
                result=_SOAK_RESULTS[fault.result],
                message=fault.message,
                evidence=_fault_evidence(fault),
            )
    for each in soak.arms:
        if each.arm == arm and each.distribution is not None:
            found = each.distribution
            yield CheckCase(part="soak", name="distribution", result=found.result, message=found.message)
    for finding in soak.findings:
        if finding.arm == arm:
            result = Result.FAIL if finding.level is Level.FAIL else Result.INCONCLUSIVE
            yield CheckCase(part="soak", name=finding.check, result=result, message=finding.message)


def _fault_evidence(fault: FaultRate) -> str:
    script = [f"reproduce it: python {fault.script} URL"] if fault.script else []
    return "\n".join([*fault.places, *fault.evidence, *script])


def _side_by_side(examples: Sequence[Example]) -> str:
    return "\n\n".join(
        f"{example.case}: {example.why}\nbaseline: {example.baseline}\narm: {example.answer}"
        for example in examples
    )


def _add(suite: ElementTree.Element, arm: str, case: CheckCase, *, is_open: bool) -> None:
    names = {"classname": f"{arm}.{case.part}", "name": case.name}
    element = ElementTree.SubElement(
        suite, "testcase", {key: _shown(value, MESSAGE_CHARACTERS) for key, value in names.items()}
    )
    match case.result:
        case Result.PASS:
            return
        case Result.FAIL:
            tag = "failure"
        case Result.INCONCLUSIVE:
            tag = "error" if is_open else "skipped"
        case Result.SKIPPED:
            tag = "skipped"
    told = ElementTree.SubElement(element, tag, {"message": _shown(case.message, MESSAGE_CHARACTERS)})
    if tag != "skipped":
        told.set("type", case.result.value)
        told.text = _shown(case.evidence or case.message, EVIDENCE_CHARACTERS)


def _count(element: ElementTree.Element, suites: Sequence[ElementTree.Element]) -> None:
    cases = [case for suite in suites for case in suite.iter("testcase")]
    element.set("tests", str(len(cases)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(name, str(sum(case.find(tag) is not None for case in cases)))


def _shown(text: str, limit: int) -> str:
    safe = _FOREIGN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"
