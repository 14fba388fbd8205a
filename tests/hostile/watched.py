"""speclift as a process whose time and memory are watched, against servers that the tests run."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from running import Result, command

# Beyond this a command is ended, and the test fails.
LIMIT_S = 100.0
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
        ender = threading.Timer(LIMIT_S, os.killpg, (process.pid, signal.SIGKILL))
        ender.start()
        _, status, usage = os.wait4(process.pid, 0)
        ender.cancel()
        ender.join()
        process.returncode = os.waitstatus_to_exitcode(status)
    return Watched(
        result=Result(
            code=process.returncode,
            stdout=out.read_text("utf-8", "replace"),
            stderr=err.read_text("utf-8", "replace"),
        ),
        wall_s=time.monotonic() - began_s,
        memory_bytes=usage.ru_maxrss * 1024,
    )
