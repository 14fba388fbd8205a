"""Which layers of a model keep all keys and values, which a window of them, which a state? Pure."""

from __future__ import annotations

from dataclasses import dataclass

from speclift.core.errors import ModelError
from speclift.core.units import Tokens
from speclift.planner.config_fields import Fields

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
