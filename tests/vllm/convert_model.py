"""Writes a GGUF model as a Hugging Face folder that vLLM reads. Run with the interpreter of vLLM's environment:

`python convert_model.py MODEL.gguf FOLDER`
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, LlamaForCausalLM

DTYPE = torch.bfloat16


def convert(gguf: Path, folder: Path) -> None:
    source, name = str(gguf.parent), gguf.name
    plain = GgufConfig(gguf_file=name, dequantize=True)
    read = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=name, dtype=DTYPE, quantization_config=plain
    )
    # What was read remembers that it was quantised and would be saved as such; a fresh model does not.
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    fresh = LlamaForCausalLM(config).to(DTYPE)
    fresh.load_state_dict(read.state_dict())
    AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(str(folder))
    fresh.save_pretrained(str(folder))


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
