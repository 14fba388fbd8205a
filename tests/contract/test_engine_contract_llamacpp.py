"""llama.cpp keeps the engine contract: embedded, and as a llama-server program of the user's."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from engine_contract import EngineContract

from speclift.core.arm import Arm, ServerSettings
from speclift.core.speculation import NGram
from speclift.engines.llamacpp.engine import LlamaCpp
from speclift.engines.protocol import Engine

CONTEXT_TOKENS = 512
BUILD = "version: 11549 (stand-in)"


def settings(model: Path) -> ServerSettings:
    return ServerSettings(model=str(model), context_tokens=CONTEXT_TOKENS, threads=1)


@pytest.mark.llama
class TestEmbeddedLlamaCpp(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, embedded_model: Path) -> Engine:
        return LlamaCpp(settings(embedded_model))

    @pytest.fixture(scope="class")
    @classmethod
    def speculative(cls) -> Arm:
        return Arm(name="ngram-k7", speculation=NGram(k=7, n=3))

    @pytest.fixture(scope="class")
    @classmethod
    def hopeless(cls, embedded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, str]:
        truncated = tmp_path_factory.mktemp("models") / "truncated.gguf"
        with embedded_model.open("rb") as whole:
            truncated.write_bytes(whole.read(1_000_000))
        return LlamaCpp(settings(truncated)), "gguf"


@pytest.mark.llama
class TestLlamaServerProgram(TestEmbeddedLlamaCpp):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, embedded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
        """A program with llama-server's flags that is the embedded engine underneath."""
        program = tmp_path_factory.mktemp("bin") / "llama-server"
        program.write_text(
            "#!/bin/sh\n"
            f'if [ "$1" = --version ]; then echo {shlex.quote(BUILD)} >&2; exit 0; fi\n'
            f'exec {shlex.quote(sys.executable)} -m speclift.engines.llamacpp.server "$@"\n'
        )
        program.chmod(0o755)
        return LlamaCpp(settings(embedded_model), binary=str(program))

    def test_the_programs_own_version_is_the_engines(self, engine: Engine) -> None:
        assert engine.version() == BUILD
