"""CPU time and memory of a program and everything it started, while it runs. Linux only: reads /proc.

CPU is taken over a window (the time in which tokens streamed), so that imports and the writing of reports are
left out; memory is the largest sum of proportional set sizes seen, so that shared pages count once.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

CPU_EVERY_S = 0.05
MEMORY_EVERY = 10  # looks at CPU per look at memory, which costs more
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Footprint:
    times_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    memory_bytes_max: int = 0

    def cpu_between(self, start_s: float, end_s: float) -> float:
        """CPU seconds between two moments of CLOCK_MONOTONIC."""
        start, end = np.interp([start_s, end_s], self.times_s, self.cpu_s)
        return float(end - start)

    @property
    def cpu_total_s(self) -> float:
        return max(self.cpu_s, default=0.0)


class Watcher:
    """Looks at a process tree from a thread of its own until `stop`."""

    def __init__(self, root_pid: int) -> None:
        self.footprint = Footprint()
        self._root = root_pid
        self._cpu_by_pid: dict[int, float] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> Footprint:
        self._stopped.set()
        self._thread.join()
        return self.footprint

    def _watch(self) -> None:
        looks = 0
        while True:
            pids = tree(self._root)
            for pid in pids:
                self._cpu_by_pid[pid] = max(self._cpu_by_pid.get(pid, 0.0), _cpu_s(pid))
            self.footprint.times_s.append(time.monotonic())
            self.footprint.cpu_s.append(sum(self._cpu_by_pid.values()))
            if looks % MEMORY_EVERY == 0:
                memory = sum(_memory_bytes(pid) for pid in pids)
                self.footprint.memory_bytes_max = max(self.footprint.memory_bytes_max, memory)
            looks += 1
            if self._stopped.wait(CPU_EVERY_S):
                return


def tree(root: int) -> list[int]:
    """The process and all its descendants."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        for task in _listed(f"/proc/{pid}/task"):
            waiting += [int(child) for child in _text(f"/proc/{pid}/task/{task}/children").split()]
    return found


def run_watched(
    command: list[str], *, environment: dict[str, str], cwd: Path, log: Path, limit_s: float
) -> tuple[int, Footprint]:
    """Exit status and footprint; output goes to `log`. 124 where it ran past the limit."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=environment, cwd=cwd, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        watcher = Watcher(process.pid)
        try:
            status = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            status = 124
        return status, watcher.stop()


def _cpu_s(pid: int) -> float:
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S if len(fields) > 12 else 0.0


def _memory_bytes(pid: int) -> int:
    for line in _text(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # the process ended meanwhile
        return ""


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)  # noqa: PTH208 - one call per look
    except OSError:
        return []
