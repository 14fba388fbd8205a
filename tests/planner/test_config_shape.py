from __future__ import annotations

from typing import Any

import pytest

from plan_samples import shape
from speclift.core.errors import ModelError
from speclift.planner.config_shape import shape_from_config, stored_precision

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


def read(**changes: Any) -> Any:
    config = {key: value for key, value in {**LLAMA, **changes}.items() if value is not None}
    return shape_from_config(config, name="x", source="config.json")


def test_a_dense_model_is_counted_part_by_part() -> None:
    counts = read().parameters

    assert counts.embedding == counts.head == 100 * 64
    assert counts.linear == 2 * (64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128)
    assert counts.other == 2 * 2 * 64 + 64
    assert counts.experts == 0


def test_experts_stand_apart_and_only_the_chosen_ones_are_active() -> None:
    model = read(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2)

    assert model.parameters.experts == 2 * 8 * 3 * 64 * 128
    assert model.active_parameters == model.parameters.linear + model.parameters.head + 2 * 2 * 3 * 64 * 128
    assert model.is_moe


def test_a_latent_cache_keeps_one_vector_per_token() -> None:
    (kv,) = shape("deepseek-v3").kv
    assert (kv.layers, kv.heads, kv.values_per_token, kv.is_latent) == (61, 1, 576, True)


@pytest.mark.parametrize(
    ("name", "windowed", "full", "window"),
    [("gemma-3-27b", 52, 10, 1024), ("gemma-2-9b", 21, 21, 4096), ("gpt-oss-20b", 12, 12, 128)],
)
def test_sliding_layers_are_told_from_full_ones(name: str, windowed: int, full: int, window: int) -> None:
    by_window = {kv.window: kv.layers for kv in shape(name).kv}
    assert by_window == {window: windowed, None: full}


def test_a_hybrid_keeps_a_state_instead_of_keys_in_its_recurrent_layers() -> None:
    model = shape("qwen3-next-80b-a3b")

    assert [kv.layers for kv in model.kv] == [12]
    assert model.state_bytes_per_sequence == 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)


@pytest.mark.parametrize(
    "field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size"]
)
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(ModelError, match=field):
        read(**{field: None})


def test_unknown_layer_types_and_absurd_depths_are_refused() -> None:
    with pytest.raises(ModelError, match="'telepathy'"):
        read(layer_types=["telepathy", "full_attention"])
    with pytest.raises(ModelError, match="layers"):
        read(num_hidden_layers=10**6)
    with pytest.raises(ModelError, match="sliding_window"):
        read(layer_types=["sliding_attention", "full_attention"])


@pytest.mark.parametrize(
    ("config", "precision"),
    [
        ({"torch_dtype": "float16"}, "fp16"),
        ({"dtype": "bfloat16"}, "bf16"),
        ({}, "bf16"),
        ({"dtype": "float32", "torch_dtype": "float16"}, "fp32"),
        ({"dtype": "float32", "text_config": {"torch_dtype": "float16"}}, "fp16"),
        ({"dtype": "float32", "text_config": "none"}, "fp32"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "awq", "bits": 8}}, "awq"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "int8"),
        ({"quantization_config": {"quant_algo": "NVFP4"}}, "nvfp4"),
        ({"quantization_config": {"quant_method": "unheard of"}}, "bf16"),
        ({"quantization_config": {"bits": 4}}, "bf16"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, "int8"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "nf4"),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"a": {"weights": {"num_bits": 8, "type": "int"}}},
                }
            },
            "int8",
        ),
    ],
)
def test_the_stored_precision_is_read_from_the_config(config: dict[str, Any], precision: str) -> None:
    assert stored_precision(config) == precision


@pytest.mark.parametrize(
    ("scaling", "positions"),
    [
        (None, 32_768),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}, 131_072),
        ({"type": "linear", "factor": 2}, 65_536),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 32_768),
    ],
)
def test_positions_are_counted_as_engines_derive_them(scaling: object, positions: int) -> None:
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 32_768, "rope_scaling": scaling,
    }  # fmt: skip
    assert shape_from_config(config, name="m", source="config.json").max_positions == positions
