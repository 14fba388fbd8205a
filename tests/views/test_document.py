"""The JSON documents: the contract of the command line, valid JSON whatever was measured."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from answers import STATES
from samples import HOSTILE, NGRAM, launch, new_study, place, plan, provenance, record, request
from speclift.core.arm import BASELINE
from speclift.core.document import plain_object, read
from speclift.core.goals import Goals, read_slos
from speclift.core.records import Outcome, Record, Step
from speclift.core.results import Acceptance, Cell, Estimate, Finding, Level, Percentiles
from speclift.core.traffic import Concurrency, Rate
from speclift.verbs.judge import judge
from speclift.verdict.document import VerdictDocument, measure_document, verdict_document
from speclift.views.page import page

PERCENTILES = {"p50": ..., "p95": ..., "p99": ...}
CELL = {
    "arm": ...,
    "load": {"concurrency": ...},
    "segment": ...,
    "temperature": ...,
    "ttft_s": PERCENTILES,
    "tpot_s": PERCENTILES,
    "e2e_s": PERCENTILES,
    "throughput_tok_s": ...,
    "acceptance_rate": {"p10": ..., "p50": ..., "p90": ..., "mean": ...},
    "accepted_length": {"value": ..., "low": ..., "high": ...},
    "requests": ...,
    "failed": ...,
}
# The fields of `decide --json` that stay; ... stands for any value.
CONTRACT: dict[str, Any] = {
    "schema": 1,
    "verdict": ...,
    "reasons": [{"rule": ..., "level": ..., "message": ..., "source": ...}],
    "conditions": ...,
    "winner": {"arm": NGRAM.name, "method": "ngram", "k": 8, "command": ..., "config": {}},
    "speedup": {
        "value": ...,
        "low": ...,
        "high": ...,
        "metric": "e2e",
        "design": "paired-log-ratio",
        "launches": 3,
        "n": 12,
    },
    "cells": [CELL],
    "crossover": [],
    "kv_tokens": {"baseline": 4096, "winner": 2048},
    "lossless": {"result": ...},
    "provenance": {
        "speclift": ...,
        "engine": ...,
        "engine_version": ...,
        "host": {},
        "commands": [],
        "prompts_sha256": ...,
    },
    "study": ...,
}


def departures(contract: Any, document: Any, at: str = "$") -> list[str]:
    """Where a document lacks what the contract promises; a list's form holds for each of its members."""
    if isinstance(contract, dict):
        if not isinstance(document, dict):
            return [f"{at} is no object"]
        missing = [f"{at}.{key} is missing" for key in contract if key not in document]
        present = [key for key in contract if key in document]
        return missing + [
            w for key in present for w in departures(contract[key], document[key], f"{at}.{key}")
        ]
    if isinstance(contract, list):
        if not isinstance(document, list):
            return [f"{at} is no list"]
        return [
            w
            for form in contract
            for i, each in enumerate(document)
            for w in departures(form, each, f"{at}[{i}]")
        ]
    return [] if contract is ... or contract == document else [f"{at} is {document!r} and not {contract!r}"]


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
    @pytest.mark.slow
    def test_has_every_field_of_the_contract(self, tmp_path: Path) -> None:
        document = document_of(tmp_path / "s")

        assert departures(CONTRACT, document) == []
        assert document["verdict"] == "ship"
        assert document["cells"]

    def test_a_departure_would_be_seen(self, tmp_path: Path) -> None:
        document = document_of(tmp_path / "s")
        del document["speedup"]["low"]
        document["cells"][0]["ttft_s"].pop("p99")
        document["winner"] = None

        assert departures(CONTRACT, document) == [
            "$.winner is no object",
            "$.speedup.low is missing",
            "$.cells[0].ttft_s.p99 is missing",
        ]

    def test_is_json_in_ascii_and_reads_back_the_same(self, tmp_path: Path) -> None:
        document = document_of(tmp_path / "s", provenance=provenance(host={"cpu": HOSTILE, "load": math.nan}))

        text = json.dumps(document, allow_nan=False, ensure_ascii=True)
        assert json.loads(text) == document

    def test_where_nobody_won_there_is_no_winner_and_no_conditions(self, tmp_path: Path) -> None:
        document = document_of(tmp_path / "s", tpot_s=0.2)

        assert document["verdict"] == "do-not-ship"
        assert (document["winner"], document["conditions"]) == (None, None)
        assert document["kv_tokens"] == {"baseline": 4096, "winner": None}
        assert document["speedup"]["value"] == pytest.approx(1.2 / 2.2, rel=0.01)
        assert document["speedup_by_metric"]["tpot"]["value"] == pytest.approx(0.5)

    def test_prompts_with_temperatures_of_their_own_have_speedup_and_acceptance_by_them(
        self, tmp_path: Path
    ) -> None:
        document = document_of(tmp_path / "s", temperatures=(0.2, 0.8))

        rows = document["by_temperature"]
        assert [(row["arm"], row["temperature"], row["prompts"]) for row in rows] == [
            (NGRAM.name, "0.2", 6),
            (NGRAM.name, "0.8", 6),
        ]
        for row in rows:
            assert row["speedup"]["value"] == pytest.approx(1.2 / 0.7, rel=0.01)
            assert row["acceptance_rate"]["mean"] == pytest.approx(4 / 6)
        # The cells stay as the prompts say: nothing was swept.
        assert {cell["temperature"] for cell in document["cells"]} == {None}
        html = page(read(VerdictDocument, document))
        assert "Speedup and acceptance by temperature" in html
        assert html.count("67%") >= 2

    def test_the_unknown_is_null(self, tmp_path: Path) -> None:
        document = document_of(tmp_path / "s")

        # Under 100 requests there is no P99.
        assert {cell["tpot_s"]["p99"] for cell in document["cells"]} == {None}

    def test_the_study_is_named_by_a_relative_path(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)

        assert document_of(tmp_path / "studies" / "s")["study"] == "studies/s"

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

    def test_findings_carry_their_next_step(self) -> None:
        finding = Finding(check="drift", level=Level.WARN, message="m", next_step="n", arm="a")

        judgement = replace(STATES["ship"], findings=(finding,))
        assert plain_object(measure_document(judgement))["findings"] == [
            {"check": "drift", "level": "warn", "message": "m", "next_step": "n", "arm": "a"}
        ]
