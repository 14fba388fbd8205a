"""What replay says of a log beside its numbers, and what lint finds in a pasted line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import speclift
from running import Cli

(BUNDLED,) = Path(speclift.__file__).parent.rglob("*.gguf")
PHRASE = list(range(100, 140))
Changed = Callable[[int, dict[str, Any]], dict[str, Any]]


def log_of(folder: Path, changed: Changed, *, count: int = 40) -> Path:
    lines = [
        changed(
            index,
            {
                "prompt_token_ids": [1000 + index, *PHRASE],
                "response_token_ids": PHRASE[: 20 + index % 20],
                "temperature": 0.0,
            },
        )
        for index in range(count)
    ]
    path = folder / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


WORDS = {"prompt": "the quick brown fox " * 4, "response": "the quick brown fox jumps", "temperature": 0.0}
FINDINGS: dict[str, tuple[Changed, str]] = {
    "no-response": (lambda i, line: line if i else {"prompt": "a"}, "1 of 40 requests have no response"),
    "sampled": (lambda i, line: {**line, "temperature": 0.7 * (i % 2)}, "20 of 40 answers were sampled"),
    "temperature-unknown": (lambda i, line: line if i else {**line, "temperature": None}, "1 of 40 answers"),
    "refused-sampling": (lambda i, line: {**line, "min_p": 0.1}, "vllm rejects 40 of 40 requests"),
    "tokenizer": (lambda i, line: WORDS, "text was tokenized with"),
    "vllm-runner": (lambda i, line: line, "ngram means vLLM's V1 model runner"),
}  # fmt: skip


@pytest.mark.parametrize("check", FINDINGS)
def test_what_a_reader_must_know_of_a_log_is_said(check: str, cli: Cli, tmp_path: Path) -> None:
    changed, words = FINDINGS[check]
    flags = ("--k", 3, "--ngram", 3, "--tokenizer", BUNDLED, "--json")
    document = cli("replay", log_of(tmp_path, changed), *flags).document
    said = {finding["check"]: finding["message"] for finding in document["findings"]}
    assert words in said[check]


def test_few_requests_and_unreadable_lines_are_said(cli: Cli, tmp_path: Path) -> None:
    log = log_of(tmp_path, lambda _, line: line, count=4)
    log.write_text(log.read_text() + '\n{"prompt": 7}\n')
    result = cli("replay", log, "--k", 3, "--ngram", 3, "--json")
    said = {finding["check"]: finding["message"] for finding in result.document["findings"]}
    assert (result.code, result.document["requests"]) == (0, 4)
    assert said["few-requests"].startswith("4 requests")
    assert "1 of 5 entries could not be read" in said["unreadable"]


@pytest.mark.parametrize(
    ("share", "low", "high"), [(1.0, 3.5, 4.0), (0.0, 1.0, 1.01)], ids=["all-copied", "nothing-copied"]
)
def test_the_accepted_length_is_that_of_what_can_be_copied(
    share: float, low: float, high: float, cli: Cli, tmp_path: Path
) -> None:
    def changed(index: int, line: dict[str, Any]) -> dict[str, Any]:
        invented = [5000 + 40 * index + place for place in range(40)]
        return {**line, "response_token_ids": PHRASE if share else invented}

    document = cli(
        "replay", log_of(tmp_path, changed), "--k", 3, "--ngram", 2, "--cost", 0.1, "--json"
    ).document
    whole = document["segments"][0]
    assert low <= whole["accepted_length"]["value"][0] <= high
    drafted = whole["drafted_per_step"][0]
    expected = whole["accepted_length"]["value"][0] / (1 + 0.1 * drafted)
    assert whole["predicted_speedup"][0]["value"][0] == pytest.approx(expected)


CONFIG = '{"method": "ngram", "num_speculative_tokens": 5}'
LINES = [
    ("vllm serve m", 0, set()),
    ("vllm serve m --speculative-model d", 4, {"removed"}),
    (f"vllm serve m --speculative-config {CONFIG}", 0, {"ok", "risky"}),
    ("vllm serve m --speculative-confg x", 4, {"unknown"}),
    ("llama-server -m a.gguf --draft 8 -md b.gguf", 4, {"renamed"}),
    ("llama-server -m a.gguf --spec-type ngram-simple", 0, {"ok"}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code", "status"), LINES, ids=[line for line, _, _ in LINES])
def test_a_line_is_linted(line: str, code: int, status: set[str], cli: Cli) -> None:
    words = [*line.split()[:4], CONFIG] if CONFIG in line else line.split()
    result = cli("lint", "--json", "--", *words)
    document = result.document
    assert (result.code, document["ok"]) == (code, code == 0)
    assert status <= {finding["status"] for finding in document["findings"]}
    again = cli("lint", "--json", "--", *document["translated"]["argv"])
    assert again.code == 0 or "unknown" in status


def test_a_drafter_that_remembers_or_cannot_draft_is_told(cli: Cli, tmp_path: Path) -> None:
    log = log_of(tmp_path, lambda _, line: line)
    methods = ("--method", "ngram:mod", "--method", "ngram:simple")
    document = cli("replay", log, *methods, "--k", 3, "--ngram", 5, "--json").document
    said = {finding["check"]: finding["message"] for finding in document["findings"]}
    assert said["log-order"].startswith("ngram:mod remember earlier requests")
    assert "(n = 5 here)" in said["k-below-n"]
