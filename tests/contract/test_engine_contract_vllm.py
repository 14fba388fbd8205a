"""vLLM keeps the engine contract: its CPU build, for real; and attach keeps it with the same two servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from attach_contract import AttachContract
from engine_contract import EngineContract

from speclift.core.arm import Arm, ServerSettings, baseline_arm
from speclift.core.speculation import NGram
from speclift.engines.protocol import Engine, Server
from speclift.engines.vllm.engine import Vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

NGRAM = Arm(name="ngram-k4-n3", speculation=NGram(k=4, n=3))
CONTEXT_TOKENS = 1024


def settings(model: Path, *more: str) -> ServerSettings:
    return ServerSettings(
        model=str(model), context_tokens=CONTEXT_TOKENS, threads=1, engine_args=("--enforce-eager", *more)
    )


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def pair(
    loop: asyncio.Runner,
    vllm_python: str,
    hugging_face_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Server]]:
    """A minute each to start, so that both classes below have to do with these two."""
    engine, logs = Vllm(settings(hugging_face_model), python=vllm_python), tmp_path_factory.mktemp("logs")
    servers: dict[str, Server] = {}
    try:
        for name, arm in (("baseline", baseline_arm()), ("spec", NGRAM)):
            servers[name] = loop.run(engine.launch(arm, log=logs / f"{name}.log"))
        yield servers
    finally:
        for server in servers.values():
            loop.run(server.stop())


class TestVllmOnTheCpu(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, vllm_python: str, hugging_face_model: Path) -> Engine:
        return Vllm(settings(hugging_face_model), python=vllm_python)

    @pytest.fixture(scope="class")
    @classmethod
    def runner(cls, loop: asyncio.Runner) -> asyncio.Runner:
        return loop

    @pytest.fixture(scope="class")
    @classmethod
    def up(cls, pair: dict[str, Server]) -> dict[str, Server]:
        return pair

    @pytest.fixture(scope="class")
    @classmethod
    def speculative(cls) -> Arm:
        return NGRAM

    @pytest.fixture(scope="class")
    @classmethod
    def hopeless(cls, vllm_python: str, hugging_face_model: Path) -> tuple[Engine, str]:
        engine = Vllm(settings(hugging_face_model, "--no-such-flag"), python=vllm_python)
        return engine, "unrecognized arguments: --no-such-flag"


class TestAttachedToVllm(AttachContract):
    version_pattern = r"^vllm 0\.32\.0"

    @pytest.fixture(scope="class")
    @classmethod
    def runner(cls, loop: asyncio.Runner) -> asyncio.Runner:
        return loop

    @pytest.fixture(scope="class")
    @classmethod
    def hosted(cls, pair: dict[str, Server]) -> dict[str, Server]:
        """The baseline may be killed, because that is done after everything else was asked of it."""
        return {**pair, "mortal": pair["baseline"]}

    @pytest.mark.parametrize("side", ["baseline", "spec"])
    def test_what_both_servers_must_have_in_common_is_read_from_them(
        self, side: str, up: dict[str, Server]
    ) -> None:
        assert up[side].settings == {
            "max_seq_len": str(CONTEXT_TOKENS),
            "kv_cache_dtype": "auto",
            "enable_prefix_caching": "False",
        }
