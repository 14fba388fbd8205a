"""Mixed traffic three ways: all to the plain server, all to the speculative one, and through the gateway.

`python benchmarks/gateway/pools.py --plain URL --spec URL --gateway URL --concurrency 1,16 --rows rows.jsonl`

All three are up all the time. In each block the ways take turns in random order and send the same prompts; all-plain
has two turns, so that one sees what the comparison resolves. Turns are short and many, loads take turns too, and
prompts are dealt out evenly by segment until the time is over. pool_ratios.py says how ways are compared. `--show`
prints the table of rows that were kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from pool_ratios import AGAIN, GATEWAY, PLAIN, SPEC, WAYS, Row, row_of, shown

from speclift.client.client import Client, Order
from speclift.client.load import run_turn
from speclift.core.arm import Endpoint
from speclift.core.records import Phase, Place, Record
from speclift.core.traffic import Concurrency, Request
from speclift.studies.prompt_files import bundled_workload, read_workload

SEED = 7
# Requests of a turn, for each stream: the beginning and the end of a turn, at a lower load, are to be a small part. One
# stream has neither: there a turn is one request, so that what disturbs the machine disturbs all ways alike.
REQUESTS_PER_STREAM = 4
# Of a turn's requests; more of them is no measurement.
FAILED_MAX = 0.02
SPEC_SAMPLES = 'speclift_gateway_requests_total{pool="spec"'
ALL_SAMPLES = "speclift_gateway_requests_total{"


@dataclass(slots=True)
class GatewayUse:
    """What went through the gateway at one load, and what it took for it."""

    requests: int = 0
    to_spec: int = 0
    tokens: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0


class Deal:
    """Prompts for the turns of one load: as many of each segment, and no prompt twice before all had their turn."""

    def __init__(self, requests: Sequence[Request], draw: random.Random) -> None:
        self._draw = draw
        self._by_segment: dict[str, list[Request]] = defaultdict(list)
        for request in requests:
            self._by_segment[request.segment].append(request)
        self._queues = {segment: self._shuffled(segment) for segment in self._by_segment}

    def turn(self, size: int) -> list[tuple[Request, int]]:
        """At least so many, each with the number of times that it was dealt in this turn already."""
        each = -(-size // len(self._by_segment))
        dealt = [next(queue) for queue in self._queues.values() for _ in range(each)]
        self._draw.shuffle(dealt)
        times: dict[str, int] = defaultdict(int)
        numbered = []
        for request in dealt:
            numbered.append((request, times[request.id]))
            times[request.id] += 1
        return numbered

    def _shuffled(self, segment: str) -> Iterator[Request]:
        while True:
            yield from self._draw.sample(self._by_segment[segment], len(self._by_segment[segment]))


class Measuring:
    def __init__(self, options: argparse.Namespace, clients: dict[str, Client]) -> None:
        self._options, self._clients = options, clients
        self.rows: list[Row] = []
        self.use: dict[int, GatewayUse] = defaultdict(GatewayUse)
        self.lost: dict[str, int] = defaultdict(int)

    async def run(self) -> None:
        options, draw = self._options, random.Random(self._options.seed)
        requests = list((read_workload(options.prompts) if options.prompts else bundled_workload()).requests)
        deals = {load: Deal(requests, draw) for load in options.concurrency}
        for way in WAYS:
            for load in options.concurrency:
                await self._turn(way, deals[load].turn(max(options.requests, 2 * load)), load, -1)
        spent_s, blocks = dict.fromkeys(options.concurrency, 0.0), dict.fromkeys(options.concurrency, 0)
        until_s = time.monotonic() + options.seconds
        while time.monotonic() < until_s:
            # The load that had least of its share of the time: a block at one takes longer than at another.
            load = min(options.concurrency, key=lambda load: spent_s[load] / options.concurrency[load])
            began_s = time.monotonic()
            await self._block(blocks[load], load, deals[load], draw)
            blocks[load] += 1
            spent_s[load] += time.monotonic() - began_s
            write_rows(options.rows, self.rows)
            print(
                f"{load} streams, block {blocks[load]}: {time.monotonic() - began_s:.1f} s, "
                f"{until_s - time.monotonic():.0f} s left",
                flush=True,
            )

    async def _block(self, block: int, load: int, deal: Deal, draw: random.Random) -> None:
        """All-spec has fewer turns: how much it loses need not be known as well."""
        dealt = deal.turn(max(self._options.requests, REQUESTS_PER_STREAM * load))
        has_spec = block % self._options.spec_every == 0
        left_out = {*(() if has_spec else (SPEC,)), *((AGAIN,) if self._options.plain_once else ())}
        ways = [way for way in WAYS if way not in left_out]
        for part in [dealt] if load > 1 else [[each] for each in dealt]:
            for way in draw.sample(ways, len(ways)):
                turn = self._through_gateway if way == GATEWAY else self._turn
                self.rows += await turn(way, part, load, block)

    async def _through_gateway(
        self, way: str, dealt: Sequence[tuple[Request, int]], load: int, block: int
    ) -> list[Row]:
        use, before = self.use[load], self._gateway_totals()
        began_s = time.monotonic()
        rows = await self._turn(way, dealt, load, block)
        use.seconds += time.monotonic() - began_s
        after = self._gateway_totals()
        use.requests += round(after[0] - before[0])
        use.to_spec += round(after[1] - before[1])
        use.cpu_s += after[2] - before[2]
        use.tokens += sum(row.tokens for row in rows)
        return rows

    def _gateway_totals(self) -> tuple[float, float, float]:
        """Requests, those of them to spec, CPU seconds."""
        options = self._options
        with urllib.request.urlopen(f"{options.gateway}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        counts = [
            sum(float(line.split()[-1]) for line in lines if line.startswith(begun))
            for begun in (ALL_SAMPLES, SPEC_SAMPLES)
        ]
        return counts[0], counts[1], 0.0 if options.gateway_pid is None else cpu_s(options.gateway_pid)

    async def _turn(self, way: str, dealt: Sequence[tuple[Request, int]], load: int, block: int) -> list[Row]:
        streams = Concurrency(streams=load)
        orders = [
            Order(
                request=request,
                place=Place(
                    arm=way,
                    launch=1,
                    round=0,
                    block=max(block, 0),
                    load=streams,
                    request_id=request.id,
                    segment=request.segment,
                    temperature=request.temperature,
                    repeat=repeat,
                    phase=Phase.MEASURED,
                ),
            )
            for request, repeat in dealt
        ]
        records: list[Record] = []
        await run_turn(self._clients[way], orders, streams, seed=SEED, on_record=records.append)
        failed = [record for record in records if not record.is_ok]
        if len(failed) > FAILED_MAX * len(records):
            raise SystemExit(f"{way}: {len(failed)} of {len(records)} failed: {failed[0].error}")
        rows = [row_from(record, way, load, block) for record in records]
        self.lost[way] += sum(row is None for row in rows)
        return [row for row in rows if row is not None]


def row_from(record: Record, way: str, load: int, block: int) -> Row | None:
    """None of an answer without text, and of one that failed: its request is compared no further."""
    if not record.is_ok or not record.output_tokens or record.ttft_s is None or record.e2e_s is None:
        return None
    return Row(
        way=way,
        load=load,
        block=block,
        prompt=record.place.request_id,
        repeat=record.place.repeat,
        segment=record.place.segment,
        ttft_s=record.ttft_s,
        e2e_s=record.e2e_s,
        tokens=record.output_tokens,
    )


def cpu_s(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


async def measured(options: argparse.Namespace) -> Measuring:
    urls = {PLAIN: options.plain, AGAIN: options.plain, SPEC: options.spec, GATEWAY: options.gateway}
    async with AsyncExitStack() as stack:
        clients = {
            way: await stack.enter_async_context(
                Client(
                    Endpoint(base_url=url, model=options.model, extra_body=options.extra_body),
                    seed=SEED,
                    workers=options.workers,
                )
            )
            for way, url in urls.items()
        }
        measuring = Measuring(options, clients)
        await measuring.run()
        return measuring


def use_shown(use: dict[int, GatewayUse]) -> str:
    lines = [
        "| streams | tokens/s through the gateway | of a core | CPU µs per token | to spec |",
        "|---|---|---|---|---|",
    ]
    for load, each in sorted(use.items()):
        core, token_us = each.cpu_s / each.seconds, each.cpu_s / each.tokens * 1e6
        lines.append(
            f"| {load} | {each.tokens / each.seconds:,.0f} | {core:.0%} | {token_us:.0f} "
            f"| {each.to_spec} of {each.requests} |"
        )
    return "\n".join(lines)


def read_rows(path: Path) -> list[Row]:
    return [row_of(json.loads(line)) for line in path.read_text().splitlines()]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    path.write_text("".join(f"{json.dumps(asdict(row))}\n" for row in rows))


def loads(text: str) -> dict[int, float]:
    parts = [part.partition(":") for part in text.split(",")]
    return {int(streams): float(share or 1) for streams, _, share in parts}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How much is measured."""
    parser.add_argument("--prompts", type=Path)
    parser.add_argument(
        "--concurrency",
        type=loads,
        default={1: 1.0},
        help="streams, each with its share of the time: 1:2,16 gives two thirds to one stream",
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="of measuring, over all loads")
    parser.add_argument("--requests", type=int, default=8, help="of a turn, at least")
    parser.add_argument(
        "--spec-every", type=int, default=3, help="blocks: all-spec has a turn in one of so many"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="of the order of prompts and ways")
    parser.add_argument("--plain-once", action="store_true", help="no second turn of all-plain")
    parser.add_argument("--workers", type=int, default=1, help="processes that send, for each way")
    parser.add_argument("--rows", type=Path, required=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for way in (PLAIN, SPEC, GATEWAY):
        parser.add_argument(f"--{way}")
    parser.add_argument("--model", default="default")
    add_arguments(parser)
    parser.add_argument("--show", action="store_true", help="only show rows that were measured")
    parser.set_defaults(extra_body=(), gateway_pid=None)
    options = parser.parse_args()
    if not options.show:
        asyncio.run(measured(options))
    print(shown(read_rows(options.rows)))


if __name__ == "__main__":
    main()
