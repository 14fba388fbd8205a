"""Heads are planned: sized from the target or from their files, refused where the engine has none, measured by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hf_folders import write_folder
from plan_samples import placed, placed_shape
from running import Cli
from speclift.core.speculation import DraftModel, Head
from speclift.engines.kind import engine_kind
from speclift.planner.config_shape import shape_from_config
from speclift.planner.heads import estimated_head
from speclift.weights.catalogue_files import find_model

H200 = ("--gpu", "h200", "--context", "2048")
LLAMA = ("--target", "llama-3.1-8b", *H200)


def document(cli: Cli, *flags: str, code: int = 0) -> dict[str, Any]:
    result = cli("plan", "--json", *flags)
    assert result.code == code, result.stderr
    held: dict[str, Any] = result.document
    return held


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa", "dflash"])
def test_a_head_needs_no_draft_and_is_said_to_be_an_estimate(kind: str, cli: Cli) -> None:
    told = document(cli, *LLAMA, "--method", kind, "--k", "1,3,5", "--acceptance", "0.7")
    assert (told["prediction"]["method"], told["runs"], told["fits"]) == (kind, True, True)
    assert 0 < told["memory"]["draft_weight_bytes"] < 0.5 * told["memory"]["target_weight_bytes"]
    assert told["memory"]["kv_tokens"] < told["memory"]["kv_tokens_without_draft"]
    assert any("an estimate from the shape of llama-3.1-8b" in found["message"] for found in told["findings"])
    for load in told["prediction"]["loads"]:
        assert [(arm["method"], arm["k"]) for arm in load["arms"]] == [(kind, k) for k in (1, 3, 5)]
        for arm in load["arms"]:
            assert arm["speedup"]["low"] <= arm["speedup"]["value"] <= arm["ceiling"] * 1.001
            assert arm["speedup"]["high"] <= arm["ceiling"]
    # Nobody's file: there is nothing that a command could name.
    assert all(kind not in line for line in told["next"])


def test_an_eagle_head_reads_what_the_measured_one_read() -> None:
    """benchmarks/plan.py has EAGLE's rows with one layer of the target and its output matrix."""
    entry = find_model("llama-3.1-8b")
    assert entry is not None
    measured = shape_from_config({**entry.config, "num_hidden_layers": 1}, name="head", source="")
    estimate = estimated_head("eagle", placed("llama-3.1-8b")).read.weights.read_every_step
    assert estimate == pytest.approx(placed_shape(measured).weights.read_every_step, rel=0.05)


def test_mtp_layers_are_the_targets_own_kind_and_format() -> None:
    target = placed("deepseek-v3", "fp8")
    head = estimated_head("mtp", target)
    assert head.added.weights.precision == "fp8"
    assert head.added.shape.experts == 256
    # Published: 14B with embedding and output, 11.5B without.
    assert head.added.shape.parameters.total == pytest.approx(11.5e9, rel=0.1)


@pytest.mark.parametrize(
    ("flags", "refusal"),
    [
        (("--method", "mtp"), "carries no MTP layers"),
        (("--method", "eagle", "--engine", "llamacpp"), "llama.cpp has no method eagle"),
        (("--method", "suffix", "--engine", "llamacpp"), "llama.cpp has no method suffix"),
        (("--method", "mtp", "--engine", "llamacpp"), "carries no MTP layers"),
        (("--method", "ngram:map-k"), "vLLM has no method ngram:map-k"),
        (("--method", "dspark", "--engine-version", "0.24"), "vLLM 0.24 has no method dspark"),
        (("--draft", "llama-3.2-1b", "--engine-version", "0.12"), "vLLM 0.12 has no method draft"),
    ],
)
def test_what_the_engine_refuses_will_not_run(flags: tuple[str, ...], refusal: str, cli: Cli) -> None:
    told = document(cli, *LLAMA, *flags, code=4)
    assert (told["runs"], refusal in told["refusal"]) == (False, True)
    screen = cli("plan", *LLAMA, *flags)
    assert (screen.code, "WILL NOT RUN" in screen.stdout) == (4, True)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--method", "draft"), "needs a draft model"),
        (("--method", "ngram+draft", "--draft", "llama-3.2-1b"), "is not planned"),
        (("--method", "custom_class"), "cannot size a custom_class head"),
        (("--method", "egale"), "unknown method 'egale'"),
        (("--method", "off"), "is not planned"),
    ],
)
def test_what_is_no_way_of_drafting_is_wrong_usage(flags: tuple[str, ...], said: str, cli: Cli) -> None:
    result = cli("plan", *LLAMA, *flags)
    assert (result.code, said in " ".join(result.stderr.split())) == (2, True)


def test_a_head_whose_files_are_here_is_counted_from_them(tmp_path: Path, cli: Cli) -> None:
    head = tmp_path / "head"
    head.mkdir()
    write_folder(head)
    told = document(cli, *LLAMA, "--draft", str(head), "--method", "eagle")
    assert told["draft"]["reference"] == str(head)
    assert told["memory"]["draft_weight_bytes"] == sum(
        path.stat().st_size for path in head.glob("*.safetensors")
    ) - safetensors_header_bytes(head)
    assert f"--method eagle,model={head}" in told["next"][0].replace("'", "")
    assert any("from the head's own files" in found["message"] for found in told["findings"])


def safetensors_header_bytes(folder: Path) -> int:
    return sum(8 + int.from_bytes(path.read_bytes()[:8], "little") for path in folder.glob("*.safetensors"))


class TestDefaultSearch:
    def config(self, folder: Path, **fields: object) -> None:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"hidden_size": 64, "model_type": "llama", **fields}))

    def heads(self, folder: Path) -> list[Head]:
        return [each for each in engine_kind("vllm").drafters(str(folder)) if isinstance(each, Head)]

    def test_tries_what_the_target_carries_and_what_lies_beside_it(self, tmp_path: Path) -> None:
        self.config(tmp_path / "target", num_nextn_predict_layers=1)
        self.config(tmp_path / "eagle", architectures=["EagleLlamaForCausalLM"])
        self.config(tmp_path / "three", architectures=["LlamaForCausalLMEagle3"])
        self.config(tmp_path / "wide", architectures=["LlamaForCausalLMEagle3"], hidden_size=128)
        self.config(tmp_path / "model", architectures=["LlamaForCausalLM"])
        assert self.heads(tmp_path / "target") == [
            Head(kind="mtp"),
            Head(kind="eagle", model=str(tmp_path / "eagle")),
            Head(kind="eagle3", model=str(tmp_path / "three")),
        ]

    def model(self, folder: Path, *, size: int, vocabulary: int = 100) -> None:
        self.config(folder, architectures=["LlamaForCausalLM"], vocab_size=vocabulary)
        (folder / "model.safetensors").write_bytes(bytes(size))

    def test_tries_the_smallest_model_of_the_family_beside_it(self, tmp_path: Path) -> None:
        self.model(tmp_path / "target", size=1000)
        self.model(tmp_path / "half", size=500)
        self.model(tmp_path / "tenth", size=100)
        self.model(tmp_path / "fifth", size=200)
        self.model(tmp_path / "stranger", size=50, vocabulary=99)
        self.config(tmp_path / "empty", architectures=["LlamaForCausalLM"], vocab_size=100)
        found = [
            each
            for each in engine_kind("vllm").drafters(str(tmp_path / "target"))
            if isinstance(each, DraftModel)
        ]
        assert found == [DraftModel(model=str(tmp_path / "tenth"))]
