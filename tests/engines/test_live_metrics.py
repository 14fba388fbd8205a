"""Metrics pages of every engine, read into the same quantities."""

from __future__ import annotations

import math

import pytest

from speclift.core.errors import EngineError
from speclift.core.live import Buckets, MetricsReading
from speclift.engines.metrics import read_page

VLLM = """\
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="a/b"} 100.0
vllm:generation_tokens_total{engine="1",model_name="a/b"} 23.0
vllm:generation_tokens_created{engine="0",model_name="a/b"} 1.7e+09
vllm:prompt_tokens_total{engine="0",model_name="a/b"} 400.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="a/b"} 3.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="a/b"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="a/b"} 2.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="1.0",model_name="a/b"} 5.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="a/b"} 5.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="a/b"} 5.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="a/b"} 1.5
vllm:spec_decode_num_drafts_total{engine="0",model_name="a/b"} 30.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="a/b"} 90.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="a/b"} 60.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="a/b",position="0"} 28.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="a/b",position="1"} 20.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="a/b",position="2"} 12.0
vllm:num_requests_running{engine="0",model_name="a/b"} 3.0
vllm:num_requests_waiting{engine="0",model_name="a/b"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="a/b"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="a/b"} 400.0
vllm:prefix_cache_hits_total{engine="0",model_name="a/b"} 100.0
process_start_time_seconds 1.7e+09
"""
LLAMACPP = """\
llamacpp:prompt_tokens_total 10
llamacpp:tokens_predicted_total 100
llamacpp:tokens_predicted_seconds_total 2.5
llamacpp:n_decode_total 60
llamacpp:spec_decode_num_drafts_total 40
llamacpp:spec_decode_num_draft_tokens_total 120
llamacpp:spec_decode_num_accepted_tokens_total 55
llamacpp:requests_processing 2
llamacpp:requests_deferred 0
"""
SGLANG = """\
sglang:generation_tokens_total{model_name="q"} 101.0
sglang:prompt_tokens_total{model_name="q"} 25.0
sglang:num_requests_total{model_name="q"} 1.0
sglang:spec_verify_calls_total{model_name="q"} 40.0
sglang:spec_accept_length{model_name="q"} 2.5
sglang:spec_num_steps{model_name="q"} 3
sglang:num_running_reqs{model_name="q"} 7
sglang:num_queue_reqs{model_name="q"} 0
sglang:token_usage{model_name="q"} 0.1
"""
TENSORRT = """\
trtllm_generation_tokens_total{model_name="t",engine_type="trtllm"} 100
trtllm_request_success_total{model_name="t",finished_reason="stop"} 4
trtllm_spec_decode_num_draft_tokens_total{model_name="t"} 60
trtllm_spec_decode_num_accepted_tokens_total{model_name="t"} 40
trtllm_kv_cache_utilization{model_name="t"} 0.62
trtllm_num_requests_running{model_name="t"} 3
"""


def read(text: str) -> MetricsReading:
    return read_page(text, at_s=5.0, wall_s=1e9)


def test_vllm_of_two_engine_cores() -> None:
    page = read(VLLM)
    totals = page.totals

    assert (page.engine, page.model, page.started_s) == ("vllm", "a/b", 1.7e9)
    assert (totals.tokens, totals.requests, totals.prompt_tokens) == (123.0, 5.0, 400.0)
    assert (totals.drafts, totals.drafted, totals.accepted) == (30.0, 90.0, 60.0)
    assert totals.accepted_at == (28.0, 20.0, 12.0)
    assert totals.ttft == Buckets(bounds=(0.1, 1.0, math.inf), counts=(2.0, 5.0, 5.0), sum=1.5)
    assert (page.running, page.waiting, page.kv_used) == (3.0, 1.0, 0.25)
    assert (totals.prefix_queries, totals.prefix_hits) == (400.0, 100.0)


def test_llamacpp_counts_no_requests() -> None:
    page = read(LLAMACPP)
    assert page.engine == "llamacpp"
    assert page.totals.requests is None
    assert (page.totals.tokens, page.totals.accepted, page.totals.decode_s) == (100.0, 55.0, 2.5)
    assert page.running == 2.0


def test_sglang() -> None:
    page = read(SGLANG)
    assert (page.engine, page.k, page.accepted_length) == ("sglang", 3, 2.5)
    assert (page.totals.steps, page.totals.tokens, page.totals.requests) == (40.0, 101.0, 1.0)
    assert (page.running, page.waiting, page.kv_used) == (7.0, 0.0, 0.1)


def test_tensorrt() -> None:
    page = read(TENSORRT)
    assert page.engine == "tensorrt-llm"
    assert (page.totals.drafted, page.totals.accepted, page.kv_used) == (60.0, 40.0, 0.62)


@pytest.mark.parametrize("value", ["NaN", "-5", "1e308", "+Inf", "-Inf", "five", "1e16"])
def test_a_number_that_cannot_be_a_total_is_not_known(value: str) -> None:
    page = read(
        VLLM.replace(
            'total{engine="0",model_name="a/b"} 60.0', f'total{{engine="0",model_name="a/b"}} {value}'
        )
    )
    assert page.totals.accepted is None
    assert page.totals.drafted == 90.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the metrics page is empty"),
        ("<!doctype html><html><body>Sign in</body></html>", "HTML"),
        ("node_cpu_seconds_total 5\n", "metrics of something else"),
        ('{"detail": "Not Found"}', "metrics of something else"),
        ("vllm:something_else 5\n", "counts no tokens"),
    ],
)
def test_what_is_no_engines_page_says_what_it_is(text: str, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        read(text)
