"""Attach keeps the engine contract with servers that others started: the fake's dialects, and llama.cpp for real."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from attach_contract import AttachContract

from speclift.core.arm import Arm, ServerSettings
from speclift.core.errors import EngineError
from speclift.core.records import Record
from speclift.core.speculation import NGram
from speclift.engines.fake.kind import Fake
from speclift.engines.llamacpp.engine import LlamaCpp
from speclift.engines.protocol import Engine, Server

pytestmark = pytest.mark.slow

# An answer takes some moments, so that it does not come as one piece where the machine is busy.
FAST = ("ttft_s=0.002", "tpot_s=0.003")


class TestAttachedToTheLlamaCppDialect(AttachContract):
    flavour = "llamacpp"
    version_pattern = r"^llama\.cpp fake-1$"

    @pytest.fixture(scope="class")
    @classmethod
    def host(cls) -> Engine:
        return Fake(ServerSettings(model="any", engine_args=(*FAST, f"flavour={cls.flavour}")))

    @pytest.fixture(scope="class")
    @classmethod
    def host_arm(cls) -> Arm:
        return Arm(name="ngram-k4", speculation=NGram(k=4))


class TestAttachedToTheVllmDialect(TestAttachedToTheLlamaCppDialect):
    flavour = "vllm"
    version_pattern = r"^vllm fake-1$"


class TestAttachedToAServerThatTellsNothing(TestAttachedToTheLlamaCppDialect):
    """Only what OpenAI's own protocol has: token counts. The rest is unknown."""

    flavour = "plain"
    version_pattern = r"^unknown$"

    def expect_drafts(self, record: Record) -> None:
        assert (record.drafted, record.accepted, record.steps) == (None, None, None)

    def expect_totals(self, server: Server, runner: asyncio.Runner) -> None:
        with pytest.raises(EngineError, match="/metrics answered 404"):
            runner.run(server.counters())


@pytest.mark.llama
class TestAttachedToLlamaCpp(AttachContract):
    version_pattern = r"^llama\.cpp \S*\d"

    @pytest.fixture(scope="class")
    @classmethod
    def host(cls, embedded_model: Path) -> Engine:
        return LlamaCpp(ServerSettings(model=str(embedded_model), context_tokens=512, threads=1))

    @pytest.fixture(scope="class")
    @classmethod
    def host_arm(cls) -> Arm:
        return Arm(name="ngram-k7", speculation=NGram(k=7, n=3))
