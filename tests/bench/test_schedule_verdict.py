"""A schedule of k by load wins only where it beats the best single k on the same prompts."""

from __future__ import annotations

from pathlib import Path

import pytest

from samples import launch, new_study, plan, record, request
from speclift.core.arm import Arm, baseline_arm
from speclift.core.document import plain_object
from speclift.core.speculation import NGram
from speclift.core.traffic import Concurrency
from speclift.engines.vllm.dialect.tables import SCHEDULE
from speclift.search.conclusion import Segment
from speclift.search.tuning import TUNING, PromptSplit, SearchedSchedule, Tuning
from speclift.statistics.schedule_gain import SCHEDULE_NO_GAIN
from speclift.verbs.compare import compare
from speclift.verdict.judgement import Judgement

STATIC = Arm(name="ngram-k5", speculation=NGram(k=5))
SCHEDULED = Arm(name="ngram-schedule", speculation=NGram(k=5, extra=((SCHEDULE, "[[1,4,5],[5,64,0]]"),)))
FOUND = Tuning(
    winner="ngram-k5",
    runner_up=None,
    confirmed=("baseline", "ngram-schedule", "ngram-k5"),
    cells=(),
    choices=(),
    eliminated=(),
    errors=(),
    jobs=(),
    ending="nothing is left in doubt",
    expected_regret=0.0,
    spent_s=60.0,
    grid_s=None,
    prompts=PromptSplit(tuning=12, held_out=12, is_held_out=True),
    schedule=SearchedSchedule(
        arm="ngram-schedule",
        static="ngram-k5",
        over="ngram-k5",
        segments=(Segment(start=1, end=4, k=5), Segment(start=5, end=64, k=0)),
        predicted_gain=1.05,
    ),
)


def judged(folder: Path, *, gain: float) -> Judgement:
    """Both arms beat the baseline by half; the schedule beats the static arm by `gain` at c=8."""
    requests = tuple(request(f"p{number}") for number in range(12))
    loads = (Concurrency(streams=1), Concurrency(streams=8))
    arms = (baseline_arm(), SCHEDULED, STATIC)
    study = new_study(folder, plan=plan(arms=arms, requests=requests, loads=loads, rounds=3))
    number = 0
    for round_index in range(3):
        for arm in arms:
            number += 1
            study.add_launch(launch(id=number, arm=arm.name, round=round_index))
            for block, load in enumerate(loads):
                speed = 1.0 if arm.is_baseline else 1.5
                speed *= gain if arm is SCHEDULED and load.streams == 8 else 1.0
                for place, asked in enumerate(requests):
                    wobble = 1 + 0.01 * ((place * 7 + number * 3 + block) % 5)
                    study.add_record(
                        record(
                            tpot_s=0.01 * wobble / speed,
                            arm=arm.name,
                            launch=number,
                            round=round_index,
                            block=block,
                            load=load,
                            request_id=asked.id,
                        )
                    )
    study.keep(TUNING, plain_object(FOUND))
    study.close()
    return compare([folder])


@pytest.mark.slow
@pytest.mark.parametrize(("gain", "is_dropped"), [(1.0, True), (1.5, False)], ids=["no gain", "a gain"])
def test_a_schedule_that_does_not_beat_the_static_arm_is_dropped_with_a_finding(
    gain: float, is_dropped: bool, tmp_path: Path
) -> None:
    judgement = judged(tmp_path / "s", gain=gain)
    said = [finding for finding in judgement.findings if finding.check == SCHEDULE_NO_GAIN]
    assert [finding.arm for finding in said] == (["ngram-schedule"] if is_dropped else [])
    assert judgement.tuning is not None
    assert judgement.tuning.best is not None
    best = judgement.tuning.best.arm
    assert best == ("ngram-k5" if is_dropped else "ngram-schedule")
    assert judgement.verdict.evidence is not None
    assert judgement.verdict.evidence.arm.name == best
