"""Numbers that nobody means are refused at once, with the flag and its limit: no plan of that size is built."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from running import Cli, Decided, fake_flags
from speclift.cli.main import VERBS as PLACES

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


# Of the flags that take numbers, times and sizes.
NUMERIC = {
    "N",
    "X",
    "N,...",
    "X,...",
    "TIME",
    "SIZE",
    "P",
    "RATES",
    "NAME=TIME,...",
    "15s",
    "10m",
    "1h",
    "60s",
    "5%",
}
ENDS = (
    *("0", "-1", "1", "2", "18", "40", "1000", HUGE, 10**30, "9" * 5_000, "1e30", "1e-12", "1e-320", "1e400"),
    *(
        "0.5",
        "1.5",
        "nan",
        "inf",
        "-inf",
        "",
        ",",
        "1,2,",
        "1..",
        "1_000",
        "0x10",
        "\u0663",
        "0%",
        "101%",
        "1k",
    ),
    *("0s", "1ms", "1e-9s", "1e308h", "999999999999t", "tpot_p50=0s", "tpot_p99=1e300s", "1@1", "0.5@5"),
)
DRY = (*fake_flags(), "--segment", "chat", "--dry-run")
PAIR = ("--target", "llama-3.1-8b", "--draft", "llama-3.2-1b", "--gpu", "h200")
POOLS = ("--spec", "http://127.0.0.1:1", "--plain", "http://127.0.0.1:2")
# In its cheapest form, and what it may end with beside 0 and 2: its answers, no operating error.
CHEAPEST: dict[str, tuple[tuple[str, ...], set[int]]] = {
    **{verb: ((verb, *DRY), set()) for verb in (*VERBS, "verify")},
    "plan": (("plan", *PAIR), {4}),
    "replay": (("replay", "LOG"), set()),
    "lint": (("lint", "LINE"), set()),
    "compare": (("compare", "STUDY"), {3, 4, 5}),
    "export": (("export", "STUDY", "--to", "prometheus-rules", "--arm", "ngram-k4", "--json"), set()),
    "watch": (("watch", "-"), {5}),
    "gateway": (("gateway", *POOLS, "--dry-run"), set()),
}
ON_STDIN = {
    "gateway": b'{"prompt": "x", "max_tokens": 4}',
    "watch": b"vllm:spec_decode_num_drafts_total 10\n",
}


def numeric_flags(verb: str) -> list[str]:
    options = [p for p in PLACES[verb].command(verb).params if p.param_type_name == "option"]
    return [str(option.opts[0]) for option in options if getattr(option, "metavar", None) in NUMERIC]


def test_every_verb_with_a_numeric_flag_is_asked_for_its_ends() -> None:
    assert {verb for verb in PLACES if verb != "models" and numeric_flags(verb)} == set(CHEAPEST)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("verb", CHEAPEST)
def test_a_number_at_its_ends_is_taken_or_refused(
    verb: str, cli: Cli, decided: Decided, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"prompt_token_ids": [1, 2, 3] * 9, "response_token_ids": [1, 2, 3] * 4}))
    line = tmp_path / "line.sh"
    line.write_text("vllm serve m")
    words, answers = CHEAPEST[verb]
    wrong = []
    for flag in numeric_flags(verb):
        for value in map(str, ENDS):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ON_STDIN.get(verb, b""))))
            placed = [{"LOG": log, "LINE": line, "STUDY": decided.study}.get(word, word) for word in words]
            result = cli(*placed, f"{flag}={value}")
            if result.code not in {0, 2} | answers:
                wrong.append((flag, value[:20], result.code, result.stderr[:200]))
    assert wrong == []
