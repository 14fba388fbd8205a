"""What engines count about themselves, under one name each: engines and their versions differ in the words."""

from __future__ import annotations

from speclift.core.records import Counters

# First the name of today, then what older versions called it. vLLM: Prometheus names of 0.32; `gpu_prefix_cache_*`
# until 0.10. llama.cpp: b11549.
DRAFTED = ("vllm:spec_decode_num_draft_tokens_total", "llamacpp:spec_decode_num_draft_tokens_total")
ACCEPTED = ("vllm:spec_decode_num_accepted_tokens_total", "llamacpp:spec_decode_num_accepted_tokens_total")
PREEMPTIONS = ("vllm:num_preemptions_total",)
PREFIX_QUERIES = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
PREFIX_HITS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")


def engine_total(counters: Counters, names: tuple[str, ...]) -> float | None:
    """The first of the names that this engine has; None where it counts no such thing."""
    totals = (counters.total(name) for name in names)
    return next((total for total in totals if total is not None), None)
