"""Several servers on one GPU: how much each takes, and what each is told so that all have the same.

Left to itself a vLLM server takes nearly the whole GPU for its KV cache. It can never fill more than its requests at
their full context; so that is what each gets where several are up, and nothing it measures would change with more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from speclift.core.arm import Arm, ServerSettings
from speclift.core.errors import OperatingError, UsageError
from speclift.core.json_reading import as_text
from speclift.core.units import Bytes
from speclift.engines.vllm.flags import KV_BYTES_FLAG, UTILISATION_FLAG, sequences, speculative_config
from speclift.engines.vllm.planning import (
    BATCHED_TOKENS_LARGE,
    GPU_BLOCK_TOKENS,
    RUNTIME_BYTES,
    activation_bytes,
    kv_value_bytes,
    speculation_bytes,
    weight_bytes_per_gpu,
)
from speclift.planner.memory import GIB, Layout, Placed, kv_bytes_per_token
from speclift.weights.named_models import find_source, place

# Of the memory that is free before any of them starts.
FREE_SHARE_MAX = 0.9
# What a server takes beyond vLLM's own terms, the driver's context first of all: four servers of SmolLM2-135M on an
# H200 (vLLM 0.26) took 18,552 MiB, 2,916 of them not among the terms.
CONTEXT_BYTES = round(0.71 * GIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Of servers on one GPU: the KV cache that every one of them gets, and what all of them take in all."""

    kv_bytes: Bytes
    largest_bytes: Bytes
    total_bytes: Bytes

    def fit(self, free_bytes: Bytes) -> bool:
        return self.total_bytes <= FREE_SHARE_MAX * free_bytes


def shares(settings: ServerSettings, arms: Iterable[Arm]) -> Shares | None:
    """None where it cannot be known, or where the user divides the memory themselves."""
    said = {word.partition("=")[0] for word in settings.engine_args}
    is_told = settings.line is not None or not said.isdisjoint({KV_BYTES_FLAG, UTILISATION_FLAG})
    if is_told or settings.tp * settings.pp > 1:
        return None
    try:
        target = _placed(settings.model, settings.target_quant)
        drafts = [_draft_of(arm) for arm in arms]
    except (OperatingError, UsageError):  # a model whose size only vLLM can find out
        return None
    kv_bytes = max(_kv_bytes(settings, [target, *draft]) for draft in drafts)
    besides = [
        kv_bytes + _other_bytes(settings, target, draft, speculates=arm.speculates)
        for arm, draft in zip(arms, drafts, strict=True)
    ]
    return Shares(kv_bytes=kv_bytes, largest_bytes=max(besides), total_bytes=sum(besides))


def _draft_of(arm: Arm) -> list[Placed]:
    """Of no weights for drafts that are looked up, and for heads that the target carries."""
    config = speculative_config(arm)
    model = as_text(config.get("model"))
    return [] if model is None else [_placed(model, as_text(config.get("quantization")))]


def _placed(model: str, quantisation: str | None) -> Placed:
    return place(find_source(model, prefers_gguf=False), quantisation, flag="--target-quant")


def _kv_bytes(settings: ServerSettings, models: Iterable[Placed]) -> Bytes:
    """Every sequence at its full context, in whole blocks, and a block more for what is drafted ahead."""
    value_bytes = kv_value_bytes(settings.kv_type_k or "auto")
    per_token = sum(kv_bytes_per_token(model.shape, value_bytes=value_bytes) for model in models)
    blocks = math.ceil(settings.context_tokens / GPU_BLOCK_TOKENS) + 1
    return math.ceil(sequences(settings) * blocks * GPU_BLOCK_TOKENS * per_token)


def _other_bytes(
    settings: ServerSettings, target: Placed, drafts: Iterable[Placed], *, speculates: bool
) -> Bytes:
    """Weights, the largest step, captured graphs and libraries."""
    count = sequences(settings)
    layout = Layout(max_num_seqs=count)
    weights = sum(weight_bytes_per_gpu(model.weights) for model in (target, *drafts))
    batched = settings.token_budget or BATCHED_TOKENS_LARGE
    step = activation_bytes(target, layout=layout, batched=batched)
    drafted = speculation_bytes(target.shape, count) if speculates else 0
    return weights + step + drafted + RUNTIME_BYTES + CONTEXT_BYTES
