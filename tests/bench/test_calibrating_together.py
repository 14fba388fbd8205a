"""Servers that a search needs whatever it finds start together; they are measured one after the other."""

from __future__ import annotations

import asyncio
import random
import time
from itertools import pairwise
from pathlib import Path

import pytest

from processes import processes_with
from speclift.bench.ask import Ask
from speclift.bench.observer import Observer
from speclift.bench.opening import prepare_bench
from speclift.bench.prepare import crowding
from speclift.bench.search_run import finished_jobs
from speclift.bench.search_study import search_best
from speclift.core.arm import Arm, ServerSettings, baseline_arm
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import EngineError
from speclift.core.records import Phase
from speclift.core.speculation import NGram
from speclift.core.traffic import Concurrency
from speclift.engines.fake.kind import Fake
from speclift.engines.process import LaunchedServer
from speclift.studies.study import Study
from speclift.workload.experiment import StudyPlan

MARK = f"ttft_s=0.00{random.SystemRandom().randrange(1, 10**8)}"
ARMS = (baseline_arm(), *(Arm(name=f"ngram-k{k}", speculation=NGram(k=k)) for k in (1, 2, 3)))


class Starting:
    """How many fakes were starting at the same time, at the most; `fails` does not start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: str = "") -> None:
        self.now = self.most = 0
        launch = Fake.launch

        async def counted(engine: Fake, arm: Arm, *, log: Path) -> LaunchedServer:
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                if arm.name == fails:
                    await asyncio.sleep(0.05)
                    raise EngineError("no room")
                return await launch(engine, arm, log=log)
            finally:
                self.now -= 1

        monkeypatch.setattr(Fake, "launch", counted)


def searched(folder: Path, *, together: bool | None = None) -> None:
    ask = Ask.of(
        engine="fake",
        methods=("ngram,n=2", "ngram,n=3", "ngram,n=4"),
        ks=(1, 4),
        segments=("chat",),
        requests=16,
        max_tokens=4,
        engine_args=(MARK, "tpot_s=0.0005"),
        side_by_side=together,
        budget_s=40.0,
        study=folder / "s",
    )
    search_best(prepare_bench(ask, Observer()), Observer()).study.close()


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("together", "most"), [(None, 2), (False, 1)])
def test_as_many_start_as_fit_beside_each_other_and_one_at_a_time_is_measured(
    together: bool | None, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three servers: the baseline that keeps the pace, and two."""
    monkeypatch.setattr(Fake, "launches_at_once", 4)
    starting = Starting(monkeypatch)
    begun_s = time.monotonic()
    searched(tmp_path, together=together)
    assert starting.most == most
    assert processes_with(MARK) == {}
    with Study.open(tmp_path / "s" / "search") as searching:
        measured = sorted(
            (record for record in searching.records() if record.place.phase is Phase.MEASURED),
            key=lambda record: record.sent_s,
        )
        jobs = finished_jobs(searching)
    for before, after in pairwise(measured):
        assert after.sent_s >= before.end_s
    assert [entry.candidate for entry in jobs[:2]] == ["baseline", "ngram-n2-k4"]
    assert all(entry.launch_s > 0 for entry in jobs)
    # Each has its share of what it took to start them, and no more.
    assert sum(entry.spent_s for entry in jobs) <= time.monotonic() - begun_s


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("fails", ["baseline", "ngram-n2-k4"])
def test_what_does_not_start_leaves_no_server_behind(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fake, "launches_at_once", 4)
    Starting(monkeypatch, fails=fails)
    if fails == "baseline":
        with pytest.raises(EngineError, match="no room"):
            searched(tmp_path)
    else:
        searched(tmp_path)
        with Study.open(tmp_path / "s" / "search") as searching:
            failed = {entry.candidate for entry in finished_jobs(searching) if entry.failure}
        assert failed == {fails}
    assert processes_with(MARK) == {}


class TestCrowdedGpu:
    GPU = EngineSpec(kind="llamacpp", settings=ServerSettings(gpu_layers=99))
    PLAN = StudyPlan(
        arms=ARMS,
        loads=(Concurrency(streams=1),),
        requests=(),
        temperatures=(None,),
        rounds=1,
        together=True,
        seed=0,
    )

    def test_more_than_three_servers_on_one_are_said(self) -> None:
        (finding,) = crowding(self.PLAN, self.GPU)
        assert finding.check == "crowded-gpu"
        assert "4 servers side by side on one GPU" in finding.message
        assert "--side-by-side off" in finding.next_step
