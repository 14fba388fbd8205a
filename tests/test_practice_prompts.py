"""What the bundled draft was trained on keeps away from what it is judged on."""

from __future__ import annotations

import json
from pathlib import Path

import practice

BUNDLED = Path(__file__).parents[1] / "src" / "speclift" / "workload" / "bundled"
PASSAGES = ["The mill stood by the river."]
CODES = ["def f(x):\n    return x"]


def drawn(count: int = 2000) -> list[practice.Prompt]:
    asked = practice.prompts_on(PASSAGES, CODES, ["How are you?"], count=count, seed=1)
    return [*asked, *practice.material_prompts(count, seed=2)]


def test_every_kind_of_evaluation_prompt_is_practised() -> None:
    assert {path.stem for path in BUNDLED.glob("*.jsonl")} <= {prompt.kind for prompt in drawn()}


def test_no_gap_of_a_pattern_is_left_open() -> None:
    assert not [text for prompt in drawn() for _, text in prompt.messages if "{" in text or "}" in text]


def test_no_prompt_shares_eight_words_in_a_row_with_an_evaluation_prompt() -> None:
    prompts = drawn()
    assert list(practice.without_overlap(prompts, BUNDLED)) == prompts


def test_one_that_does_is_dropped() -> None:
    row = json.loads((BUNDLED / "chat.jsonl").read_text(encoding="utf-8").splitlines()[0])
    seen = practice.Prompt(kind="chat", messages=(("user", row["messages"][0]["content"]),), max_tokens=9)
    assert list(practice.without_overlap([seen], BUNDLED)) == []
