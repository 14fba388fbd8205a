"""Numbers that nobody means are refused at once, with the flag and its limit: no plan of that size is built."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from running import Cli

HUGE = 1_000_000_000
VERBS = ("decide", "measure", "tune")
FLAGS = (
    ("--concurrency", HUGE, "open files"),
    ("--concurrency", 1_000_000_000_000_000_000_000, "open files"),
    ("--k", HUGE, "--k takes at most 1,000"),
    ("--requests", HUGE, "--requests takes at most"),
    ("--launches", HUGE, "--launches takes at most"),
    ("--max-tokens", HUGE, "--max-tokens takes at most"),
    ("--qps", HUGE, "--qps takes at most"),
    ("--qps", "inf", "--qps takes at most"),
    ("--workers", HUGE, "--workers takes at most"),
    ("--threads", HUGE, "--threads takes at most"),
    ("--context", HUGE, "--context takes at most"),
    ("--token-budget", HUGE, "--token-budget takes at most"),
    ("--seed", 10**30, "--seed takes at most"),
    ("--seed", -1, "--seed takes 0 or more"),
    ("--min-speedup", "inf", "--min-speedup"),
    ("--method", f"ngram,k={HUGE}", "at most 1,000"),
    ("--k", "9" * 5_000, "--k takes numbers"),
)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(("flag", "value", "said"), FLAGS, ids=[f"{f} {str(v)[:12]}" for f, v, _ in FLAGS])
@pytest.mark.parametrize("verb", VERBS)
def test_an_absurd_number_is_refused_before_anything_is_made(
    verb: str, flag: str, value: object, said: str, cli: Cli, tmp_path: Path
) -> None:
    result = cli(verb, "--engine", "fake", flag, value)
    assert result.code == 2, result.stderr
    assert said in result.stderr
    assert len(result.stderr) < 2_000
    assert not (tmp_path / "studies").exists()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("verb", ["plan", "replay"])
def test_verbs_without_an_engine_refuse_an_absurd_k_too(verb: str, cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"prompt": "a b c", "response": "a b c d"}) + "\n")
    words = {
        "plan": ("--target", "llama-3.1-8b", "--draft", "llama-3.2-1b", "--gpu", "h200"),
        "replay": (log,),
    }
    result = cli(verb, *words[verb], "--k", HUGE)
    assert result.code == 2, result.stderr
    assert "at most" in result.stderr or "1.." in result.stderr
