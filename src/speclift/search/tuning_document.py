"""What a search found, as JSON and back: as the confirming study keeps it, and as a verdict's document shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypedDict

from speclift.core.documents import BoundsDocument, LoadDocument, load_document, load_of
from speclift.core.errors import StudyError
from speclift.core.typed_json import Keywords, read_as
from speclift.search.conclusion import LoadChoice
from speclift.search.problem import Purpose
from speclift.search.schedule import Segment
from speclift.search.space import Elimination, Stage
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

# Under this name the confirming study keeps what the search found.
TUNING = "tuning"


class SearchedCellDocument(TypedDict):
    arm: str
    method: str
    drafter: str | None
    k: int
    quantisation: str | None
    token_budget: int | None
    load: LoadDocument
    rate_tok_s: Annotated[float, Keywords(description="Of one stream.")]
    low: float | None
    high: float | None
    speedup: float
    in_flight: float
    is_measured: Annotated[bool, Keywords(description="False: predicted.")]


class LoadChoiceDocument(TypedDict):
    load: LoadDocument
    arm: str
    runner_up: str | None
    regret: float


class EliminationDocument(TypedDict):
    arm: str
    stage: Stage
    load: str | None
    reason: str


class SearchErrorDocument(TypedDict):
    arm: str
    load: LoadDocument
    ratio: Annotated[
        float,
        Keywords(description="Measured over predicted rate, of cells predicted before they were measured."),
    ]
    sd: float


class SearchedJobDocument(TypedDict):
    job: int
    arm: str
    loads: list[LoadDocument]
    purpose: Purpose
    reason: str
    launch_s: float
    engine_s: float
    failure: str


class PromptSplitDocument(TypedDict):
    tuning: int
    held_out: int
    is_held_out: bool


class SearchedScheduleDocument(TypedDict):
    arm: str | None
    static: str
    over: str
    segments: Annotated[
        list[list[int]],
        Keywords(description="First and last number of requests in flight, and k; 0 drafts nothing."),
    ]
    predicted_gain: float


class TuningDocument(TypedDict):
    """What a search found before the arms were confirmed."""

    winner: Annotated[str, Keywords(description="Best of the search, which the confirmation may overturn.")]
    runner_up: str | None
    confirmed: list[str]
    cells: list[SearchedCellDocument]
    choices: list[LoadChoiceDocument]
    eliminated: list[EliminationDocument]
    errors: list[SearchErrorDocument]
    jobs: list[SearchedJobDocument]
    ending: str
    expected_regret: float
    spent_s: Annotated[float, Keywords(description="Engine time of the search.")]
    grid_s: Annotated[
        float | None,
        Keywords(
            description="Engine time that every cell three times would take, estimated from what was timed."
        ),
    ]
    prompts: PromptSplitDocument
    schedule: SearchedScheduleDocument | None


class ConfirmedErrorDocument(TypedDict):
    arm: str
    load: LoadDocument
    predicted: float
    measured: float
    error: float
    was_measured_in_search: bool


class ConfirmedBestDocument(TypedDict):
    arm: str
    speedup: BoundsDocument
    command: str
    config: Mapping[str, object]


class ConfirmedTuningDocument(TuningDocument):
    confirmed_errors: list[ConfirmedErrorDocument]
    best: ConfirmedBestDocument | None


def tuning_document(tuning: Tuning) -> TuningDocument:
    return {
        "winner": tuning.winner,
        "runner_up": tuning.runner_up,
        "confirmed": list(tuning.confirmed),
        "cells": [_cell(cell) for cell in tuning.cells],
        "choices": [
            {
                "load": load_document(choice.load),
                "arm": choice.candidate,
                "runner_up": choice.runner_up,
                "regret": choice.regret,
            }
            for choice in tuning.choices
        ],
        "eliminated": [
            {"arm": out.candidate, "stage": out.stage, "load": out.load, "reason": out.reason}
            for out in tuning.eliminated
        ],
        "errors": [
            {"arm": error.arm, "load": load_document(error.load), "ratio": error.ratio, "sd": error.sd}
            for error in tuning.errors
        ],
        "jobs": [_job(job) for job in tuning.jobs],
        "ending": tuning.ending,
        "expected_regret": tuning.expected_regret,
        "spent_s": tuning.spent_s,
        "grid_s": tuning.grid_s,
        "prompts": {
            "tuning": tuning.prompts.tuning,
            "held_out": tuning.prompts.held_out,
            "is_held_out": tuning.prompts.is_held_out,
        },
        "schedule": None if tuning.schedule is None else _schedule(tuning.schedule),
    }


def confirmed_document(confirmed: ConfirmedTuning) -> ConfirmedTuningDocument:
    return {
        **tuning_document(confirmed.tuning),
        "confirmed_errors": [
            {
                "arm": error.arm,
                "load": load_document(error.load),
                "predicted": error.predicted,
                "measured": error.measured,
                "error": error.error,
                "was_measured_in_search": error.was_measured_in_search,
            }
            for error in confirmed.errors
        ],
        "best": None if confirmed.best is None else _best(confirmed.best),
    }


def _cell(cell: SearchedCell) -> SearchedCellDocument:
    return {
        "arm": cell.arm,
        "method": cell.method,
        "drafter": cell.drafter,
        "k": cell.k,
        "quantisation": cell.quantisation,
        "token_budget": cell.token_budget,
        "load": load_document(cell.load),
        "rate_tok_s": cell.rate_tok_s,
        "low": cell.low,
        "high": cell.high,
        "speedup": cell.speedup,
        "in_flight": cell.in_flight,
        "is_measured": cell.is_measured,
    }


def _job(job: SearchedJob) -> SearchedJobDocument:
    return {
        "job": job.id,
        "arm": job.arm,
        "loads": [load_document(load) for load in job.loads],
        "purpose": job.purpose,
        "reason": job.reason,
        "launch_s": job.launch_s,
        "engine_s": job.engine_s,
        "failure": job.failure,
    }


def _schedule(schedule: SearchedSchedule) -> SearchedScheduleDocument:
    return {
        "arm": schedule.arm,
        "static": schedule.static,
        "over": schedule.over,
        "segments": [[segment.start, segment.end, segment.k] for segment in schedule.segments],
        "predicted_gain": schedule.predicted_gain,
    }


def _best(best: ConfirmedBest) -> ConfirmedBestDocument:
    return {
        "arm": best.arm,
        "speedup": {"value": best.speedup.value, "low": best.speedup.low, "high": best.speedup.high},
        "command": best.command,
        "config": best.config,
    }


# And back


def kept_tuning(kept: object) -> Tuning:
    """StudyError where what a study kept is not what a search found."""
    try:
        return tuning_of(read_as(TuningDocument, kept))
    except ValueError as error:
        raise StudyError(f"the stored search result is damaged: {error}", hint="start a new study") from error


def tuning_of(document: TuningDocument) -> Tuning:
    prompts, schedule = document["prompts"], document["schedule"]
    return Tuning(
        winner=document["winner"],
        runner_up=document["runner_up"],
        confirmed=tuple(document["confirmed"]),
        cells=tuple(_cell_of(cell) for cell in document["cells"]),
        choices=tuple(
            LoadChoice(
                load=load_of(choice["load"]),
                candidate=choice["arm"],
                runner_up=choice["runner_up"],
                regret=choice["regret"],
            )
            for choice in document["choices"]
        ),
        eliminated=tuple(
            Elimination(candidate=out["arm"], stage=out["stage"], load=out["load"], reason=out["reason"])
            for out in document["eliminated"]
        ),
        errors=tuple(
            SearchError(arm=error["arm"], load=load_of(error["load"]), ratio=error["ratio"], sd=error["sd"])
            for error in document["errors"]
        ),
        jobs=tuple(_job_of(job) for job in document["jobs"]),
        ending=document["ending"],
        expected_regret=document["expected_regret"],
        spent_s=document["spent_s"],
        grid_s=document["grid_s"],
        prompts=PromptSplit(
            tuning=prompts["tuning"], held_out=prompts["held_out"], is_held_out=prompts["is_held_out"]
        ),
        schedule=None if schedule is None else _schedule_of(schedule),
    )


def confirmed_errors_of(document: ConfirmedTuningDocument) -> tuple[ConfirmedError, ...]:
    return tuple(
        ConfirmedError(
            arm=error["arm"],
            load=load_of(error["load"]),
            predicted=error["predicted"],
            measured=error["measured"],
            was_measured_in_search=error["was_measured_in_search"],
        )
        for error in document["confirmed_errors"]
    )


def _cell_of(cell: SearchedCellDocument) -> SearchedCell:
    return SearchedCell(
        arm=cell["arm"],
        method=cell["method"],
        drafter=cell["drafter"],
        k=cell["k"],
        quantisation=cell["quantisation"],
        token_budget=cell["token_budget"],
        load=load_of(cell["load"]),
        rate_tok_s=cell["rate_tok_s"],
        low=cell["low"],
        high=cell["high"],
        speedup=cell["speedup"],
        in_flight=cell["in_flight"],
        is_measured=cell["is_measured"],
    )


def _job_of(job: SearchedJobDocument) -> SearchedJob:
    return SearchedJob(
        id=job["job"],
        arm=job["arm"],
        loads=tuple(load_of(load) for load in job["loads"]),
        purpose=job["purpose"],
        reason=job["reason"],
        launch_s=job["launch_s"],
        engine_s=job["engine_s"],
        failure=job["failure"],
    )


def _schedule_of(schedule: SearchedScheduleDocument) -> SearchedSchedule:
    return SearchedSchedule(
        arm=schedule["arm"],
        static=schedule["static"],
        over=schedule["over"],
        segments=tuple(Segment(start=start, end=end, k=k) for start, end, k in schedule["segments"]),
        predicted_gain=schedule["predicted_gain"],
    )
