"""What old commands become, and what is said about the parts that have no equivalent."""

from __future__ import annotations

import ast
import json
import shlex
from typing import Any

import pytest
import yaml

from pasted_commands import DRAFT, LLAMA, TARGET, VLLM
from speclift.linter.row_rules import Translation
from speclift.verbs.lint import lint


def translated(text: str) -> Translation:
    found = lint(text).translated
    assert found is not None
    return found


def config_of(translation: Translation) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(translation.argv[translation.argv.index("--speculative-config") + 1])
    return found


CONFIGS: dict[str, dict[str, Any]] = {
    "server with a draft model": {"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 5},
    "typical acceptance": {"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 5},
    "off above a batch size": {
        "method": "draft_model",
        "model": DRAFT,
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": [[1, 8, 5], [9, 4096, 0]],
    },
    "n-gram": {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 1,  # V0's default for a lower end not given
    },
    "no k": {"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 5},
    "Python dict": {"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 5},
    "dotted": {"method": "ngram", "num_speculative_tokens": 3},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_an_article_becomes_todays_config(name: str) -> None:
    assert config_of(translated(VLLM[name])) == CONFIGS[name]


@pytest.mark.parametrize("name", VLLM)
def test_a_translation_is_fine_today(name: str) -> None:
    found = translated(VLLM[name])

    for again in (lint(found.argv), lint(found.python), lint(found.yaml)):
        assert again.ok, [finding for finding in again.findings if finding.is_error]


@pytest.mark.parametrize("name", VLLM)
def test_all_forms_say_the_same(name: str) -> None:
    found = translated(VLLM[name])
    call = next(node for node in ast.walk(ast.parse(found.python)) if isinstance(node, ast.Call))
    keywords = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    document = yaml.safe_load(found.yaml)  # as vLLM does

    assert isinstance(document, dict)
    assert keywords["speculative_config"] == document["speculative-config"] == config_of(found)
    assert keywords["model"] == document["model"] == TARGET
    assert TARGET in found.argv


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("server with a draft model", "a draft on 1 of 2 GPUs has no equivalent"),
        ("typical acceptance", "typical acceptance has no equivalent"),
        ("off above a batch size", "disable_by_batch_size 8 became"),
        ("quantised draft", "a bitsandbytes draft has no equivalent; closest"),
        ("no k", "k was not given"),
        ("container", "pinned to v0.6.3"),
    ],
)
def test_what_is_lost_is_said_with_what_comes_closest(name: str, said: str) -> None:
    assert any(said in note for note in translated(VLLM[name]).notes)


def test_a_container_gets_the_image_of_its_translation_and_loses_dead_variables() -> None:
    argv = translated(VLLM["container"]).argv

    assert argv[:2] == ("docker", "run")
    assert "vllm/vllm-openai:v0.32.0" in argv
    assert "VLLM_USE_V1=0" not in argv
    assert argv[argv.index("--model") + 1] == TARGET


def test_a_switch_that_was_given_a_value_becomes_its_no_form() -> None:
    found = translated(VLLM["dotted"])

    assert "--no-enable-chunked-prefill" in found.argv
    assert "no-enable-chunked-prefill: true" in found.yaml


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--task embed", ("--runner", "pooling")),
        ("--guided-decoding-backend xgrammar", ("--structured-outputs-config.backend", "xgrammar")),
        ("--worker-use-ray", ("--distributed-executor-backend", "ray")),
        ("""--rope-scaling '{"type": "linear"}'""", ("--hf-overrides", '{"rope_scaling":{"type":"linear"}}')),
        ("--swap-space 4", ()),
        ("--use-v2-block-manager", ()),
    ],
)
def test_other_flags_that_changed_are_carried_over(old: str, new: tuple[str, ...]) -> None:
    assert translated(f"vllm serve m {old}").argv == ("vllm", "serve", "m", *new)


@pytest.mark.parametrize(
    ("config", "today"),
    [
        ({"method": "deepseek_mtp", "num_speculative_tokens": 1}, {"method": "mtp", "num_speculative_tokens": 1}),
        (
            {"model": "d", "num_speculative_tokens": 2, "rejection_sample_method": "probabilistic"},
            {"method": "draft_model", "model": "d", "num_speculative_tokens": 2,
             "draft_sample_method": "probabilistic"},
        ),
        (
            {"model": "d", "num_speculative_tokens": 2, "rejection_sample_method": "synthetic",
             "synthetic_acceptance_rate": 0.8},
            {"method": "draft_model", "model": "d", "num_speculative_tokens": 2,
             "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.8, 0.64]},
        ),
        (
            {"model": "d", "num_speculative_tokens": 2, "speculative_token_tree": "[(0,)]", "bogus": 1,
             "prompt_lookup_max": 3},
            {"method": "draft_model", "model": "d", "num_speculative_tokens": 2},
        ),
        (
            {"method": "eagle3", "model": "h", "num_speculative_tokens": 2, "draft_tensor_parallel_size": 1},
            {"method": "eagle3", "model": "h", "num_speculative_tokens": 2, "draft_tensor_parallel_size": 1},
        ),
    ],
)  # fmt: skip
def test_keys_of_any_age_become_todays(config: dict[str, Any], today: dict[str, Any]) -> None:
    found = translated(f"vllm serve m -tp 2 --speculative-config {shlex.quote(json.dumps(config))}")

    assert config_of(found) == today


@pytest.mark.parametrize("name", LLAMA)
def test_a_llama_cpp_translation_is_fine_today(name: str) -> None:
    again = lint(translated(LLAMA[name]).argv)

    assert again.ok, [finding for finding in again.findings if finding.is_error]


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("server with a draft model",
         "llama-server -m target.gguf --spec-draft-model draft.gguf --spec-type draft-simple"),
        ("GPU and CPU",
         "./llama-server -m target.gguf --spec-draft-model draft.gguf -ngl 99 --spec-draft-ngl 0 --spec-draft-n-max 8"
         " -c 4096 --flash-attn on --load-mode none --spec-type draft-simple"),
        ("example program",
         "llama-server -m target.gguf --spec-draft-model draft.gguf --spec-draft-n-max 8 --spec-type draft-simple"),
        ("n-gram of January",
         "llama-server -m target.gguf --spec-ngram-simple-size-n 6 --spec-ngram-simple-size-m 8"
         " --spec-type ngram-simple"),
    ],
)  # fmt: skip
def test_a_tutorial_becomes_todays_server(name: str, argv: str) -> None:
    assert list(translated(LLAMA[name]).argv) == argv.split()


def test_exported_variables_are_judged_with_the_command_after_them() -> None:
    report = lint("export VLLM_USE_V1=0 HF_HOME=/cache\nvllm serve m")

    assert [found.flag for found in report.findings if found.is_error] == ["VLLM_USE_V1"]
    assert report.translated is not None
    assert report.translated.command == "HF_HOME=/cache vllm serve m"


def test_a_type_from_the_environment_without_its_draft_model_is_said_of_the_variable() -> None:
    report = lint("LLAMA_ARG_SPEC_TYPE=draft-simple llama-server -m t.gguf")

    assert [
        (found.flag, found.is_error) for found in report.findings if "no draft model" in found.message
    ] == [("LLAMA_ARG_SPEC_TYPE", True)]


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        ("--quantization awq -tp 4", ["--quantization", "awq", "--tensor-parallel-size", "4"]),
        ("-q ptpc_fp8 -pp 2", ["--quantization", "fp8_per_channel", "--pipeline-parallel-size", "2"]),
        ("--quantization rtn", ["--quantization", "int8_per_channel_weight_only"]),
        ("--kv-cache-dtype fp8 --cpu-offload-gb 8.5", ["--kv-cache-dtype", "fp8", "--cpu-offload-gb", "8.5"]),
        ("--max-num-seqs 8 --enforce-eager", ["--max-num-seqs", "8", "--enforce-eager"]),
    ],
)
def test_what_changes_what_fits_is_never_lost(flags: str, kept: list[str]) -> None:
    old = "--speculative-model d --num-speculative-tokens 3"
    assert [word for word in translated(f"vllm serve m {old} {flags}").argv if word in kept] == kept


def test_an_id_that_is_not_in_the_catalogue_is_said_to_be_unknown() -> None:
    known = lint("vllm serve meta-llama/Llama-3.1-8B-Instruct")
    unknown = lint("vllm serve meta-llama/Llama-9.9-8B")

    assert (known.notes, known.ok, unknown.ok) == ((), True, True)
    assert "meta-llama/Llama-9.9-8B is not in the catalogue" in unknown.notes[0]
