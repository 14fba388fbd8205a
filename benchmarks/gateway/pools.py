"""Mixed traffic three ways: all to the plain server, all to the speculative one, and through the gateway.

`python benchmarks/gateway/pools.py --plain URL --spec URL --gateway URL --concurrency 1,16 --rows rows.jsonl`

All three are up all the time. The ways take turns in random order, each sends the same prompts of a block, and prompts
are compared with themselves: what is printed is the geometric mean over prompts of the time that one way takes, divided
by the gateway's, with an interval from resampling prompts. Above 1 the gateway is faster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from speclift.client.client import Client, Order
from speclift.client.load import run_turn
from speclift.core.arm import Endpoint
from speclift.core.records import Phase, Place, Record
from speclift.core.traffic import Concurrency, Request
from speclift.studies.prompt_files import bundled_workload, read_workload

PLAIN, SPEC, GATEWAY = WAYS = ("plain", "spec", "gateway")
RESAMPLED = 4000
COVERAGE = 95.0
SEED = 7

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    way: str
    load: int
    block: int
    prompt: str
    segment: str
    e2e_s: float
    ttft_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    value: float
    low: float
    high: float
    prompts: int

    def __str__(self) -> str:
        return f"{self.value:.3f}x [{self.low:.3f}, {self.high:.3f}]"


async def measured(options: argparse.Namespace) -> list[Row]:
    requests = list((read_workload(options.prompts) if options.prompts else bundled_workload()).requests)
    draw = random.Random(SEED)
    rows: list[Row] = []
    async with AsyncExitStack() as stack:
        clients = {
            way: await stack.enter_async_context(
                Client(
                    Endpoint(
                        base_url=getattr(options, way), model=options.model, extra_body=options.extra_body
                    ),
                    seed=SEED,
                    workers=options.workers,
                )
            )
            for way in WAYS
        }
        for way in WAYS:
            await turn(clients[way], way, requests[: options.warmup], 4, -1)
        for block in range(options.blocks):
            for load in options.concurrency:
                draw.shuffle(requests)
                # As many streams as there are, for some time; and not all of the prompts where one stream takes long.
                chosen = requests[: max(options.requests, 6 * load)]
                for way in draw.sample(WAYS, len(WAYS)):
                    rows += await turn(clients[way], way, chosen, load, block)
                print(f"block {block + 1} of {options.blocks}, {load} streams", flush=True)
    return rows


async def turn(client: Client, way: str, requests: Sequence[Request], load: int, block: int) -> list[Row]:
    # More streams than prompts: they are asked again, with another seed.
    repeats = [(request, repeat) for repeat in range(1 + 2 * load // len(requests)) for request in requests]
    orders = [
        Order(
            request=request,
            place=Place(
                arm=way,
                launch=1,
                round=0,
                block=block,
                load=Concurrency(streams=load),
                request_id=request.id,
                segment=request.segment,
                temperature=request.temperature,
                repeat=repeat,
                phase=Phase.MEASURED,
            ),
        )
        for request, repeat in repeats
    ]
    records: list[Record] = []
    await run_turn(client, orders, Concurrency(streams=load), seed=SEED, on_record=records.append)
    for record in records:
        if not record.is_ok:
            raise SystemExit(f"{way}: {record.error}")
    return [
        Row(
            way=way,
            load=load,
            block=block,
            prompt=record.place.request_id,
            segment=record.place.segment,
            e2e_s=record.e2e_s or 0.0,
            ttft_s=record.ttft_s or 0.0,
        )
        for record in records
    ]


def by_prompt(rows: Sequence[Row], way: str) -> dict[tuple[str, int, int], list[float]]:
    times: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for row in rows:
        if row.way == way:
            times[row.prompt, row.load, row.block].append(row.e2e_s)
    return times


def speedup(rows: Sequence[Row], slow: str, fast: str) -> Ratio:
    """Of `fast` over `slow`: prompts are compared with themselves in the same block, and count once each."""
    ours, theirs = by_prompt(rows, fast), by_prompt(rows, slow)
    ratios: dict[str, list[float]] = defaultdict(list)
    for key in ours.keys() & theirs.keys():
        ratios[key[0]].append(float(np.mean(np.log(theirs[key])) - np.mean(np.log(ours[key]))))
    means = np.array([np.mean(each) for each in ratios.values()])
    draws = means[np.random.default_rng(SEED).integers(len(means), size=(RESAMPLED, len(means)))].mean(axis=1)
    low, high = np.exp(np.percentile(draws, [(100 - COVERAGE) / 2, (100 + COVERAGE) / 2]))
    return Ratio(value=float(np.exp(means.mean())), low=float(low), high=float(high), prompts=len(means))


def tail_ratio(rows: Sequence[Row], slow: str, fast: str, *, percentile: float = 95.0) -> Ratio:
    """P95 of `slow` over P95 of `fast`; prompts are resampled with all their requests."""
    prompts = sorted({row.prompt for row in rows})
    times = {
        way: {
            prompt: np.array([row.e2e_s for row in rows if row.way == way and row.prompt == prompt])
            for prompt in prompts
        }
        for way in (slow, fast)
    }
    generator = np.random.default_rng(SEED)

    def ratio(chosen: Sequence[str]) -> float:
        high = [
            np.percentile(np.concatenate([times[way][each] for each in chosen]), percentile)
            for way in (slow, fast)
        ]
        return float(high[0] / high[1])

    draws = [
        ratio([prompts[place] for place in generator.integers(len(prompts), size=len(prompts))])
        for _ in range(500)
    ]
    low, high = np.percentile(draws, [(100 - COVERAGE) / 2, (100 + COVERAGE) / 2])
    return Ratio(value=ratio(prompts), low=float(low), high=float(high), prompts=len(prompts))


def shown(rows: Sequence[Row]) -> str:
    """By load and on all traffic: the gateway against each of the two, and all-speculative against all-plain."""
    lines = [
        "| streams | gateway against all-plain | gateway against all-spec | all-spec against all-plain "
        "| P95 against the better |",
        "|---|---|---|---|---|",
    ]
    loads = sorted({row.load for row in rows})
    for name, part in [
        *((str(load), [row for row in rows if row.load == load]) for load in loads),
        ("all", list(rows)),
    ]:
        spec_gain = speedup(part, PLAIN, SPEC)
        better = SPEC if spec_gain.value > 1 else PLAIN
        cells = (
            speedup(part, PLAIN, GATEWAY),
            speedup(part, SPEC, GATEWAY),
            spec_gain,
            tail_ratio(part, better, GATEWAY),
        )
        lines.append(f"| {name} | " + " | ".join(map(str, cells)) + " |")
    lines += ["", "| segment | gateway against all-plain | all-spec against all-plain |", "|---|---|---|"]
    for segment in sorted({row.segment for row in rows}):
        part = [row for row in rows if row.segment == segment]
        lines.append(f"| {segment} | {speedup(part, PLAIN, GATEWAY)} | {speedup(part, PLAIN, SPEC)} |")
    return "\n".join(lines)


def read_rows(path: Path) -> list[Row]:
    return [row_of(json.loads(line)) for line in path.read_text().splitlines()]


def row_of(document: Mapping[str, object]) -> Row:
    return Row(**document)  # type: ignore[arg-type]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    lines = (json.dumps({name: getattr(row, name) for name in Row.__dataclass_fields__}) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How much is measured."""
    parser.add_argument("--prompts", type=Path)
    parser.add_argument(
        "--concurrency", type=lambda text: [int(part) for part in text.split(",")], default=[1]
    )
    parser.add_argument("--requests", type=int, default=24, help="prompts of a block, at least")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rows", type=Path, required=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for way in WAYS:
        parser.add_argument(f"--{way}")
    parser.add_argument("--model", default="default")
    add_arguments(parser)
    parser.add_argument("--show", action="store_true", help="only show rows that were measured")
    parser.set_defaults(extra_body=())
    options = parser.parse_args()
    if not options.show:
        write_rows(options.rows, asyncio.run(measured(options)))
    print(shown(read_rows(options.rows)))


if __name__ == "__main__":
    main()
