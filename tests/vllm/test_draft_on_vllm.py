"""The bundled draft on vLLM's CPU build: loaded as a draft model, its guesses accepted, the output unchanged."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from make_environment import environment

from running import Cli
from speclift.weights.models import SMOLLM2_135M_DRAFT

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def draft_folder(vllm_python: str) -> Path:
    """The GGUF file as vLLM reads it; converted once for each file."""
    draft = SMOLLM2_135M_DRAFT
    folder = environment().with_name(f"{draft.name}-{draft.sha256_hex[:12]}-hugging-face")
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.part-{os.getpid()}")
        script = Path(__file__).parent / "convert_model.py"
        quiet = {**os.environ, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
        subprocess.run([vllm_python, script, draft.path, part], check=True, env=quiet, capture_output=True)
        part.rename(folder)
    return folder


def test_the_gate_passes_at_temperature_0(
    vllm_python: str, hugging_face_model: Path, draft_folder: Path, cli: Cli
) -> None:
    server = ("--engine", "vllm", "--vllm-python", vllm_python, "--engine-arg=--enforce-eager")
    pair = ("--model", hugging_face_model, "--draft", draft_folder, "--k", 4)
    size = ("--requests", 8, "--max-tokens", 24, "--temperature", 0, "--detect", 0.05)
    result = cli("verify", *server, *pair, *size, "--json")
    assert result.code == 0, result.stderr
    assert result.document["greedy"]["faults"] == 0


def test_vllm_accepts_what_it_guesses(
    vllm_python: str, hugging_face_model: Path, draft_folder: Path, cli: Cli
) -> None:
    server = ("--engine", "vllm", "--vllm-python", vllm_python, "--engine-arg=--enforce-eager")
    pair = ("--model", hugging_face_model, "--draft", draft_folder, "--k", 4)
    size = (
        "--requests",
        6,
        "--max-tokens",
        32,
        "--temperature",
        0,
        "--launches",
        1,
        "--segment",
        "json-extraction",
    )
    result = cli("measure", *server, *pair, *size, "--json")
    assert result.code == 0, result.stderr
    (cell,) = [
        each
        for each in result.document["cells"]
        if (each["arm"], each["segment"], each["temperature"]) == ("draft-k4", "all", None)
    ]
    assert cell["accepted_length"]["value"] > 2.0
