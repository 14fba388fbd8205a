"""What does a proxy add to a streamed answer, and what does it cost? Direct access, nginx, LiteLLM and ours.

    python benchmarks/gateway/compare.py [--subjects direct,nginx,...] [--streams 64,1000]
        [--repeats 3] [--seconds 12] [--once litellm] [--first] [--rows FILE]

Two reference servers (C, benchmarks/load) answer after 50 ms and then send 20 tokens a second; a driver (C) sends
requests at fixed moments, and times count from those. Subjects take turns within each repeat. CPU time is the
subject's own, of /proc. On a machine that others use, latencies are theirs too, and a proxy that is kept waiting finds
several tokens in one read and looks cheaper than it is: `--first` (as root) lets everything here go before other work.
Linux takes 50 ms of each second from such work where it fills a core; that is switched off meanwhile.
The subjects earlier and earlier-asyncio are the gateway of another version: SPECLIFT_EARLIER names its src folder.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent.parent / "load"))
from footprint import TICK_S, tree
from reference import ReferenceServer, build, compiler
from subjects import HERE, SUBJECTS, Started, Subject, driver_folder, running

# Of the first token, at P50 and P99: what a proxy may add where five times nginx's is less.
BAR_MS = np.array([1.0, 5.0])
TTFT_S = 0.05
TPOT_S = 0.05  # 20 tokens a second
TOKENS = 60
# An answer takes 3.0 s; a stream's next request is due a little after that, so that direct access is never late.
PERIOD_S = 3.2
# A chat of some 500 tokens, as a request's body is something to parse.
PROMPT_WORDS = 400
WARM_UP = {"streams": 16, "seconds": 1.0}
RT_RUNTIME = Path("/proc/sys/kernel/sched_rt_runtime_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One subject's turn; times in seconds from when requests were due."""

    subject: str
    streams: int
    repeat: int
    requests: int
    unfinished: int
    ttft_s: list[float]
    tokens: int
    cpu_s: float
    system_s: float  # of that in the kernel, by its ticks: sockets, mostly
    memory_bytes: int
    # Of the machine, just before; None in files of earlier versions.
    load_average: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    driver: Path
    server: Path
    body: Path
    seconds: float


def prepare(folder: Path, *, seconds: float) -> Bench:
    kept = driver_folder()
    server = build(kept)
    driver = kept / "driver"
    subprocess.run([compiler(), "-O2", "-Wall", "-o", str(driver), str(HERE / "driver.c")], check=True)
    words = " ".join(f"word{number % 97}" for number in range(PROMPT_WORDS))
    messages = [
        {"role": "system", "content": "You count boats."},
        {"role": "user", "content": words},
    ]
    body = folder / "body.json"
    body.write_text(
        json.dumps(
            {
                "model": "reference",
                "messages": messages,
                "max_tokens": TOKENS,
                "temperature": 0.0,
                "stream": True,
            }
        )
    )
    return Bench(driver=driver, server=server, body=body, seconds=seconds)


def measure(bench: Bench, name: str, *, streams: int, repeat: int) -> Row:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        servers = [
            ReferenceServer(bench.server, folder / f"{number}.log", ttft_s=TTFT_S, tpot_s=TPOT_S)
            for number in range(2)
        ]
        with servers[0], servers[1]:
            ports = tuple(int(server.url.rpartition(":")[2]) for server in servers)
            return _turn(bench, name, SUBJECTS[name], ports, folder, (streams, repeat))


def _turn(
    bench: Bench, name: str, subject: Subject, ports: tuple[int, ...], folder: Path, which: tuple[int, int]
) -> Row:
    streams, repeat = which
    load_average = os.getloadavg()[0]
    with running(subject, ports, folder) as started:
        targets = ports if started is None else (started.port,)
        drive(bench, targets, streams=int(WARM_UP["streams"]), seconds=WARM_UP["seconds"])
        before_s, system_before_s = cpu_s(started), system_s(started)
        rows = drive(bench, targets, streams=streams, seconds=bench.seconds)
        spent_s, system_spent_s = cpu_s(started) - before_s, system_s(started) - system_before_s
        memory = memory_bytes(started)
    due, _, first, ended, tokens, status = rows.T
    has_begun = (first > 0) & (status == 200)
    return Row(
        subject=name,
        streams=streams,
        repeat=repeat,
        requests=len(rows),
        unfinished=int(np.sum((ended == 0) | (tokens < TOKENS))),
        ttft_s=[float(value) for value in ((first - due) / 1e9)[has_begun]],
        tokens=int(tokens.sum()),
        cpu_s=spent_s,
        system_s=system_spent_s,
        memory_bytes=memory,
        load_average=load_average,
    )


def drive(bench: Bench, ports: tuple[int, ...], *, streams: int, seconds: float) -> NDArray[np.int64]:
    command = [
        str(bench.driver), "--ports", ",".join(map(str, ports)), "--body", str(bench.body), "--streams", str(streams),
        "--period-us", str(round(PERIOD_S * 1e6)), "--seconds", str(seconds), "--tokens", str(TOKENS),
    ]  # fmt: skip
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return np.array([line.split() for line in result.stdout.splitlines()], dtype=np.int64).reshape(-1, 6)


def cpu_s(started: Started | None) -> float:
    """CPU seconds of a process tree, to the nanosecond: the scheduler's own count."""
    if started is None:
        return 0.0
    tasks = [task for pid in tree(started.process.pid) for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def system_s(started: Started | None) -> float:
    """CPU seconds of a process tree in the kernel."""
    if started is None:
        return 0.0
    stats = [Path(f"/proc/{pid}/stat").read_text() for pid in tree(started.process.pid)]
    return sum(int(stat.rpartition(")")[2].split()[12]) for stat in stats) * TICK_S


def memory_bytes(started: Started | None) -> int:
    if started is None:
        return 0
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in tree(started.process.pid)]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("Pss:")]
    return sum(int(line.split()[1]) for line in lines) * 1024


def table(rows: list[Row]) -> str:
    """Medians of the repeats; what is added, against direct access in the same repeat, with its range."""
    lines = [
        "| streams | subject | TTFT P50 / P99, ms | added P50, ms | added P99, ms | unfinished "
        "| tokens per CPU second | CPU µs per token (in the kernel) | memory |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for streams in sorted({row.streams for row in rows}):
        here = [row for row in rows if row.streams == streams]
        direct = {row.repeat: _ranks(row) for row in here if row.subject == "direct"}
        for name in dict.fromkeys(row.subject for row in here):
            lines.append(_line(streams, [row for row in here if row.subject == name], direct))
    return "\n".join(lines)


def _ranks(row: Row) -> NDArray[np.float64]:
    ranks: NDArray[np.float64] = np.percentile(row.ttft_s or [np.nan], [50, 99]) * 1e3
    return ranks


def _line(streams: int, own: list[Row], direct: dict[int, NDArray[np.float64]]) -> str:
    p50, p99 = np.median([_ranks(row) for row in own], axis=0)
    added = np.array([_ranks(row) - direct[row.repeat] for row in own if row.repeat in direct])
    is_proxy = SUBJECTS[own[0].subject].start is not None
    cells = [_spread(added[:, rank]) if is_proxy and len(added) else "" for rank in (0, 1)]
    requests, unfinished = sum(row.requests for row in own), sum(row.unfinished for row in own)
    memory = max(row.memory_bytes for row in own) / 1e6
    return (
        f"| {streams} | {SUBJECTS[own[0].subject].title} | {p50:.2f} / {p99:.2f} | {cells[0]} | {cells[1]} "
        f"| {unfinished} of {requests} | {_cost(own)} | {f'{memory:.0f} MB' if memory else ''} |"
    )


def _spread(values: NDArray[np.float64]) -> str:
    return f"{np.median(values):.2f} ({np.min(values):.2f} to {np.max(values):.2f})"


def _cost(own: list[Row]) -> str:
    spent = [row for row in own if row.cpu_s and row.tokens]
    if not spent:
        return " | "
    rates = np.array([row.tokens / row.cpu_s for row in spent])
    system_us = np.median([row.system_s / row.tokens * 1e6 for row in spent])
    text = f"{np.median(rates):,.0f} ({np.min(rates):,.0f} to {np.max(rates):,.0f})"
    return f"{text} | {1e6 / np.median(rates):.1f} ({system_us:.1f})"


def bars(rows: list[Row]) -> str:
    """Whether what is added is at most 5 times nginx's, or 1 ms (P50) and 5 ms (P99) where that is more: per repeat."""
    by_place = {(row.subject, row.streams, row.repeat): _ranks(row) for row in rows}
    lines = []
    for (name, streams, repeat), ranks in by_place.items():
        direct, nginx = (by_place.get((each, streams, repeat)) for each in ("direct", "nginx"))
        if direct is None or nginx is None or name in ("direct", "nginx"):
            continue
        added, bar = ranks - direct, np.maximum(5 * (nginx - direct), BAR_MS)
        words = ", ".join(
            f"{rank} +{ms:.2f} ms of {most:.2f} {'holds' if ms <= most else 'MISSED'}"
            for rank, ms, most in zip(("P50", "P99"), added, bar, strict=True)
        )
        lines.append(f"repeat {repeat}, {streams} streams, {name}: {words}")
    return "\n".join(lines)


def machine() -> str:
    cores = len(os.sched_getaffinity(0))
    order = " before other work" if os.sched_getscheduler(0) == os.SCHED_RR else ""
    return (
        f"{time.strftime('%Y-%m-%d')}, {cores} cores{order}, {platform.system()}, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[0]:.1f} at the start"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--subjects", default=",".join(SUBJECTS), help=f"of {', '.join(SUBJECTS)}")
    parser.add_argument("--streams", default="64,1000")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--once", default="", help="those that are measured in the first repeat alone")
    parser.add_argument("--first", action="store_true", help="before other work (SCHED_RR, as root)")
    parser.add_argument("--rows", type=Path, help="keep the rows in this JSON file")
    parser.add_argument("--show", type=Path, help="measure nothing: print the table of such a file")
    options = parser.parse_args(arguments)
    if options.show:
        kept = json.loads(options.show.read_text())
        rows = [Row(**row) for row in kept["rows"]]
        print(kept["machine"], table(rows), bars(rows), sep="\n")
        return 0
    names = options.subjects.split(",")
    unknown = sorted(set(names) - set(SUBJECTS))
    if unknown:
        parser.error(f"unknown subject {unknown[0]!r}: of {', '.join(SUBJECTS)}")
    rows = []
    with ExitStack() as stack:
        if options.first:
            stack.enter_context(_before_other_work())
        where = machine()
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        bench = prepare(Path(folder), seconds=options.seconds)
        for repeat in range(options.repeats):
            for streams in map(int, options.streams.split(",")):
                for name in (name for name in names if not repeat or name not in options.once.split(",")):
                    row = measure(bench, name, streams=streams, repeat=repeat)
                    rows.append(row)
                    print(
                        f"{repeat} load {row.load_average} {_line(streams, [row], {})}",
                        file=sys.stderr,
                        flush=True,
                    )
                    if options.rows:
                        options.rows.write_text(
                            json.dumps({"machine": where, "rows": [asdict(each) for each in rows]})
                        )
    print(where, table(rows), bars(rows), sep="\n")
    return 0


@contextmanager
def _before_other_work() -> Iterator[None]:
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    before = RT_RUNTIME.read_text()
    RT_RUNTIME.write_text("-1")
    try:
        yield
    finally:
        RT_RUNTIME.write_text(before)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
