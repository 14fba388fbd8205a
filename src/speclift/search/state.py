"""A search as JSON and back, so that a killed one goes on where it was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Literal, NotRequired, TypeAlias, TypedDict

from msgspec import structs

from speclift.core.arm import Arm
from speclift.core.document import plain_object, read
from speclift.core.documents import LoadDocument, load_document, load_of
from speclift.core.errors import StudyError
from speclift.core.speculation import Speculation
from speclift.core.typed_json import read_as
from speclift.search.cost_surface import Experts
from speclift.search.counts import RequestCounts
from speclift.search.problem import CellResult, JobResult, Problem, Purpose, SearchJob, Settings
from speclift.search.search import Search, SearchPhase
from speclift.search.space import Candidate, Elimination

# 1: first form.
SCHEMA: Literal[1] = 1

# Id, tokens, steps, steps without a draft, accepted and drafted by step, time per token. Thousands of them are kept: a
# list is a third of the object.
RequestRow: TypeAlias = tuple[str, int, int, int, list[int], list[int], float | None]


class CandidateState(TypedDict):
    name: str
    speculation: Mapping[str, object]
    drafter: str | None
    quantisation: str | None
    token_budget: int | None


class ProblemState(TypedDict):
    candidates: list[CandidateState]
    loads: list[LoadDocument]
    weights: list[float]
    context: float
    prompt_tokens: float
    output_tokens: float
    experts: Mapping[str, object] | None
    # Searches of before it was known have none.
    cpu_tile: NotRequired[int | None]
    # The fields of Settings; a budget without end is null.
    settings: Mapping[str, object]


class JobState(TypedDict):
    id: int
    candidate: str
    loads: list[LoadDocument]
    purpose: Purpose
    reason: str
    block: int
    turn: int


class CellState(TypedDict):
    load: LoadDocument
    wall_s: float
    batch: float | None
    requests: list[RequestRow]


class ResultState(TypedDict):
    job: JobState
    launch_s: float
    failure: str
    cells: list[CellState]


class SearchState(TypedDict):
    schema: Literal[1]
    problem: ProblemState
    phase: SearchPhase
    blocks: int
    ending: str
    pending: list[JobState]
    results: list[ResultState]
    # The fields of Elimination.
    eliminated: list[Mapping[str, object]]


def search_to_dict(search: Search) -> SearchState:
    """JSON-ready; `search_from_dict` reads it back equal."""
    return {
        "schema": SCHEMA,
        "problem": _problem_state(search.problem),
        "phase": search.phase,
        "blocks": search.blocks,
        "ending": search.ending,
        "pending": [_job_state(job) for job in search.pending],
        "results": [_result_state(result) for result in search.results],
        "eliminated": [structs.asdict(out) for out in search.eliminated],
    }


def search_from_dict(data: object) -> Search:
    """StudyError where it is of another form or damaged."""
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise StudyError(
            f"a search of schema {SCHEMA} was expected, saw {schema!r}", hint="start a new search"
        )
    try:
        state = read_as(SearchState, data)
        return Search(
            problem=_problem(state["problem"]),
            pending=tuple(_job(job) for job in state["pending"]),
            phase=state["phase"],
            results=tuple(_result(result) for result in state["results"]),
            eliminated=tuple(_elimination(out) for out in state["eliminated"]),
            blocks=state["blocks"],
            ending=state["ending"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StudyError(f"the search is damaged: {error!r}", hint="start a new search") from error


def _elimination(out: Mapping[str, object]) -> Elimination:
    """As a search keeps it, by the names of its fields."""
    return read(Elimination, {**out, "arm": out["candidate"]})


def _problem_state(problem: Problem) -> ProblemState:
    settings = asdict(problem.settings)
    # JSON has no infinity.
    settings["budget_s"] = None if problem.settings.budget_s == math.inf else problem.settings.budget_s
    return {
        "candidates": [
            {
                "name": candidate.name,
                "speculation": plain_object(candidate.arm.speculation),
                "drafter": candidate.drafter,
                "quantisation": candidate.quantisation,
                "token_budget": candidate.token_budget,
            }
            for candidate in problem.candidates
        ],
        "loads": [load_document(load) for load in problem.loads],
        "weights": list(problem.weights),
        "context": problem.context,
        "prompt_tokens": problem.prompt_tokens,
        "output_tokens": problem.output_tokens,
        "experts": None if problem.experts is None else asdict(problem.experts),
        "cpu_tile": problem.cpu_tile,
        "settings": settings,
    }


def _problem(state: ProblemState) -> Problem:
    settings = dict(state["settings"])
    settings["budget_s"] = math.inf if settings["budget_s"] is None else settings["budget_s"]
    return Problem(
        candidates=tuple(
            Candidate(
                arm=Arm(name=candidate["name"], speculation=read(Speculation, candidate["speculation"])),
                drafter=candidate["drafter"],
                quantisation=candidate["quantisation"],
                token_budget=candidate["token_budget"],
            )
            for candidate in state["candidates"]
        ),
        loads=tuple(load_of(load) for load in state["loads"]),
        weights=tuple(state["weights"]),
        context=state["context"],
        prompt_tokens=state["prompt_tokens"],
        output_tokens=state["output_tokens"],
        experts=None if state["experts"] is None else read_as(Experts, state["experts"]),
        cpu_tile=state.get("cpu_tile"),
        settings=read_as(Settings, settings),
    )


def _job_state(job: SearchJob) -> JobState:
    return {
        "id": job.id,
        "candidate": job.candidate,
        "loads": [load_document(load) for load in job.loads],
        "purpose": job.purpose,
        "reason": job.reason,
        "block": job.block,
        "turn": job.turn,
    }


def _job(state: JobState) -> SearchJob:
    return SearchJob(
        id=state["id"],
        candidate=state["candidate"],
        loads=tuple(load_of(load) for load in state["loads"]),
        purpose=state["purpose"],
        reason=state["reason"],
        block=state["block"],
        turn=state["turn"],
    )


def _result_state(result: JobResult) -> ResultState:
    return {
        "job": _job_state(result.job),
        "launch_s": result.launch_s,
        "failure": result.failure,
        "cells": [
            {
                "load": load_document(cell.load),
                "wall_s": cell.wall_s,
                "batch": cell.batch,
                "requests": [_row(request) for request in cell.requests],
            }
            for cell in result.cells
        ],
    }


def _result(state: ResultState) -> JobResult:
    cells = tuple(
        CellResult(
            load=load_of(cell["load"]),
            wall_s=cell["wall_s"],
            batch=cell["batch"],
            requests=tuple(_request(row) for row in cell["requests"]),
        )
        for cell in state["cells"]
    )
    return JobResult(
        job=_job(state["job"]), cells=cells, launch_s=state["launch_s"], failure=state["failure"]
    )


def _row(request: RequestCounts) -> RequestRow:
    return (
        request.request_id,
        request.tokens,
        request.steps,
        request.without_draft,
        list(request.accepted),
        list(request.drafted),
        request.tpot_s,
    )


def _request(row: RequestRow) -> RequestCounts:
    request_id, tokens, steps, without_draft, accepted, drafted, tpot_s = row
    return RequestCounts(
        request_id=request_id,
        tokens=tokens,
        steps=steps,
        without_draft=without_draft,
        accepted=tuple(accepted),
        drafted=tuple(drafted),
        tpot_s=tpot_s,
    )
