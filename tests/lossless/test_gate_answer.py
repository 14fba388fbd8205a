"""What verify says first: whether the answers stay the same, and what would settle it."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from running import Cli, fake_flags
from speclift.lossless.gate import ArmGate, Gate, Greedy, GreedyCheck, Hazard, Result
from speclift.lossless.gate_answer import gate_answer

ARGV = ("verify", "--engine", "fake", "--method", "ngram", "--k", "4", "--requests", "10", "--json")


def greedy(result: Result, *, events: int = 0, tokens: float = 400.0) -> Greedy:
    return Greedy(
        result=result,
        message=f"{tokens:.0f} tokens compared",
        tokens=tokens,
        prompts=10,
        checks=(
            GreedyCheck(
                name="alone",
                answers=24,
                events=events,
                tokens=tokens,
                control=Hazard(events=0, tokens=tokens),
                p_value=1.0,
            ),
        ),
    )


def gate(*results: Result, **changes: Any) -> Gate:
    arms = tuple(
        ArmGate(
            arm=f"ngram-k{number}",
            method="ngram",
            result=result,
            greedy=greedy(result, **changes),
        )
        for number, result in enumerate(results, 4)
    )
    return Gate(depth="full", detect=0.02, planned_tokens=100, arms=arms, wall_s=30.0)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            gate(Result.PASS),
            "The answers stay the same with ngram-k4: 0 of 24 answers at temperature 0 differ from the baseline's.",
        ),
        (
            gate(Result.FAIL, events=7),
            "Do not use ngram-k4: the answers change; 7 of 24 answers at temperature 0 differ from the baseline's.",
        ),
        (gate(Result.INCONCLUSIVE), "No change was seen with ngram-k4, but one could not be ruled out."),
        (
            gate(Result.PASS, Result.FAIL, events=1),
            "Do not use ngram-k5: the answers change; 2 of 48 answers at temperature 0 differ from the baseline's.",
        ),
        (
            gate(Result.PASS, events=1),
            "The answers stay the same with ngram-k4: 1 of 24 answers at temperature 0 differ from the baseline's, "
            "no more than its own from run to run.",
        ),
    ],
)
def test_the_sentence_says_whether_the_answers_change(found: Gate, sentence: str) -> None:
    answer = gate_answer(found, ARGV)
    assert answer.sentence == sentence
    assert answer.because
    assert "inconclusive" not in answer.sentence.lower()


def test_more_is_asked_where_more_would_settle_it() -> None:
    """150 tokens exclude 2 % wrong ones; 75 of them took 30 s for 10 prompts."""
    following = gate_answer(gate(Result.INCONCLUSIVE, tokens=75.0), ARGV).next
    assert following is not None
    words = shlex.split(following.command)
    assert words[words.index("--requests") + 1] == "20"
    assert "--json" not in words
    assert following.seconds == pytest.approx(60.0, rel=0.05)


@pytest.mark.slow
def test_its_command_runs_as_printed(cli: Cli) -> None:
    asked = ("--method", "ngram", "--k", 4, "--segment", "chat", "--requests", 2, "--max-tokens", 8)
    result = cli("verify", *asked, *fake_flags(), "--temperature", 0, "--json")
    assert result.code == 5
    command = result.document["answer"]["next"]["command"]
    assert command in result.stderr
    shown = cli(*shlex.split(command)[1:], "--dry-run")
    assert shown.code == 0
    assert "# ngram-k4" in shown.stdout
