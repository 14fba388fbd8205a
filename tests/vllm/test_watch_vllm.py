"""vLLM's CPU build, for real, watched while its traffic changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from following import Seen, followed
from speclift.core.arm import Arm, ServerSettings
from speclift.core.live import Payoff
from speclift.core.speculation import NGram
from speclift.engines.vllm.engine import Vllm
from speclift.live.ask import WatchAsk

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

ASK = WatchAsk(interval_s=1.0, window_s=30.0, break_even=1.7)


def test_the_answer_follows_the_traffic(vllm_python: str, hugging_face_model: Path, tmp_path: Path) -> None:
    settings = ServerSettings(
        model=str(hugging_face_model), context_tokens=1024, threads=1, engine_args=("--enforce-eager",)
    )

    async def run() -> Seen:
        engine = Vllm(settings, python=vllm_python)
        server = await engine.launch(Arm(name="spec", speculation=NGram(k=4, n=3)), log=tmp_path / "log")
        try:
            return await followed(server.endpoint, ASK, streams=4, limit_s=150, max_tokens=24)
        finally:
            await server.stop()

    seen = asyncio.run(run())
    assert not any(each.verdict is Payoff.DOES_NOT_PAY for each in seen.before)
    assert len(seen.after) <= 3 * ASK.window_s / ASK.interval_s
    last = seen.after[-1]
    assert (last.engine, last.version, last.unreachable) == ("vllm", "0.32.0", None)
    assert len(last.per_position) == 4
    assert last.ttft_s.mean is not None
    assert last.tpot_s.mean is not None
    assert last.kv_used is not None
