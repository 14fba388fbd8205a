"""The reference server from Python: built with cc, started, ended, and its log read back as the truth."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

SOURCE = Path(__file__).with_name("reference_server.c")


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the server did to the measured requests, in seconds; times are of CLOCK_MONOTONIC."""

    ttft_s: NDArray[np.float64]
    tpot_s: NDArray[np.float64]
    late_s: NDArray[np.float64]
    arrived_s: NDArray[np.float64]
    first_arrival_s: float
    last_token_s: float
    tokens: int
    # Every request that came, warm-ups and probes too.
    all_tokens: int

    @property
    def requests(self) -> int:
        return len(self.ttft_s)

    @property
    def rate_per_s(self) -> float:
        """Requests per second as they reached the server."""
        span_s = float(np.max(self.arrived_s) - np.min(self.arrived_s))
        return (self.requests - 1) / span_s if span_s > 0 else 0.0


def compiler() -> str:
    found = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        raise SystemExit("the reference server is a C program: install a C compiler (cc), or set CC")
    return found


def build(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "reference_server"
    subprocess.run([compiler(), "-O2", "-Wall", "-o", str(program), str(SOURCE)], check=True)
    return program


class ReferenceServer:
    """Answers every request with its max_tokens tokens: the first after `ttft_s`, then one each `tpot_s`."""

    def __init__(self, program: Path, log: Path, *, ttft_s: float, tpot_s: float) -> None:
        self._log = log
        self._process = subprocess.Popen(
            [
                str(program), "--log", str(log),
                "--ttft-us", str(round(ttft_s * 1e6)), "--tpot-us", str(round(tpot_s * 1e6)),
            ],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def truth(self, *, tokens: int) -> Truth:
        """Of the requests for `tokens` tokens, once the server has ended; others are warm-ups and probes."""
        rows = np.loadtxt(self._log, comments="#", ndmin=2).reshape(-1, 5)
        own = rows[rows[:, 3] == tokens]
        if not len(own):
            raise ValueError(f"no request for {tokens} tokens reached the server")
        arrived, first, last, counts, late = own.T * np.array([[1e-9], [1e-9], [1e-9], [1], [1e-9]])
        return Truth(
            ttft_s=first - arrived,
            tpot_s=(last - first) / (counts - 1),
            late_s=late,
            arrived_s=arrived,
            first_arrival_s=float(arrived.min()),
            last_token_s=float(last.max()),
            tokens=int(counts.sum()),
            all_tokens=int(rows[:, 3].sum()),
        )
