"""vLLM's flags that speculation is made of, and those that changed under a command that people still paste. Pure.

To add a flag, add a row: the other server flags are in vllm_server_flags.py. `gone` is the first release without it.
"""

from __future__ import annotations

from speclift.linter.findings import Release
from speclift.linter.rows import FlagKind, FlagRow, Span
from speclift.linter.vllm_keys import CONFIG_SINCE, NO_TYPICAL
from speclift.linter.vllm_server_flags import SERVER_FLAGS

ARGS = "vllm.engine.arg_utils"
SERVER = "vllm.entrypoints.openai.cli_args"
# 0.8.2 had both the old flags and --speculative-config; 0.8.3 dropped the flags.
OLD_FLAGS_GONE: Release = (0, 8, 3)
V0 = "a part of the V0 engine; V1 needs no such setting"


def _row(name: str, kind: FlagKind, since: Release, gone: Release | None = None, **more: object) -> FlagRow:
    return FlagRow(
        name=name,
        kind=kind,
        span=Span(since=since, gone=gone),
        **{"source": ARGS, **more},  # type: ignore[arg-type]
    )


def _old(name: str, kind: FlagKind, since: Release, **more: object) -> FlagRow:
    return _row(name, kind, since, OLD_FLAGS_GONE, **more)


SPECULATION: tuple[FlagRow, ...] = (
    _row("--speculative-config", FlagKind.OBJECT, CONFIG_SINCE, aliases=("-sc",)),
    _row("--spec-method", FlagKind.TEXT, (0, 22, 0), key="method"),
    _row("--spec-model", FlagKind.TEXT, (0, 22, 0), key="model"),
    _row("--spec-tokens", FlagKind.INT, (0, 22, 0), key="num_speculative_tokens", low=1),
    _row(
        "--per-request-spec-decode-metrics",
        FlagKind.TEXT,
        (0, 29, 0),
        choices=tuple((name, (0, 29, 0), None) for name in ("none", "summary", "detailed")),
    ),
    _old("--speculative-model", FlagKind.TEXT, (0, 4, 1), key="model"),
    _old("--num-speculative-tokens", FlagKind.INT, (0, 4, 1), key="num_speculative_tokens", low=1),
    _old(
        "--speculative-draft-tensor-parallel-size",
        FlagKind.INT,
        (0, 5, 1),
        aliases=("-spec-draft-tp",),
        key="draft_tensor_parallel_size",
        low=1,
    ),
    _old("--speculative-max-model-len", FlagKind.INT, (0, 4, 1), key="max_model_len", low=1),
    _old("--speculative-model-quantization", FlagKind.TEXT, (0, 5, 5), key="quantization"),
    _old(
        "--speculative-disable-by-batch-size",
        FlagKind.INT,
        (0, 4, 3),
        key="disable_by_batch_size",
        replacement="num_speculative_tokens_per_batch_size with a range of k = 0 (since 0.24)",
        note="its key was dead from 0.10 and is refused since 0.17",
        source=f"{ARGS}; vLLM PR 35060",
    ),
    _old("--ngram-prompt-lookup-max", FlagKind.INT, (0, 4, 2), key="prompt_lookup_max", low=1),
    _old("--ngram-prompt-lookup-min", FlagKind.INT, (0, 4, 2), key="prompt_lookup_min", low=1),
    _old(
        "--spec-decoding-acceptance-method",
        FlagKind.TEXT,
        (0, 5, 1),
        key="acceptance_method",
        choices=tuple(
            (name, (0, 5, 1), None) for name in ("rejection_sampler", "typical_acceptance_sampler")
        ),
        note=NO_TYPICAL,
    ),
    _old(
        "--typical-acceptance-sampler-posterior-threshold",
        FlagKind.FLOAT,
        (0, 5, 1),
        key="posterior_threshold",
        note=NO_TYPICAL,
    ),
    _old(
        "--typical-acceptance-sampler-posterior-alpha",
        FlagKind.FLOAT,
        (0, 5, 1),
        key="posterior_alpha",
        note=NO_TYPICAL,
    ),
    _old(
        "--speculative-disable-mqa-scorer",
        FlagKind.SWITCH,
        (0, 6, 3),
        key="disable_mqa_scorer",
        note="the scorer went with the V0 engine; nothing replaces it",
    ),
    _old(
        "--disable-logprobs-during-spec-decoding",
        FlagKind.SWITCH,
        (0, 5, 3),
        key="disable_logprobs",
        note="logprobs work under speculation; leave it out",
    ),
    _row(
        "--num-lookahead-slots",
        FlagKind.INT,
        (0, 4, 1),
        (0, 12, 0),
        note="vLLM takes it from k; leave it out",
    ),
    _row(
        "--use-v2-block-manager",
        FlagKind.SWITCH,
        (0, 4, 0),
        (0, 10, 0),
        dead_since=(0, 6, 4),
        note="the only block manager there was from 0.6.4 on; leave it out",
    ),
)

CHANGED: tuple[FlagRow, ...] = (
    _row("--model", FlagKind.TEXT, (0, 4, 0)),
    _row("--served-model-name", FlagKind.LIST, (0, 4, 0)),
    _row("--tensor-parallel-size", FlagKind.INT, (0, 4, 0), aliases=("-tp",), low=1),
    _row("--data-parallel-size", FlagKind.INT, (0, 8, 3), aliases=("-dp",), low=1),
    _row(
        "--gpu-memory-utilization",
        FlagKind.FLOAT,
        (0, 4, 0),
        aliases=("--device-memory-utilization",),
        low=0,
        high=1,
    ),
    _row("--max-model-len", FlagKind.TEXT, (0, 4, 0)),
    _row("--max-num-seqs", FlagKind.INT, (0, 4, 0), low=1),
    _row("--max-num-batched-tokens", FlagKind.TEXT, (0, 4, 0)),
    _row("--enforce-eager", FlagKind.SWITCH, (0, 4, 0)),
    _row("--enable-chunked-prefill", FlagKind.SWITCH, (0, 4, 0)),
    _row("--enable-prefix-caching", FlagKind.SWITCH, (0, 4, 0)),
    _row("--async-scheduling", FlagKind.SWITCH, (0, 10, 0)),
    _row("--kv-cache-dtype", FlagKind.TEXT, (0, 4, 0)),
    _row("--quantization", FlagKind.TEXT, (0, 4, 0), aliases=("-q",)),
    _row("--load-format", FlagKind.TEXT, (0, 4, 0)),
    _row("--seed", FlagKind.INT, (0, 4, 0)),
    # Gone, with what to write instead.
    _row(
        "--num-scheduler-steps", FlagKind.INT, (0, 5, 5), (0, 10, 1), note=f"multi-step scheduling was {V0}"
    ),
    _row("--multi-step-stream-outputs", FlagKind.SWITCH, (0, 6, 2), (0, 10, 1), note=f"multi-step was {V0}"),
    _row("--swap-space", FlagKind.TEXT, (0, 4, 0), (0, 18, 0), note="V1 recomputes what it preempts"),
    _row("--preemption-mode", FlagKind.TEXT, (0, 5, 0), (0, 11, 0), note="V1 recomputes what it preempts"),
    _row("--scheduler-delay-factor", FlagKind.FLOAT, (0, 4, 0), (0, 11, 0), note=f"it was {V0}"),
    _row("--disable-async-output-proc", FlagKind.SWITCH, (0, 6, 0), (0, 11, 0), note=f"it was {V0}"),
    _row(
        "--disable-log-requests",
        FlagKind.SWITCH,
        (0, 4, 0),
        (0, 17, 0),
        note="requests are not logged unless --enable-log-requests says so",
        source=SERVER,
    ),
    _row(
        "--disable-frontend-multiprocessing",
        FlagKind.SWITCH,
        (0, 5, 4),
        (0, 19, 0),
        note="the server always runs its engine in a process of its own",
        source=SERVER,
    ),
    _row(
        "--guided-decoding-backend",
        FlagKind.TEXT,
        (0, 4, 1),
        (0, 11, 0),
        renamed_to="--structured-outputs-config.backend",
    ),
    _row(
        "--guided-decoding-disable-fallback",
        FlagKind.SWITCH,
        (0, 9, 0),
        (0, 11, 0),
        note="--structured-outputs-config has disable_fallback",
    ),
    _row(
        "--guided-decoding-disable-any-whitespace",
        FlagKind.SWITCH,
        (0, 9, 0),
        (0, 11, 0),
        note="--structured-outputs-config has disable_any_whitespace",
    ),
    _row(
        "--guided-decoding-disable-additional-properties",
        FlagKind.SWITCH,
        (0, 9, 0),
        (0, 11, 0),
        note="--structured-outputs-config has disable_additional_properties",
    ),
    _row(
        "--max-seq-len-to-capture",
        FlagKind.INT,
        (0, 4, 2),
        (0, 11, 0),
        note="V1 captures by batch size: --max-cudagraph-capture-size",
    ),
    _row(
        "--max-context-len-to-capture", FlagKind.INT, (0, 4, 0), (0, 6, 4), note="V1 captures by batch size"
    ),
    _row("--cuda-graph-sizes", FlagKind.LIST, (0, 9, 0), (0, 13, 0), renamed_to="--cudagraph-capture-sizes"),
    _row("--task", FlagKind.TEXT, (0, 6, 4), (0, 13, 0), renamed_to="--runner", note="generate and pooling"),
    _row("--device", FlagKind.TEXT, (0, 4, 0), (0, 10, 0), note="the build decides; --device-ids picks GPUs"),
    _row(
        "--enable-reasoning",
        FlagKind.SWITCH,
        (0, 7, 1),
        (0, 10, 0),
        note="--reasoning-parser alone turns it on",
    ),
    _row(
        "--rope-scaling", FlagKind.OBJECT, (0, 4, 3), (0, 11, 1), note="--hf-overrides carries rope_scaling"
    ),
    _row("--rope-theta", FlagKind.FLOAT, (0, 5, 0), (0, 11, 1), note="--hf-overrides carries rope_theta"),
    _row(
        "--worker-use-ray",
        FlagKind.SWITCH,
        (0, 4, 0),
        (0, 7, 0),
        replacement="--distributed-executor-backend ray",
    ),
    _row(
        "--engine-use-ray",
        FlagKind.SWITCH,
        (0, 4, 0),
        (0, 6, 2),
        note="the engine runs in a process of its own",
    ),
    _row("--tokenizer-pool-size", FlagKind.INT, (0, 4, 0), (0, 10, 0), note=f"it was {V0}"),
    _row("--tokenizer-pool-type", FlagKind.TEXT, (0, 4, 0), (0, 10, 0), note=f"it was {V0}"),
    _row("--tokenizer-pool-extra-config", FlagKind.TEXT, (0, 4, 0), (0, 10, 0), note=f"it was {V0}"),
    _row("--enable-lora-bias", FlagKind.SWITCH, (0, 6, 4), (0, 11, 1), note="LoRA biases are no longer read"),
    _row(
        "--qlora-adapter-name-or-path",
        FlagKind.TEXT,
        (0, 5, 0),
        (0, 10, 0),
        note="serve it with --lora-modules",
    ),
    _row("--override-pooler-config", FlagKind.OBJECT, (0, 6, 4), (0, 12, 0), renamed_to="--pooler-config"),
    _row(
        "--disable-mm-preprocessor-cache",
        FlagKind.SWITCH,
        (0, 6, 6),
        (0, 13, 0),
        replacement="--mm-processor-cache-gb 0",
    ),
    _row(
        "--chat-template-text-format",
        FlagKind.TEXT,
        (0, 6, 4),
        (0, 6, 5),
        renamed_to="--chat-template-content-format",
    ),
    _row(
        "--quantization-param-path",
        FlagKind.TEXT,
        (0, 4, 1),
        (0, 7, 0),
        note="scales are read from the checkpoint",
    ),
    _row(
        "--calculate-kv-scales",
        FlagKind.SWITCH,
        (0, 7, 0),
        (0, 28, 0),
        note="scales are read from the checkpoint",
    ),
    _row(
        "--expand-tools-even-if-tool-choice-none",
        FlagKind.SWITCH,
        (0, 9, 2),
        (0, 10, 0),
        note="tools are expanded unless --exclude-tools-when-tool-choice-none says otherwise",
        source=SERVER,
    ),
)

FLAGS: tuple[FlagRow, ...] = (*SPECULATION, *CHANGED, *SERVER_FLAGS)
FLAG_ROWS: dict[str, FlagRow] = {name: row for row in FLAGS for name in row.names}
