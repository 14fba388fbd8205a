"""speclift plan as a shell sees it: the document, exit codes, errors that say what to do."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from hf_folders import TOKENS, write_folder
from running import Cli
from speclift import plan
from speclift.planner.plan import plan_document
from speclift.views.plan_terminal import plan_view
from speclift.weights.catalogue_files import catalogue_models

PAIR = ("--target", "llama-3.1-70b", "--target-quant", "fp8", "--draft", "llama-3.1-8b", "--gpu", "h200")


def test_the_document_holds_what_the_design_promises(cli: Cli) -> None:
    result = cli("plan", *PAIR, "--context", 2048, "--json")
    document = result.document

    assert result.code == 0
    assert document["schema"] == 1
    assert document["fits"] is True
    memory = document["memory"]
    assert memory["nominal_weight_bytes"]["target"] == pytest.approx(70e9, rel=0.02)
    assert memory["nominal_weight_bytes"]["draft"] == pytest.approx(16e9, rel=0.02)
    assert memory["kv_bytes_per_token"] == {"target": 327_680, "draft": 131_072}
    assert memory["kv_tokens"] == pytest.approx(90_976, rel=0.08)
    assert memory["kv_tokens_without_draft"] == pytest.approx(178_128, rel=0.08)
    assert memory["max_concurrency"] == pytest.approx(memory["kv_tokens"] / 2048, rel=0.01)
    assert memory["usable_bytes"] < memory["total_bytes"]
    assert memory["target_weight_bytes"] > memory["nominal_weight_bytes"]["target"]
    assert document["pairing"]["same_tokenizer"] is True
    assert document["pairing"]["ratio"] == pytest.approx(8.79, abs=0.01)
    assert document["candidates"][0]["rank"] == 1
    assert {"check", "level", "message", "source"} <= set(document["findings"][0])
    assert result.stderr == ""


def test_s4_on_two_80_gb_cards(cli: Cli) -> None:
    """70B INT8 with an 8B BF16 draft: 86 GB of 144 usable, 58 left."""
    flags = (
        "--target",
        "llama-3.1-70b",
        "--target-quant",
        "int8",
        "--draft",
        "llama-3.1-8b",
        "--gpu",
        "h100-80gb",
        "--gpus",
        2,
    )
    nominal = cli("plan", *flags, "--json").document["memory"]["nominal"]
    assert nominal["vram_bytes"] == 160e9
    assert nominal["weight_bytes"] == pytest.approx(86e9, rel=0.02)
    assert nominal["kv_bytes"] == pytest.approx(58e9, rel=0.02)
    assert nominal["kv_bytes_without_draft"] == pytest.approx(74e9, rel=0.02)


REFUSED = {
    "vocabulary sizes": ["--target", "qwen2.5-72b", "--target-quant", "fp8", "--draft", "qwen2.5-0.5b"],
    "tensor parallelism": [*PAIR[:6], "--gpus", "2", "--tp", "2", "--draft-tp", "1"],
    "a type of GGUF files": ["--target", "llama-3.1-8b", "--target-quant", "q4_k_m", "--engine", "vllm"],
    "q4_0 is a type": ["--target", "llama-3.1-8b", "--draft", "llama-3.2-1b", "--draft-quant", "q4_0"],
    "no GGUF file holds awq": ["--target", "llama-3.1-8b", "--target-quant", "awq", "--engine", "llamacpp"],
    "4,096 positions": ["--target", "llama-2-7b", "--context", "8192"],
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_the_engine_refuses_is_told_apart_from_what_does_not_fit(why: str, cli: Cli) -> None:
    document = cli("plan", *REFUSED[why], "--gpu", "h200", "--json").document
    assert document["fits"] is True
    assert document["runs"] is False
    assert why in document["refusal"]
    assert any(found["check"] == "engine-rule" and found["next_step"] for found in document["findings"])
    shown = cli("plan", *REFUSED[why], "--gpu", "h200")
    assert shown.code == 4
    assert "WILL NOT RUN" in shown.stdout
    assert "FITS" not in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "h100"], ["--target"]),
        (["--target", "lama-3.1-70b", "--gpu", "h100"], ["unknown model", "'llama-3.1-70b'"]),
        (["--target", "llama-3.1-8b", "--gpu", "h100", "--target-quant", "fp9"], ["--target-quant", "'fp8'"]),
        (["--target", "llama-3.1-8b", "--gpu", "h100", "--engine", "vlm"], ["unknown engine", "'vllm'"]),
        (["--target", "llama-3.1-8b", "--gpu", "h100", "--utilisation", "90"], ["--utilisation", "0..1"]),
        (["--target", "llama-3.1-8b", "--gpu", "h100", "--tp", "4"], ["need 4 GPUs", "--gpus 4"]),
        (["--target", "llama-3.1-8b", "--gpu", "h100", "--gpus", "3"], ["32 heads", "3 GPUs"]),
        (
            ["--target", "llama-3.1-8b", "--gpu", "h100", "--concurrency", "a"],
            ["--concurrency takes numbers"],
        ),
        (["--target", "llama-3.1-8b", "--gpu", "h100", "--k", "500"], ["--k is at most 128"]),
        (["--target", "llama-3.1-8b", "--gpu", "h100", "--acceptance", "1.5"], ["0..1", "1.5"]),
        (
            ["--target", "llama-3.1-8b", "--gpu", "h100", "--kv-cache-memory-bytes", "lots"],
            ["256M", "'lots'"],
        ),
        (
            ["--target", "llama-3.1-8b", "--gpu", "h100", "--draft", "llama-3.1-8b"],
            ["cannot draft for itself"],
        ),
    ],
    ids=lambda value: " ".join(value) if value and str(value[0]).startswith("--") else "",
)
def test_wrong_usage_says_what_was_seen_and_what_is_allowed(
    arguments: list[str], said: list[str], cli: Cli
) -> None:
    result = cli("plan", *arguments, "--json")
    assert result.code == 2
    assert result.stdout == ""
    for words in said:
        assert words in result.stderr


def test_a_folder_is_read_without_network_and_compared_token_by_token(cli: Cli, tmp_path: Path) -> None:
    target = write_folder(tmp_path / "target")
    other = write_folder(tmp_path / "draft", tokens=[*TOKENS[:50], "other", *TOKENS[51:]])
    result = cli("plan", "--target", target, "--draft", other, "--gpu", "cpu", "--context", 128, "--json")

    pairing = result.document["pairing"]
    assert pairing["same_tokenizer"] is False
    assert pairing["compared"] == "token by token"
    assert pairing["differences"] == [{"id": 50, "target": "t50", "draft": "other"}]
    assert result.document["target"]["weights_from_file"] is True


def test_an_acceptance_comes_from_a_replay(cli: Cli, tmp_path: Path) -> None:
    replay = {
        "schema": 1,
        "segments": [{"segment": "chat", "accepted_length": {"k": [1, 3, 5], "value": [1.4, 1.8, 1.9]}}],
    }
    (tmp_path / "replay.json").write_text(json.dumps(replay))
    found = cli(
        "plan", "--target", "llama-3.1-8b", "--gpu", "h100", "--acceptance", "replay.json", "--json"
    ).document
    assert found["prediction"]["acceptance"]["assumed"] is False
    assert [best["acceptance"] for best in found["prediction"]["loads"][0]["best"]] == ["chat"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_screen_keeps_its_width_and_says_the_essentials(width: int) -> None:
    planned = plan(target="llama-3.1-70b", drafts=("llama-3.1-8b",), target_quant="fp8", gpu="h200")
    console = Console(width=width, record=True, no_color=True, file=StringIO())
    console.print(plan_view(planned))
    text = console.export_text()

    assert max(map(len, text.splitlines())) <= width
    for words in (
        "KV cache, tokens",
        "Acceptance rate needed",
        "ceiling",
        "Candidates",
        "S4",
    ):
        assert words in text
    assert "…" not in text


def test_foreign_names_cannot_colour_or_move_the_screen(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "[bold]x\x1b[31m")
    planned = plan(target=str(folder), gpu="h200", context=64)
    console = Console(width=100, record=True, no_color=True, file=StringIO())
    console.print(plan_view(planned))
    text = console.export_text()
    assert "\x1b" not in text
    assert "[bold]x" in text


def test_the_example_in_the_documentation_is_what_the_command_prints(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "plan.md").read_text(encoding="utf-8")
    command, _, shown = page.partition("$ speclift ")[2].partition("\n```")[0].partition("\n")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    printed = cli(*command.split()).stdout
    assert [line.rstrip() for line in printed.rstrip().splitlines()] == shown.splitlines()


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_every_model_of_the_catalogue_can_be_planned(engine: str, every: int) -> None:
    for model in catalogue_models()[::every]:
        found = plan(target=model.name, gpu="h200", gpus=8, tp=1 if engine == "vllm" else None, engine=engine)
        document = plan_document(found)
        json.dumps(document, allow_nan=False)
        assert document["memory"]["kv_bytes_per_token"]["target"] > 0
        assert document["prediction"]["loads"][0]["baseline_step_s"] > 0
