"""A job's result from its records: failures and repeats of one prompt are no evidence of their own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from speclift.bench.search_run import CellEntry, JobEntry, stored_result
from speclift.core.records import Outcome, Phase, Place, Record
from speclift.core.traffic import Concurrency, Request
from speclift.search.problem import JobResult, Purpose, SearchJob
from speclift.studies.study import Study

ALONE = Concurrency(streams=1)
JOB = SearchJob(id=1, candidate="ngram-k4", loads=(ALONE,), purpose=Purpose.LONG, reason="")
ENTRY = JobEntry(
    job=1,
    candidate="ngram-k4",
    launch=1,
    spent_s=11.0,
    launch_s=2.0,
    failure="",
    cells=(CellEntry(block=0, load=ALONE, wall_s=9.0),),
)


def record(request_id: str, *, failed: bool = False) -> Record:
    return Record(
        place=Place(
            arm="ngram-k4",
            launch=1,
            round=1,
            block=0,
            load=ALONE,
            request_id=request_id,
            segment="s",
            temperature=0.0,
            phase=Phase.MEASURED,
        ),
        outcome=Outcome.HTTP_ERROR if failed else Outcome.OK,
        intended_s=0.0,
        sent_s=0.0,
        first_token_s=None if failed else 0.1,
        end_s=1.1,
        text="" if failed else "words",
        output_tokens=None if failed else 101,
        drafted=None if failed else 80,
        accepted=None if failed else 40,
    )


def result_of(*, prompts: int = 12, failed: int = 0, alike: bool = False) -> JobResult:
    requests = [Request(id=f"p{i}", prompt="the same" if alike else f"prompt {i}") for i in range(prompts)]
    study = SimpleNamespace(
        plan=SimpleNamespace(requests=requests),
        records=lambda: [record(each.id, failed=i < failed) for i, each in enumerate(requests)],
        turn_totals=list,
        kept=lambda _: None,
    )
    return stored_result(JOB, ENTRY, cast(Study, study), is_baseline=False)


@pytest.mark.parametrize("failed", [7, 11, 12])
def test_a_cell_that_mostly_failed_is_a_failure_and_no_measurement(failed: int) -> None:
    found = result_of(failed=failed)
    assert found.cells == ()
    assert f"{failed} of 12 requests failed at c=1" in found.failure


def test_a_prompt_under_many_names_is_one_request() -> None:
    assert {each.request_id for each in result_of(alike=True).cells[0].requests} == {"p0"}
    assert len({each.request_id for each in result_of().cells[0].requests}) == 12
