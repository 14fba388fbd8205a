"""speclift lint: where its input comes from, what goes to which screen, and how it ends."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import jsonschema
import pytest

from pasted_commands import LLAMA, VLLM
from running import Cli

OLD = shlex.split(VLLM["server with a draft model"])
SCHEMA = Path(__file__).parents[2] / "docs" / "schema" / "lint.schema.json"


class TestTheDocument:
    @pytest.mark.parametrize("text", [*VLLM.values(), *LLAMA.values(), "spec_decode_efficiency"])
    def test_keeps_the_published_schema(self, text: str, cli: Cli, tmp_path: Path) -> None:
        path = tmp_path / "pasted"
        path.write_text(text)

        result = cli("lint", path, "--json")

        jsonschema.validate(result.document, json.loads(SCHEMA.read_text()))
        wrong = any(found["status"] not in ("ok", "risky") for found in result.document["findings"])
        assert result.document["ok"] is not wrong
        assert result.code == (4 if wrong else 0)


class TestInput:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ((), "nothing to lint"),
            (("absent.yaml",), "no file"),
            (("--", "echo", "hi"), "no known engine"),
            (("--engine", "vlm", "--", "vllm", "serve"), "Did you mean 'vllm'"),
            (("--engine-version", "new", "--", "vllm", "serve"), "is not a vLLM release"),
        ],
    )
    def test_wrong_usage_says_what_to_do(self, words: tuple[str, ...], said: str, cli: Cli) -> None:
        result = cli("lint", *words)

        assert result.code == 2
        assert said in result.stderr
        assert "hint:" in result.stderr
        assert result.stdout == ""


class TestTheScreen:
    def test_the_command_alone_is_on_stdout_and_is_one_command_for_a_shell(self, cli: Cli) -> None:
        result = cli("lint", "--", *OLD, "--served-model-name", "it's $5")
        document = cli("lint", "--json", "--", *OLD, "--served-model-name", "it's $5").document

        assert shlex.split(result.stdout.replace("\\\n", "")) == document["translated"]["argv"]

    @pytest.mark.parametrize("width", [60, 80, 120])
    def test_no_line_is_wider_than_the_terminal(
        self, width: int, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(width))
        view = cli("lint", "--", *OLD).stderr.partition("From Python")[0]

        assert max(map(len, view.splitlines())) <= width

    def test_hostile_text_cannot_move_the_cursor(self, cli: Cli) -> None:
        result = cli("lint", "--", "vllm", "serve", "m", "--\x1b[2J\u202ebad", "[red]x[/red]")

        assert "\x1b" not in result.stderr
        assert "\u202e" not in result.stderr
