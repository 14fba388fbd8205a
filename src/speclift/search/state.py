"""A search as JSON and back, so that a killed one goes on where it was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from speclift.core.document import Json, plain_object, read
from speclift.core.errors import StudyError
from speclift.search.problem import Problem, Settings
from speclift.search.search import Search

# 2: a candidate holds its arm as a value, and what was dropped is called by its arm.
SCHEMA = 2


def search_to_dict(search: Search) -> dict[str, Json]:
    """JSON-ready; `search_from_dict` reads it back equal."""
    return {"schema": SCHEMA, **plain_object(search)}


def search_from_dict(data: object) -> Search:
    """The search, also from schema 1; StudyError where it is of another form or damaged."""
    state = search_state(data)
    try:
        return read(Search, state)
    except ValueError as error:
        raise StudyError(f"the search is damaged: {error}", hint="start a new search") from error


def search_state(data: object) -> dict[str, Any]:
    """The fields of a Search as they are kept today; StudyError where one is missing."""
    schema = data.get("schema") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or schema not in (1, SCHEMA):
        raise StudyError(
            f"a search of schema {SCHEMA} was expected, saw {schema!r}", hint="start a new search"
        )
    try:
        state = _from_schema_1(data) if schema == 1 else dict(data)
        problem = state["problem"]
        settings = problem["settings"]
        for kind, part in ((Search, state), (Problem, problem), (Settings, settings)):
            if missing := [each.name for each in fields(kind) if each.name not in part]:
                raise KeyError(missing[0])
        # JSON has no infinity.
        budget_s = math.inf if settings["budget_s"] is None else settings["budget_s"]
        return {**state, "problem": {**problem, "settings": {**settings, "budget_s": budget_s}}}
    except (KeyError, TypeError) as error:
        raise StudyError(f"the search is damaged: {error!r}", hint="start a new search") from error


def _from_schema_1(data: Mapping[str, object]) -> dict[str, Any]:
    """Searches of before a CPU's tile was known have none."""
    state: dict[str, Any] = dict(data)
    candidates = [
        {**candidate, "arm": {"name": candidate["name"], "speculation": candidate["speculation"]}}
        for candidate in state["problem"]["candidates"]
    ]
    return {
        **state,
        "problem": {"cpu_tile": None, **state["problem"], "candidates": candidates},
        "eliminated": [{**dropped, "arm": dropped["candidate"]} for dropped in state["eliminated"]],
    }
