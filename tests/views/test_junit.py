"""verify --junit: every check is a test case, failures carry their evidence, and no server's text breaks the XML."""

from __future__ import annotations

from xml.etree import ElementTree

from speclift.core.results import warn
from speclift.lossless.gate import (
    ArmGate,
    EdgeCheck,
    Example,
    FaultRate,
    Gate,
    Greedy,
    Result,
    Soak,
    SoakArm,
    SoakFault,
    SoakResult,
)
from speclift.views.junit import verify_junit

NASTY = 'a <b> & "c" ]]> \x00\x1b[31m \ud800 end'


def gate(result: Result, *, fault: SoakResult = SoakResult.CLEAN, text: str = "fine") -> Gate:
    rate = FaultRate(
        arm="ngram-k4",
        name=SoakFault.CROSS_TALK,
        result=fault,
        message="3 of 100 requests",
        count=3,
        exposed=100,
        rate=0.03,
        low=0.01,
        high=0.08,
        control_count=0,
        control_exposed=100,
        control_rate=0.0,
        p_value=0.1,
        places=("only from 9 streams on",),
        evidence=(text,),
        script="soak/cross-talk.py",
    )
    soaked = SoakArm(
        arm="ngram-k4",
        method="ngram",
        result=result,
        requests=100,
        launches=1,
        findings=(warn("odd-acceptance", "all", arm="ngram-k4"),),
    )
    soak = Soak(
        result=result,
        seconds=10.0,
        planned_s=10.0,
        partial=False,
        requests=200,
        launches=2,
        concurrency=(4,),
        faults=(rate,),
        arms=(soaked,),
    )
    arm = ArmGate(
        arm="ngram-k4",
        method="ngram",
        result=result,
        greedy=Greedy(result=result, message=text),
        edges=(EdgeCheck(name="stop string", result=Result.PASS, message="kept"),),
    )
    example = Example(arm="ngram-k4", case="c1", why="another token", prompt="p", baseline="one", answer=text)
    return Gate(depth="full", wall_s=2.0, arms=(arm,), examples=(example,), soak=soak)


def cases(document: Gate) -> dict[str, ElementTree.Element]:
    root = ElementTree.fromstring(verify_junit(document))
    return {f"{case.get('classname')}/{case.get('name')}": case for case in root.iter("testcase")}


def test_every_check_and_fault_is_a_test_case() -> None:
    assert set(cases(gate(Result.PASS))) == {
        "ngram-k4.greedy/greedy",
        "ngram-k4.sampled/sampled",
        "ngram-k4.edges/stop string",
        "ngram-k4.soak/cross-talk",
        "ngram-k4.soak/odd-acceptance",
    }


def test_a_fault_fails_with_its_evidence_and_the_way_to_reproduce_it() -> None:
    failure = cases(gate(Result.FAIL, fault=SoakResult.FOUND))["ngram-k4.soak/cross-talk"].find("failure")
    assert failure is not None
    assert failure.get("message") == "3 of 100 requests"
    assert "only from 9 streams on" in (failure.text or "")
    assert "python soak/cross-talk.py URL" in (failure.text or "")


def test_what_leaves_an_arm_unsettled_is_an_error_and_the_rest_skipped() -> None:
    unsettled = cases(gate(Result.INCONCLUSIVE))["ngram-k4.greedy/greedy"]
    assert unsettled.find("error") is not None
    settled = cases(gate(Result.PASS, fault=SoakResult.INCONCLUSIVE))["ngram-k4.soak/cross-talk"]
    assert settled.find("skipped") is not None


def test_text_of_a_server_cannot_break_the_xml() -> None:
    shown = cases(gate(Result.FAIL, fault=SoakResult.FOUND, text=NASTY))["ngram-k4.soak/cross-talk"].find(
        "failure"
    )
    assert shown is not None
    assert 'a <b> & "c" ]]> \\u0000\\u001b[31m \\ud800 end' in (shown.text or "")
