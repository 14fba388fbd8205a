"""vLLM's metrics by release, as data: what /metrics exports, and what dashboards still ask for. Pure.

Lifetimes were read off the definitions in the tags v0.4.0 to v0.27.1 and in 0.32.0; what 0.32.0 has and 0.27.1 had not
counts from 0.28.0 on. Counters are listed without the _total that every one of them is exported with.
"""

from __future__ import annotations

from speclift.linter.metrics import MetricNames
from speclift.linter.rows import NameTable, Row, ValueKind, by_name, listed

_SOURCE = "vllm.engine.metrics, vllm.v1.metrics.loggers; vLLM PR 16665"
_SPECULATION = "exported only where the server speculates"

# since, first release without it, kind
_PLAIN = """
0.4.0 - gauge: num_requests_running num_requests_waiting cache_config_info
0.4.0 - counter: prompt_tokens generation_tokens
0.4.0 - histogram: time_to_first_token_seconds e2e_request_latency_seconds
0.4.2 - counter: request_success
0.4.2 - histogram: request_prompt_tokens request_generation_tokens request_params_n
0.4.3 - counter: num_preemptions
0.6.4 - gauge: lora_requests_info
0.6.4 - histogram: iteration_tokens_total request_queue_time_seconds request_inference_time_seconds
    request_prefill_time_seconds request_decode_time_seconds request_max_num_generation_tokens
    request_params_max_tokens
0.9.2 - gauge: kv_cache_usage_perc
0.9.2 - counter: prefix_cache_queries prefix_cache_hits
0.11.0 - histogram: request_time_per_output_token_seconds
0.11.1 - gauge: engine_sleep_state
0.11.1 - counter: corrupted_requests external_prefix_cache_queries external_prefix_cache_hits mm_cache_queries
    mm_cache_hits nixl_num_failed_transfers nixl_num_failed_notifications
0.11.1 - histogram: nixl_xfer_time_seconds nixl_post_time_seconds nixl_bytes_transferred nixl_num_descriptors
0.13.0 - histogram: request_prefill_kv_computed_tokens
0.15.0 - counter: nixl_num_kv_expired_reqs
0.16.0 - counter: prompt_tokens_by_source prompt_tokens_cached kv_offload_total_bytes kv_offload_total_time
0.16.0 - histogram: kv_offload_size
0.18.0 - gauge: websocket_connections_active
0.18.0 - counter: websocket_connections
0.18.0 - histogram: websocket_connection_duration_seconds
0.20.0 - gauge: num_requests_waiting_by_reason
0.20.0 - counter: hf3fs_num_failed_save hf3fs_num_failed_load
0.20.0 - histogram: hf3fs_save_duration_seconds hf3fs_load_duration_seconds
0.22.0 - counter: mooncake_store_operation mooncake_store_operation_keys mooncake_store_operation_bytes
    mooncake_store_operation_failed_keys
0.22.0 - histogram: mooncake_store_operation_time_seconds
0.24.0 - counter: diffusion_num_denoising_steps diffusion_num_canvas_positions diffusion_num_committed_tokens
    tool_call_parser_invocations
0.24.0 - value: kv_offload_cpu_cache_usage_perc kv_offload_load_bytes kv_offload_load_size kv_offload_load_time
    kv_offload_store_bytes kv_offload_store_size kv_offload_store_time kv_offload_stores_skipped
0.26.0 - value: kv_offload_allocation_failure kv_offload_cpu_allocation_size kv_offload_cpu_cache_read_usage_perc
    kv_offload_cpu_cache_write_usage_perc kv_offload_lookup_async_delay_seconds
    kv_offload_lookup_sync_delay_seconds kv_offload_tiering_lookup_async_delay_seconds
    kv_offload_tiering_lookup_sync_delay_seconds
0.28.0 - gauge: num_requests_kv_fetch_by_stage sleep_mode_operations_in_flight
    rl_weight_update_operations_in_flight simple_kv_offload_used_blocks simple_kv_offload_pending_store_blocks
    simple_kv_offload_info hisparse_host_cache_usage_perc hisparse_pending_page_transfers
0.28.0 - counter: admission_rejections watermark_requests prompt_tokens_cached_by_source
    nixl_num_notifications_after_expiry simple_kv_offload_save_outcomes simple_kv_offload_load_blocks
    hisparse_cache_hits hisparse_cache_misses hisparse_host_to_device_bytes
0.28.0 - histogram: request_num_preemptions sleep_mode_operation_duration_seconds
    rl_weight_update_operation_duration_seconds hisparse_host_block_lifetime_seconds
    hisparse_host_block_idle_before_evict_seconds hisparse_host_block_reuse_gap_seconds
0.28.0 - value: kv_offload_tiering_read_bytes kv_offload_tiering_read_time kv_offload_tiering_write_bytes
    kv_offload_tiering_write_time kv_offload_tiering_promotion_job_failures
    kv_offload_tiering_cascade_job_failures kv_offload_tiering_chunk_queries kv_offload_tiering_chunk_hits
    kv_offload_tiering_primary_write_usage_perc kv_offload_tiering_primary_read_usage_perc
    kv_offload_tiering_promotion_allocation_failures kv_offload_tiering_active_promotion_jobs
    kv_offload_tiering_active_cascade_jobs kv_offload_tiering_backpressure_store_latency_ema
    kv_offload_tiering_backpressure_stores_dropped kv_offload_tiering_backpressure_blocks_dropped
"""

_GAUGE, _COUNTER, _HISTOGRAM = ValueKind.GAUGE, ValueKind.COUNTER, ValueKind.HISTOGRAM
_ACCEPTANCE_RATE = (
    "rate(vllm:spec_decode_num_accepted_tokens_total[5m]) / rate(vllm:spec_decode_num_draft_tokens_total[5m])"
)
_ACCEPTED_LENGTH = (
    "1 + rate(vllm:spec_decode_num_accepted_tokens_total[5m]) / rate(vllm:spec_decode_num_drafts_total[5m])"
)
_HIT_RATE = "rate(vllm:prefix_cache_hits_total[5m]) / rate(vllm:prefix_cache_queries_total[5m])"
_NEVER_SWAPS = "the V1 engine swaps nothing to the CPU"
_BY_FLAG = {
    "--kv-cache-metrics": "kv_block_lifetime_seconds kv_block_idle_before_evict_seconds kv_block_reuse_gap_seconds",
    "--enable-mfu-metrics": "estimated_flops_per_gpu estimated_read_bytes_per_gpu estimated_write_bytes_per_gpu",
}

_TOLD = (
    Row("spec_decode_num_drafts", _COUNTER, (0, 8, 5), note=_SPECULATION),
    Row("spec_decode_num_draft_tokens", _COUNTER, (0, 5, 3), note=_SPECULATION),
    Row("spec_decode_num_accepted_tokens", _COUNTER, (0, 5, 3), note=_SPECULATION),
    Row("spec_decode_num_accepted_tokens_per_pos", _COUNTER, (0, 8, 5), note=_SPECULATION),
    Row(
        "inter_token_latency_seconds",
        _HISTOGRAM,
        (0, 10, 2),
        warning="has one value per step; with speculation a step gives several tokens, so this is not the time per "
        "token: request_time_per_output_token_seconds is",
    ),
    *(
        Row(name, _HISTOGRAM, (0, 12, 0), note="exported only with --kv-cache-metrics")
        for name in _BY_FLAG["--kv-cache-metrics"].split()
    ),
    *(
        Row(name, _COUNTER, (0, 17, 0), note="exported only with --enable-mfu-metrics")
        for name in _BY_FLAG["--enable-mfu-metrics"].split()
    ),
    Row(
        "spec_decode_draft_acceptance_rate",
        _GAUGE,
        (0, 5, 3),
        (0, 10, 0),
        replacement=_ACCEPTANCE_RATE,
        note="a gauge of the V0 engine; V1 counts tokens: compute the rate from them",
    ),
    Row(
        "spec_decode_efficiency",
        _GAUGE,
        (0, 5, 3),
        (0, 10, 0),
        replacement=_ACCEPTED_LENGTH,
        note="a gauge of the V0 engine; use the mean accepted length instead",
    ),
    Row(
        "spec_decode_num_emitted_tokens",
        _COUNTER,
        (0, 5, 3),
        (0, 10, 0),
        replacement="vllm:spec_decode_num_accepted_tokens_total + vllm:spec_decode_num_drafts_total",
        note="V1 counts accepted tokens and drafts separately",
    ),
    Row(
        "gpu_cache_usage_perc",
        _GAUGE,
        (0, 4, 0),
        (0, 12, 0),
        dead_since=(0, 11, 0),
        renamed_to="vllm:kv_cache_usage_perc",
        note="renamed",
    ),
    Row(
        "time_per_output_token_seconds",
        _HISTOGRAM,
        (0, 4, 0),
        (0, 15, 0),
        dead_since=(0, 12, 0),
        replacement="vllm:request_time_per_output_token_seconds",
        note="inter_token_latency_seconds has one value per step, so with speculation it is not the time per token",
    ),
    *(
        Row(
            f"gpu_prefix_cache_{what}",
            _COUNTER,
            (0, 7, 3),
            (0, 12, 0),
            dead_since=(0, 11, 0),
            renamed_to=f"vllm:prefix_cache_{what}_total",
            note="renamed",
        )
        for what in ("queries", "hits")
    ),
    Row("gpu_prefix_cache_hit_rate", _GAUGE, (0, 5, 5), (0, 9, 1), replacement=_HIT_RATE),
    Row("cpu_prefix_cache_hit_rate", _GAUGE, (0, 5, 5), (0, 9, 1), note=_NEVER_SWAPS),
    Row("cpu_cache_usage_perc", _GAUGE, (0, 4, 0), (0, 9, 1), note=_NEVER_SWAPS),
    Row(
        "num_requests_swapped",
        _GAUGE,
        (0, 4, 0),
        (0, 9, 1),
        replacement="rate(vllm:num_preemptions_total[5m])",
        note=_NEVER_SWAPS + ": requests are preempted and computed again",
    ),
    Row(
        "time_in_queue_requests",
        _HISTOGRAM,
        (0, 6, 4),
        (0, 9, 1),
        renamed_to="vllm:request_queue_time_seconds",
        note="renamed",
    ),
    Row(
        "model_forward_time_milliseconds",
        _HISTOGRAM,
        (0, 6, 4),
        (0, 9, 1),
        replacement="vllm:request_inference_time_seconds",
    ),
    Row(
        "model_execute_time_milliseconds",
        _HISTOGRAM,
        (0, 6, 4),
        (0, 9, 1),
        replacement="vllm:request_inference_time_seconds",
    ),
    Row(
        "avg_prompt_throughput_toks_per_s",
        _GAUGE,
        (0, 4, 0),
        (0, 7, 0),
        replacement="rate(vllm:prompt_tokens_total[5m])",
    ),
    Row(
        "avg_generation_throughput_toks_per_s",
        _GAUGE,
        (0, 4, 0),
        (0, 7, 0),
        replacement="rate(vllm:generation_tokens_total[5m])",
    ),
    Row("request_params_best_of", _HISTOGRAM, (0, 4, 2), (0, 6, 3), note="best_of is no longer a parameter"),
    Row(
        "tokens",
        _COUNTER,
        (0, 6, 4),
        (0, 8, 0),
        replacement="vllm:prompt_tokens_total + vllm:generation_tokens_total",
    ),
    Row(
        "prompt_tokens_recomputed",
        _COUNTER,
        (0, 16, 0),
        (0, 20, 0),
        replacement="vllm:prompt_tokens_by_source_total",
    ),
)

METRICS = NameTable(
    engine="vLLM",
    thing="metric",
    rows=by_name((*listed(_PLAIN), *_TOLD), source=_SOURCE),
    dead_since="hidden, unless --show-hidden-metrics-for-version shows it, since",
    source=_SOURCE,
)

# The router of vLLM's production stack exports these beside its servers'.
_ROUTER = """
current_qps avg_decoding_length num_prefill_requests num_decoding_requests num_incoming_requests routing_decisions
healthy_pods avg_latency avg_itl avg_ttft input_tokens output_tokens request_errors request_latency_seconds
"""
VLLM_METRICS = MetricNames(METRICS, prefix="vllm", elsewhere=frozenset(_ROUTER.split()))
