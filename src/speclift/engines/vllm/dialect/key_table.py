"""vLLM's speculative config as data: every key and method with its lifetime, range and source. Pure.

Lifetimes are those of class SpeculativeConfig in the tags v0.8.2 to v0.27.1 and the releases 0.28 to 0.32; to
add a key, add a row. `gone` is the first release without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from speclift.linter.findings import Release
from speclift.linter.rows import (
    BOOL,
    CHOICE,
    FLOAT,
    INT,
    INTERNAL,
    OBJECT,
    RANGES,
    RATES,
    TEXT,
    NameTable,
    Row,
    by_name,
    values,
)

NEWEST: Release = (0, 32, 0)
# Before it speculation was a set of flags: --speculative-model and its kin.
CONFIG_SINCE: Release = (0, 8, 2)
V0_GONE: Release = (0, 10, 0)  # the V0 engine's speculative decoding went with it
DRAFT_MODEL_BACK: Release = (0, 15, 0)
CPU_SPECULATION_SINCE: Release = (0, 20, 0)  # the CPU worker asserted speculation off up to 0.19
SCHEDULE_SINCE: Release = (0, 24, 0)
SYNTHETIC_SINCE: Release = (0, 20, 0)
K_MAX = 128  # the sampler asserts it (v1/sample/rejection_sampler.py, 0.32)

SCHEDULE = "num_speculative_tokens_per_batch_size"

CONFIG = "vllm.config.speculative"
RUNNER = "vllm.v1.worker.gpu_model_runner"

MODEL_BASED = ("draft_model", "eagle", "eagle3", "mtp", "medusa", "mlp_speculator", "dflash", "dspark")
NGRAM = ("ngram", "ngram_gpu")
EAGLE_LIKE = ("eagle", "eagle3", "mtp", "dflash", "dspark")


NO_TYPICAL = (
    "typical acceptance was removed with the V0 engine; it changed the output. All other methods except synthetic"
    " keep the target's distribution"
)

_KEYS = (
    Row("method", TEXT, CONFIG_SINCE),
    Row("model", TEXT, CONFIG_SINCE),
    Row("num_speculative_tokens", INT, CONFIG_SINCE, low=1, high=K_MAX),
    Row("draft_tensor_parallel_size", INT, CONFIG_SINCE, low=1, methods=MODEL_BASED),
    Row(
        "tensor_parallel_size",
        INTERNAL,
        DRAFT_MODEL_BACK,
        renamed_to="draft_tensor_parallel_size",
        note="this key exists only to be refused",
    ),
    Row("quantization", TEXT, CONFIG_SINCE, methods=MODEL_BASED),
    Row("moe_backend", TEXT, (0, 19, 0), methods=MODEL_BASED),
    Row("attention_backend", TEXT, (0, 21, 0), methods=MODEL_BASED),
    Row("kv_cache_dtype", TEXT, (0, 26, 0), methods=MODEL_BASED),
    Row("max_model_len", INT, CONFIG_SINCE, low=1, methods=MODEL_BASED),
    Row("revision", TEXT, CONFIG_SINCE, methods=MODEL_BASED),
    Row("code_revision", TEXT, CONFIG_SINCE, methods=MODEL_BASED),
    Row("draft_load_config", OBJECT, (0, 17, 0), methods=MODEL_BASED),
    Row("enforce_eager", BOOL, (0, 11, 0), methods=MODEL_BASED),
    Row("index_share_for_mtp_iteration", BOOL, (0, 29, 0), methods=("mtp",)),
    Row("disable_padded_drafter_batch", BOOL, (0, 11, 0), methods=(*EAGLE_LIKE, "draft_model")),
    Row("disable_eagle_block_drop", BOOL, (0, 30, 0), methods=EAGLE_LIKE),
    Row("use_local_argmax_reduction", BOOL, (0, 17, 0), methods=MODEL_BASED),
    Row("use_heterogeneous_vocab", BOOL, (0, 25, 0), methods=("draft_model",)),
    Row("prompt_lookup_max", INT, CONFIG_SINCE, low=1, methods=NGRAM),
    Row("prompt_lookup_min", INT, CONFIG_SINCE, low=1, methods=NGRAM),
    Row("parallel_drafting", BOOL, (0, 16, 0), methods=MODEL_BASED),
    Row(SCHEDULE, RANGES, SCHEDULE_SINCE, source="vllm.v1.spec_decode.dynamic.utils; vLLM PR 32374"),
    Row("suffix_decoding_max_tree_depth", INT, (0, 11, 1), low=1, methods=("suffix",)),
    Row("suffix_decoding_max_cached_requests", INT, (0, 11, 1), low=0, methods=("suffix",)),
    Row("suffix_decoding_max_spec_factor", FLOAT, (0, 11, 1), low=0, methods=("suffix",)),
    Row("suffix_decoding_min_token_prob", FLOAT, (0, 11, 1), low=0, high=1, methods=("suffix",)),
    Row(
        "rejection_sample_method",
        CHOICE,
        (0, 18, 0),
        choices=(
            Row("strict", TEXT, (0, 18, 0), (0, 21, 0)),
            Row("probabilistic", TEXT, (0, 18, 0), (0, 21, 0)),
            *values((0, 19, 0), "synthetic"),
            *values((0, 21, 0), "standard"),
            *values((0, 25, 0), "block"),
        ),
        note="strict and probabilistic became standard with draft_sample_method in 0.21",
    ),
    Row("synthetic_acceptance_rates", RATES, SYNTHETIC_SINCE, low=0, high=1),
    Row("synthetic_acceptance_length", FLOAT, SYNTHETIC_SINCE, low=1),
    Row(
        "draft_sample_method",
        CHOICE,
        (0, 21, 0),
        choices=values((0, 21, 0), "greedy", "probabilistic"),
        methods=MODEL_BASED,
    ),
    Row("enable_adaptive_verification", BOOL, (0, 28, 0), methods=MODEL_BASED),
    Row("dspark_draft_topk", INT, (0, 28, 0), low=1, methods=("dspark",)),
    # Filled by the engine; a user's value is overwritten or refused.
    Row("target_model_config", INTERNAL, CONFIG_SINCE),
    Row("target_parallel_config", INTERNAL, CONFIG_SINCE),
    Row("draft_model_config", INTERNAL, CONFIG_SINCE),
    Row("draft_parallel_config", INTERNAL, CONFIG_SINCE),
    # Gone.
    Row(
        "disable_by_batch_size",
        INT,
        CONFIG_SINCE,
        (0, 17, 0),
        low=2,
        dead_since=V0_GONE,
        replacement="num_speculative_tokens_per_batch_size",
        source=f"{CONFIG}; vLLM PR 35060",
        note="only the V0 engine read it",
    ),
    Row(
        "acceptance_method",
        CHOICE,
        CONFIG_SINCE,
        V0_GONE,
        choices=values(CONFIG_SINCE, "rejection_sampler", "typical_acceptance_sampler"),
        note=NO_TYPICAL,
    ),
    Row("posterior_threshold", FLOAT, CONFIG_SINCE, V0_GONE, note=NO_TYPICAL),
    Row("posterior_alpha", FLOAT, CONFIG_SINCE, V0_GONE, note=NO_TYPICAL),
    Row("disable_mqa_scorer", BOOL, CONFIG_SINCE, V0_GONE, note="the scorer was removed with the V0 engine"),
    Row(
        "disable_logprobs",
        BOOL,
        CONFIG_SINCE,
        (0, 11, 1),
        dead_since=V0_GONE,
        note="logprobs work under speculation",
    ),
    Row("disable_log_stats", INTERNAL, CONFIG_SINCE, (0, 11, 1), note="--disable-log-stats is the flag"),
    Row(
        "enable_chunked_prefill",
        INTERNAL,
        CONFIG_SINCE,
        (0, 11, 1),
        note="--enable-chunked-prefill is the flag",
    ),
    Row(
        "speculative_token_tree",
        TEXT,
        (0, 9, 0),
        (0, 21, 0),
        methods=("eagle", "eagle3"),
        note="tree drafting is gone; drafts are chains",
    ),
    Row(
        "synthetic_acceptance_rate",
        FLOAT,
        (0, 19, 0),
        (0, 20, 0),
        low=0,
        high=1,
        renamed_to="synthetic_acceptance_rates",
        note="one rate became a list of unconditional rates, one per position",
    ),
)


def _method(name: str, since: Release, *, needs_model: bool = False) -> Row:
    return Row(name, TEXT, since, needs_model=needs_model)


def _family_mtp(since: Release, *families: str) -> tuple[Row, ...]:
    return tuple(
        Row(f"{name}_mtp", TEXT, since, renamed_to="mtp", renamed_in=(0, 11, 0)) for name in families
    )


_METHODS = (
    _method("ngram", CONFIG_SINCE),
    Row(
        "draft_model",
        TEXT,
        DRAFT_MODEL_BACK,
        earlier=((CONFIG_SINCE, V0_GONE),),
        needs_model=True,
        source="vllm.engine.arg_utils v0.10.0 to v0.14.0; vllm.v1.spec_decode.draft_model v0.15.0",
        note="the V1 engine had no separate draft model from 0.10 to 0.14",
    ),
    _method("eagle", CONFIG_SINCE, needs_model=True),
    _method("eagle3", (0, 8, 5), needs_model=True),
    _method("medusa", CONFIG_SINCE, needs_model=True),
    Row(
        "mlp_speculator",
        TEXT,
        CONFIG_SINCE,
        V0_GONE,
        needs_model=True,
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

KEYS = NameTable(
    engine="vLLM",
    thing="key",
    rows=by_name(_KEYS, source=CONFIG),
    gone_since="refused since",
    dead_since="accepted, but nothing reads it since",
    is_typed=True,
    source=CONFIG,
)
METHODS = NameTable(engine="vLLM", thing="method", rows=by_name(_METHODS, source=CONFIG), source=CONFIG)


def schedule_fault(schedule: object) -> str | None:
    """What is wrong with a k-by-batch-size schedule; None where vLLM takes it."""
    if isinstance(schedule, Mapping):
        return "a list of [first, last, k], not an object (the schema changed before its first release)"
    if not isinstance(schedule, (list, tuple)) or not schedule:
        return f"a list of [first, last, k] that is not empty, saw {schedule!r}"
    wrong = next((said for said in map(_range_fault, schedule) if said is not None), None)
    if wrong is not None:
        return wrong
    ranges = sorted(tuple(entry) for entry in schedule)  # as vLLM does
    if ranges[0][0] != 1:
        return f"the first range starts at batch size 1, saw {ranges[0][0]}"
    for before, after in pairwise(ranges):
        if after[0] <= before[1]:
            return f"ranges overlap: {list(before)} and {list(after)}"
    return None


def _range_fault(entry: object) -> str | None:
    if not isinstance(entry, (list, tuple)) or len(entry) != 3:
        return f"each entry is [first, last, k], saw {entry!r}"
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in entry):
        return f"each entry holds whole numbers, saw {entry!r}"
    first, last, k = entry
    if first < 1 or last < first or k < 0:
        return f"1 <= first <= last and k >= 0, saw {entry!r}"
    return None
