"""A vLLM command of today taken apart: what it drafts with, and what it says of the server. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from speclift.core.errors import UsageError
from speclift.core.speculation import DraftModel, Extra, Head, NGram, Off, Speculation, Suffix
from speclift.engines.vllm.dialect.config_rules import K, method_of
from speclift.engines.vllm.dialect.judgement import VllmReading, read_settings
from speclift.engines.vllm.dialect.tables import CONFIG_FLAG, NEWEST
from speclift.linter.pasted import Pasted, TakenApart

METRICS_FLAG = "--per-request-spec-decode-metrics"
# A server without speculation refuses the second one (config/vllm.py, 0.32).
SPECULATIVE = frozenset({CONFIG_FLAG, METRICS_FLAG})
# What vLLM looks up where nothing is said (config/speculative.py, 0.32).
LOOKUP_DEFAULT = 5
SUFFIX_DEPTH = 24
HEADS = ("eagle", "eagle3", "mtp", "medusa", "dflash", "dspark", "custom_class")

# Flags that say what a setting of ours says.
WHOLE_NUMBERS = {
    "context_tokens": "--max-model-len",
    "tp": "--tensor-parallel-size",
    "pp": "--pipeline-parallel-size",
    "max_num_seqs": "--max-num-seqs",
    "token_budget": "--max-num-batched-tokens",
}
TEXTS = {"target_quant": "--quantization", "kv_type_k": "--kv-cache-dtype", "kv_type_v": "--kv-cache-dtype"}


def take_apart_vllm(pasted: Pasted) -> TakenApart:
    reading = read_settings(pasted)
    speculation = speculation_of(reading.config) if reading.is_speculative else Off()
    return TakenApart(
        model=pasted.model or _text(pasted.last("--model")),
        speculation=speculation,
        settings=_settings(reading),
        utilisation=_share(pasted.last("--gpu-memory-utilization")),
    )


def speculation_of(config: Mapping[str, object]) -> Speculation:
    """As a value; what only vLLM has a name for travels with it."""
    left = {name: value for name, value in config.items() if value is not None}
    method = method_of(left, NEWEST)
    left.pop("method", None)
    if left.get("rejection_sample_method") == "synthetic":
        raise UsageError(
            "this line forces acceptance, so its text is garbage", hint="remove the synthetic rates"
        )
    model = left.pop("model", None)
    k = left.pop(K, None)
    match method:
        case "ngram" | "ngram_gpu":
            most, least = left.pop("prompt_lookup_max", None), left.pop("prompt_lookup_min", None)
            n = _whole(most, _whole(least, LOOKUP_DEFAULT))
            return NGram(
                variant="simple" if method == "ngram" else "gpu",
                k=_need_k(k, method),
                n=n,
                n_min=_whole(least, n),
                extra=_extra(left),
            )
        case "suffix":
            depth = _whole(left.get("suffix_decoding_max_tree_depth"), SUFFIX_DEPTH)
            return Suffix(k=_whole(k, depth), extra=_extra(left))
        case "draft_model" if isinstance(model, str):
            sampling = left.pop("draft_sample_method", "greedy")
            cache = left.pop("kv_cache_dtype", None)
            return DraftModel(
                model=model,
                k=_need_k(k, method),
                sampling="probabilistic" if sampling == "probabilistic" else "greedy",
                kv_type_k=_text(cache),
                kv_type_v=_text(cache),
                extra=_extra(left),
            )
        case kind if kind in HEADS:
            return Head(kind=kind, k=_need_k(k, method), model=_text(model), extra=_extra(left))
    raise UsageError(
        f"speclift cannot launch speculation by {method} as an arm of its own",
        hint="start both servers yourself and use --engine attach",
    )


def _settings(reading: VllmReading) -> dict[str, object]:
    found: dict[str, object] = {}
    for field, flag in WHOLE_NUMBERS.items():
        number = reading.number(flag) or _human(reading.pasted.last(flag))
        if number is not None and number > 0:
            found[field] = number
    for field, flag in TEXTS.items():
        text = _text(reading.pasted.last(flag))
        if text is not None:
            found[field] = text
    return found


def _need_k(k: object, method: str) -> int:
    if isinstance(k, int) and not isinstance(k, bool):
        return k
    raise UsageError(
        f"the line does not say how many tokens {method} drafts", hint=f"put {K} in its speculative config"
    )


def _whole(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _human(value: object) -> int | None:
    """8k, 8K and 1.5M, as vLLM reads them: a small letter counts in thousands, a capital one in 1,024s."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT])", str(value))
    if match is None:
        return None
    power = "kmgt".index(match[2].lower()) + 1
    return int(float(match[1]) * (1000 if match[2].islower() else 1024) ** power)


def _share(value: object) -> float | None:
    try:
        share = float(str(value))
    except ValueError:
        return None
    return share if 0.0 < share <= 1.0 else None


def _extra(left: Mapping[str, object]) -> Extra:
    return tuple(sorted((name, json.dumps(value)) for name, value in left.items()))
