"""llama.cpp's buffers against what it logged."""

from __future__ import annotations

import pytest

from plan_samples import cpu, placed_shape, small_shape
from speclift.core.model_shape import KvLayers
from speclift.engines.llamacpp.planning import kv_buffer_bytes, llamacpp_memory
from speclift.planner.memory import KvBuffers, Layout

MIB = 1 << 20


@pytest.mark.parametrize(
    ("context", "slots", "kv_type", "mib"),
    [
        (2048, 1, "f16", 45.0),
        (1000, 2, "f16", 45.0),
        (1000, 3, "q8_0", 35.859375),
        (300, 4, "q4_0", 12.65625),
    ],
)
def test_llama_buffers_are_those_that_llama_cpp_logged(
    context: int, slots: int, kv_type: str, mib: float
) -> None:
    """xllamacpp 2026.10.11549, SmolLM2-135M, kv_unified off."""
    assert kv_buffer_bytes(small_shape(), context=context, slots=slots, kv_type=kv_type) == mib * MIB


def test_a_six_layer_draft_has_the_nine_mib_that_llama_cpp_logged() -> None:
    assert kv_buffer_bytes(small_shape(layers=6), context=2048, slots=1, kv_type="f16") == 9 * MIB


def test_a_llama_window_keeps_itself_and_one_micro_batch_padded() -> None:
    window = KvLayers(layers=1, heads=1, key_length=32, value_length=32, window=1000)
    assert kv_buffer_bytes(small_shape(window), context=8192, slots=1, kv_type="f16") == 1536 * 128


def test_llama_slots_are_whole_and_the_draft_costs_some() -> None:
    target, draft = placed_shape(small_shape(), "q4_0"), placed_shape(small_shape(layers=6), "q4_0")
    layout = Layout(context=8192)
    bare = llamacpp_memory(target, None, cpu(4 << 30), layout, slots=2)
    paired = llamacpp_memory(target, draft, cpu(4 << 30), layout, slots=2)

    assert bare.max_concurrency == int(bare.kv_bytes / (180 * MIB))
    assert 0 < paired.max_concurrency < bare.max_concurrency
    assert paired.kv_buffer_bytes == KvBuffers(slots=2, target=360 * MIB, draft=72 * MIB)
