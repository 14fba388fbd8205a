"""From what a soak kept to what it came to: refusals are no corruption, a dead server is, and lines read alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from soaked import observed
from speclift.bench.soak_study import (
    Kept,
    Launched,
    Offered,
    SoakRecord,
    SoakRow,
    SoakStep,
    SoakStepEnded,
    SoakStudy,
    SoakTerms,
    is_suspect,
    soak_of,
)
from speclift.core.arm import Arm
from speclift.core.errors import StudyError, UsageError
from speclift.core.records import AnswerChoice
from speclift.core.results import Level
from speclift.core.speculation import NGram
from speclift.lossless.gate import SHOWN_BY_ANY, Result, SoakFault
from speclift.lossless.soak.faults import looked_at
from speclift.lossless.soak.prompts import SoakDialect
from speclift.lossless.soak.rates import judge_faults, soaked_result
from speclift.lossless.soak.traffic import SoakKind, soak_traffic
from speclift.lossless.soak.values import Exposure, FaultSeen, SoakAnswer, Stage

TRAFFIC = soak_traffic(seed=3, dialect=SoakDialect.VLLM)
ARM = Arm(name="ngram-k4", speculation=NGram())
TERMS = SoakTerms(
    soak_s=60.0, levels=(4,), launches=1, seed=3, arms=("baseline", "ngram-k4"), fingerprint="f"
)
STEP = SoakStep(stage=Stage.DURING, streams=4)


def kept(slot: int, *, arm: str = "ngram-k4", status: int = 200) -> Kept:
    request = TRAFFIC.opening(slot)
    answer = SoakAnswer(
        index=request.index,
        exposure=Exposure(
            arm=arm,
            launch=1,
            stage=Stage.DURING,
            sent_s=1.0,
            ended_s=2.0,
            streams=4,
            streams_max=4,
            before=slot,
            joined=1,
        ),
        choices=() if status != 200 else (AnswerChoice(text="Fine words.", finish_reason="stop"),),
        tokens=3,
        error="" if status == 200 else f"{status}: not with speculation",
        status=status,
    )
    looks = looked_at(request, answer)
    return Kept(
        step=STEP,
        kind=request.kind,
        answer=answer,
        exposed=tuple(looks),
        seen=tuple(
            FaultSeen(fault=fault, index=request.index, evidence=said)
            for fault, said in looks.items()
            if said
        ),
        elapsed_s=59.0,
    )


def record_of(*rows: SoakRow) -> SoakRecord:
    record = SoakRecord()
    for row in rows:
        record.take(row)
    return record


def slots_of(kind: SoakKind, count: int) -> list[int]:
    return [slot for slot in range(4000) if TRAFFIC.kind_of(slot) is kind][:count]


def test_a_kind_that_the_arm_refuses_throughout_is_a_warning_and_no_fault() -> None:
    slots = slots_of(SoakKind.MINIMUM, 5)
    rows = [
        kept(slot, arm=arm, status=400 if arm == ARM.name else 200) for slot in slots for arm in TERMS.arms
    ]
    soak = soak_of(TERMS, record_of(*rows), [ARM], study=Path("s"))
    assert soak.found_in(ARM.name) == ()
    (finding,) = soak.findings
    assert (finding.check, finding.level) == ("refused-setting", Level.WARN)
    assert "min-tokens" in finding.message


@pytest.mark.parametrize(("status", "is_worth_it"), [(400, False), (500, True), (200, False)])
def test_time_is_kept_back_to_reproduce_what_broke_and_not_what_was_refused(
    status: int, is_worth_it: bool
) -> None:
    assert is_suspect(record_of(kept(1, arm="baseline"), kept(1, status=status))) is is_worth_it


def test_errors_of_a_kind_that_is_answered_too_are_faults() -> None:
    slots = slots_of(SoakKind.COPY, 40)
    rows = [kept(slot, arm="baseline") for slot in slots]
    rows += [kept(slot, status=400 if place < 5 else 200) for place, slot in enumerate(slots)]
    soak = soak_of(TERMS, record_of(*rows), [ARM], study=Path("s"))
    assert [rate.name.value for rate in soak.found_in(ARM.name)] == ["refused"]


def rated(fault: SoakFault, arm: tuple[int, int], control: tuple[int, int]) -> Result:
    """Of an arm with nothing else to show: what any answer can show was asked often enough, and is clean."""
    everything = [each for any_fault in SHOWN_BY_ANY for each in observed(0, 300, fault=any_fault)]
    rates = judge_faults(
        [*everything, *observed(*arm, fault=fault)], [*everything, *observed(*control, fault=fault)]
    )
    return soaked_result(rates, (), None)


@pytest.mark.parametrize(
    ("fault", "arm", "control", "result"),
    [
        # A model that answers in words where the server does not keep it to its tools.
        (SoakFault.NO_CALL, (2, 2), (1, 1), Result.PASS),
        (SoakFault.NO_CALL, (2, 2), (0, 1), Result.PASS),
        (SoakFault.NO_CALL, (20, 20), (0, 20), Result.FAIL),
        (SoakFault.REPEATED, (2, 44), (1, 41), Result.PASS),
        (SoakFault.REPEATED, (1, 44), (0, 41), Result.PASS),
        (SoakFault.REPEATED, (9, 44), (0, 41), Result.INCONCLUSIVE),
        (SoakFault.OTHER_TEXT, (8, 34), (0, 22), Result.PASS),
        (SoakFault.OTHER_TEXT, (34, 34), (0, 22), Result.INCONCLUSIVE),
        # What only a server does wrong, once, is not settled.
        (SoakFault.BANNED_TOKEN, (1, 30), (0, 30), Result.INCONCLUSIVE),
        (SoakFault.BANNED_TOKEN, (1, 30), (1, 30), Result.PASS),
        (SoakFault.BANNED_TOKEN, (2, 30), (0, 30), Result.FAIL),
        (SoakFault.BUDGET, (0, 30), (0, 30), Result.PASS),
    ],
)
def test_what_the_baseline_does_as_well_stands_in_the_way_of_no_pass(
    fault: SoakFault, arm: tuple[int, int], control: tuple[int, int], result: Result
) -> None:
    assert rated(fault, arm, control) is result


DIED = Launched(arm="ngram-k4", launch=1, took_s=1.0, failure="died: code 134; log ends:\nCUDA error")


def test_a_server_that_dies_fails_its_arm_unless_the_baseline_dies_as_well() -> None:
    rows = [kept(slot, arm=arm) for slot in range(20) for arm in TERMS.arms]
    alone = soak_of(TERMS, record_of(*rows, DIED), [ARM], study=Path("s"))
    assert alone.result is Result.FAIL
    assert "CUDA error" in alone.findings[0].message
    both = soak_of(TERMS, record_of(*rows, DIED, replace(DIED, arm="baseline")), [ARM], study=Path("s"))
    assert both.result is not Result.FAIL


def test_lines_read_again_are_what_was_kept_and_a_torn_one_is_cut_off(tmp_path: Path) -> None:
    study = SoakStudy.create(tmp_path, TERMS)
    rows: list[SoakRow] = [Offered(), DIED, kept(1), kept(2, status=400)]
    for row in rows:
        study.keep(row)
    study.close()
    path = tmp_path / "soak" / "answers.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kept": {"step": {"sta')
    again = SoakStudy.reopen(tmp_path)
    again.close()
    assert path.read_bytes() == whole
    assert (again.terms, again.record) == (TERMS, study.record)


def test_damaged_lines_and_a_second_soak_in_one_place_are_refused(tmp_path: Path) -> None:
    SoakStudy.create(tmp_path, TERMS).close()
    with pytest.raises(UsageError, match="already holds a soak"):
        SoakStudy.create(tmp_path, TERMS)
    (tmp_path / "soak" / "answers.jsonl").write_text('{"kept": 7}\n')
    with pytest.raises(StudyError, match="line 1 of the soak is damaged"):
        SoakStudy.reopen(tmp_path)


def test_counters_of_a_step_speak_where_answers_do_not_say_what_was_drafted() -> None:
    rows = [
        SoakStepEnded(arm=ARM.name, launch=launch, step=STEP, drafted=4000, accepted=accepted)
        for launch, accepted in ((1, 2400), (2, 4000), (3, 2500))
    ]
    soak = soak_of(TERMS, record_of(*rows), [ARM], study=Path("s"))
    assert [finding.check for finding in soak.findings] == ["odd-acceptance"]
    assert "launch 2" in soak.findings[0].message
    assert soak.arms[0].acceptance_rate == pytest.approx(8900 / 12000)
