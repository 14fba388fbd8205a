"""Servers of one round that may start at the same time do, and none is left when one of them ends the study."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from speclift.bench.ask import Ask
from speclift.bench.observer import Observer
from speclift.bench.opening import prepare_named
from speclift.bench.run import StudyRun, launches_took
from speclift.core.arm import BASELINE, Arm, ServerSettings
from speclift.core.errors import EngineError
from speclift.core.records import Launch
from speclift.engines.fake.kind import Fake
from speclift.engines.process import LaunchedServer
from speclift.studies.study import Study

# A truth that only these servers carry on their command lines.
MARK = f"ttft_s=0.00{random.SystemRandom().randrange(1, 10**8)}"


class Counting(Fake):
    """A fake that may start several servers at once and notes how many were starting together."""

    launches_at_once = 2

    def __init__(self, settings: ServerSettings, *, fails: str = "") -> None:
        super().__init__(settings)
        self.fails = fails
        self.starting = 0
        self.most = 0

    async def launch(self, arm: Arm, *, log: Path) -> LaunchedServer:
        self.starting += 1
        self.most = max(self.most, self.starting)
        try:
            if arm.name == self.fails:
                await asyncio.sleep(0.05)
                raise EngineError("no room")
            return await super().launch(arm, log=log)
        finally:
            self.starting -= 1


def study(path: Path) -> Study:
    ask = Ask.of(
        engine="fake",
        methods=("ngram",),
        ks=(1, 2, 3),
        requests=1,
        max_tokens=4,
        launches=1,
        study=path,
        engine_args=(MARK,),
    )
    return prepare_named(ask, Observer()).study


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
def test_as_many_as_the_engine_allows_start_together(tmp_path: Path) -> None:
    with study(tmp_path / "s") as made:
        engine = Counting(made.engine.settings)
        asyncio.run(StudyRun(made, engine, observer=Observer()).run())
        assert engine.most == 2
        assert {record.place.arm for record in made.records()} == {
            "baseline",
            *(f"ngram-k{k}" for k in (1, 2, 3)),
        }


def test_the_next_launch_is_judged_by_the_last_round_and_not_by_the_one_that_filled_the_caches(
    tmp_path: Path,
) -> None:
    seconds = {0: (90.0, 100.0), 1: (40.0, 45.0)}
    with study(tmp_path / "s") as kept:
        assert launches_took(kept) == []
        for round_index, took in seconds.items():
            for ready_s in took:
                number = kept.next_launch_id()
                kept.add_launch(
                    Launch(
                        id=number,
                        arm=BASELINE,
                        round=round_index,
                        command=(),
                        engine_version="fake",
                        started_s=0.0,
                    )
                )
                kept.launch_ready(number, ready_s=ready_s, kv_tokens=None, settings={}, notices=())
        assert launches_took(kept) == [40.0, 45.0]
