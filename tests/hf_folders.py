"""Small Hugging Face folders, written by the tests themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SIZES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "I8": 1, "I32": 4}
HIDDEN, WIDTH, LAYERS, VOCABULARY = 64, 128, 2, 100
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 512,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip
TOKENS = tuple(f"t{number}" for number in range(VOCABULARY))


def tensor_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        stem = f"model.layers.{layer}"
        shapes |= {
            f"{stem}.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            f"{stem}.self_attn.k_proj.weight": (HIDDEN // 2, HIDDEN),
            f"{stem}.self_attn.v_proj.weight": (HIDDEN // 2, HIDDEN),
            f"{stem}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{stem}.mlp.gate_proj.weight": (WIDTH, HIDDEN),
            f"{stem}.mlp.up_proj.weight": (WIDTH, HIDDEN),
            f"{stem}.mlp.down_proj.weight": (HIDDEN, WIDTH),
            f"{stem}.input_layernorm.weight": (HIDDEN,),
            f"{stem}.post_attention_layernorm.weight": (HIDDEN,),
        }
    return shapes


def write_safetensors(path: Path, shapes: Mapping[str, Sequence[int]], dtype: str = "BF16") -> int:
    """The header is true and the data are zeros; returns the bytes of the data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        size = SIZES[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(end))
    return end


def write_folder(
    folder: Path,
    *,
    config: Mapping[str, Any] = CONFIG,
    tokens: Sequence[str] | None = TOKENS,
    added: Sequence[tuple[int, str]] = (),
    with_weights: bool = True,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if tokens is not None:
        tokenizer = {
            "model": {
                "type": "BPE",
                "vocab": {text: place for place, text in enumerate(tokens)},
                "merges": [],
            },
            "added_tokens": [{"id": place, "content": text} for place, text in added],
        }
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    if with_weights:
        write_safetensors(folder / "model.safetensors", tensor_shapes())
    return folder
