"""speclift as a process whose time and memory are watched, against servers that the tests run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from running import Result, command

# Beyond this a command is ended, and the test fails.
LIMIT_S = 100.0
# A peak is kept until its process ends, so that only what it held in its last moment may be missed.
LOOK_EVERY_S = 0.1
# A study of a second or two on a server that answers at once.
SMALL = ("--segment", "chat", "--requests", 4, "--max-tokens", 8, "--temperature", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """How a command ended, how long it took and the most memory that one of its processes held."""

    result: Result
    wall_s: float
    memory_bytes: int


def attach(baseline: str, spec: str | None = None) -> tuple[str, ...]:
    return ("--engine", "attach", "--baseline-url", baseline, *(("--spec-url", spec) if spec else ()))


def watch(*arguments: object, cwd: Path, environment: Mapping[str, str] | None = None) -> Watched:
    began_s = time.monotonic()
    out, err = cwd / "stdout", cwd / "stderr"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            command(arguments),
            cwd=cwd,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, "COLUMNS": "200", **(environment or {})},
            start_new_session=True,
        )
        memory_bytes = 0
        while process.poll() is None:
            memory_bytes = max(memory_bytes, *_peaks(session=process.pid), 0)
            if time.monotonic() - began_s > LIMIT_S:
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(LOOK_EVERY_S)
    return Watched(
        result=Result(
            code=process.returncode,
            stdout=out.read_text("utf-8", "replace"),
            stderr=err.read_text("utf-8", "replace"),
        ),
        wall_s=time.monotonic() - began_s,
        memory_bytes=memory_bytes,
    )


def _peaks(*, session: int) -> Iterator[int]:
    """The most memory that each process of the session ever held. What wait() tells of a child begins with what its
    parent held, and the parent is pytest."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                place = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(place[3]) == session:
                    lines = (folder / "status").read_text().splitlines()
                    yield from (int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
