"""What decide sees in passing: faults of the answers that it records anyway, in requests as a user writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from running import Cli, fake_flags

COLOUR = {"type": "object", "properties": {"colour": {"enum": ["red"]}}, "required": ["colour"]}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": COLOUR}}
TOOL = {"type": "function", "function": {"name": "find", "parameters": COLOUR, "strict": True}}
pytestmark = pytest.mark.slow

SIZE = ("--requests", 16, "--launches", 1, "--concurrency", 1, "--fixed", "--budget", "60s")


def lines(**more: object) -> str:
    texts = [f"The red fox number {n} jumps over the quiet river and walks on." for n in range(16)]
    asked = [
        {"messages": [{"role": "user", "content": f"Copy <<<{text}>>>"}], "temperature": 0, "max_tokens": 64}
        for text in texts
    ]
    return "\n".join(json.dumps(request | more) for request in asked) + "\n"


@pytest.mark.parametrize(
    ("corruption", "asked", "check"),
    [
        ("leaked-token", {}, "special-token"),
        ("text-after-stop", {"stop": ["over the"]}, "text-after-stop"),
        ("invalid-json", {"response_format": SCHEMA}, "invalid-json"),
        ("invalid-json", {"tools": [TOOL], "tool_choice": "required"}, "tool-arguments"),
    ],
)
@pytest.mark.parametrize("is_corrupt", [True, False])
def test_what_the_arm_alone_shows_is_a_changed_output(
    cli: Cli, tmp_path: Path, corruption: str, asked: dict[str, object], check: str, is_corrupt: bool
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(lines(**asked), encoding="utf-8")
    truths = (f"spec.corruption={corruption}",) if is_corrupt else ()

    result = cli("decide", *fake_flags(*truths), "--prompts", prompts, *SIZE, "--json")

    (arm,) = result.document["lossless"]["arms"]
    found = [each["check"] for each in arm["findings"] if each["check"].endswith("-recorded")]
    assert found == ([f"{check}-recorded"] if is_corrupt else [])
    assert (result.document["verdict"] == "output-changed") is is_corrupt


def test_differences_are_asked_again_as_the_study_asked(cli: Cli, tmp_path: Path) -> None:
    """Without the JSON schema of its request the baseline would say something else from the first token on."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(lines(response_format=SCHEMA), encoding="utf-8")

    result = cli("decide", *fake_flags("spec.corruption=invalid-json"), "--prompts", prompts, *SIZE, "--json")

    lossless = result.document["lossless"]
    assert lossless["depth"] == "quick"
    assert lossless["control"]["c=1"]["divergences"] == 0
    assert lossless["greedy"]["checks"][0]["divergences"] > 0
