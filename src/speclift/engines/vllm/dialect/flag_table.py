"""vLLM's flags by release, the values and variables that came and went with them, as data. Pure.

Flags that speculation is made of and those that changed under a command that people still paste have a row each; the
others are listed by lifetime: first release with the flags, first without them again (- while they last), what follows
the flag. Lifetimes are those of engine/arg_utils.py and the OpenAI server's cli_args.py in the tags v0.4.0 to v0.27.1
and the releases 0.28 to 0.32, whose own parser has the same flags. To add a flag, add a row or a word.
"""

from __future__ import annotations

from dataclasses import replace

from speclift.engines.vllm.dialect.key_table import CONFIG_SINCE, NO_TYPICAL
from speclift.linter.findings import Release
from speclift.linter.rows import (
    FLOAT,
    INT,
    LIST,
    OBJECT,
    SWITCH,
    TEXT,
    NameTable,
    Row,
    by_name,
    listed,
    values,
)

CONFIG_FLAG = "--speculative-config"
ARGS = "vllm.engine.arg_utils"
SERVER = "vllm.entrypoints.openai.cli_args"
# 0.8.2 had both the old flags and --speculative-config; 0.8.3 dropped the flags.
OLD_FLAGS_GONE: Release = (0, 8, 3)
V0 = "a part of the V0 engine; V1 needs no such setting"


_SPECULATION = (
    Row(CONFIG_FLAG, OBJECT, CONFIG_SINCE, aliases=("-sc",)),
    Row("--spec-method", TEXT, (0, 22, 0), key="method"),
    Row("--spec-model", TEXT, (0, 22, 0), key="model"),
    Row("--spec-tokens", INT, (0, 22, 0), key="num_speculative_tokens", low=1),
    Row(
        "--per-request-spec-decode-metrics",
        TEXT,
        (0, 29, 0),
        choices=values((0, 29, 0), "none", "summary", "detailed"),
    ),
    Row("--speculative-model", TEXT, (0, 4, 1), OLD_FLAGS_GONE, key="model"),
    Row("--num-speculative-tokens", INT, (0, 4, 1), OLD_FLAGS_GONE, key="num_speculative_tokens", low=1),
    Row(
        "--speculative-draft-tensor-parallel-size",
        INT,
        (0, 5, 1),
        OLD_FLAGS_GONE,
        aliases=("-spec-draft-tp",),
        key="draft_tensor_parallel_size",
        low=1,
    ),
    Row("--speculative-max-model-len", INT, (0, 4, 1), OLD_FLAGS_GONE, key="max_model_len", low=1),
    Row("--speculative-model-quantization", TEXT, (0, 5, 5), OLD_FLAGS_GONE, key="quantization"),
    Row(
        "--speculative-disable-by-batch-size",
        INT,
        (0, 4, 3),
        OLD_FLAGS_GONE,
        key="disable_by_batch_size",
        replacement="num_speculative_tokens_per_batch_size with a range of k = 0 (since 0.24)",
        note="its key had no effect from 0.10 and is rejected since 0.17",
        source=f"{ARGS}; vLLM PR 35060",
    ),
    Row("--ngram-prompt-lookup-max", INT, (0, 4, 2), OLD_FLAGS_GONE, key="prompt_lookup_max", low=1),
    Row("--ngram-prompt-lookup-min", INT, (0, 4, 2), OLD_FLAGS_GONE, key="prompt_lookup_min", low=1),
    Row(
        "--spec-decoding-acceptance-method",
        TEXT,
        (0, 5, 1),
        OLD_FLAGS_GONE,
        key="acceptance_method",
        choices=values((0, 5, 1), "rejection_sampler", "typical_acceptance_sampler"),
        note=NO_TYPICAL,
    ),
    Row(
        "--typical-acceptance-sampler-posterior-threshold",
        FLOAT,
        (0, 5, 1),
        OLD_FLAGS_GONE,
        key="posterior_threshold",
        note=NO_TYPICAL,
    ),
    Row(
        "--typical-acceptance-sampler-posterior-alpha",
        FLOAT,
        (0, 5, 1),
        OLD_FLAGS_GONE,
        key="posterior_alpha",
        note=NO_TYPICAL,
    ),
    Row(
        "--speculative-disable-mqa-scorer",
        SWITCH,
        (0, 6, 3),
        OLD_FLAGS_GONE,
        key="disable_mqa_scorer",
        note="the scorer was removed with the V0 engine; nothing replaces it",
    ),
    Row(
        "--disable-logprobs-during-spec-decoding",
        SWITCH,
        (0, 5, 3),
        OLD_FLAGS_GONE,
        key="disable_logprobs",
        note="logprobs work under speculation; leave it out",
    ),
    Row("--num-lookahead-slots", INT, (0, 4, 1), (0, 12, 0), note="vLLM takes it from k; leave it out"),
    Row(
        "--use-v2-block-manager",
        SWITCH,
        (0, 4, 0),
        (0, 10, 0),
        dead_since=(0, 6, 4),
        note="the only block manager since 0.6.4; leave it out",
    ),
)

_CHANGED = (
    Row("--model", TEXT, (0, 4, 0)),
    Row("--served-model-name", LIST, (0, 4, 0)),
    Row("--tensor-parallel-size", INT, (0, 4, 0), aliases=("-tp",), low=1),
    Row("--data-parallel-size", INT, (0, 8, 3), aliases=("-dp",), low=1),
    Row(
        "--gpu-memory-utilization", FLOAT, (0, 4, 0), aliases=("--device-memory-utilization",), low=0, high=1
    ),
    Row("--max-model-len", TEXT, (0, 4, 0)),
    Row("--max-num-seqs", INT, (0, 4, 0), low=1),
    Row("--max-num-batched-tokens", TEXT, (0, 4, 0)),
    Row("--enforce-eager", SWITCH, (0, 4, 0)),
    Row("--enable-chunked-prefill", SWITCH, (0, 4, 0)),
    Row("--enable-prefix-caching", SWITCH, (0, 4, 0)),
    Row("--async-scheduling", SWITCH, (0, 10, 0)),
    Row("--kv-cache-dtype", TEXT, (0, 4, 0)),
    Row("--quantization", TEXT, (0, 4, 0), aliases=("-q",)),
    Row("--load-format", TEXT, (0, 4, 0)),
    Row("--seed", INT, (0, 4, 0)),
    # Gone, with what to write instead.
    Row("--num-scheduler-steps", INT, (0, 5, 5), (0, 10, 1), note=f"multi-step scheduling was {V0}"),
    Row("--multi-step-stream-outputs", SWITCH, (0, 6, 2), (0, 10, 1), note=f"multi-step was {V0}"),
    Row("--swap-space", TEXT, (0, 4, 0), (0, 18, 0), note="V1 recomputes what it preempts"),
    Row("--preemption-mode", TEXT, (0, 5, 0), (0, 11, 0), note="V1 recomputes what it preempts"),
    Row("--scheduler-delay-factor", FLOAT, (0, 4, 0), (0, 11, 0), note=f"it was {V0}"),
    Row("--disable-async-output-proc", SWITCH, (0, 6, 0), (0, 11, 0), note=f"it was {V0}"),
    Row(
        "--disable-log-requests",
        SWITCH,
        (0, 4, 0),
        (0, 17, 0),
        note="requests are not logged unless --enable-log-requests says so",
        source=SERVER,
    ),
    Row(
        "--disable-frontend-multiprocessing",
        SWITCH,
        (0, 5, 4),
        (0, 19, 0),
        note="the server always runs its engine in a process of its own",
        source=SERVER,
    ),
    Row(
        "--guided-decoding-backend",
        TEXT,
        (0, 4, 1),
        (0, 11, 0),
        renamed_to="--structured-outputs-config.backend",
    ),
    Row(
        "--guided-decoding-disable-fallback",
        SWITCH,
        (0, 9, 0),
        (0, 11, 0),
        note="--structured-outputs-config has disable_fallback",
    ),
    Row(
        "--guided-decoding-disable-any-whitespace",
        SWITCH,
        (0, 9, 0),
        (0, 11, 0),
        note="--structured-outputs-config has disable_any_whitespace",
    ),
    Row(
        "--guided-decoding-disable-additional-properties",
        SWITCH,
        (0, 9, 0),
        (0, 11, 0),
        note="--structured-outputs-config has disable_additional_properties",
    ),
    Row(
        "--max-seq-len-to-capture",
        INT,
        (0, 4, 2),
        (0, 11, 0),
        note="V1 captures by batch size: --max-cudagraph-capture-size",
    ),
    Row("--max-context-len-to-capture", INT, (0, 4, 0), (0, 6, 4), note="V1 captures by batch size"),
    Row("--cuda-graph-sizes", LIST, (0, 9, 0), (0, 13, 0), renamed_to="--cudagraph-capture-sizes"),
    Row("--task", TEXT, (0, 6, 4), (0, 13, 0), renamed_to="--runner", note="generate and pooling"),
    Row("--device", TEXT, (0, 4, 0), (0, 10, 0), note="the build decides; --device-ids picks GPUs"),
    Row("--enable-reasoning", SWITCH, (0, 7, 1), (0, 10, 0), note="--reasoning-parser alone turns it on"),
    Row("--rope-scaling", OBJECT, (0, 4, 3), (0, 11, 1), note="--hf-overrides carries rope_scaling"),
    Row("--rope-theta", FLOAT, (0, 5, 0), (0, 11, 1), note="--hf-overrides carries rope_theta"),
    Row("--worker-use-ray", SWITCH, (0, 4, 0), (0, 7, 0), replacement="--distributed-executor-backend ray"),
    Row("--engine-use-ray", SWITCH, (0, 4, 0), (0, 6, 2), note="the engine runs in a process of its own"),
    Row("--tokenizer-pool-size", INT, (0, 4, 0), (0, 10, 0), note=f"it was {V0}"),
    Row("--tokenizer-pool-type", TEXT, (0, 4, 0), (0, 10, 0), note=f"it was {V0}"),
    Row("--tokenizer-pool-extra-config", TEXT, (0, 4, 0), (0, 10, 0), note=f"it was {V0}"),
    Row("--enable-lora-bias", SWITCH, (0, 6, 4), (0, 11, 1), note="LoRA biases are no longer read"),
    Row("--qlora-adapter-name-or-path", TEXT, (0, 5, 0), (0, 10, 0), note="serve it with --lora-modules"),
    Row("--override-pooler-config", OBJECT, (0, 6, 4), (0, 12, 0), renamed_to="--pooler-config"),
    Row(
        "--disable-mm-preprocessor-cache",
        SWITCH,
        (0, 6, 6),
        (0, 13, 0),
        replacement="--mm-processor-cache-gb 0",
    ),
    Row(
        "--chat-template-text-format", TEXT, (0, 6, 4), (0, 6, 5), renamed_to="--chat-template-content-format"
    ),
    Row("--quantization-param-path", TEXT, (0, 4, 1), (0, 7, 0), note="scales are read from the checkpoint"),
    Row("--calculate-kv-scales", SWITCH, (0, 7, 0), (0, 28, 0), note="scales are read from the checkpoint"),
    Row(
        "--expand-tools-even-if-tool-choice-none",
        SWITCH,
        (0, 9, 2),
        (0, 10, 0),
        note="tools are expanded unless --exclude-tools-when-tool-choice-none says otherwise",
        source=SERVER,
    ),
)

# The rest: enough to know that a flag exists, and whether a value follows it.
_SERVER_FLAGS = """
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

_SHORT = {
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

FLAGS = NameTable(
    engine="vLLM",
    thing="flag",
    config_flag=CONFIG_FLAG,
    rows=by_name(
        (
            *_SPECULATION,
            *_CHANGED,
            *listed(_SERVER_FLAGS, prefix="--", aliases=_SHORT, source=f"{ARGS}, {SERVER}"),
        ),
        source=ARGS,
    ),
)

# Values that came and went.
_QUANTISATIONS = """
0.4.0 - value: awq gptq
0.4.1 - value: fp8
0.4.2 - value: gptq_marlin
0.5.0 - value: compressed-tensors
0.5.3 - value: awq_marlin fbgemm_fp8
0.5.5 - value: experts_int8
0.6.1 - value: modelopt
0.7.0 - value: quark
0.7.1 - value: moe_wna16
0.8.4 - value: torchao
0.9.0 - value: modelopt_fp4
0.10.0 - value: inc
0.10.1 - value: mxfp4
0.11.1 - value: fp_quant
0.16.0 - value: modelopt_mxfp8
0.17.0 - value: modelopt_mixed
0.19.0 - value: mxfp8
0.20.0 - value: deepseek_v4_fp8 fp8_per_block fp8_per_tensor gpt_oss_mxfp4 humming int8_per_channel_weight_only online
0.22.0 - value: auto_gptq
0.24.0 - value: auto_awq fp8_per_channel
0.26.0 - value: nvfp4_per_token
0.4.0 0.6.1 value: squeezellm
0.4.0 0.10.2 value: marlin
0.4.1 0.10.1 value: aqlm
0.4.3 0.5.0 value: sparseml
0.4.3 0.15.0 value: deepspeedfp
0.4.3 0.16.0 value: gptq_marlin_24
0.5.0 0.28.0 value: bitsandbytes
0.5.4 0.10.2 value: qqq
0.5.5 0.14.0 value: tpu_int8
0.5.5 0.24.0 value: gguf
0.6.0 0.10.2 value: neuron_quant
0.6.3 0.16.0 value: ipex
0.6.5 0.15.0 value: hqq
0.7.3 0.19.0 value: ptpc_fp8
0.8.0 0.9.0 value: nvfp4
0.8.5 0.16.0 value: bitblas gptq_bitblas
0.9.0 0.15.0 value: auto-round
0.9.2 0.15.0 value: rtn
0.10.2 0.20.0 value: petit_nvfp4
0.12.0 0.14.0 value: cpu_gptq
0.12.0 0.23.0 value: cpu_awq
"""
# Only those that ended: loaders can be added by plug-ins, so that an unknown one proves nothing.
_LOAD_FORMATS_GONE = """
0.5.0 0.28.0 value: bitsandbytes
0.5.5 0.24.0 value: gguf
"""
_CLOSEST = {
    "bitsandbytes": (
        "quantise as it loads: fp8_per_tensor, or int8_per_channel_weight_only for 8 bits;"
        " for 4 bits a checkpoint in AWQ or GPTQ"
    ),
    "gguf": "a Hugging Face checkpoint; llama.cpp serves GGUF",
    "squeezellm": "a checkpoint in AWQ or GPTQ",
    "aqlm": "a checkpoint in AWQ or GPTQ",
    "marlin": "gptq; vLLM picks the Marlin kernel itself",
    "gptq_marlin_24": "compressed-tensors",
    "deepspeedfp": "fp8",
    "hqq": "a checkpoint in AWQ or GPTQ",
    "qqq": "compressed-tensors",
    "rtn": "int8_per_channel_weight_only",
    "auto-round": "inc",
    "ptpc_fp8": "fp8_per_channel",
    "nvfp4": "modelopt_fp4",
    "petit_nvfp4": "modelopt_fp4",
    "cpu_awq": "awq",
    "cpu_gptq": "gptq",
    "ipex": "awq or gptq",
}
QUANTISATION_SOURCE = "vllm.model_executor.layers.quantization"


def _values(table: str, source: str) -> NameTable:
    rows = (replace(row, replacement=_CLOSEST.get(row.name)) for row in listed(table))
    return NameTable(
        engine="vLLM", thing="value", rows=by_name(rows, source=source), gone_since="was removed in"
    )


QUANTISATIONS = _values(_QUANTISATIONS, QUANTISATION_SOURCE)
LOAD_FORMATS_GONE = _values(_LOAD_FORMATS_GONE, "vllm.model_executor.model_loader")


def same_bits(quantisation: str) -> str | None:
    """The name under which the newest vLLM has what a gone quantisation did; None where nothing does the same."""
    name = _CLOSEST.get(quantisation, "").partition(";")[0]
    row = QUANTISATIONS.find(name)
    return name if row is not None and row.gone is None else None


def closest(quantisation: str) -> str:
    return _CLOSEST.get(quantisation, "a checkpoint quantised for vLLM, whose config says how")


ENVIRONMENT = NameTable(
    engine="vLLM",
    thing="variable",
    rows=by_name(
        (
            Row(
                "VLLM_USE_V1", TEXT, (0, 6, 4), (0, 11, 1), replacement="V1 is the only engine; leave it out"
            ),
            Row("VLLM_ATTENTION_BACKEND", TEXT, (0, 4, 0), (0, 15, 0), replacement="--attention-backend"),
        ),
        source="vllm.envs",
    ),
    gone_since="this variable has no effect since",
)
