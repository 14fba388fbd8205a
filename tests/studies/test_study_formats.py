"""Studies of every format version that was ever written stay readable and can go on."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from speclift.core.records import Counters, TurnHealth, TurnTotals, Usage
from speclift.core.traffic import Concurrency
from speclift.studies.format import FORMAT
from speclift.studies.study import DATABASE, Study

RECORDED = Path(__file__).parent.parent / "recorded" / "studies"
OLD_FORMATS = range(1, FORMAT)
HEALTH = TurnHealth(load=Concurrency(streams=1), loop_lag_p99_s=0.0, cpu_s=0.1, wall_s=1.0)


@pytest.fixture(params=OLD_FORMATS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    script = gzip.decompress((RECORDED / f"study-format-{request.param}.sql.gz").read_bytes()).decode()
    with closing(sqlite3.connect(tmp_path / DATABASE)) as database:
        database.executescript(script)
    return tmp_path


def test_an_old_study_is_read_and_says_nothing_of_what_it_did_not_keep(old: Path) -> None:
    with Study.open(old) as study:
        assert {record.text for record in study.records()} == {"words"}
        assert [launch.arm for launch, _ in study.launches()] == ["baseline", "ngram-k4"]
        assert all(
            (launch.settings, launch.notices, launch.usage, launch.gpu_memory_peak_bytes)
            == ({}, (), (), None)
            for launch, _ in study.launches()
        )
        assert len(study.turn_health()) == 2
        assert study.turn_totals() == ()


def test_an_old_study_that_goes_on_keeps_what_todays_do(old: Path) -> None:
    usage = (Usage(at_s=1.0, running=2, waiting=1, kv_share=0.5),)
    with Study.open(old, writing=True) as study:
        study.launch_ready(2, ready_s=1.0, kv_tokens=None, settings={"dtype": "bf16"}, notices=["slow"])
        study.launch_ended(2, Counters(), usage=usage, gpu_memory_peak_bytes=3 << 30)
        study.add_turn(2, 7, HEALTH, Counters(values={"drafted": 3.0, "still": 0.0}))
        again = replace(study.records()[1], place=replace(study.records()[1].place, repeat=1))
        study.add_record(again)
    with Study.open(old) as study:
        (_, (launch, _)) = study.launches()
        assert (launch.settings, launch.notices, launch.usage) == ({"dtype": "bf16"}, ("slow",), usage)
        assert launch.gpu_memory_peak_bytes == 3 << 30
        assert study.turn_totals() == (
            TurnTotals(launch=2, block=7, counters=Counters(values={"drafted": 3.0})),
        )
        assert [record.place.repeat for record in study.records()] == [0, 0, 0, 0, 1]
