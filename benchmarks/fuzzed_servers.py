"""Servers that answer anything, over real sockets: every answer becomes a record, every page a value or a message.

    python benchmarks/fuzzed_servers.py --answers 10000 --seed 1

Ends with status 1 where a process died, a request was lost, an error was no message, or something took too long.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "hostile"))

from fuzzed import answer, metrics, page
from server import COMPLETIONS, METRICS, MODELS, SLOTS, Behaviour, HostileServer, Talk, answers
from watched import attach, watch

from samples import place, request
from speclift.core.arm import Endpoint, ServerSettings, baseline_arm
from speclift.core.engine_spec import AttachSettings
from speclift.core.errors import SpecliftError
from speclift.core.records import Record
from speclift.engine.attach import Attach
from speclift.measure.client import Client, Order

STREAMS = 16
ANSWER_LIMIT_S = 2.0
# A budget, five seconds, and the start of an interpreter on a machine that is busy.
BUDGET_S, COMMAND_LIMIT_S = 10, 10 + 5 + 10
SIZE = (
    "--segment",
    "chat",
    "--requests",
    8,
    "--max-tokens",
    8,
    "--budget",
    f"{BUDGET_S}s",
    "--verify",
    "off",
)


def anything(seed: int) -> Behaviour:
    numbers = itertools.count()

    def behave(talk: Talk) -> None:
        talk.send(answer(Random(f"{seed}:{next(numbers)}")))
        talk.closes = True

    return behave


def records_of(count: int, seed: int) -> list[Record]:
    """So many answers, each to one measured request."""

    async def play(url: str) -> list[Record]:
        records: list[Record] = []
        order = Order(request=request(max_tokens=8), place=place())
        async with Client(Endpoint(base_url=url, model="m"), seed=0, limit_s=ANSWER_LIMIT_S) as client:
            await client.play([order] * count, streams=STREAMS, on_record=records.append)
        return records

    with HostileServer({COMPLETIONS: anything(seed), "/v1/completions": anything(seed)}) as server:
        return asyncio.run(play(server.url))


def attach_outcome(seed: int) -> str:
    """How attaching to a server ends that says anything about itself."""
    random = Random(f"page:{seed}")
    told = {path: answers(page(random)) for path in ("/version", "/props", "/server_info", SLOTS)}
    told[METRICS] = answers(metrics(random), kind="text/plain")
    if random.random() < 0.5:
        told[MODELS] = answers(page(random))
    with HostileServer(told) as server:
        engine = Attach(ServerSettings(model=""), AttachSettings(baseline_url=server.url))
        try:
            up = asyncio.run(engine.launch(baseline_arm(), log=Path("unused")))
            asyncio.run(up.counters())
        except SpecliftError:
            return "refused"
    return "attached"


def commands(seed: int, count: int) -> list[str]:
    """What went wrong with whole commands; each has a budget."""
    wrong = []
    for number in range(count):
        with (
            tempfile.TemporaryDirectory() as folder,
            HostileServer({COMPLETIONS: anything(seed + number)}) as baseline,
            HostileServer({COMPLETIONS: anything(seed - number - 1)}) as spec,
        ):
            seen = watch("decide", *attach(baseline.url, spec.url), *SIZE, cwd=Path(folder))
        if (
            "Traceback" in seen.result.stderr
            or seen.wall_s > COMMAND_LIMIT_S
            or seen.result.code not in range(7)
        ):
            wrong.append(f"exit {seen.result.code} after {seen.wall_s:.0f} s: {seen.result.stderr[-2000:]}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=10_000)
    parser.add_argument("--pages", type=int, default=300)
    parser.add_argument("--commands", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began_s = time.monotonic()
    records = records_of(options.answers, options.seed)
    outcomes = Counter(record.outcome.value for record in records)
    print(f"{len(records)} answers in {time.monotonic() - began_s:.0f} s: {dict(outcomes)}")
    with ThreadPoolExecutor(4) as pool:
        ends = Counter(pool.map(attach_outcome, range(options.seed, options.seed + options.pages)))
    print(f"{options.pages} servers that say anything of themselves: {dict(ends)}")
    wrong = commands(options.seed, options.commands)
    print(f"{options.commands} commands with a budget of {BUDGET_S} s: {len(wrong)} went wrong")
    print("\n".join(wrong))
    return 0 if len(records) == options.answers and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
