"""What keys and values cost vLLM, and how many requests a pool of its blocks holds. Pure.

Its rules are in v1/core/kv_cache_utils.py and v1/kv_cache_interface.py (0.32).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from speclift.core.errors import unknown_name
from speclift.core.model_shape import ModelShape
from speclift.core.units import Tokens
from speclift.planner.memory import layer_bytes_per_token

# Block sizes: 16 tokens on CUDA, 128 on its CPU build.
GPU_BLOCK_TOKENS = 16
CPU_BLOCK_TOKENS = 128
# "auto" stores keys and values in 16 bits for every model in the catalogue.
KV_BYTES = {"auto": 2.0, "bf16": 2.0, "bfloat16": 2.0, "fp16": 2.0, "float16": 2.0, "fp8": 1.0, "fp8_e4m3": 1.0,
            "fp8_e5m2": 1.0, "int8": 1.0}  # fmt: skip
# More layers of one kind than 1.5 times those of the other: the smaller number is the group size.
_GROUP_RATIO = 1.5


def kv_value_bytes(dtype: str) -> float:
    word = dtype.strip().lower()
    if word not in KV_BYTES:
        raise unknown_name(what="--kv-dtype", seen=dtype, allowed=KV_BYTES)
    return KV_BYTES[word]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPages:
    """Layers of one page size and window on one GPU."""

    layers: int
    page_bytes: float
    window: Tokens | None


def pages_of(
    shapes: Sequence[tuple[ModelShape, int]], *, value_bytes: float, block: Tokens, stages: int = 1
) -> tuple[LayerPages, ...]:
    """The layers of target and draft, each with its tensor-parallel size, on the busiest pipeline stage."""
    return tuple(
        LayerPages(
            # The first shape is the target; a draft stands whole on one stage.
            layers=math.ceil(kv.layers / stages) if position == 0 else kv.layers,
            page_bytes=block * layer_bytes_per_token(kv, value_bytes=value_bytes, tensor_parallel=parallel),
            window=kv.window,
        )
        for position, (shape, parallel) in enumerate(shapes)
        for kv in shape.kv
    )


class KvPool(NamedTuple):
    """Tokens that the KV cache holds, and the requests of full context among them."""

    tokens: Tokens
    max_concurrency: float
    blocks: int


def pool(
    pages: Sequence[LayerPages],
    *,
    kv_bytes: float,
    context: Tokens,
    block: Tokens,
    in_flight: Tokens,
    state_bytes: float = 0.0,
) -> KvPool:
    """How many requests of `context` tokens fit: each takes whole blocks from every group of layers."""
    if kv_bytes <= 0:
        return KvPool(0, 0.0, 0)
    block_bytes, per_request = _request_blocks(pages, context=context, block=block, in_flight=in_flight)
    if not block_bytes:
        concurrency = kv_bytes / state_bytes if state_bytes else 0.0
        return KvPool(int(concurrency * context), concurrency, 0)
    blocks = int(kv_bytes // block_bytes)
    concurrency = blocks / (per_request + state_bytes / block_bytes)
    return KvPool(int(concurrency * context), concurrency, blocks)


def _request_blocks(
    pages: Sequence[LayerPages], *, context: Tokens, block: Tokens, in_flight: Tokens
) -> tuple[float, float]:
    """The bytes of a block, and how many of them a request takes."""
    needed = {
        page.window: _blocks(page.window, context=context, block=block, in_flight=in_flight) for page in pages
    }
    all_layers = sum(page.layers * page.page_bytes for page in pages)
    if len(needed) < 2:
        return all_layers, next(iter(needed.values()), 0)
    if len({page.page_bytes for page in pages}) > 1:
        # Pages of several sizes are packed side by side: no rounding beyond the blocks themselves.
        taken = sum(page.layers * page.page_bytes * needed[page.window] for page in pages)
        return all_layers, taken / all_layers
    layers: Counter[Tokens | None] = Counter()
    for page in pages:
        layers[page.window] += page.layers
    group = _group_size(list(layers.values()))
    groups = {window: math.ceil(count / group) for window, count in layers.items()}
    return group * pages[0].page_bytes, sum(groups[window] * needed[window] for window in groups)


def _group_size(counts: Sequence[int]) -> int:
    smallest, largest = min(counts), max(counts)
    return largest if largest < smallest * _GROUP_RATIO else smallest


def _blocks(window: Tokens | None, *, context: Tokens, block: Tokens, in_flight: Tokens) -> int:
    if window is None:
        return math.ceil(context / block)
    # A window keeps itself and the tokens in flight, and need not begin at a block's edge.
    return math.ceil(min(window - 1 + in_flight, context) / block) + 1
