"""What breaks most, asked of vLLM's CPU build with n-gram drafts: its answers can show each fault, and show none.

A kind of request whose answers could show nothing would find nothing, however long the soak."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from speclift.bench.soak_load import SoakLoad
from speclift.bench.soak_run import Witness, capabilities_of
from speclift.core.arm import Arm, ServerSettings
from speclift.core.speculation import NGram
from speclift.engines.protocol import Server
from speclift.engines.vllm.engine import Vllm
from speclift.lossless.gate import SoakFault
from speclift.lossless.soak.prompts import SoakDialect
from speclift.lossless.soak.rates import PROMISED
from speclift.lossless.soak.traffic import SoakKind, SoakTraffic, soak_traffic
from speclift.lossless.soak.values import SoakAnswer, SoakRequest, Stage

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

TRAFFIC = replace(soak_traffic(seed=3, dialect=SoakDialect.VLLM), temperatures=(0.0,))
STREAMS, ADAPTER = 4, "tuned"


@dataclass(slots=True)
class Seen:
    """What came of some requests that were sent together."""

    exposed: Counter[SoakFault] = field(default_factory=Counter)
    broken_promises: list[str] = field(default_factory=list)
    turns: Counter[int] = field(default_factory=Counter)
    models: Counter[str | None] = field(default_factory=Counter)


@pytest.fixture(scope="module")
def adapter(vllm_python: str, hugging_face_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter") / ADAPTER
    script = Path(__file__).parent / "make_adapter.py"
    quiet = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [vllm_python, str(script), str(hugging_face_model), str(folder)]
    subprocess.run(command, check=True, env=quiet, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def server(
    runner: asyncio.Runner,
    vllm_python: str,
    hugging_face_model: Path,
    adapter: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """With everything on that the traffic asks for."""
    flags = (
        *("--enforce-eager", "--enable-auto-tool-choice", "--tool-call-parser=hermes"),
        *("--enable-lora", "--max-lora-rank=8", f"--lora-modules={ADAPTER}={adapter}"),
    )
    settings = ServerSettings(model=str(hugging_face_model), slots=STREAMS, threads=1, engine_args=flags)
    log = tmp_path_factory.mktemp("server") / "log"
    arm = Arm(name="spec", speculation=NGram(k=4, n=3))

    async def launched() -> Server:
        server = await Vllm(settings, python=vllm_python).launch(arm, log=log)
        stack.push_async_callback(server.stop)
        return server

    stack = AsyncExitStack()
    try:
        yield runner.run(launched())
    finally:
        runner.run(stack.aclose())


async def asked(server: Server, traffic: SoakTraffic, *, openings: int) -> Seen:
    """So many requests, with the turns that follow them."""
    witness, seen, ends_s = Witness(), Seen(), time.monotonic() + 300

    def take(request: SoakRequest, answer: SoakAnswer) -> SoakRequest | None:
        looks = witness.judge(request, answer)
        seen.exposed.update(looks.keys())
        seen.broken_promises += [
            f"{fault}: {evidence}" for fault, evidence in looks.items() if evidence and fault in PROMISED
        ]
        seen.turns[request.turn] += 1
        seen.models[request.model] += not answer.error
        return traffic.following(request, answer)

    fire = SoakLoad(server, arm="spec", launch=1, clock=time.monotonic, limit_s=120.0)
    await fire.ask(
        (witness.sending(traffic.opening(slot)) for slot in range(openings)),
        streams=STREAMS,
        stage=Stage.DURING,
        left_s=lambda: ends_s - time.monotonic(),
        take=take,
    )
    assert not fire.failure
    return seen


def test_answers_can_show_what_breaks_most_and_show_none_of_it(
    runner: asyncio.Runner, server: Server
) -> None:
    kinds = {SoakKind.AGENT, SoakKind.SCHEMA, SoakKind.GRAMMAR, SoakKind.STOP, SoakKind.MINIMUM}
    traffic = replace(TRAFFIC, kinds=frozenset(kinds))

    seen = runner.run(asked(server, traffic, openings=24))

    assert seen.broken_promises == []
    could_show = (SoakFault.TOOL_ARGUMENTS, SoakFault.INVALID_JSON, SoakFault.AFTER_STOP, SoakFault.BUDGET)
    assert [fault for fault in could_show if seen.exposed[fault] < 3] == [], seen.exposed
    assert seen.turns[1] > 0  # a session goes on from a call


def test_an_adapter_that_the_server_lists_is_asked_among_other_requests(
    runner: asyncio.Runner, server: Server
) -> None:
    extras = runner.run(capabilities_of(server.endpoint, SoakDialect.VLLM))
    assert extras.adapters == (ADAPTER,)
    offering = TRAFFIC.offering(adapters=extras.adapters, banned=())
    traffic = replace(offering, kinds=frozenset({SoakKind.ADAPTER, SoakKind.COPY}))

    seen = runner.run(asked(server, traffic, openings=12))

    assert seen.broken_promises == []
    assert min(seen.models[ADAPTER], seen.models[None]) > 0, seen.models
