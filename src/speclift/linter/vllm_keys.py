"""vLLM's speculative config as data: every key and method with its lifetime, range and source. Pure.

Lifetimes are those of class SpeculativeConfig in the tags v0.8.2 to v0.27.1 and the releases 0.28 to 0.32; to
add a key, add a row. `gone` is the first release without it.
"""

from __future__ import annotations

from speclift.linter.findings import Release
from speclift.linter.rows import AllowedValue, FlagKind, KeyRow, MethodRow, Span

NEWEST: Release = (0, 32, 0)
# Before it speculation was a set of flags: --speculative-model and its kin.
CONFIG_SINCE: Release = (0, 8, 2)
V0_GONE: Release = (0, 10, 0)  # the V0 engine's speculative decoding went with it
DRAFT_MODEL_BACK: Release = (0, 15, 0)
CPU_SPECULATION_SINCE: Release = (0, 20, 0)  # the CPU worker asserted speculation off up to 0.19
SCHEDULE_SINCE: Release = (0, 24, 0)
SYNTHETIC_SINCE: Release = (0, 20, 0)
K_MAX = 128  # the sampler asserts it (v1/sample/rejection_sampler.py, 0.32)

CONFIG = "vllm.config.speculative"
RUNNER = "vllm.v1.worker.gpu_model_runner"
SINCE_CONFIG = Span(since=CONFIG_SINCE)

MODEL_BASED = ("draft_model", "eagle", "eagle3", "mtp", "medusa", "mlp_speculator", "dflash", "dspark")
NGRAM = ("ngram", "ngram_gpu")
EAGLE_LIKE = ("eagle", "eagle3", "mtp", "dflash", "dspark")


def _choices(since: Release, *names: str) -> tuple[AllowedValue, ...]:
    return tuple((name, since, None) for name in names)


def _row(name: str, kind: FlagKind, since: Release, gone: Release | None = None, **more: object) -> KeyRow:
    return KeyRow(
        name=name,
        kind=kind,
        span=Span(since=since, gone=gone),
        **{"source": CONFIG, **more},  # type: ignore[arg-type]
    )


NO_TYPICAL = (
    "typical acceptance went with the V0 engine; it changed the output. Every method left but synthetic keeps"
    " the target's distribution"
)

KEYS: tuple[KeyRow, ...] = (
    _row("method", FlagKind.TEXT, CONFIG_SINCE),
    _row("model", FlagKind.TEXT, CONFIG_SINCE),
    _row("num_speculative_tokens", FlagKind.INT, CONFIG_SINCE, low=1, high=K_MAX),
    _row("draft_tensor_parallel_size", FlagKind.INT, CONFIG_SINCE, low=1, methods=MODEL_BASED),
    _row(
        "tensor_parallel_size",
        FlagKind.INTERNAL,
        DRAFT_MODEL_BACK,
        renamed_to="draft_tensor_parallel_size",
        note="this key exists only to be refused",
    ),
    _row("quantization", FlagKind.TEXT, CONFIG_SINCE, methods=MODEL_BASED),
    _row("moe_backend", FlagKind.TEXT, (0, 19, 0), methods=MODEL_BASED),
    _row("attention_backend", FlagKind.TEXT, (0, 21, 0), methods=MODEL_BASED),
    _row("kv_cache_dtype", FlagKind.TEXT, (0, 26, 0), methods=MODEL_BASED),
    _row("max_model_len", FlagKind.INT, CONFIG_SINCE, low=1, methods=MODEL_BASED),
    _row("revision", FlagKind.TEXT, CONFIG_SINCE, methods=MODEL_BASED),
    _row("code_revision", FlagKind.TEXT, CONFIG_SINCE, methods=MODEL_BASED),
    _row("draft_load_config", FlagKind.OBJECT, (0, 17, 0), methods=MODEL_BASED),
    _row("enforce_eager", FlagKind.BOOL, (0, 11, 0), methods=MODEL_BASED),
    _row("index_share_for_mtp_iteration", FlagKind.BOOL, (0, 29, 0), methods=("mtp",)),
    _row("disable_padded_drafter_batch", FlagKind.BOOL, (0, 11, 0), methods=(*EAGLE_LIKE, "draft_model")),
    _row("disable_eagle_block_drop", FlagKind.BOOL, (0, 30, 0), methods=EAGLE_LIKE),
    _row("use_local_argmax_reduction", FlagKind.BOOL, (0, 17, 0), methods=MODEL_BASED),
    _row("use_heterogeneous_vocab", FlagKind.BOOL, (0, 25, 0), methods=("draft_model",)),
    _row("prompt_lookup_max", FlagKind.INT, CONFIG_SINCE, low=1, methods=NGRAM),
    _row("prompt_lookup_min", FlagKind.INT, CONFIG_SINCE, low=1, methods=NGRAM),
    _row("parallel_drafting", FlagKind.BOOL, (0, 16, 0), methods=MODEL_BASED),
    _row(
        "num_speculative_tokens_per_batch_size",
        FlagKind.SCHEDULE,
        SCHEDULE_SINCE,
        source="vllm.v1.spec_decode.dynamic.utils; vLLM PR 32374",
    ),
    _row("suffix_decoding_max_tree_depth", FlagKind.INT, (0, 11, 1), low=1, methods=("suffix",)),
    _row("suffix_decoding_max_cached_requests", FlagKind.INT, (0, 11, 1), low=0, methods=("suffix",)),
    _row("suffix_decoding_max_spec_factor", FlagKind.FLOAT, (0, 11, 1), low=0, methods=("suffix",)),
    _row("suffix_decoding_min_token_prob", FlagKind.FLOAT, (0, 11, 1), low=0, high=1, methods=("suffix",)),
    _row(
        "rejection_sample_method",
        FlagKind.CHOICE,
        (0, 18, 0),
        choices=(
            ("strict", (0, 18, 0), (0, 21, 0)),
            ("probabilistic", (0, 18, 0), (0, 21, 0)),
            ("synthetic", (0, 19, 0), None),
            ("standard", (0, 21, 0), None),
            ("block", (0, 25, 0), None),
        ),
        note="strict and probabilistic became standard with draft_sample_method in 0.21",
    ),
    _row("synthetic_acceptance_rates", FlagKind.RATES, SYNTHETIC_SINCE, low=0, high=1),
    _row("synthetic_acceptance_length", FlagKind.FLOAT, SYNTHETIC_SINCE, low=1),
    _row(
        "draft_sample_method",
        FlagKind.CHOICE,
        (0, 21, 0),
        choices=_choices((0, 21, 0), "greedy", "probabilistic"),
        methods=MODEL_BASED,
    ),
    _row("enable_adaptive_verification", FlagKind.BOOL, (0, 28, 0), methods=MODEL_BASED),
    _row("dspark_draft_topk", FlagKind.INT, (0, 28, 0), low=1, methods=("dspark",)),
    # Filled by the engine; a user's value is overwritten or refused.
    _row("target_model_config", FlagKind.INTERNAL, CONFIG_SINCE),
    _row("target_parallel_config", FlagKind.INTERNAL, CONFIG_SINCE),
    _row("draft_model_config", FlagKind.INTERNAL, CONFIG_SINCE),
    _row("draft_parallel_config", FlagKind.INTERNAL, CONFIG_SINCE),
    # Gone.
    _row(
        "disable_by_batch_size",
        FlagKind.INT,
        CONFIG_SINCE,
        (0, 17, 0),
        low=2,
        dead_since=V0_GONE,
        replacement="num_speculative_tokens_per_batch_size",
        source=f"{CONFIG}; vLLM PR 35060",
        note="only the V0 engine read it",
    ),
    _row(
        "acceptance_method",
        FlagKind.CHOICE,
        CONFIG_SINCE,
        V0_GONE,
        choices=_choices(CONFIG_SINCE, "rejection_sampler", "typical_acceptance_sampler"),
        note=NO_TYPICAL,
    ),
    _row("posterior_threshold", FlagKind.FLOAT, CONFIG_SINCE, V0_GONE, note=NO_TYPICAL),
    _row("posterior_alpha", FlagKind.FLOAT, CONFIG_SINCE, V0_GONE, note=NO_TYPICAL),
    _row(
        "disable_mqa_scorer", FlagKind.BOOL, CONFIG_SINCE, V0_GONE, note="the scorer went with the V0 engine"
    ),
    _row(
        "disable_logprobs",
        FlagKind.BOOL,
        CONFIG_SINCE,
        (0, 11, 1),
        dead_since=V0_GONE,
        note="logprobs work under speculation",
    ),
    _row(
        "disable_log_stats",
        FlagKind.INTERNAL,
        CONFIG_SINCE,
        (0, 11, 1),
        note="--disable-log-stats is the flag",
    ),
    _row(
        "enable_chunked_prefill",
        FlagKind.INTERNAL,
        CONFIG_SINCE,
        (0, 11, 1),
        note="--enable-chunked-prefill is the flag",
    ),
    _row(
        "speculative_token_tree",
        FlagKind.TEXT,
        (0, 9, 0),
        (0, 21, 0),
        methods=("eagle", "eagle3"),
        note="tree drafting is gone; drafts are chains",
    ),
    _row(
        "synthetic_acceptance_rate",
        FlagKind.FLOAT,
        (0, 19, 0),
        (0, 20, 0),
        low=0,
        high=1,
        renamed_to="synthetic_acceptance_rates",
        note="one rate became a list of unconditional rates, one per position",
    ),
)


def _method(name: str, since: Release, *, needs_model: bool = False, **more: object) -> MethodRow:
    return MethodRow(
        name=name,
        needs_model=needs_model,
        **{"spans": (Span(since=since),), "source": CONFIG, **more},  # type: ignore[arg-type]
    )


def _family_mtp(since: Release, *families: str) -> tuple[MethodRow, ...]:
    return tuple(_method(f"{name}_mtp", since, renamed_to="mtp", renamed_in=(0, 11, 0)) for name in families)


METHODS: tuple[MethodRow, ...] = (
    _method("ngram", CONFIG_SINCE),
    _method(
        "draft_model",
        CONFIG_SINCE,
        needs_model=True,
        spans=(Span(since=CONFIG_SINCE, gone=V0_GONE), Span(since=DRAFT_MODEL_BACK)),
        source="vllm.engine.arg_utils v0.10.0 to v0.14.0; vllm.v1.spec_decode.draft_model v0.15.0",
        note="the V1 engine had no separate draft model from 0.10 to 0.14",
    ),
    _method("eagle", CONFIG_SINCE, needs_model=True),
    _method("eagle3", (0, 8, 5), needs_model=True),
    _method("medusa", CONFIG_SINCE, needs_model=True),
    _method(
        "mlp_speculator",
        CONFIG_SINCE,
        needs_model=True,
        spans=(Span(since=CONFIG_SINCE, gone=V0_GONE),),
        source=RUNNER,
        note="still in the list of names, but no runner has a proposer for it: the worker fails as it starts",
    ),
    _method("mtp", (0, 11, 0)),
    _method("suffix", (0, 11, 1)),
    _method("extract_hidden_states", (0, 17, 0)),
    _method("ngram_gpu", (0, 18, 0)),
    _method("dflash", (0, 20, 0), needs_model=True),
    _method("custom_class", (0, 22, 0), needs_model=True),
    _method("dspark", (0, 25, 0)),
    *_family_mtp((0, 9, 0), "deepseek"),
    *_family_mtp((0, 10, 2), "ernie", "qwen3_next"),
    *_family_mtp((0, 11, 0), "mimo", "longcat_flash"),
    *_family_mtp((0, 11, 1), "glm4_moe", "pangu_ultra_moe"),
    *_family_mtp((0, 14, 0), "exaone_moe"),
    *_family_mtp((0, 15, 0), "glm4_moe_lite"),
    *_family_mtp((0, 15, 1), "step3p5"),
    *_family_mtp((0, 16, 0), "glm_ocr"),
    *_family_mtp((0, 17, 0), "nemotron_h", "qwen3_5"),
    *_family_mtp((0, 20, 0), "exaone4_5", "hy_v3"),
    *_family_mtp((0, 21, 0), "mimo_v2", "gemma4"),
    *_family_mtp((0, 24, 0), "minimax_m3"),
    *_family_mtp((0, 25, 0), "bailing_hybrid"),
    *_family_mtp((0, 26, 0), "inkling"),
    *_family_mtp((0, 27, 0), "kimi_k3"),
    *_family_mtp((0, 28, 0), "bailing_hybrid_v3", "dots3_note"),
    *_family_mtp((0, 29, 0), "hy_v4", "qwen4_exp"),
    *_family_mtp((0, 30, 0), "glm5_next"),
)

KEY_ROWS: dict[str, KeyRow] = {row.name: row for row in KEYS}
METHOD_ROWS: dict[str, MethodRow] = {row.name: row for row in METHODS}
