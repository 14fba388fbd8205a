"""An engine of somebody else's, found by its entry point, keeps the engine contract as ours do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_contract import EngineContract
from test_engine_contract_fake import FAST

import tiny_engine
from installing import installed
from speclift.core.arm import Arm, ServerSettings
from speclift.core.engine_spec import EngineSpec
from speclift.core.speculation import NGram
from speclift.engines import kind
from speclift.engines.protocol import Engine, Server


class TestAnEngineOfSomebodyElses(EngineContract):
    version_pattern = r"^tiny 7$"

    @pytest.fixture(scope="class")
    @classmethod
    def found(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[kind.EngineKind]:
        folder = tmp_path_factory.mktemp("site")
        with installed(folder, Path(tiny_engine.__file__).read_text(encoding="utf-8")):
            yield kind.engine_kind("tiny")

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, found: kind.EngineKind) -> Engine:
        return built(found, *FAST)

    @pytest.fixture(scope="class")
    @classmethod
    def speculative(cls) -> Arm:
        return Arm(name="ngram-k2", speculation=NGram(k=2))

    @pytest.fixture(scope="class")
    @classmethod
    def hopeless(cls, found: kind.EngineKind) -> tuple[Engine, str]:
        return built(found, "crash_on_start=1"), "told to crash on start"

    def expect_kv_tokens(self, server: Server) -> None:
        assert server.kv_tokens is None  # it has no cache


def built(found: kind.EngineKind, *words: str) -> Engine:
    settings = ServerSettings(model="any", engine_args=words)
    return found.build(EngineSpec(kind="tiny", settings=settings), settings, version=None)
