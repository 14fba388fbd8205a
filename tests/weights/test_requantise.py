from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speclift.core.errors import ModelError
from speclift.weights.gguf_file import requantise_q4_0

gguf = pytest.importorskip("gguf", reason="writing test models needs the gguf package")


def _write_model(
    path: Path,
    *,
    tensor_types: Sequence[str] = ("Q8_0", "Q4_1", "F32"),
    fields: Callable[[Any], None] = lambda writer: None,
) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_file_type(3)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "é", b"\xff"])
    fields(writer)
    for number, type_name in enumerate(tensor_types):
        values = np.random.default_rng(number).standard_normal((3 + number, 64), dtype=np.float32)
        kind = gguf.GGMLQuantizationType[type_name]
        writer.add_tensor(f"block.{number}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_q4_1_becomes_q4_0_and_all_other_tensors_keep_their_bytes(tmp_path: Path) -> None:
    source = _write_model(tmp_path / "source.gguf", tensor_types=["Q8_0", "Q4_1", "F32", "Q4_1"])
    requantise_q4_0(source, tmp_path / "result.gguf")

    before, after = (
        {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
        for path in (source, tmp_path / "result.gguf")
    )

    assert [tensor.tensor_type.name for tensor in after.values()] == ["Q8_0", "Q4_0", "F32", "Q4_0"]
    for name in ("block.0.weight", "block.2.weight"):
        assert after[name].data.tobytes() == before[name].data.tobytes()
    for name in ("block.1.weight", "block.3.weight"):
        values = gguf.quants.dequantize(before[name].data, gguf.GGMLQuantizationType.Q4_1)
        expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_0)
        assert np.array_equal(after[name].data, expected)


def test_the_same_source_gives_the_same_bytes_and_no_other_file(tmp_path: Path) -> None:
    source = _write_model(tmp_path / "source.gguf")
    for name in ("one.gguf", "two.gguf"):
        requantise_q4_0(source, tmp_path / name)

    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "two.gguf").read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["one.gguf", "source.gguf", "two.gguf"]


def test_a_damaged_source_leaves_the_destination_as_it_was(tmp_path: Path) -> None:
    source = _write_model(tmp_path / "source.gguf")
    with source.open("r+b") as stream:
        stream.truncate(source.stat().st_size - 100)
    (tmp_path / "result.gguf").write_text("older")

    with pytest.raises(ModelError, match="truncated"):
        requantise_q4_0(source, tmp_path / "result.gguf")
    assert (tmp_path / "result.gguf").read_text() == "older"
