"""What lint says first: whether the engine takes the line, and what stands in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from pasted_commands import VLLM
from running import Cli
from speclift.core.answer import BECAUSE_MAX, SENTENCE_CHARACTERS_MAX

LINES = {
    "vllm serve m": "vLLM 0.32.0 accepts it unchanged.",
    "vllm serve m --speculative-model d --num-speculative-tokens 5": (
        "vLLM 0.32.0 rejects or ignores 2 settings; use the translation."
    ),
    "vllm serve $MODEL": "1 place could not be read; vLLM 0.32.0 may reject the command.",
    "python -m sglang.launch_server --model x": "SGLang is known by name only: nothing was judged.",
}


@pytest.mark.parametrize("line", LINES)
def test_the_sentence_says_whether_it_is_taken(line: str, cli: Cli) -> None:
    answer = cli("lint", "--json", "--", line).document["answer"]
    assert answer["sentence"] == LINES[line]
    assert answer["next"] is None
    assert bool(answer["because"]) is ("unchanged" not in answer["sentence"])


@pytest.mark.parametrize("name", VLLM)
def test_whatever_an_article_prints_is_answered_in_one_line(name: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "pasted.txt").write_text(VLLM[name])
    answer = cli("lint", "--json", "pasted.txt").document["answer"]
    assert 0 < len(answer["sentence"]) <= SENTENCE_CHARACTERS_MAX
    assert len(answer["because"]) <= BECAUSE_MAX
    assert answer["sentence"] in cli("lint", "pasted.txt").stderr
