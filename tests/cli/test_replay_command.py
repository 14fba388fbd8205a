"""speclift replay as typed: one document on stdout, tables that fit 80 columns, errors that help."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from running import Cli

PHRASE = list(range(100, 140))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    lines: list[dict[str, Any]] = []
    for index in range(20):
        # A prompt of its own each: repeats of one would be one unit.
        prompt = [1000 + index, *PHRASE]
        copied = {"prompt_token_ids": prompt, "response_token_ids": PHRASE[: 20 + index], "segment": "copy"}
        invented = {
            "prompt_token_ids": prompt,
            "response_token_ids": list(range(500, 530)),
            "segment": "chat",
        }
        lines += [copied, {**invented, "min_p": 0.1}]
    lines.append({"prompt_token_ids": PHRASE})
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def test_the_document_keeps_its_published_schema(cli: Cli, log: Path) -> None:
    schema = json.loads((Path(__file__).parents[2] / "docs/schema/replay.schema.json").read_text("utf-8"))
    methods = ("--method", "ngram", "--method", "ngram:cache")
    document = cli("replay", log, *methods, "--cost", 0.1, "--json").document

    jsonschema.validate(document, schema)
    document["segments"][0]["accepted_length"]["value"][0] = 0.5
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit_the_terminal_and_nothing_is_cut(
    cli: Cli, log: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = cli(
        "replay", log, "--method", "ngram", "--method", "ngram:map-k4v", "--ngram", "3", "--cost", 0.1
    )

    lines = result.stdout.splitlines()
    assert result.stderr == ""
    assert max(map(len, lines)) <= columns
    assert "…" not in result.stdout
    for text in ("replayed 40 of 41 requests", "llamacpp ngram:map-k4v", "By segment", "Predicted speedup"):
        assert text in result.stdout
    assert re.search(
        r"\nspeclift decide --engine vllm --method ngram,n=3 --k \d+ --prompts LOG\n", result.stdout
    )


def test_a_segments_name_cannot_move_the_cursor(cli: Cli, tmp_path: Path) -> None:
    line = {"prompt_token_ids": [1], "response_token_ids": [2, 3, 4]}
    path = tmp_path / "log.jsonl"
    hostile = [{**line, "segment": name} for name in ("\x1b[2Jgone", "[bold]x[/bold]")]
    path.write_text("\n".join(map(json.dumps, hostile)), encoding="utf-8")
    shown = cli("replay", path).stdout

    assert "\x1b" not in shown
    assert "[bold]x" in shown


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--method", "ngarm"), "Did you mean 'ngram'"),
        (("--k", "x"), "--k takes whole numbers, saw 'x'"),
        (("--k", "9..3"), "'9..3' is not a range"),
        (("--ngram", ","), "--ngram has no number"),
        (("--tokenizer", "gone.json"), "cannot read --tokenizer gone.json"),
        (("--engine", "sglang"), "unknown engine 'sglang'"),
    ],
)
def test_wrong_flags_exit_2_and_say_what_is_allowed(
    cli: Cli, log: Path, flags: tuple[str, str], words: str
) -> None:
    result = cli("replay", log, *flags)

    assert (result.code, result.stdout) == (2, "")
    assert words in " ".join(result.stderr.split())
