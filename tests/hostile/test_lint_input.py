"""What lint cannot read is an error and is said; what it can takes time in proportion; nothing reaches a screen raw."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from running import Cli, command
from speclift.core.errors import UsageError
from speclift.linter.report import LintReport
from speclift.linter.rows import Status
from speclift.linter.shell import read_shell
from speclift.verbs.lint import lint

OLD = "--speculative-model d --num-speculative-tokens 5"
NEW = '--speculative-config \'{"method":"draft_model","model":"d","num_speculative_tokens":5}\''


def statuses(report: LintReport) -> dict[str, Status]:
    return {found.flag: found.status for found in report.findings}


def translated(text: str) -> str:
    found = lint(text).translated
    assert found is not None
    return found.command


class TestWhatAShellFillsIn:
    @pytest.mark.parametrize(
        ("text", "today"),
        [
            pytest.param(f"vllm serve $(cat f) {OLD}", f"vllm serve $(cat f) {NEW}", id="a command's output"),
            pytest.param(f'vllm serve "$(cat f)" {OLD}', f'vllm serve "$(cat f)" {NEW}', id="quoted"),
            pytest.param(f"vllm serve `cat f` {OLD}", f"vllm serve `cat f` {NEW}", id="backticks"),
            pytest.param(f"vllm serve ${{M:-a/b}} {OLD}", f"vllm serve ${{M:-a/b}} {NEW}", id="a default"),
            pytest.param(
                f"vllm serve m --port $((8000 + 1)) {OLD}",
                f"vllm serve m --port $((8000 + 1)) {NEW}",
                id="arithmetic",
            ),
            pytest.param(
                f"vllm serve m --port=$((8000 + (1))) {OLD}",
                f'vllm serve m --port "$((8000 + (1)))" {NEW}',
                id="after an equals sign",
            ),
            pytest.param(
                f"vllm serve m --chat-template <(cat ')' f) {OLD}",
                f"vllm serve m --chat-template <(cat ')' f) {NEW}",
                id="process substitution",
            ),
            pytest.param(
                f"vllm serve $(echo \"$(cat 'a)b')\" \\)) {OLD}",
                f"vllm serve $(echo \"$(cat 'a)b')\" \\)) {NEW}",
                id="nested, with brackets in quotes",
            ),
            pytest.param(f"vllm serve $'a\\'b' {OLD}", f"vllm serve $'a\\'b' {NEW}", id="escapes in quotes"),
        ],
    )  # fmt: skip
    def test_is_carried_over_and_the_flags_behind_it_are_read(self, text: str, today: str) -> None:
        report = lint(text)
        assert translated(text) == today
        assert statuses(report)["--speculative-model"] is Status.REMOVED
        assert any("filled in by the shell" in note for note in report.notes)
        assert not report.ok

    def test_inside_json_stays_live(self) -> None:
        text = 'D=`f`\nvllm serve m --speculative-config "{\\"model\\": \\"$D\\", \\"num_speculative_tokens\\": 3}"'
        config = r"{\"method\":\"draft_model\",\"model\":\"$D\",\"num_speculative_tokens\":3}"
        assert translated(text) == f'export D="`f`"; vllm serve m --speculative-config "{config}"'

    def test_stands_for_a_number_inside_json_too(self) -> None:
        text = "K=3\nvllm serve m --speculative-model d --num-speculative-tokens $K --tensor-parallel-size 1"
        assert '\\"num_speculative_tokens\\":$K}' in translated(text)
        assert Status.CONFLICT not in statuses(lint(text)).values()

    def test_is_no_wrong_number_and_no_wrong_choice(self) -> None:
        found = statuses(lint("vllm serve m --port ${PORT:-1} --dtype ${DTYPE:-auto} --max-model-len `x`"))
        assert set(found.values()) == {Status.OK}

    @pytest.mark.parametrize(
        ("text", "unread"),
        [
            pytest.param("vllm serve m $EXTRA", "$EXTRA", id="flags in a variable"),
            pytest.param('vllm serve m "${ARGS[@]}"', "${ARGS[@]}", id="flags in an array"),
            pytest.param("vllm serve m $(cat flags)", "$(cat flags)", id="flags in a file"),
            pytest.param('f() { vllm serve m "$@"; }; f --x', "$@", id="a function's own words"),
            pytest.param("vllm serve m --$NAME 3", "--$NAME", id="a flag's name"),
            pytest.param("vllm serve m --speculative-config $C", "--speculative-config", id="the config"),
            pytest.param("cat models | xargs vllm serve", "xargs", id="words from a pipe"),
            pytest.param("llama-server -m m.gguf $EXTRA", "$EXTRA", id="llama.cpp"),
        ],
    )
    def test_is_unread_where_flags_may_be_in_it(self, text: str, unread: str) -> None:
        report = lint(text)
        assert statuses(report)[unread] is Status.UNREAD
        assert not report.ok

    @pytest.mark.parametrize(
        "source", ["$EXTRA", '"${ARGS[@]}"', "--port $PORT", "--port $((8000 + i))", "$1"]
    )
    def test_that_nothing_sets_is_named_and_no_command_is_written(self, source: str) -> None:
        report = lint(f"vllm serve m {source}")
        unset = [found for found in report.findings if "nothing in this text sets it" in found.message]
        assert ([found.status for found in unset], report.translated) == ([Status.UNREAD], None)
        assert unset[0].flag.strip("$") in source

    def test_that_is_set_too_late_or_from_what_nothing_sets_is_not_set(self) -> None:
        assert lint("vllm serve $M\nM=x").translated is None
        assert lint("A=$1\nM=$A\nvllm serve $M").translated is None
        assert translated("A=x\nM=$A\nvllm serve $M") == 'export A=x; export M="$A"; vllm serve $M'

    def test_arrays_and_their_names_are_not_taken_for_the_environment(self) -> None:
        assert lint('ARGS=(--port 1\n  --dtype auto)\nvllm serve m "${ARGS[@]}"').translated is None

    @pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
    def test_set_before_the_command_is_set_before_its_translation(self) -> None:
        found = translated("MODEL=$(echo org/m)\nPORT=1\nvllm serve $MODEL --port 2")
        said = subprocess.run(
            ["bash", "-c", f'vllm() {{ echo "$@" $PORT; }}; {found}'],
            capture_output=True,
            text=True,
            check=True,
        )
        assert said.stdout.split() == ["serve", "org/m", "--port", "2", "1"]


class TestScripts:
    @pytest.mark.parametrize(
        "text",
        [
            pytest.param("for k in a b; do vllm serve m --port 1; done", id="a loop"),
            pytest.param("while true; do\n  vllm serve m --port 1\ndone", id="a loop over lines"),
            pytest.param("if [ -d x ]; then vllm serve m --port 1; fi", id="a condition"),
            pytest.param("cd x && { vllm serve m --port 1 | tee log; } || exit 1", id="a group"),
            pytest.param("(cd x; vllm serve m --port 1 2>&1 >log &)", id="a subshell in the background"),
        ],
    )
    def test_give_the_command_without_the_words_around_it(self, text: str) -> None:
        assert translated(text) == "vllm serve m --port 1"

    def test_the_number_before_a_redirection_is_a_value_unless_it_touches_it(self) -> None:
        assert translated("vllm serve m --tensor-parallel-size 2 >log 2>&1").endswith(
            "--tensor-parallel-size 2"
        )
        assert "redirected" in lint("vllm serve m >log").notes[0]

    def test_a_comment_ends_a_command(self) -> None:
        assert translated("vllm serve m --port 1 # --speculative-model d") == "vllm serve m --port 1"

    def test_a_here_document_is_no_command_unless_there_is_no_other(self) -> None:
        other = "cat <<EOF\nvllm serve decoy --bogus\nEOF\nvllm serve m"
        assert translated(other) == "vllm serve m"
        written = "cat > run.sh <<-'EOF'\n\t#!/bin/sh\n\tvllm serve m --bogus\n\tEOF\nchmod +x run.sh"
        assert statuses(lint(written)) == {"--bogus": Status.UNKNOWN}

    @pytest.mark.parametrize("opened", ["$(cat", "`cat", "${x", "'x", '"x $(y"', "<(x", "$((1"])
    def test_what_is_opened_and_never_closed_is_refused(self, opened: str) -> None:
        with pytest.raises(UsageError, match="never closed"):
            lint(f"vllm serve m {opened}")

    @pytest.mark.parametrize(
        "text",
        [
            "vllm serve \\$(cat f) --bogus",
            "vllm serve m (x) --bogus",
            "vllm serve m) --bogus",
            "vllm serve m $$(x)",
        ],
    )
    def test_a_bracket_where_a_shell_takes_none_is_refused(self, text: str) -> None:
        with pytest.raises(UsageError, match="unexpected"):
            lint(text)

    @pytest.mark.parametrize(
        "text",
        [
            "case $x in (a) vllm serve m;; b) exit;; esac",
            "case $x in\na) vllm serve m;;\nesac",
            "((x = 1 + (2)))\nvllm serve m",
            "for ((i = 0; i < 2; i++)); do vllm serve m; done",
            "serve() {\n  vllm serve m\n}",
            "function serve { vllm serve m; }",
            "if [[ ( -f x ) && $y == (a|b) ]]; then vllm serve m; fi",
            "((vllm serve m)) || (cd x && (vllm serve m))",
        ],
    )
    def test_a_bracket_where_a_shell_takes_one_is_no_obstacle(self, text: str) -> None:
        assert translated(text) == "vllm serve m"

    def test_several_servers_are_not_waved_through(self) -> None:
        assert not lint("vllm serve a\nvllm serve b --bogus").ok
        assert not lint("vllm serve a vllm serve b").ok

    def test_words_between_quotes_are_taken_as_a_shell_takes_them(self) -> None:
        (found,) = read_shell('a \'b c\'"d \\" \\x"e\\ f "" \'\' \\\\').commands
        assert found.words == ("a", 'b cd " \\xe f', "", "", "\\")


class TestPython:
    @pytest.mark.parametrize(
        "text",
        [
            pytest.param("LLM(model='m', **load())", id="spread into the call"),
            pytest.param("LLM(model='m', speculative_config={**base, 'model': 'd'})", id="into a dict"),
            pytest.param("LLM(model='m', speculative_config=dict(**base))", id="into dict()"),
            pytest.param("LLM(model='m', speculative_config=load())", id="the whole config"),
            pytest.param("LLM(model='m', max_model_len=k)", id="a name"),
            pytest.param("def f(m='x'):\n    LLM(model=m)", id="an argument"),
        ],
    )
    def test_what_only_running_it_would_tell_is_unread(self, text: str) -> None:
        report = lint(text)
        assert Status.UNREAD in statuses(report).values()
        assert not report.ok

    def test_a_value_that_is_python_is_no_wrong_one_and_is_said(self) -> None:
        report = lint("LLM(model='m', speculative_config={'method': 'ngram', 'num_speculative_tokens': k})")
        assert Status.CONFLICT not in statuses(report).values()
        assert report.translated is not None
        assert any("num_speculative_tokens is k" in note for note in report.translated.notes)

    def test_a_name_set_twice_is_not_known(self) -> None:
        report = lint("k = 3\nk = read()\nLLM(model='m', max_model_len=k)")
        assert report.translated is not None
        assert "max_model_len=k" in report.translated.python


class TestTheTerminal:
    @pytest.mark.parametrize(
        "text",
        [
            pytest.param("vllm serve 'a\x1b[31mb' --bog\x1b]0;us=1", id="in a word and in a flag"),
            pytest.param("vllm serve $(printf '\x1b[2J') --port \x07", id="in what is carried over"),
            pytest.param("vllm serve m --compilation-config.\x1b[31m=1", id="in a key"),
            pytest.param("model: \x1b[31m\nspeculative-config: {method: \x1b}", id="in YAML"),
            pytest.param("LLM(model='\x1b[31m', speculative_config=f('\x9b'))", id="in Python"),
            pytest.param(
                "vllm serve \u202eevil\u202c m\x85n --bogus\u2028x", id="marks that reorder and break lines"
            ),
        ],
    )
    @pytest.mark.parametrize("form", [(), ("--json",)])
    def test_never_gets_a_control_character(
        self, text: str, form: tuple[str, ...], cli: Cli, tmp_path: Path
    ) -> None:
        (tmp_path / "input").write_text(text, encoding="utf-8")
        result = cli("lint", *form, "input")
        assert result.code in (0, 2, 4)
        printed = (result.stdout + result.stderr).replace("\n", "")
        assert not [character for character in printed if not character.isprintable()]

    def test_json_has_the_words_as_they_are(self, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "input").write_text("vllm serve 'a\x1b[31mb'", encoding="utf-8")
        assert cli("lint", "--json", "input").document["translated"]["argv"][2] == "a\x1b[31mb"

    @pytest.mark.slow
    def test_many_findings_are_counted_and_not_all_shown(self, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "input").write_text("vllm serve m " + " ".join(f"--zz{n} 1" for n in range(300)))
        result = cli("lint", "input")
        assert "240 more" in result.stderr
        assert len(result.stderr.splitlines()) < 400


class TestInput:
    @pytest.mark.parametrize("name", ["nosuchfile", "no/such/file", "nosuch.yaml", "run-it", "x" * 300])
    def test_a_file_that_is_not_there_is_named(self, name: str, cli: Cli) -> None:
        result = cli("lint", name)
        assert result.code == 2
        assert "there is no file" in result.stderr
        assert name[:60] in result.stderr.replace("\n", "")

    def test_a_folder_is_no_file(self, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "folder").mkdir()
        result = cli("lint", "folder")
        assert (result.code, "is a folder" in result.stderr) == (2, True)

    def test_one_word_that_is_a_command_a_flag_or_a_metric_needs_no_file(self, cli: Cli) -> None:
        assert cli("lint", "llama-server").code == 0
        assert cli("lint", "--", "--speculative-model=d").code == 4
        assert cli("lint", "vllm:spec_decode_efficiency").code == 4

    @pytest.mark.slow
    @pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
    def test_a_pipe_is_read_like_a_file(self, tmp_path: Path) -> None:
        program = " ".join(command(["lint"]))
        result = subprocess.run(
            ["bash", "-c", f"{program} <(echo vllm serve m --bogus)"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
        assert (result.returncode, "--bogus" in result.stderr) == (4, True)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "data",
        [
            pytest.param(b"\xff\xfe\x00", id="bytes that are no text"),
            pytest.param(b"vllm serve \xff", id="a byte in the middle"),
            pytest.param(b"vllm serve m\0", id="a NUL"),
            pytest.param(b"", id="nothing"),
            pytest.param(b"\xef\xbb\xbf", id="a mark of order alone"),
            pytest.param(b"[" * 20_000, id="deep JSON"),
            pytest.param(b'{"a":' * 10_000 + b"1" + b"}" * 10_000, id="deep closed JSON"),
            pytest.param(b"model: " + b"[" * 10_000 + b"]" * 10_000, id="deep JSON in YAML"),
            pytest.param(b"model: {a: " * 5_000, id="deep maps in YAML"),
            pytest.param(b"".join(b" " * n + b"a:\n" for n in range(900)), id="deep YAML"),
            pytest.param(
                b"".join(b" " * n + b"-\n" for n in range(900)) + b" " * 900 + b"- 1", id="deep lists"
            ),
            pytest.param(b"port: " + b"9" * 5000, id="a number of 5,000 digits"),
            pytest.param(b"{port: " + b"9" * 5000 + b"}", id="such a number between braces"),
            pytest.param(b'{"port": ' + b"9" * 5000 + b"}", id="such a number in JSON"),
            pytest.param(b"vllm serve m --port " + b"9" * 5000, id="such a number on a command line"),
            pytest.param(b"vllm serve m --gpu-memory-utilization " + b"9" * 5000, id="for a share"),
            pytest.param(b"LLM(model='m', max_model_len=" + b"9" * 5000 + b")", id="such a number in Python"),
            pytest.param(b"vllm serve m --speculative-config '" + b"[" * 50_000 + b"'", id="a deep config"),
            pytest.param(b"vllm serve m --speculative-config.a '" + b"[" * 50_000 + b"'", id="a deep key"),
            pytest.param(
                b"vllm serve m --speculative-config." + b"a." * 5000 + b"b 1", id="a long path of keys"
            ),
            *(
                pytest.param(
                    start + b'{"a":' * depth + b"1" + b"}" * depth + end, id=f"{name} {depth} levels deep"
                )
                for depth in (60, 500, 900, 980)
                for name, start, end in (
                    ("JSON", b"", b""),
                    ("a config", b"vllm serve m --speculative-config '", b"'"),
                    ("a key", b"vllm serve m --speculative-config.a '", b"'"),
                    ("an override", b"vllm serve m --hf-overrides '", b"'"),
                    ("YAML", b"model: ", b""),
                )
            ),
            pytest.param(b"vllm serve m --hf-overrides '" + b"[" * 50_000 + b"'", id="a deep override"),
            pytest.param(b"LLM(model=" + b"-" * 5000 + b"1)", id="many signs in Python"),
            pytest.param(b"LLM(model=a" + b".b" * 5000 + b")", id="a long chain in Python"),
            pytest.param(b"LLM(model=" + b"1+" * 5000 + b"1)", id="a long sum in Python"),
            pytest.param(b"LLM(model='\\d')", id="an odd escape in Python"),
            pytest.param("vllm serve m --port ٣".encode(), id="digits of another script"),
            pytest.param(b'model: "\\ud800"', id="half a character"),
        ],
    )
    def test_of_any_kind_gets_a_message_and_no_traceback(self, data: bytes, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "input").write_bytes(data)
        for form in ((), ("--json",)):
            result = cli("lint", *form, "input")
            assert result.code in (0, 2, 4)
            assert "Traceback" not in result.stderr

    @pytest.mark.parametrize("version", ["9" * 5000, f"0.{'9' * 5000}", f"b{'9' * 5000}", "0.32.0" * 2000])
    @pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
    def test_a_version_of_any_length_gets_a_message(self, version: str, engine: str, cli: Cli) -> None:
        result = cli("lint", "--engine", engine, "--engine-version", version, "--", "--port", "1")
        assert result.code in (0, 2, 4)
        assert "Traceback" not in result.stderr

    @pytest.mark.slow
    def test_bytes_in_arguments_come_through(self, tmp_path: Path) -> None:
        words = [word.encode() for word in command(["lint", "--", "vllm", "serve"])]
        result = subprocess.run([*words, b"m\xff"], capture_output=True, cwd=tmp_path, check=False)
        assert (result.returncode, result.stdout) == (0, b"vllm serve $'m\\xff'\n")
