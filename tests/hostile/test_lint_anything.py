"""Any text at all is judged or refused; and what lint writes is for bash what it read."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from speclift.core.errors import UsageError
from speclift.linter.shell import join_words, read_shell
from speclift.verbs.lint import lint

PIECES = (
    "vllm serve m",
    "llama-server -m m.gguf",
    "$(",
    "$((",
    "))",
    ")",
    "(",
    "`",
    "'",
    '"',
    "\\",
    "\n",
    " ",
    "$",
    "${",
    "}",
    "$A",
    "<(",
    "<<EOF",
    "EOF",
    ">",
    "2>&1",
    "|",
    "&&",
    ";",
    "#",
    "--speculative-model d",
    "--speculative-config",
    '\'{"model":"d"}\'',
    "- ",
    "a: b",
    "{",
    "[",
    "LLM(",
    "model='m'",
    "**x",
    "=",
    "^",
    "\x1b",
    "\udcff",
    "--",
    "--x=",
    "A=b",
    "A=(",
    "export",
    "for x in y; do",
    "case x in",
    "function f {",
    "[[ ",
    "docker run vllm/vllm-openai:v0.6",
    "xargs",
    "\r\n",
    "$'a\\'b'",
    "%",
    "0",
)

# Whatever YAML has that a config rarely needs.
YAML_PIECES = (
    "a: ", "port: ", "speculative-config: ", "? ", ": ", "- ", "\n", "\n  ", "{", "}", "[", "]", ", ", "&a ", "*a",
    "*b", "<<: ", "<<", "!!int ", "!!float ", "!!bool ", "!!set ", "!!binary ", "!x ", "!<y> ", "| ", ">-\n  ", "---\n",
    "...\n", "%YAML 1.1\n", "%TAG ! x\n", "'", '"', "\\", '"\\ud800"', "\t", "#", "0x_", "1:59", "09", "+.inf",
    ".nan", "1e5", "~", "null", "on", "2024-01-31", "=", "x", "\x85", "\ufeff", "\u2028", "\udcff", "\x1b",
    "method: ngram",
)  # fmt: skip


class TestAnything:
    @pytest.mark.slow
    @settings(max_examples=20 * settings().max_examples)
    @given(st.lists(st.sampled_from(YAML_PIECES), max_size=16))
    def test_after_a_key_of_a_config_is_judged_or_refused(self, pieces: list[str]) -> None:
        try:
            report = lint(f"port: 1\n{''.join(pieces)}", engine="vllm")
        except UsageError:
            return
        if report.translated is None:
            assert not report.ok
        else:
            assert isinstance(report.translated.yaml, str)

    @pytest.mark.slow
    @settings(max_examples=20 * settings().max_examples)
    @given(st.lists(st.sampled_from(PIECES), max_size=14), st.booleans(), st.sampled_from(["", " "]))
    def test_is_judged_or_refused(self, pieces: list[str], starts: bool, between: str) -> None:
        text = ("vllm serve m " if starts else "") + between.join(pieces)
        try:
            report = lint(text)
        except UsageError:
            return
        assert report.translated is None or isinstance(report.translated.command, str)

    @pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
    @settings(max_examples=4 * settings().max_examples)
    @example(["'", "$A", "'", " ", "$A"])
    @example(['"', "$A", '"', " ", "$A"])
    @example(["a", "\\", "$A", " ", "$A"])
    @given(
        st.lists(
            st.sampled_from(
                [
                    "a",
                    "b",
                    " ",
                    "'",
                    '"',
                    "\\",
                    "#",
                    "=",
                    "$A",
                    "${A}",
                    "$(echo x y)",
                    "$(echo ')')",
                    "`echo z`",
                    "${B:-q r}",
                    "${B:-'q }'}",
                    "$((1+2))",
                    "$(( (1+2)*2 ))",
                    "$'t\\tu'",
                    "$(echo \"$(echo 'n)m')\")",
                    '$"dq"',
                    "é",
                    "\x1b",
                ]
            ),
            max_size=9,
        )
    )
    def test_written_again_is_the_same_command_for_bash(self, pieces: list[str]) -> None:
        source = f"p {''.join(pieces)}"
        said = bash(source)
        try:
            (found,) = read_shell(source).commands
        except UsageError:
            assert said is None, "bash reads what is refused here"
            return
        assert said is not None, "bash refuses what is read here"
        assert bash(join_words(found.words, found.expansions)) == said


def bash(source: str) -> bytes | None:
    """The words that a function gets from this source; None where bash does not read it."""
    before = "set -f +B; A='v w'; p() { printf '<%s>\\0' \"$@\"; }; "
    result = subprocess.run(["bash", "-c", before + source], capture_output=True, check=False)
    return result.stdout if result.returncode == 0 and b"syntax error" not in result.stderr else None
