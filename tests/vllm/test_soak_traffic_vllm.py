"""What breaks most, asked of vLLM's CPU build with n-gram drafts: its answers can show each fault, and show none.

A kind of request whose answers could show nothing would find nothing, however long the soak."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from speclift.bench.soak_fire import Fire
from speclift.bench.soak_run import Witness
from speclift.core.arm import Arm, ServerSettings
from speclift.core.speculation import NGram
from speclift.engines.vllm.engine import Vllm
from speclift.lossless.soak.rates import PROMISED
from speclift.lossless.soak.traffic import SoakDialect, SoakKind, soak_traffic
from speclift.lossless.soak.values import SoakAnswer, SoakFault, SoakRequest, Stage

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

KINDS = frozenset({SoakKind.AGENT, SoakKind.SCHEMA, SoakKind.GRAMMAR, SoakKind.STOP, SoakKind.MINIMUM})
COULD_SHOW = (SoakFault.TOOL_ARGUMENTS, SoakFault.INVALID_JSON, SoakFault.AFTER_STOP, SoakFault.BUDGET)
OPENINGS, STREAMS = 24, 4
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser=hermes")


def test_answers_can_show_what_breaks_most_and_show_none_of_it(
    vllm_python: str, hugging_face_model: Path, tmp_path: Path
) -> None:
    settings = ServerSettings(
        model=str(hugging_face_model), slots=STREAMS, threads=1, engine_args=("--enforce-eager", *TOOLS)
    )
    traffic = replace(soak_traffic(seed=3, dialect=SoakDialect.VLLM), kinds=KINDS, temperatures=(0.0,))
    exposed, seen, turns = Counter[SoakFault](), list[str](), Counter[int]()

    async def asked() -> None:
        arm = Arm(name="spec", speculation=NGram(k=4, n=3))
        server = await Vllm(settings, python=vllm_python).launch(arm, log=tmp_path / "log")
        witness, begun_s = Witness(), time.monotonic()

        def heed(request: SoakRequest, answer: SoakAnswer) -> SoakRequest | None:
            could_show, shows = witness.judge(request, answer)
            exposed.update(could_show)
            seen.extend(f"{each.fault}: {each.evidence}" for each in shows if each.fault in PROMISED)
            turns[request.turn] += 1
            return traffic.following(request, answer)

        try:
            fire = Fire(server, arm="spec", launch=1, clock=time.monotonic, limit_s=120.0)
            await fire.ask(
                (witness.sending(traffic.opening(slot)) for slot in range(OPENINGS)),
                streams=STREAMS,
                stage=Stage.DURING,
                left_s=lambda: begun_s + 600 - time.monotonic(),
                heed=heed,
            )
            assert not fire.failure
        finally:
            await server.stop()

    asyncio.run(asked())
    assert seen == []
    assert [fault for fault in COULD_SHOW if exposed[fault] < 3] == [], exposed
    assert turns[1] > 0  # a session goes on from a call
