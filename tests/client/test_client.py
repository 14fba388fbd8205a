"""The client with its sending processes, against servers that keep time and servers that play a script."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from scripted import Peer, ScriptedServer

from processes import children, eventually, is_running
from samples import HOSTILE, place, request
from speclift.client.client import Client, Order, now_s, run_turn
from speclift.core.arm import Endpoint
from speclift.core.errors import OperatingError, UsageError
from speclift.core.records import Outcome, Record
from speclift.core.traffic import Concurrency, Load, Rate

EVENT = b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(EVENT), EVENT)


@contextmanager
def tick_server(ttft_s: float, tpot_s: float) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "speclift.testing.tick_server", str(ttft_s), str(tpot_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


def orders(count: int, tokens: int, load: Load) -> list[Order]:
    return [
        Order(request=request(f"p{index}", max_tokens=tokens), place=place(request_id=f"p{index}", load=load))
        for index in range(count)
    ]


def play(url: str, load: Load, *, count: int, tokens: int, workers: int = 1) -> list[Record]:
    records: list[Record] = []

    async def run() -> None:
        async with Client(Endpoint(base_url=url, model="m"), seed=0, workers=workers) as client:
            await run_turn(client, orders(count, tokens, load), load, seed=0, on_record=records.append)

    asyncio.run(run())
    return records


def with_client(url: str, use: Callable[[Client], Awaitable[None]], *, workers: int = 1) -> None:
    async def run() -> None:
        async with Client(Endpoint(base_url=url, model="m"), seed=0, workers=workers) as client:
            await use(client)

    asyncio.run(run())


class TestTruth:
    @pytest.mark.slow
    @pytest.mark.alone
    @pytest.mark.parametrize("streams", [1, 8])
    def test_reported_times_are_the_servers_own_within_two_per_cent(self, streams: int) -> None:
        with tick_server(0.05, 0.01) as url:
            records = play(url, Concurrency(streams=streams), count=3 * streams, tokens=12)

        assert [record.outcome for record in records] == [Outcome.OK] * 3 * streams
        truths = np.array([[float(word) for word in record.text.split()[-2:]] for record in records])
        ttft_s = np.array([record.ttft_s for record in records])
        tpot_s = np.array([record.tpot_s for record in records])
        assert np.median(ttft_s) == pytest.approx(np.median(truths[:, 0]), rel=0.02)
        assert np.median(tpot_s) == pytest.approx(np.median(truths[:, 1]) / 11, rel=0.02)


class TestTurns:
    @pytest.mark.parametrize("workers", [1, 3])
    def test_every_order_becomes_one_record_however_many_processes_send(self, workers: int) -> None:
        with tick_server(0.002, 0.001) as url:
            records = play(url, Concurrency(streams=10), count=100, tokens=3, workers=workers)

        assert Counter(record.place.request_id for record in records) == {f"p{n}": 1 for n in range(100)}
        assert {record.outcome for record in records} == {Outcome.OK}
        assert all(record.intended_s <= record.sent_s < record.end_s for record in records)

    @pytest.mark.slow
    @pytest.mark.parametrize("workers", [1, 2])
    def test_an_open_loop_keeps_the_moments_it_was_given(self, workers: int) -> None:
        with tick_server(0.01, 0.001) as url:
            records = play(url, Rate(per_s=200.0, arrivals="constant"), count=40, tokens=2, workers=workers)

        intended = sorted(record.intended_s for record in records)
        assert np.diff(intended) == pytest.approx([1 / 200.0] * 39, abs=1e-6)
        assert all(record.sent_s >= record.intended_s for record in records)

    def test_hostile_prompts_travel(self) -> None:
        bodies: list[bytes] = []

        def script(peer: Peer) -> None:
            while (body := peer.request()) is not None:
                bodies.append(body)
                peer.send(ANSWER)

        async def use(client: Client) -> None:
            record = await client.send(request(prompt=HOSTILE), place(), intended_s=now_s())
            assert record.outcome is Outcome.OK, record.error

        with ScriptedServer(script) as server:
            with_client(server.url, use)
        assert b"\\ud800" in bodies[0]

    def test_an_answer_may_be_as_long_as_its_tokens_are_many(self) -> None:
        padding = (b":" + b" " * 1022 + b"\n") * (5 << 10)
        body = padding + EVENT

        def script(peer: Peer) -> None:
            peer.request()
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

        load, records = Concurrency(streams=2), list[Record]()

        async def use(client: Client) -> None:
            few_and_many = [orders(2, 1, load)[0], orders(2, 1024, load)[1]]
            await run_turn(client, few_and_many, load, seed=0, on_record=records.append)

        with ScriptedServer(script) as server:
            with_client(server.url, use)
        few, many = sorted(records, key=lambda record: record.place.request_id)
        assert (few.outcome, many.outcome) == (Outcome.MALFORMED, Outcome.OK)
        assert "too long for max_tokens" in few.error

    @pytest.mark.slow
    def test_a_cancelled_turn_leaves_the_client_usable(self) -> None:
        async def use(client: Client) -> None:
            load, records = Concurrency(streams=4), list[Record]()
            turn = asyncio.create_task(
                run_turn(client, orders(50, 20, load), load, seed=0, on_record=records.append)
            )
            await asyncio.sleep(0.2)
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
            later: list[Record] = []
            await run_turn(client, orders(6, 2, load), load, seed=0, on_record=later.append)
            assert sorted(record.place.request_id for record in later) == [f"p{n}" for n in range(6)]

        with tick_server(0.01, 0.01) as url:
            with_client(url, use)

    def test_what_a_cancelled_turn_had_under_way_is_dropped_at_once(self) -> None:
        asked, left = threading.Event(), threading.Event()

        def script(peer: Peer) -> None:
            peer.request()
            asked.set()
            if peer.request() is None:
                left.set()

        async def use(client: Client) -> None:
            load = Concurrency(streams=1)
            turn = asyncio.create_task(
                run_turn(client, orders(2, 2, load), load, seed=0, on_record=lambda _: None)
            )
            assert await asyncio.to_thread(asked.wait, 20)
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
            assert await asyncio.to_thread(left.wait, 20)

        with ScriptedServer(script) as server:
            with_client(server.url, use)

    def test_more_streams_than_open_files_is_wrong_usage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))

        async def use(client: Client) -> None:
            load = Concurrency(streams=200)
            with pytest.raises(UsageError, match="200 streams need 232 open files"):
                await run_turn(client, orders(200, 2, load), load, seed=0, on_record=lambda _: None)

        with tick_server(0.01, 0.01) as url:
            with_client(url, use)


class TestProcesses:
    @pytest.mark.slow
    def test_a_killed_one_is_an_operating_error_and_never_a_silent_gap(self) -> None:
        async def use(client: Client) -> None:
            load = Concurrency(streams=4)
            turn = asyncio.create_task(
                run_turn(client, orders(50, 50, load), load, seed=0, on_record=lambda _: None)
            )
            await asyncio.sleep(0.3)
            os.kill(client.pids[0], signal.SIGKILL)
            with pytest.raises(OperatingError, match="ended unexpectedly"):
                await turn

        with tick_server(0.01, 0.01) as url:
            with_client(url, use)

    def test_none_is_left_when_the_program_is_killed(self) -> None:
        program = (
            "import asyncio, sys\n"
            "from speclift.core.arm import Endpoint\n"
            "from speclift.client.client import Client\n"
            "async def main():\n"
            "    async with Client(Endpoint(base_url='http://127.0.0.1:9', model='m'), seed=0):\n"
            "        print('up', flush=True)\n"
            "        await asyncio.sleep(60)\n"
            "asyncio.run(main())\n"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            (worker,) = children(process.pid)
            process.kill()
        eventually(lambda: not is_running(worker), what="the sending process is gone")
