"""Writes the trained draft as engines read it: a GGUF file for llama.cpp, a Hugging Face folder for vLLM.

    python training/draft/export.py --weights made/draft.pt --target smollm2-135m-q4_0.gguf --type Q8_0 --out draft.gguf
    python training/draft/export.py … --folder made/draft --tokenizer FOLDER-OF-THE-TARGET

Vocabulary and chat template are copied from the target's file: a draft that splits text differently is refused by both.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize

from llama import LAYER_NAMES, Shape
from train import DRAFT

NAME = "SmolLM2-135M-Instruct draft"
CONTEXT = 8192

Weights = dict[str, npt.NDArray[np.float32]]


def layers_of(weights: Weights, place: int) -> Weights:
    """Every matrix under its name in a GGUF file (place 1) or a Hugging Face folder (0)."""
    if place:
        named = {"token_embd.weight": weights["embedding"], "output_norm.weight": weights["norm"]}
    else:
        named = {"model.embed_tokens.weight": weights["embedding"], "model.norm.weight": weights["norm"]}
    for layer in range(DRAFT.layers):
        for own, names in LAYER_NAMES.items():
            values = weights[f"stack.{layer}.{own}"]
            if place and own in {"q.weight", "k.weight"}:
                values = _interleaved(values, DRAFT.heads if own == "q.weight" else DRAFT.kv_heads)
            named[f"{'blk' if place else 'model.layers'}.{layer}.{names[place]}"] = values
    return named


def write_gguf(weights: Weights, target: Path, out: Path, kind: GGMLQuantizationType) -> None:
    reader = GGUFReader(target)
    writer = GGUFWriter(out, "llama")
    writer.add_name(NAME)
    writer.add_license("apache-2.0")
    writer.add_block_count(DRAFT.layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(DRAFT.width)
    writer.add_feed_forward_length(DRAFT.feed_forward)
    writer.add_head_count(DRAFT.heads)
    writer.add_head_count_kv(DRAFT.kv_heads)
    writer.add_rope_freq_base(DRAFT.theta)
    writer.add_rope_dimension_count(DRAFT.head_width)
    writer.add_layer_norm_rms_eps(DRAFT.eps)
    writer.add_vocab_size(DRAFT.vocabulary)
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            kinds = field.types
            inner = kinds[1] if kinds[0] is GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kinds[0], sub_type=inner)
    for name, values in layers_of(weights, 1).items():
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_folder(weights: Weights, kind: GGMLQuantizationType, tokenizer: Path, folder: Path) -> None:
    """With the values that the GGUF file has, so that both engines draft with one model."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {
            name: torch.from_numpy(
                values if values.ndim == 1 else dequantize(quantize(values, kind), kind)
            ).to(torch.bfloat16)
            for name, values in layers_of(weights, 0).items()
        },
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "config.json").write_text(json.dumps(_config(DRAFT), indent=2) + "\n", encoding="utf-8")
    for path in tokenizer.glob("*token*"):
        shutil.copy(path, folder)


def _config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": shape.width,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_width,
        "hidden_act": "silu",
        "rms_norm_eps": shape.eps,
        "rope_parameters": {"rope_theta": shape.theta, "rope_type": "default"},
        "max_position_embeddings": CONTEXT,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }


def _interleaved(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """The two halves of a rotated head by turns, as GGUF has them."""
    rows, columns = values.shape
    return values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--type", default="Q8_0", choices=["F16", "Q8_0", "Q5_0", "Q4_0"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--tokenizer", type=Path, help="the target's Hugging Face folder")
    options = parser.parse_args()
    kind = GGMLQuantizationType[options.type]
    kept = torch.load(options.weights, weights_only=True)
    weights = {name: values.float().numpy() for name, values in kept.items()}
    if options.out:
        write_gguf(weights, options.target, options.out, kind)
    if options.folder:
        write_folder(weights, kind, options.tokenizer, options.folder)


if __name__ == "__main__":
    main()
