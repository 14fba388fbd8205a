"""vLLM's server flags that have nothing to do with speculation, as data: enough to know that a flag exists, and
whether a value follows it. Pure.

Lifetimes are those of engine/arg_utils.py and the OpenAI server's cli_args.py in the tags v0.4.0 to v0.27.1 and the
releases 0.28 to 0.32, whose own parser has the same flags. One line per lifetime: first release with the flags, first
without them again (- while they last), what follows the flag.
"""

from __future__ import annotations

from speclift.linter.findings import Release
from speclift.linter.rows import FlagKind, FlagRow, Span

SOURCE = "vllm.engine.arg_utils, vllm.entrypoints.openai.cli_args"
KINDS = {
    "switch": FlagKind.SWITCH,
    "int": FlagKind.INT,
    "float": FlagKind.FLOAT,
    "value": FlagKind.TEXT,
    "list": FlagKind.LIST,
}

TABLE = """
0.4.0 - int: block-size max-logprobs max-lora-rank max-loras pipeline-parallel-size port ssl-cert-reqs
0.4.0 - list: api-key lora-modules
0.4.0 - switch: allow-credentials disable-custom-all-reduce disable-log-stats enable-lora ray-workers-use-nsight
    trust-remote-code
0.4.0 - value: allowed-headers allowed-methods allowed-origins chat-template code-revision download-dir dtype
    host lora-dtype max-cpu-loras max-log-len max-parallel-loading-workers middleware response-role revision
    root-path ssl-ca-certs ssl-certfile ssl-keyfile tokenizer tokenizer-mode tokenizer-revision
    uvicorn-log-level
0.4.1 - switch: skip-tokenizer-init
0.4.1 - value: model-loader-extra-config num-gpu-blocks-override
0.4.2 - switch: fully-sharded-loras
0.4.3 - switch: disable-sliding-window
0.4.3 - value: distributed-executor-backend
0.5.1 - value: otlp-traces-endpoint
0.5.3 - float: cpu-offload-gb
0.5.3 - list: ignore-patterns
0.5.4 - switch: return-tokens-as-token-ids
0.5.5 - list: collect-detailed-traces
0.5.5 - value: limit-mm-per-prompt
0.6.0 - switch: enable-auto-tool-choice
0.6.0 - value: config tool-call-parser
0.6.1 - value: config-format
0.6.2 - switch: disable-fastapi-docs
0.6.2 - value: mm-processor-kwargs
0.6.3 - value: scheduling-policy tool-parser-plugin
0.6.4 - switch: enable-prompt-tokens-details
0.6.4 - value: allowed-local-media-path hf-overrides
0.6.5 - value: chat-template-content-format compilation-config kv-transfer-config worker-cls
0.6.6 - switch: enable-request-id-headers
0.6.6 - value: generation-config
0.7.0 - switch: enable-sleep-mode
0.7.1 - value: override-generation-config reasoning-parser
0.7.2 - value: model-impl
0.7.3 - int: long-prefill-token-threshold
0.7.3 - value: additional-config scheduler-cls
0.8.0 - switch: enable-expert-parallel enable-server-load-tracking enable-ssl-refresh use-tqdm-on-load
0.8.0 - value: hf-config-path show-hidden-metrics-for-version worker-extension-cls
0.8.2 - switch: disable-cascade-attn disable-uvicorn-access-log
0.8.3 - value: prefix-caching-hash-algo
0.8.4 - switch: disable-chunked-mm-input
0.8.4 - value: hf-token
0.9.0 - int: data-parallel-rpc-port data-parallel-size-local data-parallel-start-rank
0.9.0 - switch: enable-prompt-embeds headless
0.9.0 - value: data-parallel-address kv-events-config pt-load-map-location
0.9.1 - int: api-server-count
0.9.1 - switch: disable-hybrid-kv-cache-manager
0.9.1 - value: data-parallel-backend log-config-file
0.9.2 - int: data-parallel-rank
0.9.2 - switch: enable-eplb enable-force-include-usage
0.9.2 - value: media-io-kwargs
0.10.0 - switch: data-parallel-hybrid-lb enable-tokenizer-info-endpoint interleave-mm-strings
0.10.0 - value: default-mm-loras logprobs-mode
0.10.1 - float: mm-processor-cache-gb
0.10.1 - list: logits-processors
0.10.1 - switch: enable-log-outputs enable-log-requests exclude-tools-when-tool-choice-none
    kv-sharing-fast-prefill skip-mm-profiling
0.10.1 - value: convert mamba-cache-dtype mamba-ssm-cache-dtype runner tool-server uds
0.10.2 - int: decode-context-parallel-size h11-max-header-count h11-max-incomplete-event-size
0.10.2 - switch: log-error-stack
0.10.2 - value: eplb-config io-processor-plugin kv-cache-memory-bytes mm-encoder-tp-mode
    safetensors-load-strategy
0.11.0 - int: dbo-decode-token-threshold dbo-prefill-token-threshold mm-shm-cache-max-object-size-mb
0.11.0 - list: allowed-media-domains
0.11.0 - switch: enable-dbo trust-request-chat-template
0.11.0 - value: expert-placement-strategy mm-processor-cache-type pooler-config structured-outputs-config
    video-pruning-rate
0.11.1 - int: dcp-kv-cache-interleave-size master-port max-cudagraph-capture-size nnodes node-rank
    stream-interval
0.11.1 - list: cudagraph-capture-sizes
0.11.1 - switch: aggregate-engine-logging data-parallel-external-lb disable-nccl-for-dp-synchronization
    enable-mm-embeds tokens-only
0.11.1 - value: all2all-backend ec-transfer-config kv-offloading-backend kv-offloading-size mamba-block-size
    master-addr mm-encoder-attn-backend reasoning-parser-plugin
0.12.0 - float: kv-cache-metrics-sample
0.12.0 - int: cp-kv-cache-interleave-size prefill-context-parallel-size
0.12.0 - switch: kv-cache-metrics
0.12.0 - value: optimization-level
0.13.0 - switch: cudagraph-metrics enable-layerwise-nvtx-tracing
0.13.0 - value: attention-backend attention-config profiler-config
0.14.0 - int: ubatch-size
0.14.0 - switch: allow-deprecated-quantization enable-log-deltas enable-logging-iteration-details
    enable-mfu-metrics enable-offline-docs enable-return-routed-experts enable-tower-connector-lora
0.14.0 - value: default-chat-template-kwargs
0.15.0 - switch: mm-encoder-only
0.15.0 - value: mamba-cache-mode ssl-ciphers
0.16.0 - switch: enable-flashinfer-autotune specialize-active-lora
0.16.0 - value: disable-access-log-for-endpoints kernel-config weight-transfer-config
0.17.0 - int: offload-group-size offload-num-in-group offload-prefetch-step
0.17.0 - list: cpu-offload-params offload-params
0.17.0 - switch: enable-elastic-ep fail-on-environ-validation language-model-only
0.17.0 - value: moe-backend offload-backend performance-mode
0.18.0 - int: shutdown-timeout
0.18.0 - switch: enable-ep-weight-filter grpc
0.18.0 - value: dcp-comm-backend distributed-timeout-seconds gdn-prefill-backend
0.19.0 - int: renderer-num-workers
0.19.0 - list: kv-cache-dtype-skip-layers lora-target-modules
0.19.0 - switch: scheduler-reserve-full-isl
0.19.0 - value: mm-tensor-ipc reasoning-config
0.20.0 - int: mamba-cache-philox-rounds
0.20.0 - list: numa-bind-cpus numa-bind-nodes
0.20.0 - switch: enable-flash-late-interaction enable-mamba-cache-stochastic-rounding numa-bind
0.20.0 - value: ir-op-priority mamba-backend
0.21.0 - float: mm-encoder-fp8-scale-save-margin
0.21.0 - int: safetensors-prefetch-num-threads
0.21.0 - value: fingerprint-mode fingerprint-value mm-encoder-attn-dtype mm-encoder-fp8-scale-path
    mm-encoder-fp8-scale-save-path safetensors-prefetch-block-size
0.22.0 - float: dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s
0.22.0 - int: data-parallel-supervisor-port dp-supervisor-probe-failure-threshold
0.22.0 - switch: data-parallel-multi-port-external-lb enable-cumem-allocator enable-mixed-moe-lora-format
    use-fp64-gumbel
0.22.0 - value: cpu-distributed-timeout-seconds linear-backend quantization-config
0.24.0 - float: watermark
0.24.0 - int: prefill-schedule-interval
0.24.0 - switch: jit-monitor-verbose
0.24.0 - value: device-ids diffusion-config
0.25.0 - float: mm-ipc-gpu-memory-gb
0.25.0 - switch: enable-per-request-metrics
0.25.0 - value: jit-monitor-mode model-class-overrides
0.26.0 - switch: enable-moe-shared-loras
0.26.0 - value: max-num-scheduled-tokens prefix-match-unit
0.27.0 - int: replayssm-buffer-len
0.27.0 - switch: cohere-is-reasoning-model enable-fault-tolerance use-replayssm
0.27.0 - value: cohere-format fault-tolerance-config kda-prefill-backend mamba-ssu-algorithm mm-hasher-algorithm
    video-pruning-method
0.28.0 - switch: mm-device-do-normalize return-sampling-mask
0.28.0 - value: ec-manager-config mm-processor-device
0.29.0 - int: sse-keep-alive-interval
0.29.0 - switch: dcp-q-replicate enable-batch-sharded-sampling enable-trace-replay
0.29.0 - value: max-num-queued-reqs max-num-queued-tokens prefix-cache-retention-interval
0.30.0 - int: dp-sync-interval elastic-ep-max-dp-size
0.30.0 - switch: enable-nccl-comm-suspend enable-scale-out
0.30.0 - value: engram-config kda-decode-backend sparse-indexer-topk-backend watermark-config
0.31.0 - list: sleep-preserve-parameter-names
0.31.0 - switch: enable-mamba-shared-prefix-checkpoint long-prefill-token-threshold-adaptive swa-bounded-replay
    trust-request-mm-kwargs
0.31.0 - value: anthropic-disabled-thinking-effort aux-output-config log-level logging-config
    max-lora-cls-labels max-num-active-seqs tool-strict-level
0.32.0 - switch: enable-hc-sp enable-shm-tensor-arena sleep-mode-offload-cudagraph
0.32.0 - value: custom-histogram-buckets grpc-port
0.4.0 0.4.1 int: forced-num-gpu-blocks
0.4.0 0.5.1 int: image-feature-size image-token-id
0.4.0 0.5.1 value: image-input-shape image-input-type
0.4.0 0.12.0 value: lora-extra-vocab-size
0.4.3 0.10.0 value: long-lora-scaling-factors
0.5.0 0.5.1 switch: disable-image-processor
0.5.0 0.5.1 value: image-processor image-processor-revision
0.5.2 0.10.0 list: prompt-adapters
0.5.2 0.10.0 value: max-prompt-adapter-token max-prompt-adapters
0.5.2 0.10.2 switch: enable-prompt-adapter
0.6.0 0.10.2 value: override-neuron-config
0.6.5 0.6.6 switch: mm-cache-preprocessor
0.6.5 0.17.0 value: logits-processor-pattern
0.7.3 0.27.0 value: max-long-partial-prefills max-num-partial-prefills
0.9.1 0.13.0 switch: enable-multimodal-encoder-data-parallel
0.9.2 0.12.0 int: eplb-step-interval eplb-window-size num-redundant-experts
0.9.2 0.12.0 switch: eplb-log-balancedness
0.9.2 0.28.0 value: override-attention-dtype
0.17.0 0.18.0 switch: use-gpu-for-pooling-score
0.26.0 0.30.0 switch: enable-bf16x3-router-gemm
0.30.0 0.31.0 switch: enable-mamba-fine-grained-prefix-cache
"""

SHORT = {
    "pipeline-parallel-size": "-pp",
    "compilation-config": "-cc",
    "enable-expert-parallel": "-ep",
    "data-parallel-size-local": "-dpl",
    "data-parallel-address": "-dpa",
    "data-parallel-rpc-port": "-dpp",
    "data-parallel-start-rank": "-dpr",
    "data-parallel-backend": "-dpb",
    "api-server-count": "-asc",
    "data-parallel-rank": "-dpn",
    "data-parallel-hybrid-lb": "-dph",
    "decode-context-parallel-size": "-dcp",
    "nnodes": "-n",
    "node-rank": "-r",
    "data-parallel-external-lb": "-dpe",
    "prefill-context-parallel-size": "-pcp",
    "attention-config": "-ac",
    "data-parallel-multi-port-external-lb": "-dpm",
    "diffusion-config": "-dc",
}
# Of the HTTP server, so that LLM(...) does not take them (class EngineArgs, 0.32).
_FRONT_END = """
allow-credentials allowed-headers allowed-methods allowed-origins anthropic-disabled-thinking-effort api-key
api-server-count chat-template chat-template-content-format cohere-format cohere-is-reasoning-model config
data-parallel-supervisor-port default-chat-template-kwargs disable-access-log-for-endpoints disable-fastapi-docs
disable-uvicorn-access-log dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s
dp-supervisor-probe-timeout-s enable-auto-tool-choice enable-flash-late-interaction enable-force-include-usage
enable-log-deltas enable-log-outputs enable-log-requests enable-offline-docs enable-per-request-metrics
enable-prompt-tokens-details enable-request-id-headers enable-scale-out enable-server-load-tracking enable-ssl-refresh
enable-tokenizer-info-endpoint exclude-tools-when-tool-choice-none fingerprint-mode fingerprint-value grpc grpc-port
h11-max-header-count h11-max-incomplete-event-size headless host log-error-stack lora-modules max-log-len middleware
port response-role return-tokens-as-token-ids root-path sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs
ssl-certfile ssl-ciphers ssl-keyfile tool-call-parser tool-parser-plugin tool-server tool-strict-level
trust-request-chat-template trust-request-mm-kwargs uds uvicorn-log-level
"""
FRONT_END = frozenset(f"--{name}" for name in _FRONT_END.split())


def _rows(table: str) -> tuple[FlagRow, ...]:
    rows = []
    for entry in table.strip().replace("\n    ", " ").splitlines():
        head, _, names = entry.partition(":")
        since, gone, kind = head.split()
        span = Span(since=_release(since), gone=None if gone == "-" else _release(gone))
        rows += [
            FlagRow(
                name=f"--{name}",
                span=span,
                kind=KINDS[kind],
                source=SOURCE,
                aliases=(SHORT[name],) if name in SHORT else (),
            )
            for name in names.split()
        ]
    return tuple(rows)


def _release(text: str) -> Release:
    return tuple(int(part) for part in text.split("."))


SERVER_FLAGS: tuple[FlagRow, ...] = _rows(TABLE)
