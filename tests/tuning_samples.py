"""A search that never ran: two ways of drafting at two loads, some of it measured."""

from __future__ import annotations

from dataclasses import fields

from speclift.core.results import Bounds
from speclift.core.traffic import Concurrency
from speclift.search.conclusion import LoadChoice, Segment
from speclift.search.problem import Purpose
from speclift.search.space import Elimination
from speclift.search.tuning import (
    ConfirmedBest,
    ConfirmedError,
    ConfirmedTuning,
    PromptSplit,
    SearchedCell,
    SearchedJob,
    SearchedSchedule,
    SearchError,
    Tuning,
)

KS = (1, 3, 5, 8)
ALONE = Concurrency(streams=1)


def cell(drafter: str | None, k: int, streams: int, speedup: float, *, measured: bool) -> SearchedCell:
    return SearchedCell(
        arm="baseline" if drafter is None else f"{drafter}-k{k}",
        method="off" if drafter is None else "ngram",
        drafter=drafter,
        k=k,
        quantisation=None,
        token_budget=None,
        load=Concurrency(streams=streams),
        rate_tok_s=100 * speedup / streams**0.5,
        low=None,
        high=None,
        speedup=speedup,
        in_flight=float(streams),
        is_measured=measured,
    )


def cells() -> tuple[SearchedCell, ...]:
    """Two drafters, two loads; k=1 and k=8 were run."""
    made = [cell(None, 0, streams, 1.0, measured=True) for streams in (1, 8)]
    for drafter, gain in (("ngram-n4", 1.3), ("ngram-n8", 1.2)):
        for streams in (1, 8):
            made += [
                cell(drafter, k, streams, gain + 0.01 * k - 0.02 * streams, measured=k in (1, 8)) for k in KS
            ]
    return tuple(made)


TUNING = Tuning(
    winner="ngram-n4-k8",
    runner_up="ngram-n8-k8",
    confirmed=("baseline", "ngram-n4-k8"),
    cells=cells(),
    choices=(LoadChoice(load=ALONE, candidate="ngram-n4-k8", runner_up=None, regret=0.01),),
    eliminated=(
        Elimination(candidate="draft-k3", stage="space", reason="does not fit"),
        Elimination(candidate="ngram-n8-k1", stage="predicted", reason="predicted 9 % below"),
    ),
    errors=(SearchError(arm="ngram-n4-k1", load=ALONE, ratio=0.98, sd=0.03),),
    jobs=(
        SearchedJob(
            id=1,
            arm="baseline",
            loads=(ALONE,),
            purpose=Purpose.BASELINE,
            reason="why",
            launch_s=1.0,
            engine_s=4.0,
            failure="",
        ),
    ),
    ending="nothing is left in doubt",
    expected_regret=0.0,
    spent_s=65.0,
    grid_s=600.0,
    prompts=PromptSplit(tuning=24, held_out=40, is_held_out=True),
    schedule=None,
)
SCHEDULE = SearchedSchedule(
    arm=None,
    static="a-k5",
    over="a-k5",
    segments=(Segment(start=1, end=4, k=7), Segment(start=5, end=64, k=0)),
    predicted_gain=1.03,
)
ERRORS = (
    ConfirmedError(
        arm="ngram-n4-k8",
        load=ALONE,
        predicted=1.36,
        measured=1.32,
        error=1.36 / 1.32 - 1,
        was_measured_in_search=True,
    ),
)
BEST = ConfirmedBest(
    arm="ngram-n4-k8",
    speedup=Bounds(value=1.32, low=1.2, high=1.45),
    command="llama-server --spec-type ngram-simple",
    config={},
)
CONFIRMED = ConfirmedTuning(
    **{part.name: getattr(TUNING, part.name) for part in fields(TUNING)}, confirmed_errors=ERRORS, best=BEST
)
