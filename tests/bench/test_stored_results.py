"""What a finished job of a search says, read back from its study: counts, pace, and what engines do not tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from samples import launch, new_study, record
from speclift.bench.search_run import CellEntry, JobEntry, stored_result
from speclift.core.records import Phase, Record, Step
from speclift.core.traffic import Concurrency
from speclift.search.problem import JobResult, Purpose, SearchJob
from speclift.studies.study import Study

ALONE = Concurrency(streams=1)
JOB = SearchJob(id=2, candidate="ngram-k8", loads=(ALONE,), purpose=Purpose.LONG, reason="")


def entry(launch_id: int, *, pace_s: float | None = None, failure: str = "") -> JobEntry:
    cell = CellEntry(block=0, load=ALONE, wall_s=1.5, pace_s=pace_s)
    return JobEntry(
        job=launch_id,
        candidate="ngram-k8",
        launch=launch_id,
        spent_s=3.0,
        launch_s=1.0,
        failure=failure,
        cells=() if failure else (cell,),
    )


def drafted(made: Record) -> Record:
    """Eleven tokens: the prefill's, then two steps of four accepted and one more each."""
    steps = (Step(drafted=8, accepted=4), Step(drafted=8, accepted=4))
    return replace(made, steps=steps, drafted=16, accepted=8)


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    with new_study(tmp_path / "s") as made:
        made.add_launch(launch(1))
        made.add_launch(launch(2, arm="ngram-k8", round=2))
        yield made


def told(study: Study, found: JobEntry, *, is_baseline: bool = False) -> JobResult:
    return stored_result(JOB, found, study, is_baseline=is_baseline)


def test_steps_and_time_of_every_answered_request_are_told(study: Study) -> None:
    study.add_record(drafted(record(arm="ngram-k8", launch=2, round=2, tpot_s=0.01)))
    study.add_record(record(arm="ngram-k8", launch=2, round=2, request_id="w", phase=Phase.WARMUP))
    result = told(study, entry(2))
    (cell,) = result.cells
    (counts,) = cell.requests
    assert (counts.accepted, counts.drafted, counts.steps, counts.tokens) == ((4, 4), (8, 8), 2, 10)
    assert counts.tpot_s == pytest.approx(0.01)
    assert (result.launch_s, cell.wall_s, result.failure) == (1.0, 1.5, "")


def test_an_arm_whose_drafts_nobody_counts_is_a_failure_and_a_baseline_is_not(study: Study) -> None:
    study.add_record(record(arm="ngram-k8", launch=2, round=2))
    unknown = told(study, entry(2))
    assert unknown.cells == ()
    assert "draft tokens" in unknown.failure
    assert [each.steps for each in told(study, entry(2), is_baseline=True).cells[0].requests] == [10]
