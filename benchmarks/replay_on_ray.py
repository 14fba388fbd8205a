"""Is a log that two workers of a Ray cluster count counted as one machine counts it, and how much sooner?

    python benchmarks/replay_on_ray.py [--tokens 1e8] [--parts 16] [--seed 1] [--json]

Synthetic token ids in parts of a log; the same log is replayed by one process without Ray, then by two workers on a
cluster of two nodes that is started for it, on this machine. Exits 1 where the two documents differ in a byte, or two
workers yield less than 1.6 times the tokens per second of one process. Run it alone: two workers need two idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

SPEEDUP_MIN = 1.6
CLUSTER = Path(__file__).parents[1] / "tests" / "ray_cluster.py"
NODES = ("one", "two")
FLAGS = ("--k", "3,5,8", "--ngram", "2..3", "--json")
PROMPT, RESPONSE, VOCABULARY = 512, 256, 50_000
# Parts that are written; the others are further names of these.
DISTINCT = 4
WORKER = b"CountingWorker"
LOOKED_EVERY_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    tokens: int
    parts: int
    one_s: float
    two_s: float
    speedup: float
    is_same: bool
    worker_peak_mb: float


def write_part(path: Path, *, tokens: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(tokens // (PROMPT + RESPONSE)):
            asked = (chance.zipf(1.2, PROMPT) % VOCABULARY).tolist()
            start = int(chance.integers(0, PROMPT - 96))
            said = asked[start : start + 96] + (chance.zipf(1.2, RESPONSE - 96) % VOCABULARY).tolist()
            file.write(json.dumps({"prompt_token_ids": asked, "response_token_ids": said}) + "\n")


def write_log(folder: Path, *, tokens: int, parts: int, seed: int) -> None:
    for number in range(parts):
        path = folder / f"part-{number:03d}.jsonl"
        if number < DISTINCT:
            write_part(path, tokens=tokens // parts, seed=seed + number)
        else:
            path.hardlink_to(folder / f"part-{number % DISTINCT:03d}.jsonl")


def replayed(folder: Path, *words: str) -> tuple[str, float]:
    begun_s = time.perf_counter()
    command = [sys.executable, "-m", "speclift", "replay", str(folder / "*.jsonl"), *FLAGS, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout, time.perf_counter() - begun_s


@contextmanager
def cluster() -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, str(CLUSTER), *NODES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # Ray runs workers at a low priority; here they are compared with a process that has an ordinary one.
        env={**os.environ, "RAY_worker_niceness": "0"},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield str(json.loads(process.stdout.readline())["address"])
        finally:
            process.stdin.close()
            process.wait(timeout=60)


class WorkerMemory:
    """The most that any worker of ours held at once, as the kernel keeps it for every process."""

    def __init__(self) -> None:
        self.peak_kb = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> WorkerMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stopped.wait(LOOKED_EVERY_S):
            for process in Path("/proc").iterdir():
                if process.name.isdecimal():
                    self.peak_kb = max(self.peak_kb, _peak_kb(process))


def _peak_kb(process: Path) -> int:
    try:
        if WORKER not in (process / "cmdline").read_bytes():
            return 0
        lines = (process / "status").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def measure(*, tokens: int, parts: int, seed: int) -> Outcome:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_log(folder, tokens=tokens, parts=parts, seed=seed)
        one, one_s = replayed(folder)
        with cluster() as address, WorkerMemory() as memory:
            two, two_s = replayed(folder, "--on", f"ray:{address}")
    return Outcome(
        tokens=json.loads(one)["log"]["tokens"],
        parts=parts,
        one_s=one_s,
        two_s=two_s,
        speedup=one_s / two_s,
        is_same=one == two,
        worker_peak_mb=memory.peak_kb / 1024,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=float, default=1e8)
    parser.add_argument("--parts", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = measure(tokens=int(asked.tokens), parts=asked.parts, seed=asked.seed)
    if asked.json:
        print(json.dumps(asdict(found)))
    else:
        print(
            f"{found.tokens:,} tokens in {found.parts} parts: one process {found.one_s:.1f} s "
            f"({found.tokens / found.one_s / 1e6:.2f} M tokens/s), two workers {found.two_s:.1f} s "
            f"({found.tokens / found.two_s / 1e6:.2f} M tokens/s), {found.speedup:.2f} times; "
            f"documents {'the same' if found.is_same else 'DIFFER'}; at most {found.worker_peak_mb:.0f} MB a worker"
        )
    sys.exit(0 if found.is_same and found.speedup >= SPEEDUP_MIN else 1)


if __name__ == "__main__":
    main()
