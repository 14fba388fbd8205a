"""Ten thousand fuzzed answers over sockets: no traceback, no hang, no verdict from numbers that cannot be.

    python benchmarks/fuzz.py [--answers 10000] [--seed 1]

Three parts: completions at the client that measures, pages about a server at attach, and whole `decide` commands on
pairs of such servers with a budget of five seconds. Exit status 1 where anything does not hold. Some five minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fuzzed_server import TOKENS, FuzzedServer
from speclift.client.client import Client, Order, run_turn
from speclift.core.arm import Endpoint, ServerSettings, baseline_arm
from speclift.core.engine_spec import AttachSettings
from speclift.core.errors import SpecliftError
from speclift.core.records import NO_TEXT_FOR_IT, Place, Record
from speclift.core.traffic import Concurrency, Request
from speclift.engines.attach.kind import Attach
from speclift.http.counts import DRAFT_TOKENS_MAX
from speclift.studies.study import DATABASE, Study

STREAMS = 16
REQUEST_LIMIT_S = 2.0
# The client looks at its deadlines four times a second; a busy machine is late for that too.
LATE_MAX_S = 3.0
PAGE_LIMIT_S = 15.0
BUDGET_S, GRACE_S = 5.0, 5.0
EXIT_CODES = (0, 1, 3, 4, 5, 6)
# Shares of the answers with a fault, of the arm and of the baseline; the first pair is honest and must ship.
SHARES = ((0.0, 0.0), (0.02, 0.0), (0.3, 0.0), (0.0, 0.1), (0.1, 0.1), (1.0, 0.0), (0.3, 1.0))
PAUSES_S = (0.004, 0.001)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one part tried, and what did not hold."""

    name: str
    tried: int
    seen: Counter[str]
    broken: tuple[str, ...]
    wall_s: float
    longest_s: float


def request_of(number: int) -> Request:
    return Request(id=f"r{number}", prompt=f"answer-{number}", max_tokens=TOKENS, temperature=0.0)


def place_of(number: int) -> Place:
    return Place(
        arm="baseline",
        launch=1,
        round=0,
        block=0,
        load=Concurrency(streams=STREAMS),
        request_id=f"r{number}",
        segment="all",
        temperature=0.0,
    )


def impossible(record: Record) -> Iterator[str]:
    """Numbers in a record that cannot be, by another road than the product's."""
    tokens, drafted, accepted = record.output_tokens, record.drafted, record.accepted
    if tokens is not None and not 0 <= tokens <= TOKENS:
        yield f"{tokens} output tokens"
    if record.prompt_tokens is not None and not 0 <= record.prompt_tokens < 1 << 25:
        yield f"{record.prompt_tokens} prompt tokens"
    if (drafted is None) != (accepted is None):
        yield "drafted without accepted"
    if not 0 <= (accepted or 0) <= (drafted or 0) <= DRAFT_TOKENS_MAX * (TOKENS + 1):
        yield f"{accepted} accepted of {drafted}"
    tpot_s = record.tpot_s
    if tpot_s is not None and not (math.isfinite(tpot_s) and tpot_s > 0):
        yield f"a TPOT of {tpot_s}"


def completions(answers: int, seed: int) -> Part:
    started = time.monotonic()
    records: list[Record] = []
    orders = [Order(request=request_of(number), place=place_of(number)) for number in range(answers)]

    async def measure(url: str) -> None:
        async with Client(Endpoint(base_url=url, model="m"), seed=seed, limit_s=REQUEST_LIMIT_S) as client:
            await run_turn(client, orders, Concurrency(streams=STREAMS), seed=seed, on_record=records.append)

    with FuzzedServer(seed=f"{seed}:completions") as server:
        asyncio.run(measure(server.url))
        faults = dict(server.faults)
    broken = [f"{each.place.request_id}: {what}" for each in records for what in impossible(each)]
    if sorted(each.place.request_id for each in records) != sorted(order.request.id for order in orders):
        broken.append(f"{len(records)} records of {answers} requests")
    for each in records:
        fault = faults.get(int(each.place.request_id[1:]), "never asked for")
        if fault == "" and not (each.is_ok and each.output_tokens == TOKENS and not each.refused):
            broken.append(f"{each.place.request_id}: a right answer became {each.outcome} {each.error}")
        if not each.is_ok and not each.error:
            broken.append(f"{each.place.request_id}: {each.outcome} without a cause")
    longest_s = max(each.end_s - each.sent_s for each in records)
    if longest_s > REQUEST_LIMIT_S + LATE_MAX_S:
        broken.append(f"an answer was waited for {longest_s:.1f} s, the limit is {REQUEST_LIMIT_S:.0f} s")
    seen = Counter(each.outcome.value for each in records)
    seen["refused"] = sum(bool(each.refused) for each in records)
    return Part(
        name="completions",
        tried=answers,
        seen=seen,
        broken=tuple(broken),
        wall_s=time.monotonic() - started,
        longest_s=longest_s,
    )


def pages(answers: int, seed: int) -> Part:
    """What is not an error in words of ours ends the benchmark with its traceback."""
    started = time.monotonic()
    seen: Counter[str] = Counter()
    broken: list[str] = []
    longest_s = 0.0

    async def attach(url: str) -> None:
        server = await Attach(ServerSettings(model=""), AttachSettings(baseline_url=url)).launch(
            baseline_arm(), log=Path("unused")
        )
        await server.counters()

    with FuzzedServer(seed=f"{seed}:pages", wild_pages=0.6) as server:
        for number in range(answers):
            before = time.monotonic()
            try:
                asyncio.run(attach(server.url))
                seen["attached"] += 1
            except SpecliftError as error:
                seen["refused"] += 1
                if not str(error):
                    broken.append(f"page {number}: an error without words")
            longest_s = max(longest_s, time.monotonic() - before)
    if longest_s > PAGE_LIMIT_S:
        broken.append(f"a server was asked for {longest_s:.1f} s")
    return Part(
        name="pages",
        tried=answers,
        seen=seen,
        broken=tuple(broken),
        wall_s=time.monotonic() - started,
        longest_s=longest_s,
    )


def commands(runs: int, seed: int) -> Part:
    started = time.monotonic()
    seen: Counter[str] = Counter()
    broken: list[str] = []
    longest_s, answered = 0.0, 0
    for run in range(runs):
        arm_share, baseline_share = SHARES[run % len(SHARES)]
        baseline = FuzzedServer(
            seed=f"{seed}:{run}:b", wild_share=baseline_share, slow_share=0.0, pause_s=PAUSES_S[0]
        )
        arm = FuzzedServer(seed=f"{seed}:{run}:a", wild_share=arm_share, slow_share=0.0, pause_s=PAUSES_S[1])
        with baseline, arm, tempfile.TemporaryDirectory() as folder:
            took_s, what, faults = decided(baseline.url, arm.url, Path(folder))
            answered += len(baseline.faults) + len(arm.faults)
        longest_s = max(longest_s, took_s)
        seen[what] += 1
        broken += [f"run {run} ({arm_share:.0%}, {baseline_share:.0%}): {fault}" for fault in faults]
        if arm_share == baseline_share == 0 and what != "ship":
            broken.append(f"run {run}: two right servers, one four times as fast, and the verdict is {what}")
    return Part(
        name="commands",
        tried=answered,
        seen=seen,
        broken=tuple(broken),
        wall_s=time.monotonic() - started,
        longest_s=longest_s,
    )


def decided(baseline_url: str, arm_url: str, folder: Path) -> tuple[float, str, list[str]]:
    """How long a decide took, its verdict, and what is wrong with it."""
    size = ("--segment", "chat", "--requests", "24", "--max-tokens", str(TOKENS), "--temperature", "0")
    urls = ("--baseline-url", baseline_url, "--spec-url", arm_url)
    command = [sys.executable, "-m", "speclift", "decide", "--engine", "attach", *urls, *size]
    before = time.monotonic()
    limit_s = BUDGET_S + GRACE_S
    try:
        done = subprocess.run(
            [*command, "--budget", f"{BUDGET_S:.0f}s", "--verify", "off", "--json", "--study", "s"],
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=4 * limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 4 * limit_s, "hung", [f"it hung for {4 * limit_s:.0f} s"]
    took_s = time.monotonic() - before
    faults = []
    if took_s > limit_s:
        faults.append(f"it took {took_s:.1f} s at a budget of {BUDGET_S:.0f} s")
    if done.returncode not in EXIT_CODES or "Traceback" in done.stderr:
        faults.append(f"exit {done.returncode}: {done.stderr[-600:]}")
    if done.returncode == 1 or not done.stdout.strip():
        return took_s, "operating error", faults
    document = json.loads(done.stdout)
    verdict = str(document["verdict"])
    faults += list(wrong_verdict(verdict, document, folder / "s"))
    return took_s, verdict, faults


def wrong_verdict(verdict: str, document: dict[str, object], study_path: Path) -> Iterator[str]:
    if not (study_path / DATABASE).exists():
        yield "a verdict without a study"
        return
    with Study.open(study_path) as study:
        records = study.records()
    for record in records:
        yield from impossible(record)
    lies = [each for r in records for each in r.refused if each.rule != NO_TEXT_FOR_IT]
    if lies and verdict not in ("inconclusive", "output-changed"):
        yield f"{verdict}, though {lies[0].said}"
    text = json.dumps(document)
    if "NaN" in text or "Infinity" in text:
        yield "numbers in the document that are none"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--answers", type=int, default=10_000, help="in all; 500 take a minute")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    runs = max(len(SHARES), options.answers // 350)
    page_count = options.answers // 10
    parts = [
        completions(options.answers - page_count, options.seed),
        pages(page_count, options.seed),
        commands(runs, options.seed),
    ]
    print(f"seed {options.seed}")
    print("| part | answers | what became of them | longest | wall | broken |")
    print("|---|---|---|---|---|---|")
    for part in parts:
        became = ", ".join(f"{name} {times}" for name, times in part.seen.most_common())
        print(
            f"| {part.name} | {part.tried:,} | {became} | {part.longest_s:.1f} s | {part.wall_s:.0f} s "
            f"| {len(part.broken)} |"
        )
    for part in parts:
        for what in part.broken[:10]:
            print(f"BROKEN {part.name}: {what}")
    return 1 if any(part.broken for part in parts) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
