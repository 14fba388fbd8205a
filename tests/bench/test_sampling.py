"""What is looked at while a turn runs, how often, and when no more."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from speclift.bench import sampling
from speclift.bench.sampling import Sampler
from speclift.core.errors import EngineError
from speclift.core.records import Usage
from speclift.core.units import Bytes
from speclift.engines.gpu_memory import BeforeLaunch, GpuMemory
from speclift.engines.protocol import Server

SEEN = Usage(at_s=1.0, running=2, waiting=0, kv_share=0.5)
BEFORE = BeforeLaunch(changes=1, used=0)


class _Server:
    """Says these one after the other, then that it does not know."""

    def __init__(self, *said: Usage | EngineError) -> None:
        self._said = list(said)
        self.asked = 0

    async def sample(self) -> Usage | None:
        self.asked += 1
        said = self._said.pop(0) if self._said else None
        if isinstance(said, EngineError):
            raise said
        return said

    def process_ids(self) -> frozenset[int]:
        return frozenset({7})


class _Gpus(GpuMemory):
    def __init__(self, *held: Bytes | None) -> None:
        super().__init__()
        self._held = list(held)

    def held(self, before: BeforeLaunch, processes: frozenset[int]) -> Bytes | None:
        assert (before, processes) == (BEFORE, frozenset({7}))
        return self._held.pop(0) if self._held else None


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "SAMPLE_EVERY_S", 0.02)
    monkeypatch.setattr(sampling, "SETTLED_AFTER_S", 0.0)


def watched(server: _Server, gpus: GpuMemory | None = None, *, turns: tuple[float, ...] = (0.1,)) -> Sampler:
    sampler = Sampler(cast("Server", server), gpus, None if gpus is None else BEFORE)

    async def run() -> None:
        for turn_s in turns:
            async with sampler.watching():
                await asyncio.sleep(turn_s)

    asyncio.run(run())
    return sampler


def test_a_server_that_says_how_full_it_is_is_asked_again_and_again() -> None:
    server = _Server(SEEN, SEEN, SEEN)
    assert watched(server, turns=(0.2,)).usage == (SEEN,) * 3
    # Until it said nothing.
    assert server.asked == 4


def test_the_most_memory_is_kept_and_an_unknown_one_is_no_less() -> None:
    assert watched(_Server(), _Gpus(5, 9, None, 7), turns=(0.2,)).gpu_memory_peak_bytes == 9
