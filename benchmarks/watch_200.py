"""What watching 200 servers costs: the watcher's share of a core and its memory, against 5 % and 150 MB.

Two hundred copies of a real vLLM's page (tests/recorded), each in a state of its own, come from one process. The
watcher runs as a service runs it, with history, and is scraped meanwhile. Ten times as fast as in use (an interval of
1.5 s, a window of 60 s): the window holds as many looks as at 15 s and 10 minutes, and a look costs what it costs.
`--faster 1` takes the real interval.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from trials import trial_options

PAGE = Path(__file__).parent.parent / "tests" / "recorded" / "vllm-0.32.0-metrics.txt"
INTERVAL_S, WINDOW_S = 15.0, 600.0
CPU_MAX, MEMORY_MAX_MB = 0.05, 150.0
# uvicorn closes connections that were silent for so long.
KEEP_ALIVE_S = 5.0
GROWING = re.compile(r"^(vllm:\w+_(?:total|count|sum|bucket)\{[^}]*\}) (\S+)$", re.MULTILINE)


class Copy:
    """One server: counters that grow with the time since it began, at a rate of its own."""

    def __init__(self, number: int, parts: list[str]) -> None:
        self._parts, self._began_s = parts, time.monotonic()
        self._rate = random.Random(number).uniform(0.05, 2.0)

    def page(self) -> bytes:
        factor = 1 + self._rate * (time.monotonic() - self._began_s)
        text = "".join(
            f" {float(part) * factor:.6g}" if place % 3 == 2 else part
            for place, part in enumerate(self._parts)
        )
        return text.encode()


def parts_of(text: str) -> list[str]:
    """Text, name, value, text, name, value, …, text."""
    return GROWING.split(text)


async def serve(count: int) -> None:
    parts = parts_of(PAGE.read_text(encoding="utf-8"))
    copies = [Copy(number, parts) for number in range(count)]

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), KEEP_ALIVE_S)
                _, number, path = head.split(b" ")[1].split(b"/", 2)
                body = copies[int(number)].page() if path == b"metrics" else b'{"version":"0.32.0"}'
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            writer.close()

    server = await asyncio.start_server(converse, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mb(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1000


def asked(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def looks_at(service: str) -> int:
    counts = re.findall(r"^speclift_looks_total\S* (\S+)$", asked(f"{service}metrics"), re.MULTILINE)
    return int(sum(map(float, counts)))


def watched(config: Path, folder: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "speclift", "watch", "--config", str(config)]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--history", str(folder / "watch.db")],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("listening on "):
            # What it says besides must not fill the pipe.
            subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
            return process, line.removeprefix("listening on ").strip()
    raise SystemExit("the watch did not start")


def measure(count: int, *, seconds: float, faster: float) -> bool:
    interval_s, window_s = INTERVAL_S / faster, WINDOW_S / faster
    serving = subprocess.Popen(
        [sys.executable, __file__, "--serve", "--servers", str(count)], stdout=subprocess.PIPE, text=True
    )
    assert serving.stdout is not None
    try:
        port = int(serving.stdout.readline())
        with tempfile.TemporaryDirectory() as name:
            config = Path(name) / "watch.toml"
            urls = ", ".join(f'"http://127.0.0.1:{port}/{number}"' for number in range(count))
            times = f'interval = "{interval_s}s"\nwindow = "{window_s}s"'
            config.write_text(f"urls = [{urls}]\n{times}\nbreak_even = 1.2\n")
            process, service = watched(config, Path(name))
            try:
                time.sleep(2 * interval_s)
                began_s, began_cpu_s, began_looks = time.monotonic(), cpu_s(process.pid), looks_at(service)
                while time.monotonic() - began_s < seconds:
                    time.sleep(interval_s)
                    looks = looks_at(service)
                took_s = time.monotonic() - began_s
                spent_s, looks = cpu_s(process.pid) - began_cpu_s, looks_at(service) - began_looks
                memory_mb = peak_mb(process.pid)
            finally:
                process.terminate()
                process.wait(timeout=30)
    finally:
        serving.terminate()
        serving.wait(timeout=30)
    return _told(count, looks, spent_s, took_s, memory_mb, faster)


def _told(count: int, looks: int, spent_s: float, took_s: float, memory_mb: float, faster: float) -> bool:
    each_s = spent_s / looks
    in_use = each_s * count / INTERVAL_S
    print(
        f"{looks} looks in {took_s:.0f} s, {looks / took_s / (count / INTERVAL_S * faster):.0%} of those due"
    )
    print(f"a look takes {each_s * 1000:.2f} ms of a core, serving and history included")
    print(f"{count} servers every {INTERVAL_S:g} s: {in_use:.1%} of a core (at most {CPU_MAX:.0%})")
    print(f"peak memory {memory_mb:.0f} MB (at most {MEMORY_MAX_MB:.0f} MB)")
    return in_use <= CPU_MAX and memory_mb <= MEMORY_MAX_MB


def main() -> int:
    options = trial_options(str(__doc__), servers=200, seconds=90.0, faster=10.0, serve=False)
    if options.serve:
        asyncio.run(serve(options.servers))
        return 0
    return 0 if measure(options.servers, seconds=options.seconds, faster=options.faster) else 1


if __name__ == "__main__":
    sys.exit(main())
