"""Studies of every format version that was ever written stay readable and can go on."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from speclift.studies.format import FORMAT
from speclift.studies.study import DATABASE, Study

RECORDED = Path(__file__).parent.parent / "recorded" / "studies"
OLD_FORMATS = range(1, FORMAT)


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
