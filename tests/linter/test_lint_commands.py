"""Commands, Python, YAML and JSON, read without running anything."""

from __future__ import annotations

import shlex
import shutil
import subprocess

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from speclift.core.errors import UsageError
from speclift.linter.command import read_command
from speclift.linter.config_file import VALUES_MAX, read_config, read_yaml
from speclift.linter.pasted import Expression, Pasted
from speclift.linter.row_rules import yaml_text
from speclift.linter.rows import Status
from speclift.linter.shell import is_hidden, join_words, read_shell
from speclift.linter.sources import read_python
from speclift.verbs.lint import dialects_for, lint

DIALECTS = dialects_for(None)
VLLM = DIALECTS.of("vllm")


def command(text: str) -> Pasted:
    found = [
        pasted
        for each in read_shell(text).commands
        if (pasted := read_command(each.words, DIALECTS, expansions=each.expansions))
    ]
    (server,) = found
    assert isinstance(server, Pasted)
    return server


def values(pasted: Pasted) -> dict[str, object]:
    return {setting.name: setting.value for setting in pasted.settings}


class TestShellWords:
    def test_a_quote_that_never_closes_is_refused(self) -> None:
        with pytest.raises(UsageError, match="not a shell command"):
            read_shell("vllm serve 'x")

    @given(st.lists(st.text(alphabet=st.characters(blacklist_characters="\0", codec="utf-8")), min_size=1))
    def test_a_shell_would_get_back_exactly_these_words(self, words: list[str]) -> None:
        seen = [word for word in words if not any(map(is_hidden, word))]
        assert shlex.split(join_words(seen)) == seen

    @pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
    def test_hidden_characters_are_escapes_that_a_shell_reads_back(self) -> None:
        words = ["\x1b[31m", "it's \\ \x07", "\u202eevil", "\x7f$HOME `x`", "caf\xe9\u200b1", "\udcff"]
        source = join_words(words)
        assert not any(map(is_hidden, source))
        told = subprocess.run(["bash", "-c", f"printf '%s\\0' {source}"], capture_output=True, check=True)
        assert told.stdout.split(b"\0")[:-1] == [word.encode("utf-8", "surrogateescape") for word in words]


class TestCommands:
    @pytest.mark.parametrize(
        ("text", "engine", "program"),
        [
            ("vllm serve m", "vllm", ("vllm", "serve")),
            ("nohup vllm serve m", "vllm", ("vllm", "serve")),
            ("/opt/bin/vllm serve m", "vllm", ("vllm", "serve")),
            ("python3 -m vllm.entrypoints.openai.api_server --model m", "vllm",
             ("python3", "-m", "vllm.entrypoints.openai.api_server")),
            ("docker run --name vllm --rm vllm/vllm-openai:latest --model m", "vllm", ()),
            ("./build/bin/llama-server -m m.gguf", "llamacpp", ("./build/bin/llama-server",)),
            ("llama-server.exe -m m.gguf", "llamacpp", ("llama-server.exe",)),
            ("./server -m m.gguf", "llamacpp", ("./server",)),
            ("docker run ghcr.io/ggml-org/llama.cpp:server -m m.gguf", "llamacpp", ()),
            ("--speculative-model d --num-speculative-tokens 5", "vllm", ()),
            ("-md d.gguf --draft-max 5", "llamacpp", ()),
        ],
    )  # fmt: skip
    def test_the_engine_is_told_from_the_program(
        self, text: str, engine: str, program: tuple[str, ...]
    ) -> None:
        found = command(text)

        assert (found.engine, found.program) == (engine, program)

    def test_environment_wrapper_model_and_flags_are_told_apart(self) -> None:
        found = command("A=1 B='x y' sudo vllm serve org/m -tp 2 --max-model-len=1024 --enforce-eager")

        assert found.environment == (("A", "1"), ("B", "x y"))
        assert found.wrapper == ("sudo",)
        assert found.model == "org/m"
        assert values(found) == {
            "--tensor-parallel-size": "2",
            "--max-model-len": "1024",
            "--enforce-eager": None,
        }

    @pytest.mark.parametrize(
        ("flags", "name", "value"),
        [
            ("--tensor_parallel_size 2", "--tensor-parallel-size", "2"),
            ("--tensor-parallel 2", "--tensor-parallel-size", "2"),  # argparse completes
            ("-tp=2", "--tensor-parallel-size", "2"),
            ("--served-model-name a b", "--served-model-name", ["a", "b"]),
            ("--no-enable-prefix-caching", "--enable-prefix-caching", None),
            ("--enable-chunked-prefill False", "--enable-chunked-prefill", "False"),
            ("--speculative-config.method ngram", "--speculative-config.method", "ngram"),
            ("-sc.num_speculative_tokens=3", "--speculative-config.num_speculative_tokens", "3"),
            ("--seed -1", "--seed", "-1"),
        ],
    )
    def test_a_flag_is_read_as_vllm_reads_it(self, flags: str, name: str, value: object) -> None:
        assert values(command(f"vllm serve m {flags}")) == {name: value}

    @pytest.mark.slow
    def test_a_word_that_belongs_nowhere_is_an_error(self) -> None:
        (found,) = lint("vllm serve m stray").findings

        assert (found.flag, found.status) == ("stray", Status.UNKNOWN)

    def test_every_one_of_several_commands_is_judged(self) -> None:
        report = lint("vllm serve a\nvllm serve b --bogus")
        (other,) = report.others

        assert (report.findings, report.ok, other.ok) == ((), False, False)
        assert [(found.flag, found.status) for found in other.findings] == [("--bogus", Status.UNKNOWN)]

    @pytest.mark.parametrize("text", ["echo hello", "ls -la", "just prose", "cat file.yaml"])
    def test_what_starts_no_engine_is_refused(self, text: str) -> None:
        with pytest.raises(UsageError, match="no known engine"):
            lint(text)


class TestPython:
    def test_names_and_dicts_are_followed_and_nothing_is_run(self) -> None:
        (found,) = read_python(
            "k = 4\nspec = dict(method='ngram', num_speculative_tokens=k)\nopts = {'seed': 1}\n"
            "!pip install vllm\n"
            "llm = vllm.LLM('org/m', speculative_config=spec, dtype=pick(), **opts)\n"
            "p = SamplingParams(min_p=0.1)\nraise SystemExit(1)\n",
            VLLM,
        )

        assert found.model == "org/m"
        assert values(found) == {
            "--speculative-config": {"method": "ngram", "num_speculative_tokens": 4},
            "--dtype": Expression("pick()"),
            "--seed": 1,
        }
        assert [setting.spelled for setting in found.sampling] == ["min_p"]

    @pytest.mark.parametrize("text", ["LLM(", "LLM(x=)", "def f(:\n LLM(a=1)"])
    def test_broken_code_says_which_line(self, text: str) -> None:
        with pytest.raises(UsageError, match="line 1"):
            read_python(text, VLLM)

    def test_sampling_that_a_speculative_server_refuses_is_a_conflict(self) -> None:
        spec = "speculative_config={'method': 'ngram', 'num_speculative_tokens': 4, 'prompt_lookup_max': 3}"
        code = "LLM('m', {})\nSamplingParams(min_p={}, logit_bias={{1: 2.0}})"
        with_speculation = lint(code.format(spec, 0.1))
        without = lint(code.format("dtype='auto'", 0.1))

        assert {f.flag for f in with_speculation.findings if f.is_error} == {"min_p", "logit_bias"}
        assert without.ok

    def test_a_config_that_only_running_would_tell_is_kept_as_it_is(self) -> None:
        report = lint("LLM(model='m', speculative_config=load('spec.json'))")

        assert report.translated is not None
        assert "load('spec.json')" in report.translated.python
        (found,) = [each for each in report.findings if each.status is Status.UNREAD]
        assert (found.flag, "when the program runs" in found.message) == ("speculative_config", True)


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 10)
)


class TestYaml:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("a: 1\nb: x y\n", {"a": 1, "b": "x y"}),
            ("a: 'it''s' # c\nb: \"q\\n\"\n", {"a": "it's", "b": "q\n"}),
            ("a:\n  b: true\n  c: null\n", {"a": {"b": True, "c": None}}),
            ("a:\n  - 1\n  - x: 2\n    y: 3\n", {"a": [1, {"x": 2, "y": 3}]}),
            ("a: [1, two, 3.5]\nb: {c: d, e: 4}\n", {"a": [1, "two", 3.5], "b": {"c": "d", "e": 4}}),
            ("a: http://x:1/y#z\n", {"a": "http://x:1/y#z"}),
            ("---\na: -1\n", {"a": -1}),
            ('{"a": {"b": [1]}}', {"a": {"b": [1]}}),
            ("a: |\n  two\n  lines\nb: >-\n  one\n  line\n", {"a": "two\nlines\n", "b": "one line"}),
            ("a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}\n", {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}}),
            ("a: {<<: [{b: 1}, {b: 2, c: 3}], c: 4}\n", {"a": {"b": 1, "c": 4}}),
            ("on: off\n1: 2024-01-31\n", {"on": False, "1": "2024-01-31"}),
            ("a: 1e5\nb: 1_000\nc: 0x10\nd: '7'\n", {"a": "1e5", "b": 1000, "c": 16, "d": "7"}),
        ],
    )  # fmt: skip
    def test_reads_as_vllm_does(self, text: str, value: object) -> None:
        assert [found for _, found in read_yaml(text)] == [value]

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("b: 0\na: *x\n", 2),
            ("a: 1\n\na: 2\n", 3),
            ("b: 0\n\ta: 1\n", 2),
            ("a: 1\n   b: 2\n", 2),
            ("a: {b\n", 2),
            ("a: 'x\n", 2),
            ("a: 1\nb: !!python/object:os.system {}\n", 2),
            ("a: 1\nb: !mine x\n", 2),
            ("a: 1\n[b]: 2\n", 2),
            ("a: 1\n<<: 2\n", 2),
            ("a: 1\nb: !!int x\n", 2),
            ("a: 1\nb: !!bool x\n", 2),
            ("a: 1\nb: 0x_\n", 2),
            (f"a: 1\nb: {'9' * 2000}\n", 2),
            (f"a: 1\nb: 1{':59' * 600}\n", 2),
            ("a: 1\nb: \x1b\n", 2),
        ],
    )
    def test_what_is_not_read_is_refused_with_its_line(self, text: str, line: int) -> None:
        with pytest.raises(UsageError, match=f"line {line} of this YAML"):
            read_yaml(text)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            pytest.param(LAUGHS, f"more than {VALUES_MAX:,} values", id="a billion laughs"),
            pytest.param(MERGES, f"more than {VALUES_MAX:,} values", id="the same, merged"),
            pytest.param("a: &a [*a, *a]\n", "levels deep", id="a list that holds itself"),
            pytest.param("a: &a\n  <<: *a\n", "levels deep", id="a map merged into itself"),
            pytest.param("- " * 100 + "x", "levels deep", id="deep lists"),
            pytest.param("[" * 100 + "]" * 100, "levels deep", id="deep braces"),
            pytest.param("- x\n" * (VALUES_MAX + 1), "values", id="a long list"),
        ],
    )
    def test_what_a_small_text_may_stand_for_has_limits(self, text: str, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            read_yaml(text)

    @pytest.mark.slow
    @given(
        st.dictionaries(
            st.from_regex(r"[a-z][a-z_-]{0,8}", fullmatch=True)
            | st.sampled_from(["on", "No", "a: b", "x\x7f"]),
            st.text() | st.integers() | st.booleans() | st.lists(st.integers(), min_size=1),
            min_size=1,
        )
    )
    @example({"a": "\U0001f600 \\ud83d\\ude00 \x7f \x85 \u2028"})
    def test_what_is_written_reads_back(self, document: dict[str, object]) -> None:
        written = yaml_text({"outer": document, **document})
        assert read_yaml(written) == [(1, yaml.safe_load(written))] == [(1, {"outer": document, **document})]

    @pytest.mark.parametrize(
        "text", ["tensor-parallel-size: 1.5\n", "LLM(model='m', tensor_parallel_size=1.5)"]
    )
    def test_half_a_gpu_is_no_whole_number_wherever_it_stands(self, text: str) -> None:
        (found,) = [each for each in lint(text).findings if each.is_error]
        assert (found.status, found.message) == (Status.CONFLICT, "takes a whole number, saw '1.5'")

    @pytest.mark.slow
    @given(
        st.recursive(
            st.text() | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none(),
            lambda inner: (
                st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
            ),
            max_leaves=12,
        ),
        st.booleans(),
    )
    def test_what_pyyaml_writes_is_read_as_pyyaml_reads_it(self, value: object, is_flow: bool) -> None:
        ((_, found),) = read_yaml(yaml.safe_dump(value, default_flow_style=is_flow))
        assert found == value

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("[1, 2]", "not a map"),
            ("colour: red\n", "no engine knows a key"),
            ("services:\n  a: 1\n", "container manifest"),
            ("kind: ConfigMap\napiVersion: v1\n---\napiVersion: apps/v1\n", "container manifest"),
            ("# nothing\n---\n", "empty"),
        ],
    )
    def test_other_configs_are_refused(self, text: str, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            read_config(text, DIALECTS)


def test_keys_given_twice_are_named_in_their_order() -> None:
    flags = "--speculative-model d --num-speculative-tokens 3 --speculative-max-model-len 9"
    config = '{"max_model_len": 9, "num_speculative_tokens": 3, "model": "d"}'
    found = lint(f"vllm serve m {flags} --speculative-config '{config}'", engine_version="0.8.2").findings

    assert [each.flag for each in found if "given twice" in each.message] == flags.split()[::2]


class TestBadInput:
    @pytest.mark.parametrize("config", ["{bad", "[1]", "7", "{'a': 1}"])
    def test_a_config_that_is_no_json_object_is_a_conflict(self, config: str) -> None:
        report = lint(["vllm", "serve", "m", "--speculative-config", config])

        assert [f.status.value for f in report.findings if f.flag == "--speculative-config"] == ["conflict"]

    @pytest.mark.parametrize(("text", "engine"), [("newest", "vllm"), ("latest", "llamacpp"), ("7", "vllm")])
    def test_a_version_that_is_none_is_refused(self, text: str, engine: str) -> None:
        with pytest.raises(UsageError, match="is not a"):
            DIALECTS.of(engine).parse_release(text)
