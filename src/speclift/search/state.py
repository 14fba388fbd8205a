"""A search as a dictionary and back, so that a killed one goes on where it was."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from speclift.core.arm import Arm
from speclift.core.errors import StudyError
from speclift.core.speculation import speculation_from_dict, speculation_to_dict
from speclift.core.traffic import load_from_dict, load_to_dict
from speclift.search.cost_surface import Experts
from speclift.search.counts import RequestCounts
from speclift.search.problem import CellResult, JobResult, Problem, Purpose, SearchJob, Settings
from speclift.search.search import Search, SearchPhase
from speclift.search.space import Candidate, Elimination

# 1: first form.
SCHEMA = 1


def search_to_dict(search: Search) -> dict[str, Any]:
    """JSON-ready; `search_from_dict` reads it back equal."""
    return {
        "schema": SCHEMA,
        "problem": _problem_to_dict(search.problem),
        "phase": search.phase.value,
        "blocks": search.blocks,
        "ending": search.ending,
        "pending": [_job_to_dict(job) for job in search.pending],
        "results": [_result_to_dict(result) for result in search.results],
        "eliminated": [asdict(each) for each in search.eliminated],
    }


def search_from_dict(data: dict[str, Any]) -> Search:
    """StudyError where the dictionary is of another form or damaged."""
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise StudyError(f"a search of schema {SCHEMA} was expected, saw {schema!r}", hint="start it anew")
    try:
        return Search(
            problem=_problem_from_dict(data["problem"]),
            pending=tuple(_job_from_dict(job) for job in data["pending"]),
            phase=SearchPhase(data["phase"]),
            results=tuple(_result_from_dict(result) for result in data["results"]),
            eliminated=tuple(Elimination(**each) for each in data["eliminated"]),
            blocks=int(data["blocks"]),
            ending=str(data["ending"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StudyError(f"the search is damaged: {error!r}", hint="start it anew") from error


def _problem_to_dict(problem: Problem) -> dict[str, Any]:
    settings = asdict(problem.settings)
    # JSON has no infinity.
    settings["budget_s"] = None if problem.settings.budget_s == float("inf") else problem.settings.budget_s
    return {
        "candidates": [
            {
                "name": candidate.name,
                "speculation": speculation_to_dict(candidate.arm.speculation),
                "drafter": candidate.drafter,
                "quantisation": candidate.quantisation,
                "token_budget": candidate.token_budget,
            }
            for candidate in problem.candidates
        ],
        "loads": [load_to_dict(load) for load in problem.loads],
        "weights": list(problem.weights),
        "context": problem.context,
        "prompt_tokens": problem.prompt_tokens,
        "output_tokens": problem.output_tokens,
        "experts": None if problem.experts is None else asdict(problem.experts),
        "settings": settings,
    }


def _problem_from_dict(data: dict[str, Any]) -> Problem:
    settings = dict(data["settings"])
    settings["budget_s"] = float("inf") if settings["budget_s"] is None else settings["budget_s"]
    settings = {
        field.name: tuple(value) if isinstance(value := settings[field.name], list) else value
        for field in fields(Settings)
    }
    return Problem(
        candidates=tuple(
            Candidate(
                arm=Arm(name=each["name"], speculation=speculation_from_dict(each["speculation"])),
                drafter=each["drafter"],
                quantisation=each["quantisation"],
                token_budget=each["token_budget"],
            )
            for each in data["candidates"]
        ),
        loads=tuple(load_from_dict(load) for load in data["loads"]),
        weights=tuple(data["weights"]),
        context=data["context"],
        prompt_tokens=data["prompt_tokens"],
        output_tokens=data["output_tokens"],
        experts=None if data["experts"] is None else Experts(**data["experts"]),
        settings=Settings(**settings),
    )


def _job_to_dict(job: SearchJob) -> dict[str, Any]:
    return {
        "id": job.id,
        "candidate": job.candidate,
        "loads": [load_to_dict(load) for load in job.loads],
        "purpose": job.purpose.value,
        "reason": job.reason,
        "block": job.block,
        "turn": job.turn,
    }


def _job_from_dict(data: dict[str, Any]) -> SearchJob:
    loads = tuple(load_from_dict(load) for load in data["loads"])
    return SearchJob(**(data | {"loads": loads, "purpose": Purpose(data["purpose"])}))


def _result_to_dict(result: JobResult) -> dict[str, Any]:
    return {
        "job": _job_to_dict(result.job),
        "launch_s": result.launch_s,
        "failure": result.failure,
        "cells": [
            {
                "load": load_to_dict(cell.load),
                "wall_s": cell.wall_s,
                "batch": cell.batch,
                "requests": [_request_to_list(request) for request in cell.requests],
            }
            for cell in result.cells
        ],
    }


def _result_from_dict(data: dict[str, Any]) -> JobResult:
    cells = tuple(
        CellResult(
            load=load_from_dict(cell["load"]),
            wall_s=cell["wall_s"],
            batch=cell["batch"],
            requests=tuple(_request_from_list(request) for request in cell["requests"]),
        )
        for cell in data["cells"]
    )
    return JobResult(
        job=_job_from_dict(data["job"]), cells=cells, launch_s=data["launch_s"], failure=data["failure"]
    )


def _request_to_list(request: RequestCounts) -> list[Any]:
    """Thousands of them: a list is a third of the dictionary."""
    return [
        request.request_id,
        request.tokens,
        request.steps,
        request.without_draft,
        list(request.accepted),
        list(request.drafted),
        request.tpot_s,
    ]


def _request_from_list(data: list[Any]) -> RequestCounts:
    request_id, tokens, steps, without_draft, accepted, drafted, tpot_s = data
    return RequestCounts(
        request_id=request_id,
        tokens=tokens,
        steps=steps,
        without_draft=without_draft,
        accepted=tuple(accepted),
        drafted=tuple(drafted),
        tpot_s=tpot_s,
    )
