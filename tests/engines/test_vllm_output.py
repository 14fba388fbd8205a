"""What vLLM says about itself, read from real output: the reason of a failed start, the KV cache, the totals."""

from __future__ import annotations

from pathlib import Path

import pytest

from speclift.engines.vllm.output import (
    effective_settings,
    engine_reason,
    startup_notices,
    usage_over_time,
)

RECORDED = Path(__file__).parent.parent / "recorded" / "vllm-0.32.0-draft-without-weights.log"
ECHO = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
STAMP = "(EngineCore pid=7) ERROR 11-15 05:06:23 [core.py:8] "
BAD_KEY = """\
Traceback (most recent call last):
    s.__pydantic_validator__.validate_python(ArgsKwargs(args, kwargs), self_instance=s)
pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig
surprise
  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=1, input_type=int]
    For further information visit https://errors.pydantic.dev/2.14/v/unexpected_keyword_argument
"""
BAD_VALUE = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig
  Value error, prompt_lookup_min=5 must be <= prompt_lookup_max=2 [type=value_error, input_value=..., input_type=X]
"""


def test_the_reason_of_a_recorded_failure_is_the_workers_not_its_echo() -> None:
    log = RECORDED.read_text(encoding="utf-8")
    assert ECHO in log
    assert engine_reason(log) == "RuntimeError: Cannot find any model weights with `/models/empty`"


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (f"{STAMP}ValueError: out of KV\n{ECHO}\n", "ValueError: out of KV"),
        (f"{STAMP}vllm.v1.SomeError: words\n", "SomeError: words"),
        ("OSError: [Errno 98] Address already in use\n", "OSError: [Errno 98] Address already in use"),
        ("api_server.py: error: unrecognized arguments: --x\n", "unrecognized arguments: --x"),
        (BAD_KEY, "SpeculativeConfig: surprise: Unexpected keyword argument"),
        (BAD_VALUE, "SpeculativeConfig: prompt_lookup_min=5 must be <= prompt_lookup_max=2"),
        ("ValueError: first\nKeyError: last\n", "KeyError: last"),
        (f"{ECHO}\n", ECHO),
        (f"{STAMP}Traceback (most recent call last):\nINFO loading\n", None),
        ("WARNING this can cause limit errors like `OSError: [Errno 24]`\n", None),
        ("", None),
    ],
)
def test_the_reason_is_the_last_error_that_is_no_echo(log: str, reason: str | None) -> None:
    assert engine_reason(log) == reason


RECORDED_FOLDER = RECORDED.parent


def recorded(name: str) -> str:
    return (RECORDED_FOLDER / f"vllm-0.24.0-h200-{name}.log").read_text(encoding="utf-8")


def test_what_a_server_really_runs_with_is_read_from_its_start() -> None:
    baseline, draft = effective_settings(recorded("baseline")), effective_settings(recorded("draft-model"))
    assert baseline == {
        "dtype": "torch.bfloat16",
        "max_seq_len": "2048",
        "quantization": "None",
        "kv_cache_dtype": "auto",
        "enforce_eager": "False",
        "tensor_parallel_size": "1",
        "pipeline_parallel_size": "1",
        "enable_prefix_caching": "False",
        "enable_chunked_prefill": "True",
        "async_scheduling": "enabled",
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "max_num_batched_tokens": "8192",
        "attention_backend": "FLASH_ATTN",
        "model_runner": "V2",
    }
    assert draft == {**baseline, "max_num_scheduled_tokens": "8128", "model_runner": "V1"}


def test_warnings_of_a_start_are_told_once_and_those_of_every_start_are_not() -> None:
    notices = startup_notices(recorded("draft-model"))
    assert sum("using the V1 model runner instead" in notice for notice in notices) == 1
    assert not any("JIT compilation" in notice or "Failed to import" in notice for notice in notices)


def test_how_full_it_was_over_time_is_read_from_its_own_statistics() -> None:
    points = usage_over_time(recorded("baseline"), year=2026)
    assert len(points) > 3
    assert [point.at_s for point in points] == sorted(point.at_s for point in points)
    assert max(point.kv_share for point in points) == 0.156
    assert any(point.running > 1 for point in points)
