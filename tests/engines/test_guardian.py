"""The guardian: no engine outlives speclift, whatever either of them does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import eventually, is_running, processes_with
from speclift.engines.process import GUARDIAN

# An engine that starts one worker in its own group and one that has left it, as daemons do.
ENGINE = """
    import os, signal, subprocess, sys, time
    mark, folder, *behaviour = sys.argv[1:]
    if "ignores-sigterm" in behaviour:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker = [sys.executable, "-c", "import time; time.sleep(600)", mark]
    if "has-workers" in behaviour:
        subprocess.Popen(worker)
        subprocess.Popen(worker, start_new_session=True)
    open(os.path.join(folder, "pid"), "w").write(str(os.getpid()))
    open(os.path.join(folder, "up"), "w").close()
    if "exits" in behaviour:
        sys.exit(int(behaviour[-1]))
    if "aborts" in behaviour:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
"""
# Stands for speclift: starts the guardian as process.py does, then waits to be killed.
SPECLIFT = """
    import subprocess, sys, time
    guardian = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True)
    time.sleep(600)
"""


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """A word on the command line of everything a test starts; what is left with it afterwards is ended."""
    word = f"mark-of-{tmp_path}"
    yield word
    for pid in processes_with(word):
        os.kill(pid, signal.SIGKILL)


def guarded(mark: str, folder: Path, *behaviour: str, grace_s: float = 5.0) -> list[str]:
    engine = [sys.executable, "-c", textwrap.dedent(ENGINE), mark, str(folder), *behaviour]
    return [sys.executable, "-IS", str(GUARDIAN), str(grace_s), *engine]


def start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)


def wait_until_up(folder: Path) -> int:
    eventually((folder / "up").exists, what="the engine runs")
    return int((folder / "pid").read_text())


def test_everything_dies_with_a_killed_speclift_even_workers_that_left_the_group(
    mark: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", textwrap.dedent(SPECLIFT), *guarded(mark, tmp_path, "has-workers")]
    with subprocess.Popen(command) as speclift:
        wait_until_up(tmp_path)
        # speclift's stand-in, the guardian, the engine and its two workers.
        eventually(lambda: len(processes_with(mark)) == 5, what="all five processes run")
        speclift.kill()
    eventually(lambda: not processes_with(mark), what="nothing is left")


def test_workers_of_an_engine_that_ended_by_itself_are_ended_too(mark: str, tmp_path: Path) -> None:
    with start(guarded(mark, tmp_path, "has-workers", "exits", "3")) as guardian:
        assert guardian.wait() == 3
    assert not processes_with(mark)


def test_closing_its_input_ends_the_engine_with_a_polite_signal_first(mark: str, tmp_path: Path) -> None:
    with start(guarded(mark, tmp_path)) as guardian:
        wait_until_up(tmp_path)
        assert guardian.stdin is not None
        guardian.stdin.close()
        assert guardian.wait() == 128 + signal.SIGTERM


@pytest.mark.slow
def test_an_engine_that_ignores_sigterm_is_killed_after_the_grace_time(mark: str, tmp_path: Path) -> None:
    with start(guarded(mark, tmp_path, "ignores-sigterm", grace_s=0.2)) as guardian:
        wait_until_up(tmp_path)
        assert guardian.stdin is not None
        guardian.stdin.close()
        assert guardian.wait() == 128 + signal.SIGKILL


def test_a_stopped_engine_is_ended_too(mark: str, tmp_path: Path) -> None:
    with start(guarded(mark, tmp_path, grace_s=0.2)) as guardian:
        engine = wait_until_up(tmp_path)
        os.kill(engine, signal.SIGSTOP)
        assert guardian.stdin is not None
        guardian.stdin.close()
        # Whether a stopped process takes SIGTERM or waits for SIGKILL is the kernel's choice.
        assert guardian.wait() > 128
    assert not is_running(engine)


def test_an_engine_does_not_outlive_a_killed_guardian(mark: str, tmp_path: Path) -> None:
    with start(guarded(mark, tmp_path)) as guardian:
        engine = wait_until_up(tmp_path)
        guardian.kill()
    eventually(lambda: not is_running(engine), what="the engine dies with its guardian")
