"""Soaks of the fake engine through the command line, short to write."""

from __future__ import annotations

from typing import Any

from running import Cli, Result, fake_flags
from speclift.bench.soak_gate import SOAK_MIN_S
from speclift.lossless.soak.traffic import SoakKind

SOAK = ("verify", "--requests", 2, "--max-tokens", 8, "--temperature", 0, "--concurrency", "1,4")
# Answers that are waited for and not computed: what a soak sees does not depend on how busy the machine is.
TIMES = ("ttft_s=0.02", "tpot_s=0.002")


def soak(
    cli: Cli,
    *more: object,
    truths: tuple[str, ...] = (),
    kinds: tuple[SoakKind, ...] = (),
    soak_s: float = SOAK_MIN_S,
) -> Result:
    return cli(*soak_words(*more, truths=truths, kinds=kinds, soak_s=soak_s))


def soak_words(
    *more: object, truths: tuple[str, ...] = (), kinds: tuple[SoakKind, ...] = (), soak_s: float = SOAK_MIN_S
) -> tuple[object, ...]:
    """`kinds`: the only ones that are sent, where not all are."""
    flags = [*fake_flags(*TIMES, *truths, fast=False), *(only(*kinds) if kinds else ())]
    return (*SOAK, *flags, "--soak", f"{soak_s}s", "--launches", 1, *more, "--json")


def only(*kinds: SoakKind) -> tuple[str, str]:
    return "--leave-out", ",".join(kind for kind in SoakKind if kind not in kinds)


def found(result: Result) -> dict[str, dict[str, Any]]:
    faults = result.document["soak"]["faults"]
    return {fault["name"]: fault for fault in faults if fault["result"] == "found"}
