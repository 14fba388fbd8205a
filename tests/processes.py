"""What the tests see of processes, through /proc: command lines, parents, listening addresses."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PATIENCE_S = 60.0
POLL_S = 0.02
LISTENING = "0A"  # TCP_LISTEN in include/net/tcp_states.h


def command_line(pid: int) -> tuple[str, ...]:
    """Empty for a process that is gone or waits to be reaped."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        return tuple(word.decode("utf-8", "replace") for word in words if words != [b""])
    return ()


def processes_with(word: str) -> dict[int, tuple[str, ...]]:
    """Live processes that have `word` as one word of their command line."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    lines = {pid: command_line(pid) for pid in pids}
    return {pid: line for pid, line in lines.items() if word in line}


def guardian_of(command: Sequence[str]) -> int:
    """The guardian that runs exactly this command."""
    wanted = tuple(command)
    found = [
        pid
        for pid, line in processes_with(wanted[-1]).items()
        if line[-len(wanted) :] == wanted and any(word.endswith("guardian.py") for word in line)
    ]
    assert len(found) == 1, f"expected one guardian of {wanted}, saw {found}"
    return found[0]


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def heeds(pid: int, number: signal.Signals) -> bool:
    """Whether the process has put a handler of its own in place for this signal."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
        return bool(caught >> (number - 1) & 1)
    return False


def is_running(pid: int) -> bool:
    """False once it is gone or waits to be reaped."""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    return False


def listening_addresses(port: int) -> set[str]:
    """Local addresses, in the kernel's hexadecimal form, on which `port` is open for connections."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        path = Path(table)
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            address, _, hexadecimal_port = fields[1].rpartition(":")
            if fields[3] == LISTENING and int(hexadecimal_port, 16) == port:
                found.add(address)
    return found


def eventually(condition: Callable[[], bool], *, what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {patience_s:.0f} s: {what}"
        time.sleep(POLL_S)
