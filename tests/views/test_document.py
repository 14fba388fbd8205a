"""The JSON documents: the contract of the command line, valid JSON whatever was measured."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from answers import STATES
from samples import HOSTILE, NGRAM, launch, new_study, place, plan, record, request
from speclift.core.arm import BASELINE
from speclift.core.document import plain_object
from speclift.core.goals import Goals, read_slos
from speclift.core.records import Outcome, Record, Step
from speclift.core.results import Acceptance, Cell, Estimate, Finding, Level, Percentiles
from speclift.core.traffic import Concurrency, Rate
from speclift.verbs.judge import judge
from speclift.verdict.document import measure_document, verdict_document


def document_of(
    path: Path, *, tpot_s: float = 0.05, temperatures: tuple[float, ...] = (0.0,), **parts: Any
) -> Any:
    """A small study of the baseline (100 ms per token) and one arm, judged."""
    prompts = [f"p{i}" for i in range(12)]
    parts.setdefault("plan", plan(requests=tuple(request(name) for name in prompts)))
    with new_study(path, **parts) as study:
        for round_index in range(3):
            for arm, speed_s, kv_tokens in ((BASELINE, 0.1, 4096), (NGRAM.name, tpot_s, 2048)):
                number = study.next_launch_id()
                study.add_launch(launch(number, arm=arm, round=round_index))
                study.launch_ready(number, ready_s=100.0, kv_tokens=kv_tokens)
                for position, name in enumerate(prompts):
                    measured = record(
                        tpot_s=speed_s * (1 + 0.01 * (position % 3) + 0.005 * round_index),
                        arm=arm,
                        launch=number,
                        round=round_index,
                        block=position,
                        request_id=name,
                        temperature=temperatures[position % len(temperatures)],
                        segment="chat" if position < 6 else HOSTILE.replace("\ud800", ""),
                    )
                    study.add_record(_drafting(measured))
        study.add_finding(Finding(check="c", level=Level.WARN, message=HOSTILE, next_step=HOSTILE))
        return plain_object(verdict_document(judge([study])))


def _drafting(measured: Record) -> Record:
    return replace(measured, drafted=6, accepted=4, steps=(Step(drafted=6, accepted=4),))


class TestTheVerdictDocument:
    def test_an_slo_that_cannot_be_known_is_no_reason_to_ship(self, tmp_path: Path) -> None:
        document = document_of(tmp_path / "s", goals=Goals(slos=read_slos("tpot_p99=50ms", "--slo")))

        assert document["verdict"] != "ship"
        assert ["slo", "fail"] in [[reason["rule"], reason["level"]] for reason in document["reasons"]]

    def test_a_study_in_which_every_request_failed_but_the_baselines_is_a_document_too(
        self, tmp_path: Path
    ) -> None:
        with new_study(tmp_path / "s") as study:
            for number, arm, outcome in ((1, BASELINE, Outcome.OK), (2, NGRAM.name, Outcome.CUT)):
                study.add_launch(launch(number, arm=arm))
                study.add_record(record(arm=arm, launch=number, outcome=outcome))
            document: Any = plain_object(verdict_document(judge([study])))

        assert document["verdict"] == "inconclusive"
        assert document["speedup"] is None
        json.dumps(document, allow_nan=False)


any_float = st.floats() | st.sampled_from([math.inf, -math.inf, math.nan, 1e308])
estimates = st.builds(
    Estimate, value=any_float, low=any_float, high=any_float, n=st.integers(0, 9), method=st.just("t")
)
percentiles = st.builds(
    Percentiles,
    p50=st.none() | any_float,
    p95=st.none() | any_float,
    p99=st.none() | any_float,
    intervals=st.dictionaries(
        st.sampled_from(["p50", "p95"]), st.tuples(st.none() | any_float, st.none() | any_float)
    ),
)
cells = st.builds(
    Cell,
    arm=st.text(max_size=5),
    load=st.just(place().load) | st.just(Rate(per_s=2.0)) | st.just(Concurrency(streams=4)),
    segment=st.text(max_size=5),
    temperature=st.none() | st.floats(0, 2),
    requests=st.integers(0, 9),
    failed=st.integers(0, 9),
    ttft_s=st.none() | percentiles,
    tpot_s=st.none() | percentiles,
    e2e_s=st.none() | percentiles,
    throughput_tok_s=st.none() | any_float,
    acceptance_rate=st.none()
    | st.builds(Acceptance, p10=any_float, p50=any_float, p90=any_float, mean=any_float, requests=st.just(1)),
    accepted_length=st.none() | estimates.map(lambda estimate: estimate.interval),
    per_position=st.none() | st.lists(any_float, max_size=3).map(tuple),
    output_tokens_mean=st.none() | any_float,
)


class TestTheMeasureDocument:
    @given(st.lists(cells, max_size=3))
    def test_is_valid_json_whatever_the_numbers(self, cells: list[Cell]) -> None:
        judgement = replace(STATES["ship"], cells=tuple(cells))
        document: Any = plain_object(measure_document(judgement))

        assert json.loads(json.dumps(document, allow_nan=False)) == document
        assert set(document) >= {"schema", "study", "cells", "findings"}
        assert len(document["cells"]) == len(cells)
