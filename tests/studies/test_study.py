"""The study on disk: what comes back, what counts as done, what cannot be measured twice."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples import (
    HOSTILE,
    NGRAM,
    hostile_text,
    launch,
    new_study,
    place,
    plan,
    provenance,
    record,
    request,
)
from speclift.core.arm import BASELINE, Arm, ServerSettings, baseline_arm
from speclift.core.engine_spec import EngineSpec
from speclift.core.goals import Goals, read_slos
from speclift.core.records import Counters, Outcome, Phase, Record, Step, TurnHealth
from speclift.core.results import Finding, Level
from speclift.core.speculation import Combined, DraftModel, Head, NGram, Synthetic
from speclift.core.traffic import Concurrency, Message, Rate
from speclift.studies.study import Done, Study

# Ids and segments: the prompt reader has already replaced what has no UTF-8 form.
labels = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
times = st.floats(-1e12, 1e12)
counts = st.none() | st.integers(0, 1 << 40)

records = st.builds(
    Record,
    place=st.builds(
        place,
        launch=st.just(1),
        round=st.integers(0, 9),
        block=st.integers(0, 99),
        load=st.builds(Concurrency, streams=st.integers(1, 99)) | st.builds(Rate, per_s=st.floats(0.1, 99)),
        request_id=labels,
        segment=labels,
        temperature=st.none() | st.floats(0, 5),
        phase=st.sampled_from(Phase),
        repeat=st.integers(0, 99),
    ),
    outcome=st.sampled_from(Outcome),
    intended_s=times,
    sent_s=times,
    end_s=times,
    first_token_s=st.none() | times,
    last_token_s=st.none() | times,
    prompt_tokens=counts,
    output_tokens=counts,
    finish_reason=st.none() | labels,
    text=hostile_text,
    drafted=counts,
    accepted=counts,
    steps=st.none()
    | st.lists(st.builds(Step, drafted=st.integers(0, 99), accepted=st.integers(0, 99)), max_size=4).map(
        tuple
    ),
    error=labels,
)


class TestRoundTrip:
    def test_what_it_set_out_to_do_comes_back_equal(self, tmp_path: Path) -> None:
        draft = DraftModel(model="tiny.gguf", k=5, p_min=0.25, sampling="probabilistic")
        parts: dict[str, Any] = {
            "plan": plan(
                arms=(
                    baseline_arm(),
                    Arm(name="draft", speculation=draft),
                    Arm(name="both", speculation=Combined(parts=(NGram(), draft))),
                    Arm(name="head", speculation=Head(kind="eagle3")),
                    Arm(name="forced", speculation=Synthetic(inner=NGram(k=2), rates=(0.75, 0.5))),
                ),
                loads=(Concurrency(streams=4), Rate(per_s=2.5), Rate(per_s=3.0, arrivals="constant")),
                requests=(
                    request("z", prompt=HOSTILE, response=HOSTILE, arrival_s=1.5, top_p=0.9, answer_format="{}"),
                    request("a", prompt=None, messages=(Message(role="user", content=HOSTILE),), temperature=None),
                ),
                temperatures=(None, 0.0, 0.7),
                together=False,
                seed=42,
            ),
            "engine": EngineSpec(
                kind="llamacpp",
                settings=ServerSettings(model="m.gguf", threads=3, kv_type_k="q8_0", engine_args=("--x", "1")),
                binary="llama-server",
                python="venv/bin/python",
            ),
            "goals": Goals(min_speedup=1.1, metric="e2e", slos=read_slos("ttft_p99=1s,tpot_p50=5ms", "--slo")),
            "provenance": provenance(host={"cpu": HOSTILE, "cores": 2, "gpus": ["a", "b"]}, argv=("x", HOSTILE)),
        }  # fmt: skip
        new_study(tmp_path / "s", **parts).close()

        with Study.open(tmp_path / "s") as study:
            assert {name: getattr(study, name) for name in parts} == parts

    @given(st.lists(records, max_size=3, unique_by=lambda r: (r.place.block, r.place.request_id)))
    @settings(max_examples=2 * settings().max_examples)
    def test_records_come_back_equal_and_in_order(self, measured: list[Record]) -> None:
        with TemporaryDirectory() as folder:
            with new_study(Path(folder) / "s") as study:
                study.add_launch(launch())
                for each in measured:
                    study.add_record(each)

            with Study.open(Path(folder) / "s") as study:
                assert study.records() == tuple(measured)

    @given(hostile_text)
    @settings(max_examples=2 * settings().max_examples)
    def test_text_from_outside_never_stops_a_study(self, text: str) -> None:
        with TemporaryDirectory() as folder, new_study(Path(folder) / "s") as study:
            study.add_launch(launch(engine_version=text, command=(text,)))
            study.launch_failed(1, failure=text, log_tail=text)
            study.add_finding(
                Finding(check="c", level=Level.WARN, message=text, next_step=text, arm=BASELINE)
            )
            study.add_record(replace(record(), error=text, finish_reason=text, text=text))

            shown = text.encode("utf-8", "backslashreplace").decode()
            (kept,), (finding,), ((started, _),) = study.records(), study.findings(), study.launches()
            assert (kept.error, kept.finish_reason, kept.text) == (shown, shown, text)
            assert (finding.message, finding.next_step) == (shown, shown)
            assert (started.command, started.failure, started.log_tail) == ((text,), shown, shown)

    def test_launches_turns_findings_and_limits_come_back(self, tmp_path: Path) -> None:
        health = TurnHealth(load=Rate(per_s=2.0), loop_lag_p99_s=0.001, cpu_s=0.5, wall_s=2.0)
        finding = Finding(check="drift", level=Level.WARN, message="m", next_step="n", arm=None)
        with new_study(tmp_path / "s") as study:
            assert study.next_launch_id() == 1
            study.add_launch(launch(1))
            study.launch_ready(1, ready_s=100.0, kv_tokens=2048)
            study.launch_ended(1, Counters(values={"drafted": 7.0}))
            study.add_launch(launch(5, arm=NGRAM.name))
            study.add_turn(1, 0, health)
            study.add_finding(finding)
            study.limit_block(3, 10)
            study.limit_block(1, 0)

        with Study.open(tmp_path / "s") as study:
            assert study.launches() == (
                (launch(1, ready_s=100.0, counters=Counters(values={"drafted": 7.0})), 2048),
                (launch(5, arm=NGRAM.name), None),
            )
            assert (study.turn_health(), study.findings()) == ((health,), (finding,))
            assert study.block_limits == {3: 10, 1: 0}
            assert study.next_launch_id() == 6


class TestDone:
    def test_successes_are_final_whatever_became_of_their_server(self, tmp_path: Path) -> None:
        with new_study(tmp_path / "s") as study:
            study.add_launch(launch(1))
            study.add_record(record(round=2, block=3, request_id="p7", temperature=None))
            study.launch_failed(1, failure="died: ended with code -9", log_tail="")

            assert study.done() == {Done(BASELINE, 2, 3, "p7", None)}

    @pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
    def test_a_failure_of_a_living_server_is_final_and_of_a_dead_one_is_not(
        self, tmp_path: Path, outcome: Outcome
    ) -> None:
        with new_study(tmp_path / "s") as study:
            study.add_launch(launch(1))
            study.add_launch(launch(2))
            study.add_record(record(outcome=outcome, launch=1, request_id="on the living"))
            study.add_record(record(outcome=outcome, launch=2, request_id="on the dead"))
            study.launch_failed(2, failure="died", log_tail="")

            assert {done.request_id for done in study.done()} == {"on the living"}

    def test_a_place_measured_again_after_a_death_is_done(self, tmp_path: Path) -> None:
        with new_study(tmp_path / "s") as study:
            study.add_launch(launch(1))
            study.add_record(record(outcome=Outcome.CUT, launch=1))
            study.launch_failed(1, failure="died", log_tail="")
            study.add_launch(launch(2))
            study.add_record(record(launch=2))

            assert study.done() == {Done(BASELINE, 0, 0, "p1", 0.0)}


class TestMeasuredOnce:
    @pytest.mark.parametrize("temperature", [None, 0.0, 0.7])
    def test_no_place_is_measured_twice_on_one_launch(
        self, tmp_path: Path, temperature: float | None
    ) -> None:
        with new_study(tmp_path / "s") as study:
            study.add_launch(launch(1))
            study.add_record(record(temperature=temperature))

            with pytest.raises(sqlite3.IntegrityError):
                study.add_record(record(temperature=temperature, outcome=Outcome.CUT))
            assert study.records() == (record(temperature=temperature),)
