"""Ordinary values to start a test from: records, launches, plans, studies, strategies for hostile text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from speclift.core.arm import BASELINE, Arm, ServerSettings, baseline_arm
from speclift.core.engine_spec import EngineSpec
from speclift.core.goals import Goals
from speclift.core.records import Launch, Outcome, Phase, Place, Provenance, Record
from speclift.core.speculation import NGram
from speclift.core.traffic import Concurrency, Request
from speclift.studies.study import Study
from speclift.workload.experiment import StudyPlan

NGRAM = Arm(name="ngram-k8", speculation=NGram(k=8))

# Quotes, NUL, terminal escapes, CSI in one byte, line breaks of all kinds, emoji, right-to-left marks and
# overrides, a lone surrogate, a private-use and an unassigned character.
HOSTILE = (
    'it\'s "quoted" \\ \0 \x1b[31mred\x1b]0;title\x07 \x9b2J \r\n\t\x85\u2028\u2029 \U0001f469\u200d\U0001f680 '
    "\u202eevil\u202c \u2066x\u2069 \u200f\u061c \ud800 \ue000 \U000e0041 [bold]markup[/bold] <b>&amp;</b>"
)

# Any str at all, lone surrogates included.
hostile_text = st.text(st.characters(exclude_categories=()), max_size=40) | st.just(HOSTILE)


def request(request_id: str = "p1", **changes: Any) -> Request:
    return Request(**{"id": request_id, "prompt": f"say {request_id}", "temperature": 0.0, **changes})


def place(**changes: Any) -> Place:
    ordinary = Place(
        arm=BASELINE,
        launch=1,
        round=0,
        block=0,
        load=Concurrency(streams=1),
        request_id="p1",
        segment="chat",
        temperature=0.0,
        phase=Phase.MEASURED,
    )
    return replace(ordinary, **changes)


def record(*, tpot_s: float = 0.01, outcome: Outcome = Outcome.OK, **place_changes: Any) -> Record:
    """Sent at 100 s, first token after 0.2 s, 11 tokens."""
    first_s = 100.2
    return Record(
        place=place(**place_changes),
        outcome=outcome,
        intended_s=100.0,
        sent_s=100.0,
        end_s=first_s + 10 * tpot_s,
        first_token_s=first_s,
        last_token_s=first_s + 10 * tpot_s,
        prompt_tokens=7,
        output_tokens=11,
        finish_reason="length",
        text="an answer",
    )


def launch(launch_id: int = 1, **changes: Any) -> Launch:
    ordinary = Launch(
        id=launch_id, arm=BASELINE, round=0, command=("server", "-m", "x"), engine_version="1", started_s=99.0
    )
    return replace(ordinary, **changes)


def plan(**changes: Any) -> StudyPlan:
    ordinary = StudyPlan(
        arms=(baseline_arm(), NGRAM),
        loads=(Concurrency(streams=1),),
        requests=(request("p1"), request("p2")),
        temperatures=(None,),
        rounds=3,
        together=True,
        seed=0,
    )
    return replace(ordinary, **changes)


def engine_spec(**settings: Any) -> EngineSpec:
    return EngineSpec(kind="fake", settings=ServerSettings(**{"model": "fake", "threads": 1, **settings}))


def provenance(**changes: Any) -> Provenance:
    ordinary = Provenance(
        speclift_version="0.1.0",
        engine="fake",
        engine_version="1",
        model="fake",
        model_sha256="m",
        prompts_sha256="p",
        seed=0,
        host={"cpu": "a cpu", "cores": 2, "gpus": [], "load_average": [0.5, 0.1, 0.0]},
        commands=(("server", "--port", "0"), ("server", "--port", "0", "--spec")),
        argv=("decide", "--engine", "fake"),
    )
    return replace(ordinary, **changes)


def new_study(path: Path, **parts: Any) -> Study:
    """A created study, open for writing; `parts` replace its plan, engine, goals or provenance."""
    ordinary = {"plan": plan(), "engine": engine_spec(), "goals": Goals(), "provenance": provenance()}
    return Study.create(path, **{**ordinary, **parts})
