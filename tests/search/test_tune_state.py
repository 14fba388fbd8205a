"""A search as a dictionary and back: equal, JSON-ready, and refused when damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tune_samples import FormulaEngine, problem_of

from speclift.core.drafting import Template
from speclift.core.errors import StudyError
from speclift.core.speculation import Combined, DraftModel, Head, NGram, Suffix
from speclift.core.traffic import Concurrency, Load, Rate
from speclift.search.cost import Experts
from speclift.search.counts import RequestCounts
from speclift.search.problem import CellResult, JobResult, Problem, Settings
from speclift.search.search import Search, search_from_dict, search_to_dict, start
from speclift.search.space import Axes, Elimination, build_space

loads: st.SearchStrategy[Load] = st.one_of(
    st.builds(lambda streams: Concurrency(streams=streams), st.integers(1, 512)),
    st.builds(
        lambda per_s, arrivals: Rate(per_s=per_s, arrivals=arrivals),
        st.floats(0.01, 100),
        st.sampled_from(["poisson", "constant"]),
    ),
)
drafters: st.SearchStrategy[Template] = st.sampled_from(
    [
        NGram(),
        Suffix(),
        DraftModel(model="m", extra=(("quantization", '"fp8"'),)),
        Head(kind="eagle", model="h"),
        Combined(parts=(NGram(), DraftModel(model="m"))),
    ]
)


@st.composite
def requests(draw: st.DrawFn) -> RequestCounts:
    accepted = draw(st.lists(st.integers(0, 4), max_size=6))
    plain = draw(st.integers(1, 4))
    return RequestCounts(
        request_id=draw(st.text(max_size=5)),
        tokens=sum(accepted) + len(accepted) + plain,
        steps=len(accepted) + plain,
        without_draft=plain,
        accepted=tuple(accepted),
        drafted=(4,) * len(accepted),
        tpot_s=draw(st.none() | st.floats(1e-4, 1)),
    )


@st.composite
def searches(draw: st.DrawFn) -> Search:
    space = build_space(
        Axes(
            drafters=tuple(draw(st.lists(drafters, min_size=1, max_size=2))),
            ks=tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))),
            quantisations=draw(st.sampled_from([(None,), (None, "fp8")])),
            token_budgets=draw(st.sampled_from([(None,), (2048,)])),
        )
    )
    asked = tuple(draw(st.lists(loads, min_size=1, max_size=4, unique=True)))
    problem = Problem(
        candidates=space.candidates,
        loads=asked,
        weights=draw(st.sampled_from([(), tuple(float(place + 1) for place in range(len(asked)))])),
        experts=draw(st.sampled_from([None, Experts(count=64, per_token=8)])),
        cpu_tile=draw(st.sampled_from([None, 1, 4])),
        settings=Settings(budget_s=draw(st.sampled_from([float("inf"), 1e6])), seed=draw(st.integers(0, 99))),
    )
    search = start(problem, eliminated=[Elimination(candidate="x", stage="space", reason="r", load="c=1")])
    job = search.ask()[0]
    cells = tuple(
        CellResult(
            load=load,
            requests=tuple(draw(st.lists(requests(), max_size=3))),
            wall_s=draw(st.floats(0, 1e4)),
            batch=draw(st.none() | st.floats(1, 100)),
        )
        for load in job.loads
    )
    return Search(
        problem=problem,
        pending=search.pending[1:],
        results=(JobResult(job=job, cells=cells, launch_s=3.5, failure=draw(st.text(max_size=8))),),
        eliminated=search.eliminated,
        blocks=draw(st.integers(0, 3)),
        ending=draw(st.text(max_size=8)),
    )


@given(search=searches())
def test_a_search_survives_json_unchanged(search: Search) -> None:
    assert search_from_dict(json.loads(json.dumps(search_to_dict(search), allow_nan=False))) == search


def stored() -> Any:
    search, engine = start(problem_of()), FormulaEngine()
    told = search.tell(engine.run(search.problem, search.ask()[0]))
    return json.loads(json.dumps(search_to_dict(told)))


def in_schema_1(data: Any) -> Any:
    """As speclift 0.2 kept it."""
    problem = {**data["problem"], "candidates": [
        {**candidate, **candidate["arm"]} for candidate in data["problem"]["candidates"]
    ]}  # fmt: skip
    del problem["cpu_tile"]
    for candidate in problem["candidates"]:
        del candidate["arm"]
    cells = [cell for result in data["results"] for cell in result["cells"]]
    for cell in cells:
        cell["requests"] = [row[:7] for row in cell["requests"]]
    dropped = [{**out, "candidate": out["arm"]} for out in data["eliminated"]]
    for out in dropped:
        del out["arm"]
    return {**data, "schema": 1, "problem": problem, "eliminated": dropped}


def test_a_search_of_schema_1_is_read_as_it_was() -> None:
    search, engine = start(problem_of()), FormulaEngine()
    out = Elimination(candidate="x", stage="space", reason="r", load="c=1")
    search = replace(search.tell(engine.run(search.problem, search.ask()[0])), eliminated=(out,))
    assert search_from_dict(in_schema_1(json.loads(json.dumps(search_to_dict(search))))) == search


@pytest.mark.parametrize("data", [{}, {"schema": 3}, {"schema": "1"}, [], None])
def test_another_schema_is_refused_with_what_was_seen(data: Any) -> None:
    with pytest.raises(StudyError, match="a search of schema 2 was expected"):
        search_from_dict(data)


@pytest.mark.parametrize("missing", ["problem", "phase", "pending", "results", "eliminated", "blocks"])
def test_a_missing_part_is_called_damage(missing: str) -> None:
    data = stored()
    del data[missing]
    with pytest.raises(StudyError, match="damaged"):
        search_from_dict(data)


def test_an_unknown_phase_a_cut_request_and_a_stranger_in_settings_are_called_damage() -> None:
    wrong_phase = stored() | {"phase": "lunch"}
    cut = stored()
    cut["results"][0]["cells"][0]["requests"][0] = ["r0", 5]
    fewer = stored()
    del fewer["problem"]["settings"]["k_long"]
    for data in (wrong_phase, cut, fewer):
        with pytest.raises(StudyError, match="damaged"):
            search_from_dict(data)
