"""Drafts in other quantisations: made once, whole or not at all, and refused by name where that is no good."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from running import Cli
from speclift.core.errors import ModelError
from speclift.weights import models, quantising
from speclift.weights.gguf_file import checked_tensors, inspect_gguf, load_gguf_package, write_gguf
from speclift.weights.gguf_header import Header, Tensor, open_gguf
from speclift.weights.models import BUNDLED
from speclift.weights.quantising import PLAIN_TYPES, quantise, quantised_path

F16 = 1


def silent(_text: str) -> None:
    return


@pytest.fixture(scope="module")
def bundled() -> Path:
    return BUNDLED["smollm2-135m-draft"].checked_path()


@pytest.fixture(scope="module")
def fine(bundled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled draft in 16 bits, as somebody would have it before quantising."""
    pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("fine") / "draft-f16.gguf"
    with open_gguf(bundled) as header, path.open("xb") as output:
        write_gguf(
            header,
            output,
            type_of=lambda tensor: F16 if tensor.type_name == "Q4_0" else tensor.type_id,
            convert=lambda tensor, _: in_16_bits(header, tensor),
            file_type=1,
        )
    return path


def in_16_bits(header: Header, tensor: Tensor) -> bytes:
    quants, types = load_gguf_package()
    packed = np.frombuffer(header.data[tensor.start : tensor.start + tensor.size_bytes], dtype=np.uint8)
    return bytes(quants.dequantize(packed, types(tensor.type_id)).astype(np.float16).tobytes())


def path_of(source: Path, name: str, folder: Path) -> Path:
    return quantised_path(source, name, folder, digest="abc")


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tensors in 16 and 32 bits: of each way that a tensor may go, one."""
    gguf = pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("few") / "few-f16.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(1)
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(256)
    writer.add_feed_forward_length(300)
    writer.add_head_count(4)
    writer.add_vocab_size(300)
    draws = np.random.default_rng(1)
    writer.add_tensor("token_embd.weight", draws.standard_normal((300, 256)).astype(np.float16))
    writer.add_tensor("blk.0.ffn_up.weight", draws.standard_normal((300, 256)).astype(np.float16))
    writer.add_tensor("blk.0.ffn_norm.weight", np.ones(256, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", [name for name in PLAIN_TYPES if name not in ("f16", "bf16")])
def test_every_plain_type_is_made_smaller_and_near(
    name: str, few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantising, "CHUNK_ELEMENTS", 7 * 256)
    made = path_of(few, name, tmp_path)
    quantise(few, name, made, say=silent)
    assert [path.name for path in tmp_path.iterdir()] == [made.name]
    assert made.stat().st_size < few.stat().st_size
    before = {tensor.name: tensor for tensor in checked_tensors(few)}
    after = {tensor.name: tensor for tensor in checked_tensors(made)}
    assert {tensor.type_name for tensor in after.values()} == {"F32", "Q8_0", name.upper()}
    quants, types = load_gguf_package()
    with open_gguf(few) as old, open_gguf(made) as new:
        assert new.fields == {**old.fields, "general.file_type": PLAIN_TYPES[name][1]}
        for matrix in ("blk.0.ffn_up.weight", "token_embd.weight"):
            one, other = before[matrix], after[matrix]
            exact = np.frombuffer(old.data[one.start : one.start + one.size_bytes], dtype=np.float16)
            packed = np.frombuffer(new.data[other.start : other.start + other.size_bytes], dtype=np.uint8)
            rounded = quants.dequantize(packed, types(other.type_id))
            assert np.corrcoef(exact.astype(np.float32), rounded)[0, 1] > 0.98


@pytest.mark.slow
def test_a_file_that_is_there_is_taken_and_one_that_is_broken_is_made_again(
    fine: Path, tmp_path: Path
) -> None:
    made = path_of(fine, "q8_0", tmp_path)
    quantise(fine, "q8_0", made, say=silent)
    content = made.read_bytes()
    said: list[str] = []
    quantise(fine, "q8_0", made, say=said.append)
    assert said == []
    made.write_bytes(content[:-1000])
    quantise(fine, "q8_0", made, say=said.append)
    assert len(said) == 1
    assert made.read_bytes() == content


def test_what_is_lower_already_is_refused_with_what_to_do(bundled: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="mostly Q4_0 already") as error:
        path_of(bundled, "q8_0", tmp_path)
    assert "F16" in error.value.hint


def test_without_room_nothing_is_begun(fine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1_000_000))
    with pytest.raises(ModelError, match=r"has 1\.0 MB free") as error:
        quantise(fine, "q8_0", path_of(fine, "q8_0", tmp_path / "new"), say=silent)
    assert "SPECLIFT_CACHE" in error.value.hint
    assert list((tmp_path / "new").iterdir()) == []


def test_a_failure_half_way_leaves_nothing(
    fine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(quantising, "write_gguf", full)
    with pytest.raises(ModelError, match="No space left on device"):
        quantise(fine, "q8_0", path_of(fine, "q8_0", tmp_path), say=silent)
    assert list(tmp_path.iterdir()) == []


class TestMixes:
    """Those that only llama-quantize makes."""

    def tool(self, folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        (folder / "llama-quantize").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "llama-quantize").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def test_are_made_by_it(
        self, fine: Path, bundled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.tool(tmp_path / "bin", f'echo "$@" > {tmp_path}/asked; cp {bundled} "$3"', monkeypatch)
        made = path_of(fine, "Q4_K_M", tmp_path / "new")
        quantise(fine, "Q4_K_M", made, say=silent)
        assert made.read_bytes() == bundled.read_bytes()
        assert (tmp_path / "asked").read_text().split()[::3] == ["--allow-requantize", "Q4_K_M"]

    @pytest.mark.parametrize("script", ["echo no such type; exit 1", 'echo garbage > "$3"', "exit 0"])
    def test_that_it_fails_to_make_are_not_kept(
        self, script: str, fine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.tool(tmp_path / "bin", script, monkeypatch)
        with pytest.raises(ModelError):
            quantise(fine, "q4_k_m", path_of(fine, "q4_k_m", tmp_path / "new"), say=silent)
        assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.llama
@pytest.mark.long
def test_a_quantised_draft_drafts(fine: Path, embedded_model: Path, cli: Cli) -> None:
    result = cli(
        *("measure", "--json", "--model", str(embedded_model), "--draft", str(fine), "--method", "draft"),
        *("--k", "3", "--draft-quant", "q8_0", "--segment", "chat", "--requests", "2", "--max-tokens", "12"),
        *("--launches", "1", "--threads", "1"),
    )
    assert result.code == 0, result.stderr
    (made,) = (models.models_directory() / "quantised").iterdir()
    assert inspect_gguf(made).quantisation == "Q8_0"
    assert str(made) in json.dumps(result.document) + result.stderr
    drafted = [cell for cell in result.document["cells"] if cell["arm"] == "draft-k3"]
    assert all(cell["accepted_length"]["value"] > 1.0 for cell in drafted)
