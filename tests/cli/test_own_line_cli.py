"""decide, tune, measure, verify and plan on a line of the user's own: after --, from a file, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_folders import write_folder
from running import Cli

NGRAM = '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":3,"prompt_lookup_min":2}'
LINE = (
    *("vllm", "serve", "org/m", "--tensor-parallel-size", "2", "--gpu-memory-utilization", "0.8"),
    *("--host", "0.0.0.0", "--port", "9000", "--api-key", "sk-very-secret", "--speculative-config", NGRAM),
)
KEPT = ("--tensor-parallel-size 2", "--gpu-memory-utilization 0.8")


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without settings, and a PATH without engines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def dry(cli: Cli, verb: str, *flags: str, line: tuple[str, ...] = LINE) -> dict[str, list[str]]:
    result = cli(verb, "--dry-run", "--json", *flags, "--", *line)
    assert result.code == 0, result.stderr
    assert result.document["schema"] == 1
    commands: dict[str, list[str]] = result.document["commands"]
    return commands


class TestDryRun:
    @pytest.mark.slow
    @pytest.mark.parametrize("verb", ["decide", "tune", "measure", "verify"])
    def test_baseline_and_yours_differ_by_speculation_alone(self, verb: str, cli: Cli) -> None:
        commands = dry(cli, verb)
        baseline, yours = commands["baseline"], commands["yours"]
        assert "--speculative-config" not in baseline
        assert yours[yours.index("--speculative-config") + 1] == NGRAM
        assert yours[: len(baseline)] == baseline
        for flag in KEPT:
            assert flag in " ".join(baseline)
        assert "9000" not in baseline
        assert "sk-very-secret" not in " ".join(yours)

    @pytest.mark.slow
    def test_the_search_has_its_own_arms_beside_yours(self, cli: Cli) -> None:
        assert {"baseline", "yours", "ngram-n2-3-k2"} <= set(dry(cli, "decide"))
        assert set(dry(cli, "measure")) == {"baseline", "yours", "control"}

    def test_an_engine_that_is_not_here_is_said(self, cli: Cli) -> None:
        result = cli("decide", "--dry-run", "--", *LINE)
        assert "not on this machine" in result.stderr
        assert "its speculation (arm yours): ngram" in result.stderr


class TestPrecedence:
    def test_flags_then_the_line_then_the_file(self, cli: Cli, nowhere: Path) -> None:
        (nowhere / "speclift.toml").write_text('model = "of/the-file"\ntp = 8\ncontext = 512\n')
        baseline = dry(cli, "measure", "--context", "4096")["baseline"]
        assert baseline[:3] == ["vllm", "serve", "org/m"]
        assert "--tensor-parallel-size 2" in " ".join(baseline)
        assert "--max-model-len 4096" in " ".join(baseline)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("ls", "-la"), 2, "starts no known engine"),
        (("",), 2, "starts no known engine"),
        (("vllm", "serve"), 4, "names no model"),
        (("vllm", "serve", "m", "--bogus"), 4, "--bogus"),
        (("vllm", "serve", "m", "--speculative-config", "{"), 4, "not JSON"),
        (("python", "-m", "sglang.launch_server", "--model-path", "m"), 4, "--engine attach"),
        (("trtllm-serve", "m"), 4, "TensorRT-LLM"),
        (("ollama", "serve"), 4, "Ollama"),
        (("vllm serve a; vllm serve b",), 2, "2 servers"),
        (("vllm serve 'unclosed",), 2, ""),
    ],
)
@pytest.mark.parametrize("verb", ["decide", "plan"])
def test_what_cannot_be_read_or_run_is_refused(
    verb: str, words: tuple[str, ...], code: int, said: str, cli: Cli
) -> None:
    result = cli(verb, "--", *words)
    assert result.code == code
    assert said in " ".join(result.stderr.split())
    assert result.stdout == ""


@pytest.mark.parametrize("engine", ["llamacpp", "attach", "fake"])
def test_an_engine_that_is_not_the_lines_is_refused(engine: str, cli: Cli) -> None:
    result = cli("measure", "--dry-run", "--engine", engine, "--", *LINE)
    assert result.code == 2
    assert "the line starts vLLM" in result.stderr


class TestWrappers:
    @pytest.mark.parametrize(
        "words", [("ssh", "host"), ("kubectl", "exec", "pod", "--"), ("docker", "exec", "c")]
    )
    def test_a_server_elsewhere_is_not_launched_here(self, words: tuple[str, ...], cli: Cli) -> None:
        result = cli("decide", "--", *words, "vllm", "serve", "org/m")
        assert result.code == 1
        assert "starts its server elsewhere" in " ".join(result.stderr.split())

    def test_what_does_not_is_left_out_and_said(self, cli: Cli) -> None:
        result = cli("measure", "--dry-run", "--json", "--", "nohup", "vllm", "serve", "org/m")
        assert result.document["commands"]["baseline"][0] == "vllm"
        assert "left out where speclift launches it: nohup" in result.stderr

    def test_docker_gets_an_address_of_ours_and_secrets_by_name(self, cli: Cli) -> None:
        line = (
            *("sudo", "docker", "run", "-d", "--name", "llm", "--gpus", "all", "-p", "80:8000"),
            *("-e", "HF_TOKEN=hf_secret", "vllm/vllm-openai:v0.32.0", "--model", "org/m", "--port", "8000"),
        )
        assert dry(cli, "measure", line=line)["baseline"][:12] == [
            *("sudo", "docker", "run", "--rm", "-p", "127.0.0.1:0:8000", "--gpus", "all", "-e", "HF_TOKEN"),
            *("vllm/vllm-openai:v0.32.0", "--model"),
        ]


class TestFiles:
    @pytest.mark.parametrize(
        ("content", "code"),
        [(b"", 2), (b"\x00\x01\xff", 2), (b"x" * 1_100_000, 2), (b"\xff\xfe", 2), (b"vllm serve org/m\n", 0)],
    )
    def test_whatever_is_in_it(self, content: bytes, code: int, cli: Cli, nowhere: Path) -> None:
        (nowhere / "line").write_bytes(content)
        assert cli("measure", "--dry-run", "--from", "line").code == code

    def test_two_lines_are_one_too_many(self, cli: Cli, nowhere: Path) -> None:
        (nowhere / "line").write_text("vllm serve org/m\n")
        result = cli("decide", "--from", "line", "--", "vllm", "serve", "m")
        assert result.code == 2
        assert "give one of them" in result.stderr


def test_an_engine_that_is_not_installed_is_an_operating_error(cli: Cli) -> None:
    result = cli("decide", "--", *LINE)
    assert result.code == 1
    assert "--vllm-python" in result.stderr


def test_a_container_without_docker_is_an_operating_error(cli: Cli) -> None:
    line = ("docker", "run", "vllm/vllm-openai:v0.32.0", "--model", "org/m", "--speculative-config", NGRAM)
    assert "docker" in cli("decide", "--", *line).stderr
    assert cli("decide", "--", *line).code == 1
    commands = dry(cli, "measure", line=line)
    assert commands["baseline"][:2] == ["docker", "run"]


class TestReleases:
    """A line is judged by the engine that will run it, and one that it takes is kept word for word."""

    LINE = ("--swap-space", "4", "-tp", "2")

    def test_of_an_image(self, cli: Cli) -> None:
        line = ("docker", "run", "vllm/vllm-openai:v0.11.0", "--model", "org/m", *self.LINE)
        baseline = dry(cli, "measure", line=line)["baseline"]
        assert "vllm/vllm-openai:v0.11.0" in baseline
        assert "--swap-space 4 -tp 2" in " ".join(baseline)
        newest = tuple(word.replace("v0.11.0", "v0.32.0") for word in line)
        assert "--swap-space" not in dry(cli, "measure", line=newest)["baseline"]

    def test_of_what_is_installed(self, cli: Cli, nowhere: Path) -> None:
        python = nowhere / "python"
        python.write_text("#!/bin/sh\necho vllm 0.11.0\n")
        python.chmod(0o755)
        write_folder(nowhere / "model")
        line = ("vllm", "serve", "./model", *self.LINE)
        kept = dry(cli, "measure", "--vllm-python", str(python), line=line)["baseline"]
        assert kept[0] == str(python)
        assert "--swap-space 4 -tp 2" in " ".join(kept)


class TestPlan:
    def test_takes_the_deployment_from_the_line(self, cli: Cli) -> None:
        line = (
            *("vllm", "serve", "meta-llama/Llama-3.1-70B-Instruct", "-tp", "2", "--quantization", "fp8"),
            *("--max-model-len", "8192", "--gpu-memory-utilization", "0.95", "--speculative-config"),
            '{"method":"draft_model","model":"meta-llama/Llama-3.2-1B-Instruct","num_speculative_tokens":5}',
        )
        by_line = cli("plan", "--json", "--gpu", "h100", "--", *line).document
        by_flags = cli(
            *("plan", "--json", "--gpu", "h100", "--gpus", "2", "--tp", "2", "--engine", "vllm"),
            *("--target", "meta-llama/Llama-3.1-70B-Instruct", "--target-quant", "fp8"),
            *("--draft", "meta-llama/Llama-3.2-1B-Instruct", "--k", "5", "--context", "8192"),
            *("--utilisation", "0.95"),
        ).document
        assert by_line == by_flags
