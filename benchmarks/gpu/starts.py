"""What a start of vLLM consists of, and what one start does to a server that is being measured.

`VLLM_PYTHON benchmarks/gpu/starts.py MODEL DRAFT OUT alone together` with speclift importable, on a machine with a GPU.
`alone`: a baseline twice, one after the other. `together`: four arms at once, and one more beside a loaded one. Parts
of a start are read off vLLM's own log; OUT/starts.json has the figures.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import aiohttp

from speclift.core.arm import Arm, ServerSettings, baseline_arm
from speclift.core.speculation import DraftModel, NGram
from speclift.engines.vllm.engine import Vllm, VllmServer

STREAMS = (1, 16)
PERIOD_S = 7.0
TOKENS = 128
STAMP = re.compile(r"(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")
# In the order in which they happen; the time up to each line that matches.
STEPS = {
    "API process imported": "vLLM API server version|non-default args",
    "engine process imported": "Initializing a V1 LLM engine",
    "device, before the weights": "Starting to load model",
    "weights": "Model loading took",
    "compiled or loaded": "torch.compile took|torch.compile and initial profiling|Directly load|takes .* s in total",
    "profiled": "GPU KV cache size",
    "graphs captured": "Graph capturing finished",
    "engine ready": "init engine .* took",
    "answers": "Application startup complete",
}
Keep = Callable[[str, object], None]
TOLD = re.compile(
    r"(took [\d.]+ ?s|takes? [\d.]+ ?s|in [\d.]+ secs|Compiling a graph|Directly load|saved AOT|cache)", re.I
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    arm: str
    ready_s: float
    steps_s: dict[str, float]
    gpu_mib: int
    log: list[str]


def arms(draft: str) -> tuple[Arm, ...]:
    return (
        baseline_arm(),
        Arm(name="ngram-k3", speculation=NGram(n=3, n_min=1, k=3)),
        Arm(name="ngram-k5", speculation=NGram(n=3, n_min=1, k=5)),
        Arm(name="draft-k3", speculation=DraftModel(model=draft, k=3)),
    )


def gpu_used_mib() -> int:
    words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[0])


def steps_of(text: str, begun: float) -> dict[str, float]:
    """Seconds from the start to each step, from the stamps of the log, which have whole seconds."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        stamp = STAMP.search(line)
        if stamp is None:
            continue
        said = f"{time.localtime(begun).tm_year}-{stamp[0]}"
        at = time.mktime(time.strptime(said, "%Y-%m-%d %H:%M:%S"))
        for name, pattern in STEPS.items():
            if re.search(pattern, line):
                found[name] = at - begun
    return found


async def start(engine: Vllm, arm: Arm, log: Path) -> tuple[VllmServer, Start]:
    begun, used = time.time(), gpu_used_mib()
    server = await engine.launch(arm, log=log)
    text = log.read_text(errors="replace")
    return server, Start(
        arm=arm.name,
        ready_s=time.time() - begun,
        steps_s=steps_of(text, begun),
        gpu_mib=gpu_used_mib() - used,
        log=[line[:220] for line in text.splitlines() if TOLD.search(line)][:60],
    )


async def answered(session: aiohttp.ClientSession, server: VllmServer) -> float:
    """Seconds per output token of one request."""
    body = {
        "model": server.endpoint.model,
        "prompt": "Once upon a time a miller lived beside a river and",
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    stamps = []
    async with session.post(f"{server.endpoint.base_url}/v1/completions", json=body) as answer:
        async for _ in answer.content:
            stamps.append(time.monotonic())
    return (stamps[-1] - stamps[0]) / (TOKENS - 1)


async def loaded(server: VllmServer, streams: int, until: asyncio.Event) -> list[tuple[float, float]]:
    """When each request ended, and its seconds per token."""
    seen: list[tuple[float, float]] = []

    async def stream() -> None:
        while not until.is_set():
            tpot_s = await answered(session, server)
            seen.append((time.monotonic(), tpot_s))

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(stream() for _ in range(streams)))
    return seen


async def period(server: VllmServer, streams: int, seconds: float) -> dict[str, float]:
    until = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, until.set)
    return told([tpot for _, tpot in await loaded(server, streams, until)])


def told(tpots: Sequence[float]) -> dict[str, float]:
    ordered = sorted(tpots)
    return {
        "requests": len(ordered),
        "tpot_ms_p50": 1000 * statistics.median(ordered),
        "tpot_ms_p95": 1000 * ordered[int(0.95 * (len(ordered) - 1))],
    }


async def disturbed(engine: Vllm, server: VllmServer, arm: Arm, streams: int, log: Path) -> dict[str, object]:
    """The server's TPOT before, while and after another one starts."""
    until = asyncio.Event()
    load = asyncio.create_task(loaded(server, streams, until))
    await asyncio.sleep(PERIOD_S)
    begun = time.monotonic()
    other, took = await start(engine, arm, log)
    ended = time.monotonic()
    await asyncio.sleep(PERIOD_S)
    until.set()
    seen = await load
    await other.stop()
    return {
        "streams": streams,
        "start_s": took.ready_s,
        "before": told([tpot for at, tpot in seen if at < begun]),
        "during": told([tpot for at, tpot in seen if begun <= at < ended]),
        "after": told([tpot for at, tpot in seen if at >= ended]),
    }


async def _alone(engine: Vllm, arm: Arm, logs: Path, keep: Keep) -> None:
    """First with whatever is in the compile cache, then with what that start left there."""
    for name in ("first", "second"):
        server, took = await start(engine, arm, logs / f"alone-{name}.log")
        keep(f"alone, {name}", asdict(took))
        if name == "second":
            keep("TPOT alone", [await period(server, streams, PERIOD_S) for streams in STREAMS])
        await server.stop()


async def _together(engine: Vllm, asked: Sequence[Arm], logs: Path, keep: Keep) -> None:
    begun = time.monotonic()
    up = await asyncio.gather(*(start(engine, arm, logs / f"{arm.name}.log") for arm in asked))
    keep("at once", {"all_s": time.monotonic() - begun, "starts": [asdict(took) for _, took in up]})
    servers = [server for server, _ in up]
    keep("GPU used by all, MiB", gpu_used_mib())
    keep("TPOT beside idle servers", [await period(servers[0], streams, PERIOD_S) for streams in STREAMS])
    for streams in STREAMS:
        log = logs / f"beside-{streams}.log"
        keep(f"a start beside {streams}", await disturbed(engine, servers[0], asked[1], streams, log))
    await asyncio.gather(*(server.stop() for server in servers))


async def main(model: str, draft: str, out: Path, stages: Sequence[str]) -> None:
    settings = ServerSettings(model=model, slots=64)
    alone = Vllm(settings, python=sys.executable)
    asked = arms(draft)
    shared = Vllm(replace(settings, shared_gpu=alone.share(asked)), python=sys.executable)
    result: dict[str, object] = {"settings": str(shared.settings.shared_gpu)}
    logs = out / "logs"

    def keep(name: str, value: object) -> None:
        result[name] = value
        (out / "starts.json").write_text(json.dumps(result, indent=1))
        print(f"{time.strftime('%H:%M:%S')} {name}: {json.dumps(value)[:1500]}", flush=True)

    if "alone" in stages:
        await _alone(alone, asked[0], logs, keep)
    if "together" in stages:
        await _together(shared, asked, logs, keep)
    cache = Path(os.environ.get("VLLM_CACHE_ROOT", Path.home() / ".cache/vllm"))
    keep("cache", sorted(str(path.relative_to(cache)) for path in cache.glob("*/*/*"))[:40])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:]))
