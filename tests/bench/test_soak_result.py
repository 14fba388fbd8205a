"""From what a soak kept to what it came to: refusals are no corruption, a dead server is, and lines read alike."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from scripted_http import answered, scripted
from speclift.bench.soak_asking import digit_tokens
from speclift.bench.soak_result import offered, soak_of
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
)
from speclift.core.arm import Arm, Endpoint
from speclift.core.errors import StudyError, UsageError
from speclift.core.results import Level
from speclift.core.speculation import NGram
from speclift.lossless.result import Result
from speclift.lossless.soak.faults import exposed_to, faults_of
from speclift.lossless.soak.traffic import SoakDialect, SoakKind, soak_traffic
from speclift.lossless.soak.values import Exposure, SoakAnswer, SoakChoice, Stage

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
        choices=() if status != 200 else (SoakChoice(text="Fine words.", finish_reason="stop"),),
        tokens=3,
        error="" if status == 200 else f"{status}: not with speculation",
        status=status,
    )
    return Kept(
        step=STEP,
        kind=request.kind,
        answer=answer,
        exposed=exposed_to(request, answer),
        seen=faults_of(request, answer),
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
    assert soak.arms[0].found == ()
    (finding,) = soak.findings
    assert (finding.check, finding.level) == ("refused-setting", Level.WARN)
    assert "min-tokens" in finding.message


def test_errors_of_a_kind_that_is_answered_too_are_faults() -> None:
    slots = slots_of(SoakKind.COPY, 40)
    rows = [kept(slot, arm="baseline") for slot in slots]
    rows += [kept(slot, status=400 if place < 5 else 200) for place, slot in enumerate(slots)]
    soak = soak_of(TERMS, record_of(*rows), [ARM], study=Path("s"))
    assert [rate.fault.value for rate in soak.arms[0].found] == ["refused"]


DIED = Launched(arm="ngram-k4", launch=1, took_s=1.0, failure="died: code 134; log ends:\nCUDA error")


def test_a_server_that_dies_fails_its_arm_unless_the_baseline_dies_as_well() -> None:
    rows = [kept(slot, arm=arm) for slot in range(20) for arm in TERMS.arms]
    alone = soak_of(TERMS, record_of(*rows, DIED), [ARM], study=Path("s"))
    assert alone.result is Result.FAIL
    assert "CUDA error" in alone.findings[0].message
    both = soak_of(TERMS, record_of(*rows, DIED, replace(DIED, arm="baseline")), [ARM], study=Path("s"))
    assert both.result is not Result.FAIL


def test_what_the_baseline_refuses_is_left_out_and_what_it_tells_to_forbid_is_asked() -> None:
    told = Offered(refused=(("grammar", "400: no"),), banned=((7, "3"),), scale=0.25)
    traffic = offered(TRAFFIC, record_of(told))
    assert traffic.scale == 0.25
    assert SoakKind.GRAMMAR not in traffic.kinds
    assert SoakKind.BIAS in traffic.kinds
    assert traffic.banned == ((7, "3"),)


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


TOKENS = {
    "digits one by one": (
        {"3797": [3, 7, 9, 7], "3": [3], "7": [7], "9": [9]},
        ((3, "3"), (7, "7"), (9, "9")),
    ),
    "whole numbers": ({"3797": [41], "3": [3], "7": [7], "9": [9]}, ()),
    "nonsense": ({"3797": "many", "3": [None], "7": [7], "9": [9]}, ()),
}


@pytest.mark.parametrize(("tokens", "expected"), TOKENS.values(), ids=TOKENS.keys())
def test_digits_are_forbidden_only_where_each_is_a_token(
    tokens: dict[str, object], expected: tuple[tuple[int, str], ...]
) -> None:
    def answer(_head: bytes, body: bytes) -> bytes:
        told = json.dumps({"tokens": tokens[json.loads(body)["prompt"]]}).encode()
        return answered(told, fields="Connection: close\r\n")

    async def ask() -> tuple[tuple[int, str], ...]:
        async with scripted(answer) as server:
            return await digit_tokens(Endpoint(base_url=server.url, model="m"))

    assert asyncio.run(ask()) == expected


def test_counters_of_a_step_speak_where_answers_do_not_say_what_was_drafted() -> None:
    rows = [
        SoakStepEnded(arm=ARM.name, launch=launch, step=STEP, drafted=4000, accepted=accepted)
        for launch, accepted in ((1, 2400), (2, 4000), (3, 2500))
    ]
    soak = soak_of(TERMS, record_of(*rows), [ARM], study=Path("s"))
    assert [finding.check for finding in soak.findings] == ["odd-acceptance"]
    assert "launch 2" in soak.findings[0].message
    assert soak.acceptance[ARM.name] == pytest.approx(8900 / 12000)
