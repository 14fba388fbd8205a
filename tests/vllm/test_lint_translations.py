"""What lint says about vLLM 0.32, asked of vLLM 0.32: its parser, its config classes, its list of flags."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pasted_commands import DRAFT, TARGET, VLLM
from speclift.engines.vllm.dialect.command_line import DIALECT
from speclift.engines.vllm.dialect.config_rules import check_speculative_config
from speclift.engines.vllm.dialect.tables import FLAGS, NEWEST
from speclift.linter.rows import ValueKind, has_errors
from speclift.verbs.lint import lint

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("accept_commands.py")
CONTEXT = 1024
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}

# Configs with {draft} for the draft's folder; lint and vLLM must agree on each.
CONFIGS: dict[str, dict[str, Any]] = {
    "draft model": {"model": "{draft}", "num_speculative_tokens": 3},
    "draft model without k": {"model": "{draft}"},
    "draft model, k = 0": {"model": "{draft}", "num_speculative_tokens": 0},
    "method without its model": {"method": "eagle3", "num_speculative_tokens": 3},
    "n-gram": {"method": "ngram", "num_speculative_tokens": 3},
    "n-gram without k": {"method": "ngram", "prompt_lookup_max": 3},
    "n-gram window upside down": {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 4,
        "prompt_lookup_max": 2,
    },
    "n-gram window of zero": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 0},
    "mtp without k": {"method": "mtp"},
    "no such method": {"method": "n-gram", "num_speculative_tokens": 3},
    "no such key": {"method": "ngram", "num_speculative_tokens": 3, "lookup_max": 3},
    "dead key": {"model": "{draft}", "num_speculative_tokens": 3, "disable_by_batch_size": 8},
    "acceptance of V0": {
        "model": "{draft}",
        "num_speculative_tokens": 3,
        "acceptance_method": "rejection_sampler",
    },
    "token tree": {"model": "{draft}", "num_speculative_tokens": 3, "speculative_token_tree": "[(0,)]"},
    "the trap key": {"model": "{draft}", "num_speculative_tokens": 3, "tensor_parallel_size": 1},
    "draft on more GPUs": {"model": "{draft}", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 2},
    "draft longer than the target": {
        "model": "{draft}",
        "num_speculative_tokens": 3,
        "max_model_len": 2 * CONTEXT,
    },
    "other vocabulary, probabilistic": {
        "model": "{draft}",
        "num_speculative_tokens": 3,
        "use_heterogeneous_vocab": True,
        "draft_sample_method": "probabilistic",
    },
    "other vocabulary for n-gram": {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "use_heterogeneous_vocab": True,
    },
    "rates that rise": {
        "model": "{draft}",
        "num_speculative_tokens": 2,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [0.5, 0.9],
    },
    "rates, too few": {
        "model": "{draft}",
        "num_speculative_tokens": 2,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [0.5],
    },
    "rates and length": {
        "model": "{draft}",
        "num_speculative_tokens": 2,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [0.5, 0.4],
        "synthetic_acceptance_length": 2.0,
    },
    "rates without synthetic": {
        "model": "{draft}",
        "num_speculative_tokens": 2,
        "synthetic_acceptance_rates": [0.5, 0.4],
    },
    "sampler of 0.18": {"model": "{draft}", "num_speculative_tokens": 2, "rejection_sample_method": "strict"},
    "key of another method": {"model": "{draft}", "num_speculative_tokens": 2, "dspark_draft_topk": 4},
    "key of mtp": {"model": "{draft}", "num_speculative_tokens": 2, "index_share_for_mtp_iteration": True},
    "text for a number": {"model": "{draft}", "num_speculative_tokens": "many"},
    "suffix without its package": {"method": "suffix"},
}
# The package is missing, which lint cannot know: it says risky.
ONLY_VLLM_REFUSES = {"suffix without its package"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Models without weights, which is all that a config class looks at."""
    made = {}
    for name, layers in ((TARGET, 4), (DRAFT, 2)):
        folder = tmp_path_factory.mktemp("model")
        (folder / "config.json").write_text(json.dumps({**SHAPE, "num_hidden_layers": layers}))
        made[name] = str(folder)
    return made


@pytest.fixture(scope="module")
def answers(vllm_python: str, folders: dict[str, str]) -> dict[str, dict[str, Any]]:
    """One start of vLLM's interpreter for every question."""
    asked: dict[str, dict[str, Any]] = {"flags": {"list_flags": True}}
    for name, text in VLLM.items():
        local = text.replace(TARGET, folders[TARGET]).replace(DRAFT, folders[DRAFT])
        translated = lint(local).translated
        assert translated is not None
        asked[f"{name}, command"] = {"arguments": server_arguments(translated.argv)}
        asked[f"{name}, yaml"] = {"yaml": translated.yaml}
        asked[f"{name}, python"] = {"python": translated.python}
    for name, config in CONFIGS.items():
        filled = {key: folders[DRAFT] if value == "{draft}" else value for key, value in config.items()}
        asked[f"config: {name}"] = {
            "arguments": [
                *(folders[TARGET], "--max-model-len", str(CONTEXT)),
                *("--speculative-config", json.dumps(filled)),
            ]
        }
    done = subprocess.run(
        [vllm_python, SCRIPT],
        input=json.dumps(list(asked.values())),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(asked, json.loads(done.stdout), strict=True))


def server_arguments(argv: tuple[str, ...]) -> list[str]:
    """What follows `vllm serve`, or the image whose entry point that is."""
    start = next(index for index, word in enumerate(argv) if word == "serve" or "vllm-openai" in word)
    return list(argv[start + 1 :])


@pytest.mark.parametrize("form", ["command", "yaml", "python"])
@pytest.mark.parametrize("name", VLLM)
def test_vllm_takes_what_an_article_became(name: str, form: str, answers: dict[str, dict[str, Any]]) -> None:
    answer = answers[f"{name}, {form}"]

    assert answer["error"] is None
    assert answer["config"]["method"] in ("draft_model", "ngram")
    assert answer["config"]["k"] >= 3


@pytest.mark.parametrize("form", ["command", "yaml", "python"])
def test_the_limit_on_the_batch_size_arrives_as_a_schedule(
    form: str, answers: dict[str, dict[str, Any]]
) -> None:
    assert answers[f"off above a batch size, {form}"]["config"]["schedule"] == [[1, 8, 5], [9, 4096, 0]]


@pytest.mark.parametrize("name", CONFIGS)
def test_lint_and_vllm_agree_on_a_config(name: str, answers: dict[str, dict[str, Any]]) -> None:
    config = {key: DRAFT if value == "{draft}" else value for key, value in CONFIGS[name].items()}
    # The CPU build's own limits come later than the config classes.
    findings = check_speculative_config(config, release=NEWEST, tensor_parallel=1, max_model_len=CONTEXT)
    error = answers[f"config: {name}"]["error"]

    if name in ONLY_VLLM_REFUSES:
        assert error is not None
        assert not has_errors(findings)
    else:
        assert has_errors(findings) == (error is not None), (error, findings)


def test_the_table_of_flags_is_that_of_the_parser(answers: dict[str, dict[str, Any]]) -> None:
    real = {name for name in answers["flags"]["flags"] if not name.startswith("--no-")} - {"-h", "--help"}

    assert set(FLAGS.names_at(NEWEST)) == real


def test_a_switch_in_the_table_is_one_in_the_parser(answers: dict[str, dict[str, Any]]) -> None:
    real = set(answers["flags"]["switches"])
    table = {name for name in FLAGS.names_at(NEWEST) if FLAGS[name].kind is ValueKind.SWITCH}

    assert table == {name for name in real if not name.startswith("--no-")} - {"-h", "--help"}


def test_lint_knows_every_metric_that_the_source_defines_and_no_other(vllm_python: str) -> None:
    found = subprocess.run(
        [vllm_python, "-c", "import importlib.util as u; print(u.find_spec('vllm').origin)"],
        check=True,
        capture_output=True,
        text=True,
    )
    package = Path(found.stdout.strip().splitlines()[-1]).parent
    sources = [path for path in package.rglob("*.py") if "benchmarks" not in path.parts]
    defined = {
        name.removesuffix("_total") if name not in DIALECT.metrics.table else name
        for path in sources
        for name in re.findall(r'"vllm:([a-z]\w*)"', path.read_text(encoding="utf-8"))
    }
    assert defined == {row.name for row in DIALECT.metrics.table if row.holds(NEWEST)}
