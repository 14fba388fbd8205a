"""Which load generator tells the truth, and at what price? Each tool against a server whose times are known.

    python benchmarks/load/run.py [--levels 1,16,64,256,1000] [--rates 100,2000] [--tools speclift,...] [--quick]

The reference server (a C program, built here) logs when requests arrived and tokens left; every tool's reported
TTFT and time per token is held against that log. Peers get virtual environments of their own in the user's
cache. Writes docs/load.md and docs/load.svg when all tools ran on all default loads, else only prints.
Run it on a quiet machine: about 20 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from environments import cache
from footprint import run_watched
from numpy.typing import NDArray
from page import bars, chart, page, table
from reference import ReferenceServer, build
from tools import OUTPUT, TITLES, TOOLS, Reported, Tool, Work, environment

DOCS = Path(__file__).parent.parent.parent / "docs"
TTFT_S = 0.05
LEVELS = (1, 16, 64, 256, 1000)
RATES = (100.0, 2000.0)
LIMIT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One tool on one load; errors are reported minus true, in seconds."""

    tool: str
    load: str
    requests: int
    lost: int
    truth: dict[str, float]
    reported: dict[str, float | None]
    cpu_s_per_million_tokens: float
    cpu_total_s: float
    memory_bytes_max: int
    rate_per_s: float
    server_late_s_p99: float
    failure: str = ""


def work_for_level(streams: int, *, quick: bool) -> Work:
    """At least 100 requests, so that there is a P99; one chunk every 100 ms at a thousand streams."""
    if streams >= 1000:
        return Work(tokens=32, tpot_s=0.1, requests=streams * (1 if quick else 3), streams=streams)
    requests = {1: 100, 16: 320, 64: 640}.get(streams, 6 * streams)
    return Work(
        tokens=64, tpot_s=0.01, requests=max(8, requests // 5) if quick else requests, streams=streams
    )


def work_for_rate(rate_per_s: float, *, quick: bool) -> Work:
    """Short answers at high rates: it is the sending that is tested there."""
    tokens = 64 if rate_per_s <= 200 else 8
    seconds = 2 if quick else (10 if rate_per_s <= 200 else 6)
    return Work(tokens=tokens, tpot_s=0.01, requests=round(rate_per_s * seconds), rate_per_s=rate_per_s)


def measure(tool: Tool, work: Work, program: Path, *, keep: Path | None) -> Row:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ReferenceServer(program, folder / "truth.log", ttft_s=TTFT_S, tpot_s=work.tpot_s) as server:
            status, footprint = run_watched(
                tool.command(server.url, work, folder),
                environment=environment(), cwd=folder, log=folder / OUTPUT, limit_s=LIMIT_S,
            )  # fmt: skip
        try:
            if status != 0:
                raise ValueError(f"exit status {status}: {(folder / OUTPUT).read_text()[-800:]}")
            reported = tool.report(folder)
            truth = server.truth(tokens=work.tokens)
        except (ValueError, KeyError, OSError) as error:
            if keep is not None:
                shutil.copytree(folder, keep, dirs_exist_ok=True)
            return _failed(tool, work, f"{type(error).__name__}: {error}")
    streamed_s = footprint.cpu_between(truth.first_arrival_s, truth.last_token_s)
    return Row(
        tool=tool.name,
        load=work.name,
        requests=work.requests,
        lost=work.requests - reported.succeeded,
        truth={**_percentiles("ttft", truth.ttft_s), **_percentiles("tpot", truth.tpot_s)},
        reported=_said(reported),
        cpu_s_per_million_tokens=streamed_s / truth.tokens * 1e6,
        cpu_total_s=footprint.cpu_total_s,
        memory_bytes_max=footprint.memory_bytes_max,
        rate_per_s=truth.rate_per_s,
        server_late_s_p99=float(np.percentile(truth.late_s, 99)),
    )


def _percentiles(name: str, values: NDArray[np.float64]) -> dict[str, float]:
    return {f"{name}_p{rank}": float(np.percentile(values, rank)) for rank in (50, 99)}


def _said(reported: Reported) -> dict[str, float | None]:
    return {
        **{f"ttft_{key}": value for key, value in reported.ttft_s.items()},
        **{f"tpot_{key}": value for key, value in reported.tpot_s.items()},
    }


def _failed(tool: Tool, work: Work, why: str) -> Row:
    return Row(
        tool=tool.name, load=work.name, requests=work.requests, lost=work.requests, truth={}, reported={},
        cpu_s_per_million_tokens=float("nan"), cpu_total_s=float("nan"), memory_bytes_max=0, rate_per_s=0.0,
        server_late_s_p99=float("nan"), failure=why,
    )  # fmt: skip


def machine() -> str:
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{cores} cores, {system}, load average {load:.1f} at the start"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--levels", default=",".join(map(str, LEVELS)), help="concurrent streams; '' for none"
    )
    parser.add_argument(
        "--rates", default=",".join(f"{rate:g}" for rate in RATES), help="requests per second"
    )
    parser.add_argument("--tools", default=",".join(TOOLS), help=f"of {', '.join(TOOLS)}")
    parser.add_argument("--quick", action="store_true", help="a fifth of the requests; no P99 to speak of")
    parser.add_argument("--rows", type=Path, help="keep the rows in this JSON file")
    parser.add_argument("--show", type=Path, help="measure nothing: write the pages from such a file")
    parser.add_argument("--keep", type=Path, help="copy the files of a tool that failed into this folder")
    options = parser.parse_args(arguments)
    names = [name for name in options.tools.split(",") if name]
    unknown = sorted(set(names) - set(TOOLS))
    if unknown:
        parser.error(f"unknown tool {unknown[0]!r}: of {', '.join(TOOLS)}")
    if options.show:
        kept = json.loads(options.show.read_text())
        return write_pages([Row(**row) for row in kept["rows"]], kept["machine"])
    levels = [int(level) for level in options.levels.split(",") if level]
    rates = [float(rate) for rate in options.rates.split(",") if rate]
    works = [work_for_level(level, quick=options.quick) for level in levels]
    works += [work_for_rate(rate, quick=options.quick) for rate in rates]
    where, program, rows = machine(), build(cache() / "load-benchmark"), []
    for work in works:
        for name in names:
            row = measure(TOOLS[name], work, program, keep=options.keep)
            rows.append(row)
            print(f"{row.load:>8} {TITLES[name]:<22} {_line(row)}", flush=True)
    if options.rows:
        options.rows.write_text(
            json.dumps({"machine": where, "rows": [asdict(row) for row in rows]}, indent=1)
        )
    is_whole = (
        not options.quick
        and set(names) == set(TOOLS)
        and set(levels) >= set(LEVELS)
        and set(rates) >= set(RATES)
    )
    if is_whole:
        return write_pages(rows, where)
    print(table(rows))
    return 0


def write_pages(rows: list[Row], where: str) -> int:
    (DOCS / "load.svg").write_text(chart(rows))
    (DOCS / "load.md").write_text(page(rows, where))
    missed = [text for text, holds in bars(rows) if not holds]
    print("\n".join(["written: docs/load.md, docs/load.svg", *(f"MISSED: {text}" for text in missed)]))
    return 1 if missed else 0


def _line(row: Row) -> str:
    if row.failure:
        return f"failed: {row.failure[:300]}"
    errors = " ".join(
        f"{key} {'-' if (said := row.reported[key]) is None else f'{(said - true) * 1e3:+.3f}'}"
        for key, true in row.truth.items()
    )
    return (
        f"lost {row.lost}/{row.requests}, error in ms: {errors}; CPU {row.cpu_s_per_million_tokens:.1f} s/M tokens, "
        f"memory {row.memory_bytes_max / 1e6:.0f} MB, {row.rate_per_s:.1f} req/s"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
