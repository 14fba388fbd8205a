from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_folders import CONFIG, TOKENS, tensor_shapes, write_folder, write_safetensors
from speclift.core.errors import ModelError
from speclift.weights.hf_folder import (
    INDEX,
    hub_folder,
    read_hf_model,
    read_safetensors,
    read_tokens,
    tokenizer_digest,
)


class TestWeights:
    def test_their_bytes_are_those_of_the_file_without_its_header(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "m")
        file = folder / "model.safetensors"
        header = 8 + int.from_bytes(file.read_bytes()[:8], "little")

        shape, weights = read_hf_model(folder, name="m")

        assert weights.is_from_file
        assert weights.total == file.stat().st_size - header == 2 * shape.parameters.total

    def test_they_are_sorted_by_the_part_they_play(self, tmp_path: Path) -> None:
        shape, weights = read_hf_model(write_folder(tmp_path / "m"), name="m")

        assert weights.embedding == 2 * 100 * 64
        assert weights.head == 0
        assert weights.other == 2 * 5 * 64
        assert weights.linear == weights.total - weights.embedding - weights.other
        assert shape.is_tied

    def test_a_count_by_config_agrees_with_the_files(self, tmp_path: Path) -> None:
        with_files, _ = read_hf_model(write_folder(tmp_path / "a"), name="m")
        without, _ = read_hf_model(write_folder(tmp_path / "b", with_weights=False), name="m")
        assert with_files.parameters == without.parameters

    def test_several_files_are_added_up(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "m", with_weights=False)
        names = sorted(tensor_shapes())
        parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        total = sum(
            write_safetensors(folder / file, {name: tensor_shapes()[name] for name in own})
            for file, own in parts.items()
        )
        mapping = {name: file for file, own in parts.items() for name in own}
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": mapping}))

        assert read_hf_model(folder, name="m")[1].total == total

    def test_an_index_without_its_files_still_says_the_total(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "m", with_weights=False)
        index = {"metadata": {"total_size": 123_456}, "weight_map": {"x": "gone.safetensors"}}
        (folder / INDEX).write_text(json.dumps(index))

        _, weights = read_hf_model(folder, name="m")

        assert weights.total == 123_456
        assert weights.is_from_file

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

    def test_a_unigram_model_lists_pairs(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "m", tokens=None)
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": [["<s>", 0.0], ["a", -1.5]]}}))
        assert read_tokens(folder) == ("<s>", "a")

    def test_a_folder_without_one_has_no_tokens_and_no_digest(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "m", tokens=None)
        assert read_tokens(folder) is None
        assert tokenizer_digest(folder) is None

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


class TestFolder:
    def test_one_without_config_says_what_is_in_it(self, tmp_path: Path) -> None:
        (tmp_path / "a.gguf").write_bytes(b"")
        with pytest.raises(ModelError, match=r"no config\.json") as raised:
            read_hf_model(tmp_path, name="m")
        assert "a.gguf" in raised.value.hint

    @pytest.mark.parametrize("text", ["", "[1]", "{", "null", "\udcff\udcfe"])
    def test_a_config_of_garbage_is_named(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(text, errors="surrogateescape")
        with pytest.raises(ModelError, match=r"config\.json"):
            read_hf_model(tmp_path, name="m")


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

    def test_without_main_any_snapshot_will_do(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        only = write_folder(tmp_path / "hub" / "models--org--name" / "snapshots" / "a")
        assert hub_folder("org/name") == only

    @pytest.mark.parametrize("reference", ["org/other", "name", "../../etc/passwd", "a/b/c"])
    def test_what_is_not_there_or_no_id_is_not_found(
        self, reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
        assert hub_folder(reference) is None
