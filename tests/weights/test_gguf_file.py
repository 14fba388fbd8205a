from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from speclift.core.errors import ModelError
from speclift.weights.gguf_file import check_gguf, inspect_gguf, read_vocabulary
from speclift.weights.gguf_header import TENSOR_TYPES, open_gguf

gguf = pytest.importorskip("gguf", reason="writing test models needs the gguf package")

TOKENS: tuple[str | bytes, ...] = ("<s>", "</s>", "a", "b", "Ġthe", "é", b"\xff\xfe", "c")


def _random_tensor(type_name: str, rows: int, columns: int, seed: int) -> Any:
    values = np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32)
    return gguf.quants.quantize(values, gguf.GGMLQuantizationType[type_name])


def _write_model(
    path: Path,
    *,
    fields: Callable[[Any], None] = lambda writer: None,
    tensor_types: Sequence[str] = ("Q8_0", "Q4_1", "F32"),
    tokens: Sequence[str | bytes] | None = TOKENS,
    tokenizer: str = "gpt2",
) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_context_length(512)
    writer.add_file_type(3)
    if tokens is not None:
        writer.add_tokenizer_model(tokenizer)
        writer.add_token_list(list(tokens))
    fields(writer)
    for number, type_name in enumerate(tensor_types):
        tensor = _random_tensor(type_name, rows=4 + 60 * number, columns=64, seed=number)
        writer.add_tensor(f"block.{number}.weight", tensor, raw_dtype=gguf.GGMLQuantizationType[type_name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _attention(writer: Any) -> None:
    writer.add_head_count(8)
    writer.add_head_count_kv(2)


class TestInspecting:
    def test_the_shape_of_the_model_is_read_from_its_fields(self, tmp_path: Path) -> None:
        def fields(writer: Any) -> None:
            _attention(writer)
            writer.add_name("Tiny")
            writer.add_license("mit")
            writer.add_tokenizer_pre("smollm")

        path = _write_model(tmp_path / "tiny.gguf", fields=fields)

        info = inspect_gguf(path)

        assert (info.path, info.architecture, info.name, info.licence) == (path, "llama", "Tiny", "mit")
        assert (info.layers, info.embedding, info.context_tokens) == (2, 64, 512)
        assert (info.heads, info.kv_heads, info.kv_heads_per_layer) == (8, 2, (2, 2))
        assert (info.key_length, info.value_length) == (8, 8)
        assert (info.vocabulary_size, info.tokenizer) == (len(TOKENS), "gpt2/smollm")
        assert info.parameters == (4 + 64 + 124) * 64
        assert info.file_bytes == path.stat().st_size

    def test_a_file_that_is_no_language_model_is_refused_with_the_missing_field(self, tmp_path: Path) -> None:
        writer = gguf.GGUFWriter(tmp_path / "clip.gguf", "clip")
        writer.add_tensor("v.weight", np.zeros((2, 2), dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

        with pytest.raises(ModelError, match=r"clip\.block_count is missing"):
            inspect_gguf(tmp_path / "clip.gguf")

    def test_only_the_header_of_a_huge_file_is_read(self, tmp_path: Path) -> None:
        """64 GiB of tensors as a hole in the file: reading them would exhaust memory or the time limit."""
        elements, path = 1 << 34, tmp_path / "huge.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_block_count(1)
        writer.add_embedding_length(64)
        writer.add_context_length(64)
        writer.add_tensor_info("w", [elements], np.dtype(np.float32), elements * 4)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        with path.open("r+b") as stream:
            stream.truncate((path.stat().st_size // 32 + 1) * 32 + elements * 4)

        assert inspect_gguf(path).parameters == elements

    def test_reading_works_without_the_gguf_package(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = _write_model(tmp_path / "m.gguf")
        monkeypatch.setitem(sys.modules, "gguf", None)

        assert inspect_gguf(path).layers == 2
        assert len(read_vocabulary(path).tokens) == len(TOKENS)


class TestVocabulary:
    @pytest.mark.parametrize(
        ("tokenizer", "pre", "expected"),
        [
            ("llama", None, ("spm", 1, 2, True, False)),
            ("gpt2", "smollm", ("bpe", 11, 11, False, False)),
            ("gpt2", "llama-bpe", ("bpe", 11, 11, True, False)),
            ("t5", None, ("ugm", None, 1, False, True)),
            ("invented", None, ("invented", None, None, False, False)),
        ],
    )
    def test_unstated_special_tokens_are_those_llama_cpp_assumes(
        self, tmp_path: Path, tokenizer: str, pre: str | None, expected: tuple[object, ...]
    ) -> None:
        def fields(writer: Any) -> None:
            if pre is not None:
                writer.add_tokenizer_pre(pre)

        vocabulary = read_vocabulary(_write_model(tmp_path / "m.gguf", fields=fields, tokenizer=tokenizer))

        assert (
            vocabulary.type,
            vocabulary.bos_id,
            vocabulary.eos_id,
            vocabulary.add_bos,
            vocabulary.add_eos,
        ) == expected

    def test_gemma_4_adds_bos_even_when_its_file_denies_it(self, tmp_path: Path) -> None:
        def fields(writer: Any) -> None:
            writer.add_add_bos_token(False)

        path = _write_model(tmp_path / "m.gguf", fields=fields, tokenizer="gemma4")

        assert read_vocabulary(path).add_bos


def _patched(path: Path, offset: int, content: bytes) -> Path:
    raw = bytearray(path.read_bytes())
    raw[offset : offset + len(content)] = content
    path.write_bytes(raw)
    return path


class TestChecking:
    @pytest.mark.parametrize(
        ("content", "hint"),
        [
            (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
            (b"<!DOCTYPE html><html>", "web page"),
            (b"PK\x03\x04\x00\x00", "zip"),
            (b"\x00\x01\x02\x03\x04", "GGUF format"),
        ],
    )
    def test_a_file_of_another_kind_is_recognised(self, tmp_path: Path, content: bytes, hint: str) -> None:
        (tmp_path / "m.gguf").write_bytes(content)

        with pytest.raises(ModelError, match="is not a GGUF file") as caught:
            check_gguf(tmp_path / "m.gguf")
        assert hint in caught.value.hint

    @pytest.mark.parametrize(
        ("version", "message"),
        [
            (b"\x01\0\0\0", "has GGUF version 1; versions 2 and 3 are supported"),
            (b"\x04\0\0\0", "has GGUF version 4"),
            (b"\0\0\0\x03", "written for big-endian machines"),
        ],
    )
    def test_an_unsupported_version_is_named(self, tmp_path: Path, version: bytes, message: str) -> None:
        path = _patched(_write_model(tmp_path / "m.gguf"), 4, version)

        with pytest.raises(ModelError, match=message):
            check_gguf(path)

    def test_one_byte_short_is_truncated(self, tmp_path: Path) -> None:
        path = _write_model(tmp_path / "m.gguf")
        size = path.stat().st_size
        with path.open("r+b") as stream:
            stream.truncate(size - 1)

        with pytest.raises(
            ModelError, match=f"tensor block.2.weight ends at byte {size}, the file at {size - 1}"
        ):
            check_gguf(path)

    @pytest.mark.slow
    def test_a_cut_anywhere_in_the_header_is_noticed(self, tmp_path: Path) -> None:
        path = _write_model(tmp_path / "m.gguf", tensor_types=["F32"])
        whole = path.read_bytes()
        with open_gguf(path) as header:
            data_start = header.tensors[0].start
        cut = tmp_path / "cut.gguf"

        unnoticed = []
        for length in range(data_start):
            cut.write_bytes(whole[:length])
            try:
                check_gguf(cut)
            except ModelError:
                continue
            unnoticed.append(length)

        assert unnoticed == []

    @pytest.mark.slow
    @settings(
        suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10 * settings().max_examples
    )
    @given(data=st.data())
    def test_damage_in_the_header_gives_no_other_error_than_a_model_error(
        self, tmp_path: Path, data: st.DataObject
    ) -> None:
        path = tmp_path / "whole.gguf"
        if not path.exists():
            _write_model(path, fields=_attention)
        raw = bytearray(path.read_bytes())
        offset = data.draw(st.integers(4, raw.index(b"block.2.weight") + 50))
        content = data.draw(st.binary(min_size=1, max_size=8))
        damaged = tmp_path / "damaged.gguf"
        raw[offset : offset + len(content)] = content
        damaged.write_bytes(raw)

        for read in (check_gguf, inspect_gguf, read_vocabulary):
            with suppress(ModelError):
                read(damaged)

    def test_the_table_of_tensor_types_agrees_with_the_gguf_package(self) -> None:
        known = {
            int(type_id): (type_id.name, *sizes) for type_id, sizes in gguf.constants.GGML_QUANT_SIZES.items()
        }

        assert {type_id: known[type_id] for type_id in TENSOR_TYPES if type_id in known} == {
            type_id: entry for type_id, entry in TENSOR_TYPES.items() if type_id in known
        }
        assert {2, 3, 8, 12, 14} <= known.keys() & TENSOR_TYPES.keys()


class TestSplitModels:
    def _write_parts(self, folder: Path) -> tuple[Path, Path]:
        first, second = (folder / f"m-0000{part}-of-00002.gguf" for part in (1, 2))
        return _write_model(first, tensor_types=["F32"]), _write_model(second, tensor_types=["F32", "F32"])

    def test_a_missing_part_is_named(self, tmp_path: Path) -> None:
        first, second = self._write_parts(tmp_path)
        second.unlink()

        with pytest.raises(ModelError, match=r"m-00002-of-00002\.gguf is missing"):
            check_gguf(first)

    def test_a_later_part_is_refused_with_the_name_of_the_first(self, tmp_path: Path) -> None:
        first, second = self._write_parts(tmp_path)

        with pytest.raises(ModelError, match="one part of a model in 2 files") as caught:
            check_gguf(second)
        assert str(first) in caught.value.hint
