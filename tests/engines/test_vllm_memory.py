"""vLLM's memory against what it logged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan_samples import H200, cpu, placed, placed_shape, small_shape
from speclift.core.hardware import Device
from speclift.engines.vllm.planning import LayerPages, pool, vllm_memory
from speclift.planner.memory import Layout

MIB = 1 << 20
# Start-up logs of vLLM 0.24 on one H200: gpu_memory_utilization 0.9, max_model_len 2048, max_num_seqs 256, the
# offline engine's 16,384 batched tokens.
RECORDED = [
    ("llama-3.1-8b", "bf16", None, False, 891_760),
    ("llama-3.1-8b", "bf16", "llama-3.2-1b", True, 695_920),
    ("llama-3.1-8b", "bf16", None, True, 887_968),  # n-gram
    ("llama-3.1-70b", "fp8", None, False, 178_128),
    ("llama-3.1-70b", "fp8", "llama-3.1-8b", True, 90_976),
]


@pytest.mark.parametrize(("target", "precision", "draft", "speculates", "logged"), RECORDED)
@pytest.mark.parametrize(("batched", "off_at_most"), [(16_384, 0.01), (None, 0.05)])
def test_kv_tokens_are_those_that_vllm_logged(
    target: str,
    precision: str,
    draft: str | None,
    speculates: bool,
    logged: int,
    batched: int | None,
    off_at_most: float,
) -> None:
    layout = Layout(context=2048, batched_tokens=batched)
    found = vllm_memory(
        placed(target, precision), placed(draft) if draft else None, H200, layout, speculates=speculates
    )
    assert found.kv_tokens == pytest.approx(logged, rel=off_at_most)


def test_vllms_cpu_build_logged_9600_tokens_for_256_mib_and_36_layers() -> None:
    target, draft = placed_shape(small_shape()), placed_shape(small_shape(layers=6))
    layout = Layout(context=1024, kv_cache_bytes=256 * MIB)
    found = vllm_memory(target, draft, cpu(), layout, speculates=True)

    assert found.kv_bytes_per_token.target + found.kv_bytes_per_token.draft == 27_648
    assert found.kv_tokens == 9600
    assert found.max_concurrency == pytest.approx(9.375)


def test_uneven_groups_are_padded_as_vllm_pads_them() -> None:
    pages = (
        LayerPages(layers=13, page_bytes=1000, window=None),
        LayerPages(layers=12, page_bytes=1000, window=64),
    )
    found = pool(pages, kv_bytes=13_000 * 100, context=160, block=16, in_flight=16)
    assert found.blocks == 100
    assert found.max_concurrency == pytest.approx(100 / (10 + 6))


@given(
    context=st.integers(16, 200_000),
    utilisation=st.floats(0.5, 1.0),
    tensor_parallel=st.sampled_from([1, 2, 4, 8]),
)
def test_a_draft_never_leaves_more_room(context: int, utilisation: float, tensor_parallel: int) -> None:
    layout = Layout(
        context=context,
        utilisation=utilisation,
        tensor_parallel=tensor_parallel,
        draft_tensor_parallel=tensor_parallel,
    )
    bare = vllm_memory(placed("llama-3.1-8b"), None, H200, layout, speculates=False)
    paired = vllm_memory(placed("llama-3.1-8b"), placed("llama-3.2-1b"), H200, layout, speculates=True)

    assert paired.kv_tokens < bare.kv_tokens
    assert paired.kv_bytes + paired.draft_weight_bytes + paired.speculation_bytes == pytest.approx(
        bare.kv_bytes
    )


@given(memory=st.integers(1 << 30, 200 << 30))
def test_more_memory_never_holds_fewer_tokens(memory: int) -> None:
    def tokens(size: int) -> int:
        device = Device(
            name="x", title="x", nominal_bytes=size, memory_bytes=size, bandwidth_bytes_s=1e12, flops_16=1e14
        )
        return vllm_memory(
            placed("llama-3.2-1b"), None, device, Layout(batched_tokens=2048), speculates=False
        ).kv_tokens

    assert tokens(memory) <= tokens(memory + (1 << 28))


def test_layers_of_many_windows_are_grouped_by_the_fewest_of_a_kind() -> None:
    pages = (
        LayerPages(layers=30, page_bytes=1000, window=64),
        LayerPages(layers=10, page_bytes=1000, window=None),
    )
    found = pool(pages, kv_bytes=10_000 * 280, context=160, block=16, in_flight=16)
    # Groups of 10 layers: three that keep 64 - 1 + 16 tokens in 5 blocks and one more, one that keeps all 160 in 10.
    assert found.blocks == 280
    assert found.max_concurrency == pytest.approx(280 / (3 * 6 + 10))
    assert found.tokens == 1600
