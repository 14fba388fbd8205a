from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speclift.weights.gguf_file import read_gguf_model

gguf = pytest.importorskip("gguf", reason="writing test models needs the gguf package")

SHAPES = {
    "token_embd.weight": (96, 64),
    "output.weight": (96, 64),
    "blk.0.attn_q.weight": (64, 64),
    "blk.0.ffn_gate_exps.weight": (4, 128, 64),
    "blk.0.ffn_gate_inp.weight": (4, 64),
    "blk.0.attn_norm.weight": (64,),
}


def write(
    path: Path, *, architecture: str = "llama", tokens: tuple[str, ...] = ("a", "b"), **numbers: int
) -> Path:
    writer: Any = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(4)
    writer.add_embedding_length(64)
    writer.add_context_length(512)
    writer.add_head_count(8)
    writer.add_head_count_kv(2)
    writer.add_feed_forward_length(128)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(list(tokens))
    for key, value in numbers.items():
        writer.add_uint32(f"{architecture}.{key.replace('__', '.')}", value)
    for name, shape in SHAPES.items():
        values = np.zeros(shape, dtype=np.float32)
        kind = "F32" if values.ndim == 1 else "Q8_0"
        packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
        writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_bytes_are_exact_and_sorted_by_their_part(tmp_path: Path) -> None:
    shape, weights, _ = read_gguf_model(write(tmp_path / "m.gguf", expert_count=4, expert_used_count=2))

    q8 = 34 / 32
    assert weights.embedding == weights.head == 96 * 64 * q8
    assert weights.experts == 4 * 128 * 64 * q8
    assert weights.linear == 64 * 64 * q8
    assert weights.other == 64 * 4 + 4 * 64 * q8
    assert (shape.experts, shape.experts_per_token, shape.intermediate) == (4, 2, 256)
    assert shape.parameters.total == sum(int(np.prod(each)) for each in SHAPES.values())
