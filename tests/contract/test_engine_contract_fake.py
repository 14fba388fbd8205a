"""The fake engine keeps the engine contract, in the dialect of either engine it stands for."""

from __future__ import annotations

import pytest
from engine_contract import EngineContract

from speclift.core.arm import Arm, ServerSettings
from speclift.core.speculation import NGram
from speclift.engines.fake.kind import Fake
from speclift.engines.protocol import Engine, Server

# An answer takes some moments, so that it does not come as one piece where the machine is busy.
FAST = ("ttft_s=0.002", "tpot_s=0.003")


class TestFakeEngineInLlamaCppDialect(EngineContract):
    flavour = "llamacpp"

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Engine:
        return Fake(ServerSettings(model="any", engine_args=(*FAST, f"flavour={cls.flavour}")))

    @pytest.fixture(scope="class")
    @classmethod
    def speculative(cls) -> Arm:
        return Arm(name="ngram-k4", speculation=NGram(k=4))

    @pytest.fixture(scope="class")
    @classmethod
    def hopeless(cls) -> tuple[Engine, str]:
        return Fake(ServerSettings(model="any", engine_args=("crash_on_start=1",))), "told to crash on start"

    def expect_kv_tokens(self, server: Server) -> None:
        assert server.kv_tokens is None  # it has no cache


class TestFakeEngineInVllmDialect(TestFakeEngineInLlamaCppDialect):
    flavour = "vllm"
