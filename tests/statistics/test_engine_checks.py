from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from samples import launch, record
from speclift.core.arm import BASELINE
from speclift.core.engine_totals import usage_of
from speclift.core.records import Counters, Launch, Outcome, Phase, Record
from speclift.core.results import Finding
from speclift.statistics.engine_checks import check_engines

DRAFTED = "llamacpp:spec_decode_num_draft_tokens_total"
SPEC = "ngram-k4"


def checks_of(findings: Iterable[Finding]) -> list[str]:
    return [finding.check for finding in findings]


def started(arm: str, **said: Any) -> Launch:
    return replace(launch(1 if arm == BASELINE else 2, arm=arm), ready_s=1.0, **said)


class TestCounters:
    def found(self, counted: float | None, records: Iterable[Record]) -> list[str]:
        values = {} if counted is None else {DRAFTED: counted}
        return checks_of(check_engines([launch(1, counters=Counters(values=values))], tuple(records)))

    def drafted(self, *counts: int | None, **place: Any) -> list[Record]:
        return [replace(record(**place), drafted=count) for count in counts]

    @pytest.mark.parametrize(
        ("counted", "fires"), [(100.0, False), (101.0, False), (103.0, True), (90.0, True), (0.0, True)]
    )
    def test_disagree_by_more_than_2_percent(self, counted: float, fires: bool) -> None:
        assert self.found(counted, self.drafted(60, 40)) == (["counters-disagree"] if fires else [])

    @pytest.mark.parametrize(("second", "fires"), [(40.0, False), (400.0, True)])
    def test_totals_under_labels_are_summed(self, second: float, fires: bool) -> None:
        name = "vllm:spec_decode_num_draft_tokens_total"
        counters = Counters(values={f'{name}{{engine="0"}}': 60.0, f'{name}{{engine="1"}}': second})
        found = list(check_engines([launch(1, counters=counters)], tuple(self.drafted(60, 40))))
        assert bool(found) is fires

    def test_requests_that_held_the_load_count_and_warm_up_does_not(self) -> None:
        records = [
            *self.drafted(60),
            *self.drafted(40, phase=Phase.FILLER),
            *self.drafted(77, phase=Phase.WARMUP),
            *self.drafted(55, launch=2),
        ]
        assert self.found(100.0, records) == []

    @pytest.mark.parametrize(
        "records",
        [[], [replace(record(), drafted=None)], [replace(record(outcome=Outcome.CUT), drafted=10)]],
        ids=["no record", "no count in a response", "a failed request"],
    )
    def test_cannot_be_compared_where_a_response_is_missing(self, records: list[Record]) -> None:
        assert self.found(100.0, records) == []


class TestUnequalSettings:
    @pytest.mark.parametrize(
        ("baseline", "arm"),
        [
            ({"dtype": "bf16"}, {"dtype": "bf16", "max_num_scheduled_tokens": "2048"}),
            ({"dtype": "bf16", "max_num_scheduled_tokens": "8192"}, {"max_num_scheduled_tokens": "2048"}),
            ({}, {"dtype": "bf16"}),
        ],
        ids=["said by one arm alone", "differs by design", "the baseline says nothing"],
    )
    def test_is_silent(self, baseline: dict[str, str], arm: dict[str, str]) -> None:
        assert (
            list(check_engines([started(BASELINE, settings=baseline), started(SPEC, settings=arm)], ())) == []
        )


class TestUsage:
    @pytest.mark.parametrize(
        ("page", "expected"),
        [
            ({"vllm:kv_cache_usage_perc": 0.25, "vllm:num_requests_running": 3.0}, (3, 0, 0.25)),
            (
                {
                    'vllm:kv_cache_usage_perc{engine="0"}': 0.25,
                    'vllm:kv_cache_usage_perc{engine="1"}': 0.75,
                    'vllm:num_requests_waiting{engine="0"}': 1.0,
                    'vllm:num_requests_waiting{engine="1"}': 2.0,
                },
                (0, 3, 0.75),
            ),
            ({"sglang:token_usage": 0.5, "sglang:num_running_reqs": 2.0}, (2, 0, 0.5)),
            ({"llamacpp:requests_processing": 2.0}, None),
            ({"vllm:kv_cache_usage_perc": 25.0}, None),
            ({"vllm:kv_cache_usage_perc": -0.1}, None),
            ({"vllm:kv_cache_usage_perc": 0.1, "vllm:num_requests_running": -1.0}, None),
            ({}, None),
        ],
    )
    def test_is_what_the_page_says_where_that_can_be(
        self, page: dict[str, float], expected: tuple[int, int, float] | None
    ) -> None:
        seen = usage_of(Counters(values=page), at_s=9.0)
        assert (None if seen is None else (seen.running, seen.waiting, seen.kv_share)) == expected
