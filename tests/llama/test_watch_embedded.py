"""The embedded llama.cpp, for real, watched while its traffic changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from following import Seen, followed
from speclift.core.arm import Arm, ServerSettings
from speclift.core.live import Payoff
from speclift.core.speculation import NGram
from speclift.engines.llamacpp.engine import LlamaCpp
from speclift.live.ask import WatchAsk

pytestmark = [pytest.mark.llama, pytest.mark.timeout(300)]

ASK = WatchAsk(interval_s=0.5, window_s=15.0, break_even=2.2)


def test_the_answer_follows_the_traffic(embedded_model: Path, tmp_path: Path) -> None:
    settings = ServerSettings(model=str(embedded_model), context_tokens=2048, threads=1, slots=2)

    async def run() -> Seen:
        engine = LlamaCpp(settings)
        server = await engine.launch(Arm(name="spec", speculation=NGram(k=7, n=3)), log=tmp_path / "log")
        try:
            return await followed(server.endpoint, ASK, streams=2, limit_s=120)
        finally:
            await server.stop()

    seen = asyncio.run(run())
    assert not any(each.verdict is Payoff.DOES_NOT_PAY for each in seen.before)
    assert len(seen.after) <= 3 * ASK.window_s / ASK.interval_s
    last = seen.after[-1]
    assert (last.engine, last.unreachable) == ("llamacpp", None)
    assert last.version
    assert "changed-acceptance" in {finding.check for finding in last.findings}
    assert last.tpot_s.mean is not None
