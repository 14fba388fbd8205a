"""vLLM keeps the engine contract: its CPU build, for real."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_contract import EngineContract

from speclift.core.arm import Arm, ServerSettings
from speclift.core.speculation import NGram
from speclift.engine.protocol import Engine
from speclift.engine.vllm import Vllm

LAUNCH_LIMIT_S = 600


def settings(model: Path, *more: str) -> ServerSettings:
    return ServerSettings(
        model=str(model), context_tokens=1024, threads=1, extra_args=("--enforce-eager", *more)
    )


@pytest.mark.vllm
@pytest.mark.timeout(LAUNCH_LIMIT_S)
class TestVllmOnTheCpu(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, vllm_python: str, hugging_face_model: Path) -> Engine:
        return Vllm(settings(hugging_face_model), python=vllm_python)

    @pytest.fixture(scope="class")
    @classmethod
    def speculative(cls) -> Arm:
        return Arm(name="ngram-k4-n3", speculation=NGram(k=4, n=3))

    @pytest.fixture(scope="class")
    @classmethod
    def hopeless(cls, vllm_python: str, hugging_face_model: Path) -> tuple[Engine, str]:
        engine = Vllm(settings(hugging_face_model, "--no-such-flag"), python=vllm_python)
        return engine, "unrecognized arguments: --no-such-flag"
