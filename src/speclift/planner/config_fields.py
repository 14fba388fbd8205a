"""Reads single fields of a config.json: their other names, their types, and who asked for a missing one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from speclift.core.errors import ModelError
from speclift.core.json_reading import as_list, as_object, as_text

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
