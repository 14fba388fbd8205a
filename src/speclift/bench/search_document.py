"""The `tuning` part of the JSON document: what was measured and predicted, what was dropped and why, what it cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from speclift.bench.search_plan import SearchPlan
from speclift.core.arm import BASELINE
from speclift.core.records import Phase, Record
from speclift.core.traffic import load_label, load_to_dict
from speclift.search.choice import Confirmation
from speclift.search.effort import grid_s
from speclift.search.problem import JobResult
from speclift.search.search import Search
from speclift.search.space import Candidate

# Under this name the confirming study keeps what the search found.
TUNING = "tuning"


def tuning_document(
    search: Search, plan: SearchPlan, choice: Confirmation, *, spent_s: float
) -> dict[str, Any]:
    conclusion = choice.conclusion
    confirmed = [arm.name for arm in choice.arms]
    return {
        "winner": choice.winner.name,
        "runner_up": choice.runner_up.name if choice.runner_up is not None else None,
        "confirmed": confirmed,
        "cells": _cells(search, choice),
        "choices": [
            {
                "load": load_to_dict(each.load),
                "arm": each.candidate,
                "runner_up": each.runner_up,
                "regret": each.regret,
            }
            for each in conclusion.choices
        ],
        "eliminated": [
            {"arm": each.candidate, "stage": each.stage, "load": each.load, "reason": each.reason}
            for each in conclusion.eliminated
            # What a later measurement brought back was not dropped after all.
            if each.candidate not in confirmed
        ],
        "errors": [
            {
                "arm": each.candidate,
                "load": load_to_dict(each.load),
                "ratio": math.exp(each.log_ratio),
                "sd": each.sd,
            }
            for each in conclusion.errors
        ],
        "jobs": [_job(result) for result in search.results],
        "ending": conclusion.ending or "the time for searching is spent",
        "expected_regret": conclusion.expected_regret,
        "spent_s": spent_s,
        "grid_s": _grid_s(search),
        "prompts": {
            "tuning": len(plan.tuning_ids),
            "held_out": len(plan.held_out_ids),
            "is_held_out": plan.is_held_out,
        },
        "schedule": _schedule(choice),
    }


def _cells(search: Search, choice: Confirmation) -> list[dict[str, Any]]:
    by_name = {each.name: each for each in search.problem.candidates}
    posterior = choice.posterior
    in_flight = {
        (candidate.name, load): float(posterior.batches[row, column])
        for row, candidate in enumerate(posterior.candidates)
        for column, load in enumerate(posterior.loads)
    }
    return [
        {
            **_candidate(by_name[cell.candidate]),
            "load": load_to_dict(cell.load),
            "rate_tok_s": cell.rate.value,
            "low": cell.rate.low,
            "high": cell.rate.high,
            "speedup": cell.speedup,
            "in_flight": in_flight[cell.candidate, cell.load],
            "is_measured": cell.is_measured,
        }
        for cell in choice.conclusion.cells
    ]


def _schedule(choice: Confirmation) -> dict[str, Any] | None:
    if choice.schedule is None:
        return None
    return {
        "arm": choice.scheduled.name if choice.scheduled is not None else None,
        "static": choice.winner.name,
        "over": choice.conclusion.static,
        "segments": choice.schedule.as_triples(),
        "predicted_gain": math.exp(choice.conclusion.schedule_gain),
    }


def _grid_s(search: Search) -> float | None:
    """Engine time of every candidate at every load, each three times; None where nothing ran."""
    if not any(result.cells for result in search.results):
        return None
    return grid_s(search.problem, search.results, search.posterior())


def confirmed_errors(tuning: Mapping[str, Any], records: Sequence[Record]) -> list[dict[str, Any]]:
    """Speedup as predicted by the search and as confirmed, by arm and load; both of tokens over time, pooled."""
    predicted = {(cell["arm"], _label(cell["load"])): cell for cell in tuning["cells"]}
    rates = _pooled_rates(records)
    rows = []
    for (arm, load), rate in rates.items():
        cell, plain = predicted.get((arm, load)), rates.get((BASELINE, load))
        if cell is not None and plain is not None and arm != BASELINE:
            measured = rate / plain
            rows.append(
                {
                    "arm": arm,
                    "load": cell["load"],
                    "predicted": cell["speedup"],
                    "measured": measured,
                    "error": cell["speedup"] / measured - 1,
                    "was_measured_in_search": cell["is_measured"],
                }
            )
    return rows


def _pooled_rates(records: Sequence[Record]) -> dict[tuple[str, str], float]:
    """Decoded tokens per second of decoding, by arm and load."""
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    for record in records:
        if record.place.phase is Phase.MEASURED and record.is_ok and record.tpot_s:
            tokens = (record.output_tokens or 1) - 1
            key = (record.place.arm, load_label(record.place.load))
            before = sums.get(key, (0.0, 0.0))
            sums[key] = (before[0] + tokens, before[1] + tokens * record.tpot_s)
    return {key: tokens / seconds for key, (tokens, seconds) in sums.items() if seconds > 0}


def _label(load: Mapping[str, Any]) -> str:
    return f"c={load['concurrency']}" if "concurrency" in load else f"{load['qps']:g} req/s"


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "arm": candidate.name,
        "method": candidate.arm.method,
        "drafter": candidate.drafter,
        "k": candidate.k,
        "quantisation": candidate.quantisation,
        "token_budget": candidate.token_budget,
    }


def _job(result: JobResult) -> dict[str, Any]:
    job = result.job
    return {
        "job": job.id,
        "arm": job.candidate,
        "loads": [load_to_dict(load) for load in job.loads],
        "purpose": job.purpose.value,
        "reason": job.reason,
        "launch_s": result.launch_s,
        "engine_s": result.engine_s,
        "failure": result.failure,
    }
