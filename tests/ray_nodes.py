"""A Ray cluster of three nodes on this machine, whose truths differ."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

CLUSTER = Path(__file__).with_name("ray_cluster.py")
# What a step of four drafted tokens costs on each: with every draft accepted, five tokens for 1 + 4 times this.
STEP_COSTS = {"ash": 0.25, "birch": 0.375, "cedar": 0.6}


@dataclass
class RayCluster:
    """`raylets` are the processes of its nodes, `server` that of the head which knows them all."""

    commands: IO[str]
    answers: IO[str]
    address: str = ""
    raylets: dict[str, int] = field(default_factory=dict)
    server: int = 0

    @contextmanager
    def with_node(self, name: str, *, gpus: int = 0, **environment: str) -> Iterator[None]:
        """For the length of the block."""
        self._ask({"name": name, "gpus": gpus, "environment": environment})
        try:
            yield
        finally:
            self._ask({"name": name})

    def _ask(self, change: dict[str, object]) -> None:
        print(json.dumps(change), file=self.commands, flush=True)
        self.read()

    def read(self) -> None:
        told = json.loads(self.answers.readline())
        self.address, self.raylets, self.server = told["address"], told["raylets"], told["server"]


@contextmanager
def running_cluster(nodes: Sequence[str] = tuple(STEP_COSTS)) -> Iterator[RayCluster]:
    words = [f"{name}:spec.step_cost={STEP_COSTS[name]}" for name in nodes]
    with subprocess.Popen(
        [sys.executable, str(CLUSTER), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        found = RayCluster(commands=process.stdin, answers=process.stdout)
        try:
            found.read()
            yield found
        finally:
            process.stdin.close()
            process.wait(timeout=30)
