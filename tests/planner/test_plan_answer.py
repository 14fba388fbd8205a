"""What plan says first: whether it runs, from which acceptance on it breaks even, and what to measure."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path

import pytest

from running import Cli
from speclift.bench.ask import PlanAsk
from speclift.core.answer import BECAUSE_CHARACTERS_MAX, BECAUSE_MAX, SENTENCE_CHARACTERS_MAX
from speclift.core.flags import assembled
from speclift.planner.plan import plan_answer
from speclift.verbs.plan import plan

PAIR = {"target": "llama-3.1-70b", "target_quant": "fp8", "drafts": ("llama-3.1-8b",), "gpu": "h200"}
# What is asked, and how the sentence begins.
PLANS: dict[str, tuple[dict[str, object], str]] = {
    "a pair": ({**PAIR, "context": 2048}, "It fits and breaks even from "),
    "one load": (
        {"target": "llama-3.1-8b", "gpu": "h200", "concurrency": (4,)},
        "It fits and breaks even from ",
    ),
    "acceptance known": ({**PAIR, "context": 2048, "acceptance": "0.9"}, "It fits; predicted 1."),
    "acceptance too low": (
        {**PAIR, "context": 2048, "acceptance": "0.1"},
        "It fits; predicted slower than without speculation",
    ),
    "too large": (
        {"target": "llama-3.1-70b", "gpu": "rtx-4090"},
        "DOES NOT FIT: weights and working memory need ",
    ),
    "refused": (
        {"target": "llama-3.1-8b", "drafts": ("qwen3-0.6b",), "gpu": "h200"},
        "WILL NOT RUN: vllm refuses it, ",
    ),
    "llama.cpp": (
        {"target": "llama-3.1-8b", "target_quant": "q4_k_m", "engine": "llamacpp", "gpu": "h200"},
        "It fits",
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_sentence_says_what_to_expect(name: str) -> None:
    settings, beginning = PLANS[name]
    answer = plan_answer(plan(assembled(PlanAsk, settings)))
    assert answer.sentence.startswith(beginning)
    assert answer.sentence.endswith(".")
    assert len(answer.sentence) <= SENTENCE_CHARACTERS_MAX
    assert 0 < len(answer.because) <= BECAUSE_MAX
    for text in (answer.sentence, *answer.because):
        assert "None" not in text
        assert "nan" not in text
        assert len(text) <= BECAUSE_CHARACTERS_MAX or text == answer.sentence


def test_what_does_not_run_is_not_measured_and_says_its_way_out() -> None:
    for name in ("too large", "refused"):
        answer = plan_answer(plan(assembled(PlanAsk, PLANS[name][0])))
        assert answer.next is None
        assert not any(answer.sentence.rstrip(".").endswith(reason) for reason in answer.because)


def test_its_command_runs_as_printed_within_the_time_it_says(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'vllm 0.26.0'\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    document = cli("plan", "--target", "llama-3.1-8b", "--gpu", "h200", "--json").document
    following = document["answer"]["next"]
    assert following["command"].startswith(document["next"][0])
    words = shlex.split(following["command"])
    assert words[words.index("--budget") + 1] == f"{following['seconds'] / 60:g}m"
    assert cli(*words[1:], "--vllm-python", script, "--dry-run").code == 0
