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


class TestWordsAlreadySplit:
    def test_a_line_end_that_a_paste_made_a_blank_is_no_part_of_the_flag(self, cli: Cli) -> None:
        result = cli("lint", "--json", "--", *shlex.split(r"vllm serve m \ --port 1"))

        assert result.code == 0
        assert result.document["translated"]["argv"] == ["vllm", "serve", "m", "--port", "1"]
        assert any("end of a line" in note for note in result.document["notes"])

    def test_an_empty_word_is_still_one(self, cli: Cli) -> None:
        assert cli("lint", "--", "vllm", "serve", "m", "").code == 4


class TestVersions:
    def test_an_old_release_takes_its_own_flags(self, cli: Cli) -> None:
        assert cli("lint", "--engine-version", "0.6.0", "--", *OLD).code == 0

    def test_a_newer_release_than_any_known_is_said(self, cli: Cli) -> None:
        result = cli("lint", "--engine-version", "0.99", "--json", "--", "vllm", "serve", "m")

        assert "0.32.0" in result.document["notes"][0]

    def test_a_cpu_build_has_rules_of_its_own(self, cli: Cli) -> None:
        words = ("vllm", "serve", "m", "--spec-method", "ngram_gpu", "--spec-tokens", "3")

        assert cli("lint", "--", *words).code == 0
        assert cli("lint", "--engine-version", "0.32.0+cpu", "--", *words).code == 4

    def test_the_engine_can_be_said_where_the_text_does_not(self, cli: Cli) -> None:
        result = cli("lint", "--engine", "llamacpp", "--json", "--", "--port", "1", "--metrics")

        assert result.document["engine"] == "llamacpp"


class TestInput:
    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"\xff\xfe\x00", "UTF-8"),
            (b"a\0b", "binary"),
            (b"", "nothing"),
            (b"PK\x03\x04" * 9, "no known engine"),
        ],
    )
    def test_garbage_is_refused(self, content: bytes, said: str, cli: Cli, tmp_path: Path) -> None:
        path = tmp_path / "garbage"
        path.write_bytes(content)

        result = cli("lint", path)

        assert result.code == 2
        assert said in result.stderr

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

    def test_findings_stand_in_the_order_of_the_command(self, cli: Cli) -> None:
        lines = cli("lint", "--", *OLD).stderr

        below = lines.partition("Checked for")[2]
        places = [
            below.index(flag) for flag in ("--speculative-model ", "--num-speculative-tokens ", "--use-v2")
        ]
        assert places == sorted(places)
        assert "vLLM 0.32.0 rejects or ignores 4 settings; use the translation." in lines
        assert "-> --speculative-config" in lines

    def test_what_is_fine_is_one_line(self, cli: Cli) -> None:
        lines = cli("lint", "--", "vllm", "serve", "m", "--port", "1", "--dtype", "auto").stderr.splitlines()

        assert " ✓ fine: --port, --dtype" in lines
        assert "vLLM 0.32.0 accepts it unchanged." in lines

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
