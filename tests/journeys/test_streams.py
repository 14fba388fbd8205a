"""What goes where: the answer to stdout, plain where that is no terminal; progress and warnings to stderr.

With --json one document is on stdout and nothing else; what can be pasted is alone there.
"""

from __future__ import annotations

import json
import os
import pty
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pytest
from changes import ON_VLLM

from recorded import RECORDED, Typed, recorded_study
from running import Cli
from speclift.cli.main import main

LOG = RECORDED / "documents" / "log.jsonl"
SERVED = RECORDED / "documents" / "served.sh"


class Said(NamedTuple):
    """Words of the answer, and of what goes to stderr beside it."""

    words: str
    code: int
    answer: tuple[str, ...]
    aside: tuple[str, ...] = ()


SIZE = "--engine fake --engine-arg ttft_s=0.002 --engine-arg tpot_s=0.0005 --segment chat --requests 4 --max-tokens 12"
ANSWERS = [
    Said(
        f"decide {SIZE} --launches 1 --verify off",
        5,
        ("next, ", "Speedup over the baseline"),
        ("launch 1: baseline",),
    ),
    Said(f"measure {SIZE} --launches 1", 0, ("Measured cells",), ("launch 1: ngram-k4",)),
    Said(f"verify {SIZE} --method ngram", 5, ("No change was seen", "Answers that differ")),
    Said(
        "compare by-load",
        3,
        ("Switch on arm only for at most 4 requests", "Speedup over the baseline", "c=16"),
    ),
    Said("compare repeated", 0, ("Switch on arm: answers come 1.69x faster", "its weakest part is code")),
    Said("report by-load", 0, ("by-load/report.html",)),
    Said("report by-load --markdown", 0, ("**Switch on arm only", "| traffic | arm |")),
    Said("plan --target llama-3.1-8b --draft llama-3.2-1b --gpu h200", 0, ("It fits", "KV cache", "Pairing")),
    Said("plan --target llama-3.1-70b --gpu h100-80gb", 4, ("DOES NOT FIT", "--target-quant int4 would fit")),
    Said(f"replay {LOG} --k 1..3", 0, ("Accepted length", "Findings", "few-requests")),
    Said("watch -", 5, ("Unsure whether speculation pays", "accepted length 1.28")),
    Said("models list", 0, ("smollm2-135m", "bundled")),
    Said("doctor --quick", 0, ("This machine", "Models and space")),
    Said("--help", 0, ("decide", "gateway", "Example")),
    Said("decide --help", 0, ("--min-speedup", "Example")),
    Said("--version", 0, ("speclift ",)),
]
# What is pasted: the first word, and what must not stand beside it.
PASTED = [
    Said(f"lint {SERVED}", 4, ("export MODEL=meta-llama",), ("removed",)),
    Said("lint -- vllm serve m", 0, ("vllm serve m",), ("accepts it unchanged",)),
    Said("export by-load --to prometheus-rules", 0, ("# Written by speclift",)),
    Said("export by-load --to gateway", 0, ("# Written by speclift",)),
    Said("export by-load --to vllm", 0, ("#!/bin/sh",)),
    Said(f"decide {SIZE} --k 2 --dry-run", 0, ("# baseline",)),
    Said(
        "gateway --spec http://127.0.0.1:8 --plain http://127.0.0.1:9 --policy by-load --dry-run",
        0,
        ("spec: ",),
    ),
]
DOCUMENTS = [*ANSWERS[:5], *ANSWERS[7:11], Said("doctor --quick", 0, ()), *PASTED[:-1]]


@pytest.fixture
def here(tmp_path: Path, typed: Typed, page: str) -> Path:
    recorded_study("by-load", tmp_path, ON_VLLM)
    recorded_study("repeated", tmp_path)
    typed(page)
    return tmp_path


@pytest.mark.parametrize("case", ANSWERS, ids=lambda case: case.words[:60])
def test_the_answer_is_on_stdout(case: Said, cli: Cli, here: Path) -> None:
    result = cli(*case.words.split())
    assert result.code == case.code or "--engine fake" in case.words
    assert [words for words in case.answer if words not in result.stdout] == []
    assert [words for words in case.aside if words not in result.stderr] == []
    assert [words for words in case.aside if words in result.stdout] == []
    assert "\x1b" not in result.stdout + result.stderr
    assert [line for line in result.stdout.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("case", PASTED, ids=lambda case: case.words[:60])
def test_what_can_be_pasted_is_alone_on_stdout(case: Said, cli: Cli, here: Path, typed: Typed) -> None:
    typed('{"messages": [{"role": "user", "content": "hello"}]}')
    result = cli(*case.words.split())
    assert result.code == case.code, result.stderr
    assert result.stdout.startswith(case.answer)
    assert [words for words in case.aside if words not in result.stderr or words in result.stdout] == []


@pytest.mark.parametrize("case", DOCUMENTS, ids=lambda case: case.words[:60])
def test_with_json_stdout_is_one_document(case: Said, cli: Cli, here: Path) -> None:
    verb, _, rest = case.words.partition(" ")
    result = cli(verb, "--json", *rest.split())
    assert result.code == case.code or "--engine fake" in case.words
    document = json.loads(result.stdout)
    assert document["schema"] == 1


@pytest.mark.parametrize(
    "verb", ["compare nowhere", "plan --gpu h200", "lint nowhere", "export nowhere --to vllm"]
)
@pytest.mark.parametrize("form", ["", " --json"], ids=["words", "json"])
def test_an_error_is_on_stderr(verb: str, form: str, cli: Cli) -> None:
    result = cli(*f"{verb}{form}".split())
    assert (result.code in (1, 2), result.stdout) == (True, "")
    assert result.stderr.startswith("error: ") or "Error" in result.stderr


@pytest.mark.parametrize(("variable", "is_coloured"), [("", True), ("1", False)], ids=["colour", "NO_COLOR"])
def test_a_terminal_gets_colour_unless_it_wants_none(
    variable: str, is_coloured: bool, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if variable:
        monkeypatch.setenv("NO_COLOR", variable)
    monkeypatch.setenv("TERM", "xterm-256color")
    shown = on_terminal("compare", "repeated", monkeypatch=monkeypatch)
    assert "Switch on arm" in shown
    assert any(f"\x1b[{code}" in shown for code in ("3", "1;3", "9", "1;9")) == is_coloured


def on_terminal(*words: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a terminal of 100 columns would show of both streams."""
    leader, follower = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:
                return
            if not piece:
                return
            shown.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setattr(sys, "argv", ["speclift", *words])
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        with pytest.raises(SystemExit):
            main()
    reader.join()
    os.close(leader)
    return b"".join(shown).decode()
