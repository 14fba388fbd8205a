"""Model folders in real shapes without weights, for `--load-format dummy`: step cost is real, the text is not.

`python benchmarks/gpu/shapes.py TOKENIZER_FOLDER OUT` writes OUT/{llama-8b,llama-1b,...}. The tokenizer is the given
folder's, filled up to the shape's vocabulary so that every token id the random weights choose has a text.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

VOCABULARY = 128_256
# config.json of Llama 3.1 8B and Llama 3.2 1B (Meta's model cards), less what the engine does not read.
_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "max_position_embeddings": 8192,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
_8B = {
    **_LLAMA,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
_1B = {
    **_LLAMA,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama-8b": _8B,
    "llama-1b": _1B,
    # As many bytes per pass as the 1B draft in a quarter of its layers: tells bytes from launches.
    "wide-4-layers": {**_8B, "num_hidden_layers": 4, "tie_word_embeddings": True},
    # A draft trained to guess all k tokens in one pass (PARD) has a token that stands for "unknown yet".
    "llama-1b-parallel": {**_1B, "pard_token": 128_255},
    # One layer of the target's width on top of its hidden states.
    "eagle-head": {**_8B, "num_hidden_layers": 1},
}


def write(tokenizer: Path, out: Path) -> None:
    for name, config in SHAPES.items():
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1))
        for extra in ("tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(tokenizer / extra, folder)
        (folder / "tokenizer.json").write_text(_filled(tokenizer / "tokenizer.json"))


def _filled(path: Path) -> str:
    tokenizer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    taken = set(vocabulary.values()) | {token["id"] for token in tokenizer["added_tokens"]}
    # U+0120 is how a byte-level vocabulary writes a space.
    vocabulary.update({f"\u0120w{index}": index for index in range(VOCABULARY) if index not in taken})
    return json.dumps(tokenizer)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
