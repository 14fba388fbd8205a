"""What the verdict takes of the gate: of the arms in the running, the worst word; of arms never compared, none."""

from __future__ import annotations

from samples import NGRAM
from simulated import ARM, OTHER
from speclift.core.arm import Arm
from speclift.core.results import fail
from speclift.lossless.gate import ArmGate, Gate, Result
from speclift.verdict.verdict import GateWord, changed_arms, gate_for_verdict


def outcome(arms: dict[str, Result] | None, *, mode: str = "quick", why: str = "") -> Gate:
    return Gate(
        depth="quick" if arms else "",
        arms=tuple(
            ArmGate(
                arm=name,
                method="ngram",
                result=result,
                findings=(fail("said", f"said of {name}"),),
            )
            for name, result in (arms or {}).items()
        ),
        mode=mode,
        why=why,
    )


def word(
    arms: dict[str, Result], standing: list[Arm], competing: list[Arm] | None = None
) -> tuple[Result, str]:
    said = gate_for_verdict(outcome(arms), standing, standing if competing is None else competing)
    return said.result, said.note


def test_a_gate_that_did_not_run_says_why_and_has_changed_nothing() -> None:
    nothing = outcome(None, why="no time was left")
    assert gate_for_verdict(nothing, [ARM], [ARM]) == GateWord(note="no time was left")
    assert changed_arms(nothing) == ()


def test_the_worst_word_of_the_arms_in_the_running_counts() -> None:
    assert word({"arm": Result.PASS}, [ARM]) == (Result.PASS, "arm: said of arm")
    both = [ARM, OTHER]
    assert word({"arm": Result.PASS, "other": Result.INCONCLUSIVE}, both) == (
        Result.INCONCLUSIVE,
        "other: said of other",
    )
    assert word({"arm": Result.FAIL, "other": Result.INCONCLUSIVE}, both) == (Result.FAIL, "arm: said of arm")


def test_an_arm_that_is_out_says_nothing_while_another_stands() -> None:
    judged = {"arm": Result.PASS, "other": Result.FAIL}
    assert word(judged, [ARM], [ARM, OTHER]) == (Result.PASS, "arm: said of arm")


def test_an_arm_that_was_never_compared_leaves_it_open_unless_another_changed_the_output() -> None:
    both = [ARM, OTHER]
    assert word({"arm": Result.PASS}, both) == (
        Result.INCONCLUSIVE,
        "not compared with the baseline: other",
    )
    assert word({"arm": Result.FAIL}, both) == (Result.FAIL, "arm: said of arm")


def test_nobody_in_the_running_is_no_pass() -> None:
    assert word({"arm": Result.PASS}, []) == (Result.INCONCLUSIVE, "")


def test_two_arms_speak_and_a_third_is_as_bad() -> None:
    third = Arm(name="third", speculation=NGRAM.speculation)
    result, note = word(dict.fromkeys(("arm", "other", "third"), Result.FAIL), [ARM, OTHER, third])
    assert (result, note) == (Result.FAIL, "arm: said of arm; other: said of other")
