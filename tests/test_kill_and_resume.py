"""Kill speclift or an engine at any moment, then resume: nothing finished is lost or measured twice, and no
process stays behind. Real processes, fake engine."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest

from processes import eventually, is_running, processes_with
from running import (
    fake_flags,
    finish,
    measured_places,
    planned_places,
    records_of,
    speclift,
    start,
)
from speclift.core.records import Phase, Record
from speclift.studies.study import DATABASE

# Slow enough that a moment can be hit, quick enough to wait for.
STEADY = ("ttft_s=0.005", "tpot_s=0.002")
SHAPE = ("--segment", "chat", "--max-tokens", 24, "--launches", 2)
VERDICTS = {0, 3, 4, 5}
SERVER = "speclift.testing.fake_server"
RESUME = ("decide", "--resume", "--study", "s")


@pytest.fixture
def mark() -> Iterator[str]:
    """A word on the command line of every engine of a test; what is left with it afterwards is ended."""
    word = f"seed={random.SystemRandom().randrange(10**9)}"
    yield word
    for pid in processes_with(word):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def decide(*more: object, mark: str) -> list[object]:
    return ["decide", *SHAPE, *fake_flags(*STEADY, mark, fast=False), "--study", "s", *more]


def measured_count(study: Path) -> int:
    """Records so far, read beside the process that writes them."""
    if not (study / DATABASE).exists():
        return 0
    with closing(sqlite3.connect(f"file:{study / DATABASE}?mode=ro", uri=True)) as database:
        with suppress(sqlite3.OperationalError):  # the study is not created yet
            row = database.execute("SELECT count(*) FROM records WHERE phase = 'measured'").fetchone()
            return int(row[0])
        return 0


def run_until(condition: Callable[[], bool], process: subprocess.Popen[str], *, what: str) -> None:
    eventually(lambda: process.poll() is not None or condition(), what=what)
    assert process.poll() is None, f"it ended before {what}: {finish(process)}"


def engines(mark: str) -> dict[int, tuple[str, ...]]:
    """Guardians and the servers they guard."""
    return {pid: line for pid, line in processes_with(mark).items() if SERVER in line}


def no_engine_is_left(mark: str) -> None:
    eventually(lambda: not engines(mark), what="no guardian and no engine is left")


def kill_at(records: int, arguments: Sequence[object], *, cwd: Path, mark: str, after_s: float) -> None:
    """SIGKILL `after_s` after engines run and this many records are measured."""
    with start(arguments, cwd=cwd) as process:
        run_until(
            lambda: bool(engines(mark)) and measured_count(cwd / "s") >= records,
            process,
            what=f"{records} records",
        )
        with suppress(subprocess.TimeoutExpired):
            process.wait(after_s)
        process.kill()
        finish(process)


@pytest.mark.slow
def test_a_killed_study_resumes_without_losing_or_repeating_a_record(tmp_path: Path, mark: str) -> None:
    study, moments = tmp_path / "s", random.Random(20261115)
    arguments: Sequence[object] = decide("--requests", 5, mark=mark)
    before: tuple[Record, ...] = ()
    # While the engines start, then at two moments among the 20 records.
    for records in (0, moments.randrange(3, 8), moments.randrange(10, 16)):
        kill_at(records, arguments, cwd=tmp_path, mark=mark, after_s=moments.uniform(0, 0.08))
        no_engine_is_left(mark)
        so_far = records_of(study)
        assert so_far[: len(before)] == before
        before, arguments = so_far, RESUME
    result = speclift(*RESUME, "--json", cwd=tmp_path)
    assert result.code in VERDICTS, result.stderr
    after = records_of(study)
    assert after[: len(before)] == before
    places = measured_places(after)
    assert {place for place, times in places.items() if times > 1} == set()
    assert set(places) == planned_places(study)
    no_engine_is_left(mark)


@pytest.mark.slow
def test_a_killed_engine_fails_its_arm_alone_and_is_measured_on_resume(tmp_path: Path, mark: str) -> None:
    study = tmp_path / "s"
    arguments = decide("--requests", 6, "--k", "2,4", "--launches", 1, "--json", mark=mark)
    with start(arguments, cwd=tmp_path) as process:
        run_until(lambda: measured_count(study) >= 4, process, what="some records")
        (engine,) = [
            pid
            for pid, line in engines(mark).items()
            if "k=2" in line and not any(word.endswith("guardian.py") for word in line)
        ]
        os.kill(engine, signal.SIGKILL)
        result = finish(process)
    assert result.code in VERDICTS, result.stderr
    document = result.document
    assert document["failed_arms"] == ["ngram-k2"]
    assert [arm["arm"] for arm in document["speedups"]] == ["ngram-k4"]
    findings = [f for f in document["findings"] if f["check"] == "arm-failed"]
    assert [finding["arm"] for finding in findings] == ["ngram-k2"]
    assert str(128 + signal.SIGKILL) in findings[0]["message"]
    before = records_of(study)
    complete = {place for place in planned_places(study) if place.arm != "ngram-k2"}
    assert complete <= set(measured_places(before))
    no_engine_is_left(mark)

    resumed = speclift(*RESUME, "--json", cwd=tmp_path)
    assert resumed.code in VERDICTS, resumed.stderr
    assert resumed.document["failed_arms"] == []
    assert {arm["arm"] for arm in resumed.document["speedups"]} == {"ngram-k2", "ngram-k4"}
    after = records_of(study)
    assert after[: len(before)] == before
    good = measured_places(record for record in after if record.is_ok)
    assert set(good) == planned_places(study)
    assert set(good.values()) == {1}


@pytest.mark.slow
def test_ctrl_c_gives_a_partial_report_and_the_rest_is_measured_under_the_same_load(
    tmp_path: Path, mark: str
) -> None:
    study = tmp_path / "s"
    arguments = decide("--requests", 20, "--concurrency", 4, "--launches", 1, mark=mark)
    with start(arguments, cwd=tmp_path) as process:
        # Twenty requests make one turn of each arm: six records lie inside the first.
        run_until(lambda: measured_count(study) >= 6, process, what="six records")
        process.send_signal(signal.SIGINT)
        result = finish(process)
    assert result.code == 130
    assert "speclift decide --resume --study s" in result.stderr
    assert "Speedup over the baseline" in result.stdout or "Measured cells" in result.stdout
    assert "Traceback" not in result.stderr
    no_engine_is_left(mark)
    before = records_of(study)
    assert len(measured_places(before)) < len(planned_places(study))

    resumed = speclift(*RESUME, "--json", cwd=tmp_path)
    assert resumed.code in VERDICTS, resumed.stderr
    after = records_of(study)
    assert after[: len(before)] == before
    places = measured_places(after)
    assert set(places) == planned_places(study)
    assert set(places.values()) == {1}
    fillers = [record for record in after if record.place.phase is Phase.FILLER]
    finished = {record.place.request_id for record in before if record.place.phase is Phase.MEASURED}
    assert {record.place.request_id for record in fillers} == finished
    assert {record.place.arm for record in fillers} == {record.place.arm for record in before} - {"ngram-k4"}


@pytest.mark.slow
def test_sigterm_ends_as_cleanly_as_ctrl_c(tmp_path: Path, mark: str) -> None:
    study = tmp_path / "s"
    with start(decide("--requests", 20, mark=mark), cwd=tmp_path) as process:
        run_until(lambda: measured_count(study) >= 4, process, what="four records")
        process.terminate()
        result = finish(process)
    assert result.code == 130
    assert "speclift decide --resume --study s" in result.stderr
    assert "Speedup over the baseline" in result.stdout or "Measured cells" in result.stdout
    assert "Traceback" not in result.stderr
    assert not is_running(process.pid)
    no_engine_is_left(mark)


@pytest.mark.slow
def test_ctrl_c_before_anything_was_measured_still_says_how_to_go_on(tmp_path: Path, mark: str) -> None:
    arguments = decide("--requests", 4, "--engine-arg", "never_ready=1", mark=mark)
    with start(arguments, cwd=tmp_path) as process:
        run_until(lambda: len(engines(mark)) == 2, process, what="a guardian and its engine")
        process.send_signal(signal.SIGINT)
        result = finish(process)
    assert result.code == 130
    assert "speclift decide --resume --study s" in result.stderr
    assert "Traceback" not in result.stderr
    no_engine_is_left(mark)
