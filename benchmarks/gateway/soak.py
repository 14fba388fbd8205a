"""Does the gateway's memory stay flat? Streams of mixed lengths, callers that leave, a policy and an access log.

    python benchmarks/gateway/soak.py [--minutes 10] [--streams 200] [--json FILE]

First come as many short conversations as the router remembers, so that what is bounded is full; then the minutes begin.
Prints the gateway's resident memory once a minute and its slope over all of them but the first. Every stream that was
to be finished has to be whole: as many tokens as were asked for, then the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "load"))
from reference import ReferenceServer, build
from subjects import PRODUCT_ON, SOURCE, driver_folder

from speclift.routing.router import SESSIONS_MAX

TTFT_S, TPOT_S = 0.05, 0.05
TOKENS = (4, 20, 60, 200)
LEAVING = 0.15
SHORT_WORDS, LONG_WORDS = 20, 800
LOOKED_EVERY_S = 5.0
LOOKS_MIN = 3  # two always lie on a line
# Until all streams are under way, with answers of every length.
SETTLING_S = 60.0
FILLING_STREAMS = 100
POLICY = """schema = 1
elsewhere = "plain"

[load]
leave = 80
back = 60
pays_to = 80.0

[[segment]]
name = "long"
pool = "spec"
speedup = 1.3
low = 1.2
high = 1.4
[[segment.when]]
prompt_characters_min = 2000
"""


@dataclass(slots=True, kw_only=True)
class Soaked:
    """What came of it. Times in seconds from the start."""

    ends: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    looks: list[tuple[float, float]] = field(default_factory=list)  # time, MB

    @property
    def slope_mb_per_minute(self) -> float:
        """NaN of a run that is too short to tell."""
        times, sizes = np.array(self.looks).T
        late = times >= SETTLING_S
        if np.sum(late) < LOOKS_MIN:
            return float("nan")
        return float(np.polyfit(times[late] / 60, sizes[late], 1)[0])


async def soak(port: int, pid: int, *, streams: int, seconds: float) -> Soaked:
    soaked, start_s = Soaked(), time.monotonic()

    def is_over() -> bool:
        return time.monotonic() - start_s >= seconds

    callers = [
        asyncio.create_task(_calls(port, random.Random(number), soaked, is_over)) for number in range(streams)
    ]
    minute = 0
    while not is_over():
        passed_s = time.monotonic() - start_s
        soaked.looks.append((passed_s, resident_mb(pid)))
        if passed_s >= 60 * minute:
            ended = sum(soaked.ends.values())
            print(
                f"{minute} min: {soaked.looks[-1][1]:.1f} MB, {ended} requests, {soaked.tokens} tokens",
                flush=True,
            )
            minute += 1
        await asyncio.sleep(LOOKED_EVERY_S)
    await asyncio.gather(*callers)
    return soaked


async def fill(port: int, conversations: int) -> None:
    """Each is remembered by its beginning."""
    numbers = iter(range(conversations))

    async def ask() -> None:
        for number in numbers:
            await _one(port, f"conversation {number}", 1, None)

    await asyncio.gather(*(ask() for _ in range(FILLING_STREAMS)))


async def filled_and_soaked(port: int, pid: int, *, streams: int, seconds: float) -> Soaked:
    empty_mb, start_s = resident_mb(pid), time.monotonic()
    await fill(port, SESSIONS_MAX)
    print(
        f"{SESSIONS_MAX} conversations in {time.monotonic() - start_s:.0f} s: "
        f"{empty_mb:.1f} MB before, {resident_mb(pid):.1f} MB after",
        flush=True,
    )
    return await soak(port, pid, streams=streams, seconds=seconds)


async def _calls(port: int, chance: random.Random, soaked: Soaked, is_over: Callable[[], bool]) -> None:
    await asyncio.sleep(chance.random() * 3)
    while not is_over():
        wanted = chance.choice(TOKENS)
        leaves_after = chance.randrange(wanted) if chance.random() < LEAVING else None
        words = " ".join(
            f"word{chance.randrange(500)}" for _ in range(chance.choice((SHORT_WORDS, LONG_WORDS)))
        )
        got, is_whole = await _one(port, words, wanted, leaves_after)
        soaked.tokens += got
        if leaves_after is not None:
            soaked.ends["left"] += 1
        else:
            soaked.ends["whole" if is_whole and got == wanted else "broken"] += 1


async def _one(port: int, words: str, wanted: int, leaves_after: int | None) -> tuple[int, bool]:
    """Tokens that came, and whether the stream's end did."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    messages = [{"role": "user", "content": words}]
    asked = {"model": "m", "messages": messages, "max_tokens": wanted, "stream": True}
    body = json.dumps({**asked, "stream_options": {"include_usage": True}}).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\n"
        b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    tokens, is_whole = 0, False
    try:
        async for line in reader:
            tokens += line.count(b'"delta":{"content":')  # the first event has a role, and no token
            is_whole = is_whole or line.startswith(b"data: [DONE]")
            if leaves_after is not None and tokens > leaves_after:
                writer.transport.abort()
                break
    except ConnectionError:
        is_whole = False
    writer.close()
    return tokens, is_whole


def resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) / 1024


def started_gateway(ports: list[int], folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    policy = folder / "policy.toml"
    policy.write_text(POLICY)
    command = [
        sys.executable, "-c", PRODUCT_ON["uvloop"], "gateway", "--spec", f"http://127.0.0.1:{ports[0]}", "--plain",
        f"http://127.0.0.1:{ports[1]}", "--listen", "127.0.0.1:0", "--json", "--policy", str(policy),
        "--access-log", str(folder / "access.jsonl"),
    ]  # fmt: skip
    with (folder / "gateway.err").open("wb") as errors:
        process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": str(SOURCE)}, stdout=subprocess.PIPE, stderr=errors
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError((folder / "gateway.err").read_text()[-800:])
    return process, int(json.loads(line)["listen"].rpartition(":")[2])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--json", type=Path, help="keep what was seen in this file")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        program = build(driver_folder())
        servers = [
            ReferenceServer(program, folder / f"{number}.log", ttft_s=TTFT_S, tpot_s=TPOT_S)
            for number in range(2)
        ]
        with servers[0], servers[1]:
            ports = [int(server.url.rpartition(":")[2]) for server in servers]
            process, port = started_gateway(ports, folder)
            try:
                soaked = asyncio.run(
                    filled_and_soaked(
                        port, process.pid, streams=options.streams, seconds=60 * options.minutes
                    )
                )
            finally:
                process.terminate()
                process.wait(timeout=30)
            logged = sum(1 for _ in (folder / "access.jsonl").open("rb"))
    sizes = [size for _, size in soaked.looks]
    print(f"requests: {dict(soaked.ends)}, {logged} lines in the access log, {soaked.tokens} tokens")
    print(
        f"memory: {sizes[0]:.1f} MB at the start, {sizes[-1]:.1f} MB at the end, {max(sizes):.1f} MB at most, "
        f"{soaked.slope_mb_per_minute:+.3f} MB a minute after the first"
    )
    if options.json:
        kept = {"ends": dict(soaked.ends), "tokens": soaked.tokens, "looks": soaked.looks}
        options.json.write_text(json.dumps(kept))
    return int(soaked.ends["broken"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
