"""Soaks of the fake engine through the command line, short to write."""

from __future__ import annotations

from typing import Any

from running import Cli, Result, fake_flags

SOAK = ("verify", "--requests", 8, "--max-tokens", 24, "--temperature", 0, "--concurrency", "1,4")
TIMES = ("ttft_s=0.002", "tpot_s=0.0002")


def soak(cli: Cli, *more: object, truths: tuple[str, ...] = (), soak_s: float = 8) -> Result:
    flags = fake_flags(*TIMES, *truths, fast=False)
    return cli(*SOAK, *flags, "--soak", f"{soak_s}s", "--launches", 1, *more, "--json")


def found(result: Result) -> dict[str, dict[str, Any]]:
    faults = result.document["soak"]["faults"]
    return {fault["name"]: fault for fault in faults if fault["result"] == "found"}
