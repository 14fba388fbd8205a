"""What weights and keys cost, whichever engine holds them, against what S4 reckons."""

from __future__ import annotations

import pytest

from plan_samples import placed, shape
from speclift.planner.memory import layer_bytes_per_token
from speclift.planner.precision import nominal_bytes, precision_named


@pytest.mark.parametrize(
    ("target_precision", "draft_precision", "gigabytes"),
    [
        ("bf16", "bf16", 140 + 16),
        ("int8", "bf16", 70 + 16),
        ("fp8", "int8", 70 + 8),
        ("int4", "bf16", 35 + 16),
        ("int4", "int4", 35 + 4),
    ],
)
def test_nominal_bytes_are_parameters_times_bytes_as_s4_reckons(
    target_precision: str, draft_precision: str, gigabytes: float
) -> None:
    total = sum(
        nominal_bytes(shape(name).parameters.total, precision_named(precision))
        for name, precision in (("llama-3.1-70b", target_precision), ("llama-3.1-8b", draft_precision))
    )
    assert total == pytest.approx(gigabytes * 1e9, rel=0.02)


def test_quantised_formats_keep_embedding_and_head_in_16_bits() -> None:
    weights = placed("llama-3.1-70b", "fp8").weights
    counts = shape("llama-3.1-70b").parameters

    assert weights.embedding == counts.embedding * 2
    assert weights.linear == counts.linear
    assert weights.total == pytest.approx(72.66e9, rel=1e-3)


def test_heads_are_split_over_a_group_and_repeated_where_they_are_too_few() -> None:
    kv = shape("llama-3.1-70b").kv[0]
    assert [layer_bytes_per_token(kv, value_bytes=2, tensor_parallel=tp) for tp in (1, 8, 16)] == [
        4096,
        512,
        512,
    ]
    latent = shape("deepseek-v3").kv[0]
    assert layer_bytes_per_token(latent, value_bytes=2, tensor_parallel=8) == 576 * 2
