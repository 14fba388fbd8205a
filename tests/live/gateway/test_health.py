"""Who answers, and who is asked again when."""

from __future__ import annotations

import asyncio

import pytest

from speclift.core.routing import ServerPool
from speclift.core.units import Seconds
from speclift.live.gateway import health
from speclift.live.gateway.health import HealthChecks
from speclift.live.gateway.upstream import PoolMember


class SlowAnswer:
    """A server whose health is asked for, and told when the test says so."""

    asked = 0
    go: asyncio.Event

    async def status_of(self, url: str, *, api_key: str | None, limit_s: Seconds) -> int:
        SlowAnswer.asked += 1
        if SlowAnswer.asked > 1:
            await SlowAnswer.go.wait()
        return 200

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_an_answer_that_was_asked_for_before_the_failure_does_not_bring_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "KeptConnection", SlowAnswer)
    monkeypatch.setattr(health, "CHECKED_EVERY_S", 0.01)

    async def work() -> None:
        SlowAnswer.asked, SlowAnswer.go = 0, asyncio.Event()
        said: list[str] = []
        checks = HealthChecks(said.append)
        member = PoolMember("http://127.0.0.1:1", ServerPool.SPEC, clock=lambda: 0.0)
        await checks.begin([member], api_key=None)
        async with asyncio.timeout(30):
            while SlowAnswer.asked < 2:
                await asyncio.sleep(0.005)
        checks.suspect(member, "closed the connection")
        SlowAnswer.go.set()
        await asyncio.sleep(0.05)
        assert not member.is_up
        async with asyncio.timeout(30):
            while not member.is_up:
                await asyncio.sleep(0.01)
        assert len(said) == 2
        await checks.close()

    asyncio.run(work())
