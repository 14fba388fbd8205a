"""The benchmark's rows as people read them: a table, a chart, and whether the bars hold."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, log10
from typing import Protocol

from tools import TITLES

OURS = "speclift"
KEYS = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")
COLOURS = {"speclift": "#1b6ef3", "vllm-bench": "#d9480f", "guidellm": "#2b8a3e", "aiperf": "#862e9c"}
# Bars of the work order: a third of the best peer's CPU, a millisecond, half a per cent of the rate.
CPU_SHARE_MAX = 1 / 3
ERROR_S_MAX = 0.001
RATE_SHARE_MAX = 0.005
# Two errors this close are the same error: the log's clock and ours are read some microseconds apart.
SAME_ERROR_S = 50e-6


DOCTOR = """\
Load generator
  load         TTFT error    TPOT error    sent late  read late  core
  c=1         0.05 / 0.06  -0.00 / 0.00  0.00 / 0.00       0.21    1%
  c=64        0.01 / 0.05   0.00 / 0.00  0.00 / 0.00       3.93    6%
  1000 req/s  0.06 / 6.70   0.00 / 0.01  0.04 / 6.69       2.57   16%
  Milliseconds at P50 / P99 against a server that knows its own times; late
  reading alone moves no time stamp on Linux.
  one process         about 69,565 tokens/s or 4,782 short requests/s at 80% of
                      a core; beyond that add --workers"""


class Rowish(Protocol):
    """What of a row is shown."""

    @property
    def tool(self) -> str: ...
    @property
    def load(self) -> str: ...
    @property
    def requests(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def truth(self) -> dict[str, float]: ...
    @property
    def reported(self) -> dict[str, float | None]: ...
    @property
    def cpu_s_per_million_tokens(self) -> float: ...
    @property
    def memory_bytes_max(self) -> int: ...
    @property
    def rate_per_s(self) -> float: ...
    @property
    def server_late_s_p99(self) -> float: ...
    @property
    def failure(self) -> str: ...


def error_s(row: Rowish, key: str) -> float | None:
    said = row.reported.get(key)
    return None if said is None else said - row.truth[key]


def table(rows: Sequence[Rowish]) -> str:
    lines = [
        "| load | tool | true TTFT P50 / P99 | TTFT error P50 | P99 | TPOT error P50 | P99 | lost "
        "| CPU s per million tokens | peak memory | rate reached |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        name = f"**{TITLES[row.tool]}**" if row.tool == OURS else TITLES[row.tool]
        if row.failure:
            lines.append(
                f"| {row.load} | {name} | did not finish: {_cell(row.failure)} |  |  |  |  | {row.lost} |  |  |  |"
            )
            continue
        errors = [_milliseconds(error_s(row, key)) for key in KEYS]
        lines.append(
            f"| {row.load} | {name} | {row.truth['ttft_p50'] * 1e3:.2f} / {row.truth['ttft_p99'] * 1e3:.2f} ms | "
            + " | ".join(errors)
            + f" | {row.lost} of {row.requests} | {row.cpu_s_per_million_tokens:.1f}"
            + f" | {row.memory_bytes_max / 1e6:.0f} MB | {row.rate_per_s:.1f}/s |"
        )
    return "\n".join(lines)


def bars(rows: Sequence[Rowish]) -> list[tuple[str, bool]]:
    """What the load generator promises, and whether these rows keep it."""
    held: list[tuple[str, bool]] = []
    for load in dict.fromkeys(row.load for row in rows):
        here = {row.tool: row for row in rows if row.load == load and not row.failure}
        ours, peers = here.pop(OURS, None), list(here.values())
        if ours is None:
            held.append((f"{load}: speclift finished", False))
            continue
        held.append((f"{load}: no request lost", ours.lost == 0))
        held += _own_bars(load, ours)
        if peers:
            held += _against(load, ours, peers)
    return held


def _own_bars(load: str, ours: Rowish) -> list[tuple[str, bool]]:
    held: list[tuple[str, bool]] = []
    streams = int(load[2:]) if load.startswith("c=") else None
    if streams is not None:
        for metric in ("ttft", "tpot"):
            for rank, most in (("p50", 256), ("p99", 64)):
                error = error_s(ours, f"{metric}_{rank}")
                if streams <= most and error is not None:
                    held.append(
                        (
                            f"{load}: {metric.upper()} {rank.upper()} within 1 ms ({error * 1e3:+.3f})",
                            abs(error) < ERROR_S_MAX,
                        )
                    )
    else:
        asked = float(load.removesuffix("/s"))
        share = ours.rate_per_s / asked - 1
        held.append((f"{load}: rate held within 0.5 % ({share:+.2%})", abs(share) <= RATE_SHARE_MAX))
    return held


def _against(load: str, ours: Rowish, peers: Sequence[Rowish]) -> list[tuple[str, bool]]:
    best_cpu = min(peer.cpu_s_per_million_tokens for peer in peers)
    share = ours.cpu_s_per_million_tokens / best_cpu
    held = [
        (f"{load}: CPU at most a third of the best peer's ({share:.2f})", share <= CPU_SHARE_MAX),
        (
            f"{load}: memory below every peer's",
            ours.memory_bytes_max < min(peer.memory_bytes_max for peer in peers),
        ),
    ]
    for key in KEYS:
        own = error_s(ours, key)
        others = [abs(error) for peer in peers if (error := error_s(peer, key)) is not None]
        if own is not None and others:
            name = key.replace("_p", " P").upper()
            text = f"{load}: {name} error {abs(own) * 1e3:.3f} ms, best peer {min(others) * 1e3:.3f} ms"
            held.append((text, abs(own) <= min(others) + SAME_ERROR_S))
    return held


HOW = """## How it is done

- **Bytes are stamped by the kernel.** Each read carries the moment its last packet arrived (SO_TIMESTAMPNS), so a busy
  reader does not make a server look slow. Where two chunks of one stream are read at once, both get the later stamp; a
  reader that late is reported (`client-reading`) and, beyond a token's time, refuses the study.
- **Sending has processes of its own** (`--workers`, one by default). The database, the progress bar and the analysis
  cannot delay a request or a time stamp. Orders and results travel over a socket pair; what waits there is bounded.
- **One poll, no event-loop framework, no object per token.** Chunks that differ from those before them in their text
  alone are taken without reading JSON, many at a time; the others are read as JSON.
- **No wake-up per token.** Between the first token and the last no time stamp is needed, and on a quiet machine a
  wake-up costs more than what is read. Once an answer has shown how many bytes its ending has (finish reason, usage,
  [DONE]), the next ones wake us (SO_RCVLOWAT) for their first token and then when that many bytes are there: every two
  or three tokens, and at once when the end is. Where fewer than 24 streams get answers about as long as each other (as
  with a fixed output length), up to 4 KB gather until four fifths of the shortest have come. An ending shorter than
  before, or an answer that ends sooner than expected, is found within half a second, with the time it came; in a closed
  loop the stream's next request waits for that. Not under TLS.
- **In open loops reads gather for 2 ms**, during which what falls due is sent on time: at thousands of requests per
  second, going back and forth between sending and reading had cost a fifth of the CPU time.
- **Intended send times are fixed in advance** for open loops, and TTFT counts from them.
- HTTP/1.1 with keep-alive: idle connections are kept 1.5 s, at most one per request in flight; a reused connection that
  the server closes as we write to it is replaced once, with the clock running. In a closed loop there are never more
  connections than streams; in an open one as many as the system's limit on open files less 32, and what has to wait for
  one is sent late and counted from when it was due. TLS is checked against the system's certificates.
"""


def page(rows: Sequence[Rowish], where: str) -> str:
    held = bars(rows)
    marks = "\n".join(f"- {'holds' if holds else '**missed**'}: {text}" for text, holds in held)
    late = max(row.server_late_s_p99 for row in rows if not isnan(row.server_late_s_p99))
    return f"""# The load generator against its peers

Which load generator tells the truth, and at what price? Every tool here measures the same reference server, a small C
program whose own log of arrivals and token times is the truth. It answers after 50 ms and then sends one token every
10 ms (100 ms at a thousand streams). A request arrives when the kernel has its last byte; a token leaves when it is
written; the server was late against its own schedule by at most {late * 1e3:.1f} ms (P99 of the worst run), which
is in the truth and not in anybody's error.

![TTFT error and CPU per token by concurrent streams](load.svg)

Measured on {where}; client and server share the machine. Error is what the tool reported minus the truth, CPU is of the
tool's whole process tree while tokens streamed (imports and reports left out), memory is the largest sum of
proportional set sizes.

{table(rows)}

## What must hold

{marks}

Errors that differ by less than {SAME_ERROR_S * 1e6:.0f} µs count as the same.

{HOW}
## This machine's ceiling

`speclift doctor --client` measures the load generator on the machine at hand, in five seconds, against a small server
that knows its own times. On two busy cores:

```
{DOCTOR}
```

Every study checks the same of itself: `client-lag` (sent late), `client-reading` (first tokens read together with later
ones) refuse it, `client-cpu` (over 80 % of a core) warns. `--workers 2` shares the sending between two processes; their
records are merged exactly, on one clock.

## Limits

- Kernel stamps exist on Linux. Elsewhere a stamp is the moment of reading, and the finding says how late that was.
- Where finish reason, usage and [DONE] come in several packets, the last token may have the stamp of the last of them.
  Endings that take more than 1 ms are read packet by packet.
- All tools run on the same machine as the server. Over a network, its latency is in every tool's TTFT.
- HTTP/2 is not spoken; nor are proxies.

Run it: `python benchmarks/load/run.py` (a quiet machine, about 20 minutes).
"""


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:+.2f} ms"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")[:120]


# The chart

WIDTH, HEIGHT, LEFT, TOP, INNER_WIDTH, INNER_HEIGHT = 920, 380, 70, 50, 340, 260


def chart(rows: Sequence[Rowish]) -> str:
    """Two panels over concurrent streams, both axes logarithmic."""
    closed = [row for row in rows if row.load.startswith("c=") and not row.failure]
    errors: dict[str, list[tuple[int, float]]] = {tool: [] for tool in COLOURS}
    for row in closed:
        error = error_s(row, "ttft_p99")
        if error is not None:
            errors[row.tool].append((int(row.load[2:]), max(abs(error) * 1e3, 0.001)))
    cpu = {
        tool: [(int(row.load[2:]), row.cpu_s_per_million_tokens) for row in closed if row.tool == tool]
        for tool in COLOURS
    }
    legend = "".join(
        f'<rect x="{LEFT + 180 * place}" y="{HEIGHT - 22}" width="12" height="12" fill="{COLOURS[tool]}"/>'
        f'<text x="{LEFT + 18 + 180 * place}" y="{HEIGHT - 12}">{TITLES[tool]}</text>'
        for place, tool in enumerate(COLOURS)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        + _panel(errors, left=LEFT, title="Error of TTFT P99, ms")
        + _panel(cpu, left=LEFT + INNER_WIDTH + 110, title="Client CPU, s per million tokens")
        + legend
        + "</svg>\n"
    )


def _panel(series: dict[str, list[tuple[int, float]]], *, left: float, title: str) -> str:
    points = [point for line in series.values() for point in line if point[1] > 0]
    if not points:
        return ""
    low, high = (
        10 ** f(log10(v))
        for f, v in ((_floor, min(y for _, y in points)), (_ceiling, max(y for _, y in points)))
    )
    most = max(x for x, _ in points)

    def x_of(streams: float) -> float:
        return left + INNER_WIDTH * (log10(streams) / log10(most) if most > 1 else 0.5)

    def y_of(value: float) -> float:
        return TOP + INNER_HEIGHT * (1 - (log10(max(value, low)) - log10(low)) / (log10(high) - log10(low)))

    parts = [f'<text x="{left}" y="{TOP - 18}" font-weight="bold">{title}</text>']
    tick = low
    while tick <= high * 1.001:
        y = y_of(tick)
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + INNER_WIDTH}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
        tick *= 10
    for streams in sorted({x for x, _ in points}):
        parts.append(
            f'<text x="{x_of(streams):.1f}" y="{TOP + INNER_HEIGHT + 18}" text-anchor="middle">{streams}</text>'
        )
    parts.append(
        f'<text x="{left + INNER_WIDTH / 2}" y="{TOP + INNER_HEIGHT + 36}" text-anchor="middle">'
        "concurrent streams</text>"
    )
    for tool, line in series.items():
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[tool]}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3.5" fill="{COLOURS[tool]}"/>' for x, y in line
        ]
    return "".join(parts)


def _floor(value: float) -> int:
    return int(value // 1)


def _ceiling(value: float) -> int:
    return -int(-value // 1)
