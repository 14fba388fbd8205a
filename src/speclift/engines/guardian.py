"""Stands between speclift and an engine so that no engine outlives speclift, however it dies.

Run as a script of its own, standard library only: `python guardian.py GRACE_S COMMAND...`. It starts the
command in a new session and ends it, with all its descendants, as soon as its own standard input closes
(which the kernel does for us when speclift is killed) or it is asked to terminate.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
POLL_S = 0.05


def main(argv: list[str]) -> int:
    grace_s, command = float(argv[0]), argv[1:]
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    asked_to_stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: asked_to_stop.append(number))
    try:
        engine = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_guardian,  # noqa: PLW1509 - the guardian has no threads
        )
    except OSError as error:
        print(f"cannot start {command[0]}: {error}", file=sys.stderr, flush=True)  # noqa: T201 - the log
        return 127
    while engine.poll() is None and not asked_to_stop:
        readable, _, _ = select.select([sys.stdin], [], [], POLL_S)
        if readable and not os.read(sys.stdin.fileno(), 1024):
            break
    code = _end(engine, grace_s)
    _kill_orphans()
    # Popen gives -N for a signal; a shell would say 128 + N, and exit codes cannot be negative.
    return 128 - code if code < 0 else code


def _end(engine: subprocess.Popen[bytes], grace_s: float) -> int:
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, None)):
        if engine.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(engine.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            engine.wait(wait_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(engine.pid, signal.SIGKILL)  # workers the engine left in its group
    return int(engine.returncode)


def _kill_orphans() -> None:
    """Descendants that left the group were re-parented to us (subreaper): end them too."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    deadline = time.monotonic() + 2.0
    while children.exists() and (pids := children.read_text().split()) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(int(pid), 0)


def _die_with_guardian() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
