from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_folders import CONFIG, TOKENS, tensor_shapes, write_folder, write_safetensors
from speclift.core.errors import ModelError
from speclift.weights.hf_folder import (
    hub_folder,
    read_hf_model,
    read_safetensors,
    read_tokens,
)


class TestWeights:
    def test_their_bytes_are_those_of_the_file_without_its_header(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "m")
        file = folder / "model.safetensors"
        header = 8 + int.from_bytes(file.read_bytes()[:8], "little")

        shape, weights = read_hf_model(folder, name="m")

        assert weights.is_from_file
        assert weights.total == file.stat().st_size - header == 2 * shape.parameters.total

    def test_experts_and_routers_are_told_apart(self, tmp_path: Path) -> None:
        config = {**CONFIG, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
        folder = write_folder(tmp_path / "m", config=config, with_weights=False)
        shapes = {
            **tensor_shapes(),
            "model.layers.0.block_sparse_moe.experts.0.w1.weight": (128, 64),
            "model.layers.0.mlp.gate.weight": (4, 64),
        }
        write_safetensors(folder / "model.safetensors", shapes)

        _, weights = read_hf_model(folder, name="m")

        assert weights.experts == 2 * 128 * 64
        assert weights.other == 2 * (5 * 64 + 4 * 64)


class TestSafetensors:
    @pytest.mark.parametrize(
        "content",
        [b"", b"abc", b"\xff" * 64, (1 << 40).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"[]",
         (2).to_bytes(8, "little") + b"{}", (4).to_bytes(8, "little") + b"{}}}"],
        ids=["empty", "short", "noise", "huge header", "list", "no tensors", "no JSON"],
    )  # fmt: skip
    def test_garbage_is_refused_with_the_path(self, content: bytes, tmp_path: Path) -> None:
        path = tmp_path / "x.safetensors"
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"x\.safetensors") as raised:
            read_safetensors(path)
        assert raised.value.hint

    def test_a_pointer_of_git_lfs_says_how_to_get_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "x.safetensors"
        path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
        with pytest.raises(ModelError) as raised:
            read_safetensors(path)
        assert "git lfs pull" in raised.value.hint

    def test_a_truncated_file_is_seen_without_reading_its_data(self, tmp_path: Path) -> None:
        path = tmp_path / "x.safetensors"
        write_safetensors(path, {"w": (10, 10)})
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(ModelError, match="truncated: tensor w"):
            read_safetensors(path)

    @pytest.mark.parametrize(
        "entry",
        [
            {},
            {"dtype": "F16", "shape": [1], "data_offsets": [5, 1]},
            {"dtype": "F16", "shape": "x", "data_offsets": [0, 2]},
            7,
        ],
    )
    def test_a_tensor_without_a_place_is_refused(self, entry: object, tmp_path: Path) -> None:
        raw = json.dumps({"w": entry}).encode()
        path = tmp_path / "x.safetensors"
        path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(8))
        with pytest.raises(ModelError, match="'w'"):
            read_safetensors(path)


class TestTokens:
    def test_they_stand_at_their_ids_with_the_added_ones(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "m", added=[(101, "<think>")])
        tokens = read_tokens(folder)
        assert tokens == (*TOKENS, None, "<think>")

    @pytest.mark.parametrize(
        "text",
        [
            "{",
            "[]",
            "{}",
            '{"model": {"vocab": {"a": "x"}}}',
            '{"model": {"vocab": {"a": 99999999}}}',
            "\udcff",
        ],
    )
    def test_one_that_cannot_be_read_is_named(self, text: str, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "m", tokens=None)
        (folder / "tokenizer.json").write_text(text, errors="surrogateescape")
        with pytest.raises(ModelError, match=r"tokenizer\.json"):
            read_tokens(folder)


class TestHub:
    def test_an_id_is_found_at_the_revision_that_main_names(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
        kept = tmp_path / "models--org--name"
        write_folder(kept / "snapshots" / "old")
        chosen = write_folder(kept / "snapshots" / "new")
        (kept / "refs").mkdir()
        (kept / "refs" / "main").write_text("new\n")

        assert hub_folder("org/name") == chosen
