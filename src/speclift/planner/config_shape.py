"""From a Hugging Face config.json to a model's shape and parameter count. Pure; refuses what it cannot count.

Catalogue rows are the same few fields, so that one reader serves both. Fields as in transformers 5.19.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from speclift.core.errors import ModelError
from speclift.core.json_reading import as_list, as_object, as_text
from speclift.core.model_shape import KvLayers, ModelShape, ParameterCounts
from speclift.core.units import Bytes, Tokens

# The same thing under other names: GPT-2's and each mixture of experts' own.
_OTHER_NAMES = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "num_layers"),
    "num_attention_heads": ("n_head",),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length"),
    "intermediate_size": ("n_inner", "ffn_hidden_size"),
    "num_local_experts": ("num_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("experts_per_token", "num_experts_per_token", "moe_top_k"),
}
# Far above any model; a damaged file must not make the sums explode.
_LARGEST = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    values: Mapping[str, object]
    where: str

    @classmethod
    def of(cls, config: Mapping[str, object], *, where: str) -> Fields:
        """Multimodal models keep the language model under text_config."""
        return cls(values={**config, **as_object(config.get("text_config"))}, where=where)

    @property
    def model_type(self) -> str:
        return as_text(self.values.get("model_type")) or ""

    def raw(self, name: str) -> object:
        for key in (name, *_OTHER_NAMES.get(name, ())):
            if self.values.get(key) is not None:
                return self.values[key]
        return None

    def maybe(self, name: str) -> int | None:
        """A whole number of at least 0; None where the file does not say."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
            raise ModelError(
                f"{self.where}: {name} should be a whole number, saw {value!r}.",
                hint="give the config.json of a language model",
            )
        return value

    def whole(self, name: str) -> int:
        value = self.maybe(name)
        if value is None and name == "intermediate_size" and self.model_type == "gpt2":
            return 4 * self.whole("hidden_size")
        if not value:
            raise ModelError(
                f"{self.where} has no {name}, which is needed for the model's size.",
                hint="give a complete config.json, or a catalogue name instead",
            )
        return value

    def whole_list(self, name: str) -> tuple[int, ...]:
        entries = as_list(self.raw(name))
        numbers = tuple(entry for entry in entries if isinstance(entry, int))
        return numbers if len(numbers) == len(entries) else ()

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.values.get(name)
        return value if isinstance(value, bool) else default

    @property
    def kv_heads(self) -> int:
        if self.flag("multi_query", default=False):
            return 1
        return self.maybe("num_key_value_heads") or self.whole("num_attention_heads")

    @property
    def head_length(self) -> int:
        return self.maybe("head_dim") or self.whole("hidden_size") // self.whole("num_attention_heads")


FULL, SLIDING, LINEAR = "full", "sliding", "linear"
LAYERS_MAX = 4096

# Words of `layer_types` in transformers.
_KINDS = {
    "full_attention": FULL,
    "attention": FULL,
    "sliding_attention": SLIDING,
    "chunked_attention": SLIDING,
    "linear_attention": LINEAR,
    "mamba": LINEAR,
}
# Every n-th layer is full, the others slide.
_FULL_EVERY = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2, "cohere2": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKinds:
    of_layers: tuple[str, ...]
    window: Tokens | None


def layer_kinds(fields: Fields) -> LayerKinds:
    count = fields.whole("num_hidden_layers")
    if count > LAYERS_MAX:
        raise ModelError(f"{fields.where} says {count} layers.", hint="the file looks damaged")
    window = fields.maybe("sliding_window") or fields.maybe("attention_chunk_size")
    stated = fields.values.get("layer_types")
    if isinstance(stated, list) and len(stated) >= count:
        kinds = tuple(_kind(str(word), fields) for word in stated[:count])
    elif every := fields.maybe("full_attention_interval"):
        kinds = tuple(FULL if (layer + 1) % every == 0 else LINEAR for layer in range(count))
    elif not window:
        kinds = (FULL,) * count
    else:
        kinds = _windowed(fields, count)
    if SLIDING in kinds and not window:
        raise ModelError(
            f"{fields.where} has sliding-window layers but no sliding_window.",
            hint="give a complete config.json, or a catalogue name instead",
        )
    return LayerKinds(of_layers=kinds, window=window if SLIDING in kinds else None)


def _kind(word: str, fields: Fields) -> str:
    if word not in _KINDS:
        raise ModelError(
            f"{fields.where}: layers of type {word!r} are not known; known: {', '.join(_KINDS)}.",
            hint="use a catalogue name, or measure instead",
        )
    return _KINDS[word]


def _windowed(fields: Fields, count: int) -> tuple[str, ...]:
    if fields.model_type.startswith("qwen"):
        # Qwen states a window and a switch beside it, which is off in all published models.
        if not fields.flag("use_sliding_window", default=False):
            return (FULL,) * count
        first = fields.maybe("max_window_layers") or 0
        return tuple(SLIDING if layer >= first else FULL for layer in range(count))
    every = fields.maybe("sliding_window_pattern") or _FULL_EVERY.get(fields.model_type)
    if every:
        return tuple(FULL if (layer + 1) % every == 0 else SLIDING for layer in range(count))
    return (SLIDING,) * count


# Feed-forward of two matrices (up, down) instead of the gated three.
_UNGATED = frozenset(
    {"gpt2", "gpt_neox", "gptj", "phi", "opt", "bloom", "falcon", "starcoder2", "mpt", "gpt_bigcode"}
)
# vLLM 0.32, config/model.py: these multiply the positions; "llama3" and others have them in the config already.
_LENGTHENING = ("linear", "dynamic", "yarn")
_TIED_BY_DEFAULT = frozenset(
    {"gemma", "gemma2", "gemma3", "gemma3_text", "gpt2", "cohere", "cohere2", "falcon"}
)
# Norms of a whole layer: before attention and before the feed-forward, unless the architecture has more.
_NORMS_PER_LAYER = {
    "gemma2": 4,
    "gemma3": 4,
    "gemma3_text": 4,
    "cohere": 1,
    "cohere2": 1,
    "falcon": 1,
    "phi": 1,
}
# They carry a layer that their config does not count (vLLM 0.32, config/speculative.py).
_WITH_MTP = frozenset({"qwen3_next", "longcat_flash", "step3p5"})
_BIASED_QKV = frozenset({"qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl"})
_NORMED_HEADS = frozenset({"qwen3", "qwen3_moe", "qwen3_next", "gemma3", "gemma3_text"})
# Float32 recurrent states, 16-bit convolution states: vLLM 0.32, v1 mamba state defaults.
_STATE_BYTES, _CONVOLUTION_BYTES = 4, 2
# Precision by `quant_method`, where that alone decides it: as the name of planner/precision.py.
_STORED = {
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "awq": "awq",
    "gptq": "gptq",
    "bitsandbytes": "nf4",
    "mxfp4": "mxfp4",
    "modelopt": "fp8",
}


@dataclass(slots=True)
class _Tally:
    """Parameters counted so far."""

    linear: int = 0
    experts: int = 0
    other: int = 0
    state_bytes: Bytes = 0
    kv: Counter[KvLayers] = field(default_factory=Counter)


def _max_positions(fields: Fields) -> int:
    """As engines derive it: some kinds of scaled rotary embeddings reach further than the trained positions."""
    positions = fields.maybe("max_position_embeddings") or 0
    scaling = as_object(fields.values.get("rope_scaling"))
    factor = scaling.get("factor")
    if scaling.get("rope_type", scaling.get("type")) not in _LENGTHENING or not isinstance(
        factor, int | float
    ):
        return positions
    trained = scaling.get("original_max_position_embeddings")
    return max(positions, round((trained if isinstance(trained, int) else positions) * factor))


def shape_from_config(
    config: Mapping[str, object],
    *,
    name: str,
    source: str,
    family: str = "",
    tokenizer: str | None = None,
) -> ModelShape:
    fields = Fields.of(config, where=source)
    kinds = layer_kinds(fields)
    hidden, vocabulary = fields.whole("hidden_size"), fields.whole("vocab_size")
    tally = _Tally(other=hidden)  # the last norm
    for layer, kind in enumerate(kinds.of_layers):
        _count_mixer(fields, kinds, kind, tally)
        _count_feed_forward(fields, layer, tally)
    tied = fields.flag("tie_word_embeddings", default=fields.model_type in _TIED_BY_DEFAULT)
    experts = fields.maybe("num_local_experts") or 0
    return ModelShape(
        name=name,
        architecture=fields.model_type or "unknown",
        layers=len(kinds.of_layers),
        hidden=hidden,
        intermediate=_widest(fields),
        heads=fields.whole("num_attention_heads"),
        vocabulary=vocabulary,
        max_positions=_max_positions(fields),
        parameters=ParameterCounts(
            embedding=vocabulary * hidden + _learned_positions(fields, hidden),
            head=0 if tied else vocabulary * hidden,
            linear=tally.linear,
            experts=tally.experts,
            other=tally.other,
        ),
        kv=_merged(tally.kv),
        state_bytes_per_sequence=tally.state_bytes,
        experts=experts if tally.experts else 0,
        experts_per_token=(fields.maybe("num_experts_per_tok") or 1) if tally.experts else 0,
        mtp_layers=mtp_layers(fields),
        precision=stored_precision(config),
        family=family or fields.model_type,
        tokenizer=tokenizer,
        source=source,
    )


def mtp_layers(fields: Fields) -> int:
    """Layers that guess further tokens, as configs name them."""
    for name in ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"):
        if (layers := fields.maybe(name)) is not None:
            return layers
    return 1 if fields.model_type in _WITH_MTP else 0


def _learned_positions(fields: Fields, hidden: int) -> int:
    return (fields.maybe("max_position_embeddings") or 0) * hidden if fields.model_type == "gpt2" else 0


def _count_mixer(fields: Fields, kinds: LayerKinds, kind: str, tally: _Tally) -> None:
    hidden = fields.whole("hidden_size")
    tally.other += hidden * _NORMS_PER_LAYER.get(fields.model_type, 2)
    if kind == LINEAR:
        _count_recurrent(fields, tally)
    elif fields.maybe("kv_lora_rank"):
        _count_latent_attention(fields, tally)
    elif kind in (FULL, SLIDING):
        _count_attention(fields, kinds, kind, tally)


def _count_attention(fields: Fields, kinds: LayerKinds, kind: str, tally: _Tally) -> None:
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    kv_heads, length = fields.kv_heads, fields.head_length
    queries, keys = heads * length, kv_heads * length
    # Qwen3-Next gates its attention: the query projection gives queries and gates.
    gates = queries if fields.model_type == "qwen3_next" else 0
    tally.linear += hidden * (queries + gates + 2 * keys) + queries * hidden
    if fields.model_type in _BIASED_QKV or fields.flag("qkv_bias", default=False):
        tally.other += queries + 2 * keys
    elif fields.flag("attention_bias", default=False):
        tally.other += queries + 2 * keys + hidden
    if fields.model_type in _NORMED_HEADS:
        tally.other += 2 * length
    if fields.model_type == "gpt_oss":
        tally.other += heads  # attention sinks
    window = kinds.window if kind == SLIDING else None
    tally.kv[KvLayers(layers=1, heads=kv_heads, key_length=length, value_length=length, window=window)] += 1


def _count_latent_attention(fields: Fields, tally: _Tally) -> None:
    """DeepSeek's multi-head latent attention: one compressed vector and one rotary key per token."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    rank, rope = fields.whole("kv_lora_rank"), fields.whole("qk_rope_head_dim")
    nope, value = fields.whole("qk_nope_head_dim"), fields.whole("v_head_dim")
    query_rank = fields.maybe("q_lora_rank")
    if query_rank:
        tally.linear += hidden * query_rank + query_rank * heads * (nope + rope)
        tally.other += query_rank
    else:
        tally.linear += hidden * heads * (nope + rope)
    tally.linear += hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    tally.other += rank
    tally.kv[KvLayers(layers=1, heads=1, key_length=rank + rope, value_length=0, is_latent=True)] += 1


def _count_recurrent(fields: Fields, tally: _Tally) -> None:
    hidden = fields.whole("hidden_size")
    if fields.maybe("linear_num_value_heads"):  # gated delta net (Qwen3-Next)
        key_heads, value_heads = fields.whole("linear_num_key_heads"), fields.whole("linear_num_value_heads")
        key, value = fields.whole("linear_key_head_dim"), fields.whole("linear_value_head_dim")
        kernel = fields.whole("linear_conv_kernel_dim")
        keys, values = key_heads * key, value_heads * value
        channels = 2 * keys + values
        tally.linear += hidden * (2 * keys + 2 * values + 2 * value_heads) + values * hidden
        tally.other += channels * kernel + 2 * value_heads + value
        state = value_heads * key * value
    else:  # Mamba 2 (Granite 4, Bamba, Falcon-H1, Nemotron-H)
        heads, length = fields.whole("mamba_n_heads"), fields.whole("mamba_d_head")
        size, groups = fields.whole("mamba_d_state"), fields.maybe("mamba_n_groups") or 1
        kernel = fields.whole("mamba_d_conv")
        inner = heads * length
        channels = inner + 2 * groups * size
        tally.linear += hidden * (inner + channels + heads) + inner * hidden
        tally.other += channels * (kernel + 1) + 3 * heads + inner
        state = heads * length * size
    tally.state_bytes += state * _STATE_BYTES + channels * (kernel - 1) * _CONVOLUTION_BYTES


def _count_feed_forward(fields: Fields, layer: int, tally: _Tally) -> None:
    hidden = fields.whole("hidden_size")
    matrices = 2 if fields.model_type in _UNGATED else 3
    if not _has_experts(fields, layer):
        width = fields.whole("intermediate_size")
        tally.linear += matrices * hidden * width
        if fields.flag("mlp_bias", default=False):
            tally.other += (matrices - 1) * width + hidden
        return
    experts = fields.whole("num_local_experts")
    width = fields.maybe("moe_intermediate_size") or fields.whole("intermediate_size")
    tally.experts += experts * matrices * hidden * width
    tally.other += hidden * experts
    if fields.model_type == "gpt_oss":  # biases of router and experts
        tally.other += experts + experts * (2 * width + hidden)
    if fields.model_type in ("deepseek_v3", "glm4_moe"):
        tally.other += experts  # the score correction of the router
    shared = (fields.maybe("n_shared_experts") or 0) * width
    if own := fields.maybe("shared_expert_intermediate_size"):
        shared = own
        tally.other += hidden  # its gate
    tally.linear += matrices * hidden * shared


def _has_experts(fields: Fields, layer: int) -> bool:
    if not fields.maybe("num_local_experts"):
        return False
    if layer < (fields.maybe("first_k_dense_replace") or 0) or layer in fields.whole_list("mlp_only_layers"):
        return False
    step = fields.maybe("decoder_sparse_step") or fields.maybe("moe_layer_freq") or 1
    return (layer + 1) % step == 0 if fields.maybe("decoder_sparse_step") else layer % step == 0


def _widest(fields: Fields) -> int:
    dense = fields.maybe("intermediate_size") or 0
    if not fields.maybe("num_local_experts"):
        return dense
    width = fields.maybe("moe_intermediate_size") or dense
    shared = (
        fields.maybe("shared_expert_intermediate_size") or (fields.maybe("n_shared_experts") or 0) * width
    )
    routed = (fields.maybe("num_experts_per_tok") or 1) * width + shared
    return max(dense, routed) if fields.maybe("first_k_dense_replace") else routed


def _merged(kv: Counter[KvLayers]) -> tuple[KvLayers, ...]:
    return tuple(
        KvLayers(
            layers=count,
            heads=each.heads,
            key_length=each.key_length,
            value_length=each.value_length,
            window=each.window,
            is_latent=each.is_latent,
        )
        for each, count in kv.items()
    )


def stored_precision(config: Mapping[str, object]) -> str:
    """What the published weights are in: the name of planner/precision.py."""
    quantised = config.get("quantization_config") or {}
    if not quantised:
        return {"float16": "fp16", "float32": "fp32"}.get(_stated_type(config), "bf16")
    if not isinstance(quantised, Mapping):
        raise ModelError(
            f"quantization_config must be an object, saw {quantised!r}", hint="check config.json"
        )
    method = str(quantised.get("quant_method") or quantised.get("quant_algo") or "").lower()
    if method == "compressed-tensors":
        return _compressed_tensors(quantised)
    eight_bits = {"gptq": quantised.get("bits") == 8, "bitsandbytes": quantised.get("load_in_8bit")}
    if eight_bits.get(method):
        return "int8"
    return _STORED.get(method, "nvfp4" if "fp4" in method else "bf16")


def _stated_type(config: Mapping[str, object]) -> str:
    """As the text model says, else the whole; both under an older name as well."""
    places = (as_object(config.get("text_config")), config)
    stated = (place.get(key) for place in places for key in ("dtype", "torch_dtype"))
    return str(next(filter(None, stated), None))


def _compressed_tensors(quantised: Mapping[str, object]) -> str:
    for group in as_object(quantised.get("config_groups")).values():
        weights = as_object(as_object(group).get("weights"))
        bits, kind = weights.get("num_bits"), weights.get("type")
        if bits == 4:
            return "nvfp4" if kind == "float" else "int4"
        if bits == 8:
            return "fp8" if kind == "float" else "int8"
    return "bf16"
