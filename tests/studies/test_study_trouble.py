"""A study that is damaged, busy, killed, full or no study at all: each says so and loses nothing."""

from __future__ import annotations

import fcntl
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples import engine_spec, launch, new_study, plan, record
from speclift.core.errors import SpecliftError, StudyError
from speclift.core.records import TurnHealth
from speclift.core.results import Finding, Level
from speclift.core.traffic import Rate
from speclift.studies.format import FORMAT
from speclift.studies.study import DATABASE, Study, is_study


def tear(path: Path, change: Callable[[sqlite3.Connection], Any]) -> None:
    """Changes the database of a closed study behind its back."""
    with closing(sqlite3.connect(path / DATABASE)) as database, database:
        change(database)


def everything(study: Study) -> list[Any]:
    parts = [study.plan, study.engine, study.goals, study.provenance, study.block_limits]
    return [*parts, study.records(), study.launches(), study.turn_health(), study.findings(), study.done()]


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A closed study with enough records to fill several pages."""
    with new_study(tmp_path / "s") as study:
        study.add_launch(launch(1))
        study.add_turn(1, 0, TurnHealth(load=Rate(per_s=2.0), loop_lag_p99_s=0.001, cpu_s=0.5, wall_s=2.0))
        study.add_finding(Finding(check="c", level=Level.WARN, message="m"))
        for index in range(40):
            study.add_record(record(request_id=f"p{index}"))
    return tmp_path / "s"


class TestWhatIsNoStudy:
    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(StudyError, match="no study at"):
            Study.open(tmp_path / "absent")

    def test_a_study_is_never_created_over_another(self, finished: Path) -> None:
        with pytest.raises(StudyError, match="already holds a study") as caught:
            new_study(finished)

        assert "--resume" in caught.value.hint
        with Study.open(finished) as study:
            assert len(study.records()) == 40

    def test_a_newer_format_is_refused_with_what_to_do(self, finished: Path) -> None:
        tear(finished, lambda database: database.execute(f"PRAGMA user_version = {FORMAT + 1}"))

        with pytest.raises(
            StudyError, match=f"has study format {FORMAT + 1}; this speclift reads up to {FORMAT}"
        ) as caught:
            Study.open(finished, writing=True)
        assert "upgrade" in caught.value.hint

    def test_another_programs_database_is_neither_read_nor_written(self, tmp_path: Path) -> None:
        tear(tmp_path, lambda database: database.execute("CREATE TABLE theirs (x)"))
        before = (tmp_path / DATABASE).read_bytes()

        assert not is_study(tmp_path)
        with pytest.raises(StudyError, match="no study at"):
            Study.open(tmp_path)
        with pytest.raises(StudyError, match="is not a study's database"):
            new_study(tmp_path)
        assert (tmp_path / DATABASE).read_bytes() == before

    @pytest.mark.parametrize("content", [b"", b"SQLite format 3\0"])
    def test_an_empty_database_is_a_study_that_never_began(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / DATABASE).write_bytes(content)

        if content:
            with pytest.raises(StudyError, match="is damaged"):
                is_study(tmp_path)
        else:
            assert not is_study(tmp_path)
            new_study(tmp_path).close()
            assert is_study(tmp_path)


class TestDamage:
    def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        (tmp_path / DATABASE).write_bytes(b"not a database at all, but long enough to have a header" * 20)

        for act in (is_study, Study.open, new_study):
            with pytest.raises(StudyError, match="is damaged"):
                act(tmp_path)

    @pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.9])
    def test_a_truncated_database_says_so(self, finished: Path, share: float) -> None:
        whole = (finished / DATABASE).read_bytes()
        (finished / DATABASE).write_bytes(whole[: int(len(whole) * share)])

        with (
            pytest.raises(StudyError, match=r"is damaged|cannot read the study"),
            Study.open(finished) as study,
        ):
            everything(study)

    @pytest.mark.parametrize("value", ["{", "[]", "3", "null", '{"arms": 3}'])
    @pytest.mark.parametrize("key", ["plan", "engine", "goals", "provenance"])
    def test_a_garbled_part_is_a_study_error(self, finished: Path, key: str, value: str) -> None:
        tear(finished, lambda db: db.execute("UPDATE meta SET value = ? WHERE key = ?", (value, key)))

        with Study.open(finished) as study, pytest.raises(StudyError, match="cannot read the study"):
            getattr(study, key)

    @pytest.mark.slow
    @given(flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(1, 255)), min_size=1, max_size=30))
    @settings(max_examples=2 * settings().max_examples)
    def test_flipped_bytes_are_reported_or_harmless(self, flips: list[tuple[float, int]]) -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "s"
            with new_study(path) as study:
                study.add_launch(launch(1))
                for index in range(10):
                    study.add_record(record(request_id=f"p{index}"))
            content = bytearray((path / DATABASE).read_bytes())
            for where, mask in flips:
                content[int(where * len(content))] ^= mask
            (path / DATABASE).write_bytes(content)

            with suppress(SpecliftError), Study.open(path) as damaged:
                everything(damaged)


def in_a_child(script: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Runs Python with `path` at hand and the tests' own samples."""
    head = (
        "import os, resource, signal, sys\n"
        "from pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
        "from samples import *\n"
        "path = Path(sys.argv[1])\n"
    )
    return subprocess.run(
        [sys.executable, "-c", head + script, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class TestKilled:
    @pytest.mark.slow
    def test_while_it_is_created_it_is_no_study_and_can_be_created_again(self, tmp_path: Path) -> None:
        died = in_a_child(
            "def die(self, key, value):\n"
            "    if key == 'provenance': os.kill(os.getpid(), signal.SIGKILL)\n"
            "    original(self, key, value)\n"
            "original, Study._set = Study._set, die\n"
            "new_study(path)\n",
            tmp_path / "s",
        )

        assert died.returncode == -9
        assert (tmp_path / "s" / DATABASE).exists()
        assert not is_study(tmp_path / "s")
        with new_study(tmp_path / "s") as study:
            assert study.plan == plan()

    @pytest.mark.slow
    def test_while_it_is_written_it_keeps_every_record_and_lets_the_next_writer_in(
        self, tmp_path: Path
    ) -> None:
        died = in_a_child(
            "study = new_study(path)\n"
            "study.add_launch(launch(1))\n"
            "for index in range(5): study.add_record(record(request_id=f'p{index}'))\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n",
            tmp_path / "s",
        )

        assert died.returncode == -9
        with Study.open(tmp_path / "s", writing=True) as study:
            assert [r.place.request_id for r in study.records()] == [f"p{index}" for index in range(5)]


class TestTogether:
    def test_a_second_writer_is_refused_until_the_first_is_gone(self, finished: Path) -> None:
        with Study.open(finished, writing=True):
            with pytest.raises(StudyError, match="another speclift is writing to") as caught:
                Study.open(finished, writing=True)
            assert caught.value.hint
        Study.open(finished, writing=True).close()

    def test_two_studies_cannot_be_created_in_one_place_at_once(self, tmp_path: Path) -> None:
        with (tmp_path / "lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(StudyError, match="another speclift is writing to"):
                new_study(tmp_path)
        new_study(tmp_path).close()

    def test_a_reader_sees_each_record_as_soon_as_it_is_written(self, finished: Path) -> None:
        with Study.open(finished, writing=True) as writer, Study.open(finished) as reader:
            for block in range(1, 4):
                writer.add_record(record(block=block))
                assert len(reader.records()) == 40 + block

    def test_a_reader_that_is_in_the_middle_does_not_stop_the_writer(self, finished: Path) -> None:
        with (
            Study.open(finished, writing=True) as writer,
            closing(sqlite3.connect(finished / DATABASE)) as other,
        ):
            rows = other.execute("SELECT * FROM records")
            rows.fetchone()
            writer.add_record(record(block=1))

            assert len(rows.fetchall()) == 39
            assert len(writer.records()) == 41


class TestAFullDisk:
    def test_stops_with_a_study_error_and_loses_nothing(self, finished: Path) -> None:
        large = replace(record(block=1), text="x" * 200_000)
        with Study.open(finished, writing=True) as study:
            pages = study._db.execute("PRAGMA page_count").fetchone()[0]
            study._db.execute(f"PRAGMA max_page_count = {pages + 2}")
            with pytest.raises(StudyError, match=r"cannot write to .* full") as caught:
                study.add_record(large)
            assert "--resume" in caught.value.hint
            assert len(study.records()) == 40

            study._db.execute("PRAGMA max_page_count = 1000000")
            study.add_record(large)
            assert len(study.records()) == 41

    @pytest.mark.slow
    def test_at_the_very_start_leaves_a_place_that_can_be_used_later(self, tmp_path: Path) -> None:
        refused = in_a_child(
            "from speclift.core.errors import StudyError\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))\n"
            "for _ in range(2):\n"
            "    try: new_study(path)\n"
            "    except StudyError as error: print(error)\n",
            tmp_path / "s",
        )

        assert refused.stdout.count("disk I/O error") == 2, refused.stderr
        assert not is_study(tmp_path / "s")
        new_study(tmp_path / "s", engine=engine_spec(threads=2)).close()
        assert is_study(tmp_path / "s")
