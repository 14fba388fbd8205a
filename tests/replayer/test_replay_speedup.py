"""Step costs from a study, and speedups from accepted lengths."""

from __future__ import annotations

import pytest

from speclift.core.records import Outcome, Phase, Place, Record
from speclift.core.traffic import Concurrency
from speclift.replayer.estimates import StepCost, study_costs

ONE, EIGHT = Concurrency(streams=1), Concurrency(streams=8)


def record(arm: str, *, step_s: float, steps: int, drafted: int = 0, accepted: int = 0) -> Record:
    place = Place(
        arm=arm,
        launch=1,
        round=0,
        block=0,
        load=ONE,
        request_id="r",
        segment="any",
        temperature=0.0,
        phase=Phase.MEASURED,
    )
    return Record(
        place=place,
        outcome=Outcome.OK,
        intended_s=0.0,
        sent_s=0.0,
        end_s=9.0,
        first_token_s=1.0,
        last_token_s=1.0 + step_s * steps,
        output_tokens=steps + accepted + 1,
        drafted=drafted,
        accepted=accepted,
    )


def costs(*records: Record) -> tuple[StepCost, ...]:
    return study_costs(records, baseline="baseline", arms=("ngram",), source="study x")


def test_the_cost_is_what_a_drafted_token_added_to_a_step() -> None:
    # 2 tokens drafted per step made it 1.3 times as long.
    found = costs(
        record("baseline", step_s=0.01, steps=100),
        record("ngram", step_s=0.013, steps=50, drafted=100, accepted=30),
    )

    assert [cost.per_token for cost in found] == [pytest.approx(0.15)]
    assert [cost.load for cost in found] == [ONE]


@pytest.mark.parametrize(
    "records",
    [
        (),
        (record("baseline", step_s=0.01, steps=100),),
        (record("baseline", step_s=0.01, steps=100), record("ngram", step_s=0.01, steps=50)),
        (record("baseline", step_s=0.01, steps=100), record("draft", step_s=0.01, steps=50, drafted=9)),
    ],
    ids=["nothing", "baseline alone", "nothing drafted", "another method"],
)
def test_a_study_without_drafting_steps_has_no_cost(records: tuple[Record, ...]) -> None:
    assert costs(*records) == ()
