"""What a study keeps of the gate reads back the same, says what decided each arm, and is refused when damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from speclift.core.document import plain
from speclift.core.errors import StudyError
from speclift.core.results import Finding, Level
from speclift.lossless.calibration import counts_test
from speclift.lossless.gate import (
    ArmGate,
    EdgeCheck,
    Example,
    Gate,
    Greedy,
    GreedyCheck,
    Hazard,
    Result,
    Sampled,
    TextTest,
    read_gate,
    worst_gate,
)
from speclift.lossless.greedy import Control

DOCUMENTS = Path(__file__).parents[1] / "recorded" / "documents"
FEW, NONE = Hazard(events=2, tokens=900.0), Hazard(events=0, tokens=0.0)
GREEDY = Greedy(
    result=Result.FAIL,
    message="2 answers part",
    tokens=900.0,
    prompts=12,
    checks=(GreedyCheck(name="alone", answers=12, events=2, tokens=900.0, control=NONE, p_value=0.2),),
    ties=1,
    faults=1,
)
SAMPLED = Sampled(
    result=Result.PASS,
    message="probabilities hold",
    method="calibration",
    detect=0.02,
    tokens=4000,
    tokens_needed=2000,
    detectable=0.01,
    identity=FEW,
    tests=(counts_test(name="top 1", tokens=4000, observed=2010.0, expected=2000.0, variance=900.0),),
    text_tests=(TextTest(name="words", pairs=30, baseline=40.0, arm=41.0, p_value=0.6),),
    notes=("scored",),
)
CHANGED = ArmGate(
    arm="draft-k4",
    method="draft",
    result=Result.FAIL,
    greedy=GREEDY,
    sampled=SAMPLED,
    edges=(
        EdgeCheck(name="stop", result=Result.FAIL, message="the stop string 'secret' is in the answer"),
        EdgeCheck(name="schema", result=Result.PASS, message="kept"),
    ),
    findings=(
        Finding(check="arm-failed", level=Level.FAIL, message="it died\nsecret", arm="draft-k4"),
        Finding(check="odd-acceptance", level=Level.WARN, message="almost none\nsecret", arm="draft-k4"),
    ),
)
SAME = ArmGate(arm="ngram-k8", method="ngram", result=Result.PASS, sampled=SAMPLED)
EXAMPLE = Example(
    arm="draft-k4",
    case="p1",
    why="ends early",
    prompt="secret",
    baseline="secret",
    answer="secret",
    margin=float("inf"),
)
CONTROL = Control(
    hazards={"alone": FEW},
    margins=(0.05,),
    noise_tokens=40,
    noise_nats=0.02,
    noise_nats_max=0.04,
    together=FEW,
)


def gate(*arms: ArmGate, mode: str = "full") -> Gate:
    return Gate(
        depth="full",
        detect=0.02,
        planned_tokens=2000,
        control=CONTROL.as_document(),
        arms=arms,
        examples=(EXAMPLE,),
        wall_s=3.0,
        notes=("n",),
        mode=mode,
    )


def stored(kept: Gate) -> Any:
    return json.loads(json.dumps(plain(kept), allow_nan=False))


@pytest.mark.parametrize(
    "kept",
    [gate(CHANGED, SAME), gate(SAME, mode="quick"), Gate(why="--verify off", mode="off")],
    ids=["changed", "same", "skipped"],
)
def test_it_reads_back_the_same(kept: Gate) -> None:
    again = read_gate(stored(kept))
    assert stored(again) == stored(kept)
    assert again.outcomes == kept.outcomes


@pytest.mark.parametrize("name", ["decide", "tune"])
def test_one_of_an_earlier_version_is_read_and_kept_as_it_was(name: str) -> None:
    kept = json.loads((DOCUMENTS / f"{name}.json").read_text("utf-8"))["lossless"]
    again = stored(read_gate(kept))
    for field in ("result", "arm", "depth", "control", "examples", "findings", "notes", "mode"):
        assert again[field] == kept[field]
    for was, now in zip(kept["arms"], again["arms"], strict=True):
        assert all(now["greedy"][field] == value for field, value in was["greedy"].items())


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("result",), "perhaps", r"\$\.result"),
        (("arms", 0, "greedy", "checks", 0, "answers"), "12", r"\$\.arms\[0\]\.greedy\.checks\[0\]\.answers"),
        (("arms", 0, "edges"), None, r"\$\.arms\[0\]\.edges"),
        (("arms",), [], "says 'fail', and its arms 'inconclusive'"),
        (("result",), "pass", "says 'pass', and its arms 'fail'"),
    ],
)
def test_a_damaged_one_is_refused_with_the_place(path: tuple[Any, ...], value: object, fault: str) -> None:
    kept = stored(gate(CHANGED))
    place = kept
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(StudyError, match=fault):
        read_gate(kept)


def test_the_worst_of_several_studies_speaks_for_all_of_them() -> None:
    passed, failed = gate(SAME), gate(CHANGED)
    skipped = Gate(why="--verify off", mode="off")
    worst = worst_gate([passed, failed])
    assert worst is not None
    assert (worst.result, {arm.arm for arm in worst.arms}) == (Result.FAIL, {"draft-k4", "ngram-k8"})
    assert worst_gate([passed, skipped]) == skipped
    assert worst_gate([passed, None]) is None
    assert worst_gate([failed, None]) == failed


def test_without_text_nothing_is_quoted() -> None:
    document = json.dumps(plain(gate(CHANGED).without_text(instead="text not kept")))
    assert "secret" not in document
    assert document.count("text not kept") == 3  # the edge, and the failed arm's finding twice
