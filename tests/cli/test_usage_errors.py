"""Wrong usage: exit 2, what was seen, what is allowed, the nearest match; nothing launched, nothing created."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from running import Cli


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kv-dtype", "fp8", "--kv-type-k", "q8_0"], ["--kv-dtype sets keys and values at once"]),
        (["--async-scheduling", "onn"], ["unknown value of --async-scheduling 'onn'", "'on'"]),
        (["--method", "ngram:map-kv"], ["unknown n-gram variant 'map-kv'", "map-k"]),
        (["--method", "ngram,size=4"], ["size", "allowed"]),
        (["--method", "ngram,k"], ["expected key=value", "'k'"]),
        (["--method", "ngram,k=0"], ["at least 1, saw 0"]),
        (["--method", "draft"], ["needs a draft model", "--draft"]),
        (["--segment", "chatt"], ["unknown segment 'chatt'", "'chat'"]),
        (["--metric", "tpott"], ["unknown metric 'tpott'", "'tpot'"]),
        (["--slo", "ttft_p99=soon"], ["50ms", "'soon'"]),
        (["--slo", "ttft_p99"], ["name=limit", "'ttft_p99'"]),
        (["--qps", "1", "--arrivals", "poison"], ["unknown arrivals 'poison'", "'poisson'"]),
        (["--concurrency", "one"], ["--concurrency takes numbers", "'one'"]),
        (["--concurrency", "0"], ["at least 1, saw 0"]),
        (["--qps", "0"], ["above 0"]),
        (["--engine-arg", "k"], ["key=value", "'k'"]),
    ],
    ids=lambda value: " ".join(value) if value and isinstance(value, list) and value[0][0] == "-" else "",
)
def test_a_wrong_value_is_named_with_what_is_allowed(
    arguments: list[str], said: list[str], cli: Cli, tmp_path: Path
) -> None:
    result = cli("decide", "--engine", "fake", *arguments)
    assert result.code == 2
    assert [words for words in said if words not in result.stderr] == []
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


GOOD = json.dumps({"prompt": "Say hello."})


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([GOOD, "{"], ["line 2", "not JSON"]),
        ([GOOD, "", GOOD, "[1]"], ["line 4", "list"]),
        ([GOOD, '{"segment": "chat"}'], ["line 2", "messages", "prompt"]),
        (['{"prompt": 7}'], ["line 1", "'prompt' must be text", "int"]),
        (['{"messages": []}'], ["line 1", "non-empty list"]),
        (['{"messages": [{"role": "user"}]}'], ["line 1", "messages[0]"]),
        ([GOOD, '{"prompt": "x", "temperature": "hot"}'], ["line 2", "temperature", "'hot'"]),
        (['{"prompt": "x", "max_tokens": 0}'], ["line 1", "max_tokens", "at least 1"]),
        (['{"prompt": "x", "id": "a"}', '{"prompt": "y", "id": "a"}'], ["line 2", "'a'", "line 1"]),
        (["", "  "], ["no requests"]),
        ([], ["no requests"]),
    ],
)
def test_a_malformed_prompt_file_is_refused_with_the_line(
    lines: list[str], said: list[str], cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "p.jsonl").write_text("".join(line + "\n" for line in lines))
    result = cli("decide", "--engine", "fake", "--prompts", "p.jsonl", "--study", "s")
    assert result.code == 2
    assert [words for words in said if words not in result.stderr] == []
    assert not (tmp_path / "s").exists()


def test_a_prompt_file_that_is_not_text_is_refused_with_the_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_bytes(GOOD.encode() + b"\n\xff\xfe\n")
    result = cli("decide", "--engine", "fake", "--prompts", "p.jsonl")
    assert result.code == 2
    assert "line 2" in result.stderr


@pytest.mark.parametrize(
    "content",
    [b"", b"not a model", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64],
    ids=["empty", "something else", "a header cut short", "a header of nonsense"],
)
def test_a_damaged_model_file_is_an_operating_error(content: bytes, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(content)
    result = cli("decide", "--model", "bad.gguf", "--study", "s")
    assert result.code == 1
    assert "bad.gguf" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_a_folder_that_holds_half_a_study_is_no_study_to_resume_but_can_be_started_anew(
    cli: Cli, small: list[object], tmp_path: Path
) -> None:
    (tmp_path / "s").mkdir()
    for leftover in ("study.sqlite", "lock"):  # what a kill at the first moment leaves
        (tmp_path / "s" / leftover).touch()
    assert cli("decide", "--resume", "--study", "s").code == 1
    assert cli("measure", *small, "--study", "s").code == 0
