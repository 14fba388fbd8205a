"""The whole gate on the fake engine and on servers already running: what changed is caught, what did not passes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import speclift as api
from corrupting_proxy import proxy
from running import FAST, Cli, fake_flags
from speclift.bench import gate_study
from speclift.bench.soak_gate import SOAK_MIN_S

SIZE = ("--requests", 8, "--max-tokens", 32, "--detect", 0.05)


@contextmanager
def fake_server(*truths: str) -> Iterator[str]:
    flags = [word for truth in (*FAST, *truths) for word in ("--truth", truth)]
    command = [sys.executable, "-m", "speclift.testing.fake_server", "--exit-on-eof", *flags]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        yield json.loads(server.stdout.readline())["url"]
        server.stdin.close()


@pytest.fixture(scope="module")
def fake_url() -> Iterator[str]:
    with fake_server() as url:
        yield url


@pytest.fixture(scope="module")
def speculating_url() -> Iterator[str]:
    with fake_server("k=4") as url:
        yield url


def require_schema(document: dict[str, Any]) -> None:
    path = Path(__file__).parents[2] / "docs" / "schema" / "verify.schema.json"
    jsonschema.validate(document, json.loads(path.read_text()))


@pytest.mark.slow
def test_an_arm_that_says_the_same_passes_with_every_way_of_asking_compared(cli: Cli) -> None:
    result = cli("verify", *fake_flags(), *SIZE, "--temperature", 0, "--json")
    assert result.code == 0, result.stderr
    document = result.document
    require_schema(document)
    assert document["result"] == "pass"
    names = [check["name"] for check in document["greedy"]["checks"] if check["answers"]]
    assert names == ["alone", "not streamed", "second turn", "batched"]
    assert document["sampled"]["result"] == "skipped"
    assert document["control"]["batched"]["divergences"] == 0
    assert {edge["result"] for edge in document["arms"][0]["edges"]} == {"pass"}


@pytest.mark.slow
def test_wrong_tokens_are_a_changed_output_shown_side_by_side(cli: Cli) -> None:
    result = cli("verify", *fake_flags("spec.wrong_token_share=0.01"), *SIZE, "--temperature", 0, "--json")
    assert result.code == 6, result.stderr
    document = result.document
    require_schema(document)
    assert document["greedy"]["result"] == "fail"
    assert document["greedy"]["faults"] > 0
    example = document["examples"][0]
    assert example["baseline"] != example["answer"]
    assert example["prompt"]
    assert "Do not use ngram" in result.stderr
    assert document["answer"]["sentence"].startswith("Do not use ngram")
    assert "Side by side" in result.stderr


@pytest.mark.slow
def test_without_log_probabilities_the_rate_tells(cli: Cli) -> None:
    plain = fake_flags("flavour=plain", "spec.wrong_token_share=0.02")
    result = cli("verify", *plain, "--requests", 16, "--max-tokens", 48, "--temperature", 0, "--json")
    assert result.code == 6, result.stderr
    assert result.document["greedy"]["unknown_margin"] > 0


@pytest.mark.slow
def test_sampled_text_that_nobody_can_score_is_inconclusive(cli: Cli) -> None:
    result = cli("verify", *fake_flags(), *SIZE, "--temperature", 1, "--json")
    assert result.code == 5, result.stderr
    require_schema(result.document)
    sampled = result.document["sampled"]
    assert sampled["method"] == "texts"
    assert "no log-probabilities" in sampled["message"]
    assert "to detect a deviation of 0.05" in result.stderr


def test_a_lossy_method_fails_without_a_launch(cli: Cli) -> None:
    result = cli("verify", *fake_flags(), "--method", "synthetic:ngram,rates=0.8/0.6,k=2", "--json")
    assert result.code == 6, result.stderr
    assert result.document["findings"][0]["check"] == "lossy-method"
    assert "references" not in result.stderr


@pytest.mark.slow
def test_too_few_tokens_are_inconclusive(cli: Cli) -> None:
    result = cli("verify", *fake_flags(), "--requests", 1, "--max-tokens", 4, "--temperature", 0)
    assert result.code == 5
    assert "needed to exclude" in result.stdout


@pytest.mark.slow
def test_an_arm_that_does_not_start_is_an_operating_error(cli: Cli) -> None:
    result = cli("verify", *fake_flags("spec.crash_on_start=1"), *SIZE, "--temperature", 0)
    assert result.code == 1
    assert "before it was ready" in result.stderr


@pytest.mark.slow
def test_what_means_nothing_to_it_is_said_and_the_document_is_kept_where_asked(
    cli: Cli, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    asked = ("--temperature", 0, "--launches", 2, "--slo", "ttft_p99=1s", "--study", kept, "--json")
    result = cli("verify", *fake_flags(), *SIZE, *asked)
    assert "--launches, --slo have no effect" in result.stderr
    assert json.loads((kept / "verify.json").read_text()) == json.loads(result.stdout)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--detect", "0"), "--detect is a probability in 0.001..0.5, saw 0"),
        (("--qps", "3"), "--qps cannot be used"),
        (("--resume",), "verify cannot be resumed"),
        (("--engine", "attach", "--baseline-url", "http://127.0.0.1:1"), "verify needs --spec-url"),
    ],
)
def test_wrong_usage_says_so(arguments: tuple[str, ...], said: str, cli: Cli) -> None:
    result = cli("verify", *arguments)
    assert result.code == 2
    assert said in result.stderr


class TestSampledText:
    """The fake's token mode: a language of known probabilities, drafts verified by a reference sampler."""

    FLAGS = ("--temperature", 1, "--requests", 8, "--max-tokens", 64, "--detect", 0.1, "--json")

    @pytest.mark.slow
    @pytest.mark.parametrize("sampler", ["rejection", pytest.param("block", marks=pytest.mark.slow)])
    def test_a_sampler_that_keeps_the_law_passes_by_calibration(self, sampler: str, cli: Cli) -> None:
        result = cli("verify", *fake_flags("flavour=vllm", f"sampler={sampler}"), *self.FLAGS)
        assert result.code == 0, result.stderr
        sampled = result.document["sampled"]
        assert sampled["method"] == "calibration"
        assert sampled["detectable"] <= 0.1
        assert {test["name"] for test in sampled["tests"]} >= {"top-1", "top-3", "top-8", "likelihood"}

    @pytest.mark.slow
    def test_a_sampler_that_lost_it_is_a_changed_output(self, cli: Cli) -> None:
        truths = fake_flags("flavour=vllm", "sampler=rejection", "spec.sampler=without-residual")
        result = cli("verify", *truths, *self.FLAGS, "--detect", 0.03)
        assert result.code == 6, result.stderr
        assert result.document["sampled"]["result"] == "fail"

    @pytest.mark.slow
    def test_a_lower_temperature_is_scored_within_bounds(self, cli: Cli) -> None:
        truths = fake_flags("flavour=vllm", "sampler=rejection")
        result = cli("verify", *truths, *self.FLAGS, "--temperature", 0.7)
        assert result.code == 0, result.stderr


class TestServersAlreadyRunning:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("tamper", "code"), [("corrupt", 6), ("swap", 6), ("truncate", 6), ("nothing", 0)]
    )
    def test_a_proxy_that_tampers_is_caught(
        self, tamper: str, code: int, fake_url: str, speculating_url: str, cli: Cli
    ) -> None:
        with proxy(speculating_url, tamper) as url:
            urls = ("--engine", "attach", "--baseline-url", fake_url, "--spec-url", url)
            result = cli("verify", *urls, "--requests", 12, "--max-tokens", 48, "--temperature", 0, "--json")
        assert result.code == code, result.stderr
        assert result.document["result"] == ("fail" if code else "pass")


class TestDecide:
    SIZE = ("--segment", "verbatim-rewrite", "--requests", 8, "--max-tokens", 32, "--launches", 2)

    @pytest.mark.slow
    def test_the_studys_own_answers_prove_it_unchanged(self, cli: Cli) -> None:
        result = cli("decide", *self.SIZE, *fake_flags(), "--json", "--study", "s")
        lossless = result.document["lossless"]
        assert lossless["result"] == "pass"
        assert lossless["depth"] == "records"
        assert lossless["wall_s"] < 5

    @pytest.mark.slow
    @pytest.mark.parametrize("flags", [("--verify", "off"), ("--no-verify",)])
    def test_leaving_it_out_is_recorded_in_the_verdict(self, flags: tuple[str, ...], cli: Cli) -> None:
        wrong = fake_flags("spec.wrong_token_share=0.01")
        result = cli("decide", *self.SIZE, "--launches", 1, *wrong, *flags, "--json", "--study", "s")
        assert result.document["lossless"]["result"] == "skipped"
        (reason,) = [reason for reason in result.document["reasons"] if reason["rule"] == "lossless"]
        assert reason["level"] == "warn"
        assert "--verify off" in reason["message"]

    @pytest.mark.slow
    def test_a_full_gate_that_cannot_prove_it_leaves_the_verdict_open(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gate_study, "SOAK_S", SOAK_MIN_S)
        size = ("--segment", "chat", "--requests", 4, "--max-tokens", 24, "--launches", 1)
        result = cli("decide", *size, *fake_flags(), "--verify", "full", "--json", "--study", "s")
        assert result.code == 5, result.stderr
        assert result.document["lossless"]["result"] == "inconclusive"

    @pytest.mark.slow
    def test_one_bad_arm_leaves_the_others_in_the_running(self, cli: Cli) -> None:
        methods = ("--method", "ngram,k=4", "--method", "ngram,k=3")
        wrong = fake_flags("ngram-k3.wrong_token_share=0.03")
        result = cli("decide", *self.SIZE, *methods, *wrong, "--json", "--study", "s")
        document = result.document
        assert document["verdict"] != "output-changed"
        assert "output-changed" in {finding["check"] for finding in document["findings"]}
        assert document["winner"] is None or document["winner"]["arm"] == "ngram-k4"


class TestThePythonApi:
    def test_the_verbs_stay_callable_after_their_packages_were_imported(self) -> None:
        assert callable(api.verify)
        assert callable(api.decide)
