"""Writes a LoRA adapter of small random numbers for a Hugging Face folder. Run with the interpreter of vLLM:

`python make_adapter.py MODEL_FOLDER FOLDER`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

RANK = 4


def make(model: Path, folder: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    size = config["hidden_size"]
    torch.manual_seed(0)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = 0.05 * torch.randn(RANK, size, dtype=torch.bfloat16)
        tensors[f"{name}.lora_B.weight"] = 0.05 * torch.randn(size, RANK, dtype=torch.bfloat16)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    told = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(told))


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
