"""The gateway as a process in front of two real llama.cpp servers: one drafts from n-grams, one does not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateways import CHAT, GatewayProcess, dechunked, gateway_process, get, post, said_by
from processes import children, eventually
from running import Cli, fake_flags
from speclift.core.arm import Arm, ServerSettings, baseline_arm
from speclift.core.speculation import NGram
from speclift.engines.llamacpp.engine import ENVIRONMENT, LlamaCpp
from speclift.engines.metrics import parse_counters
from speclift.engines.process import ServerProcess, free_port

pytestmark = [pytest.mark.llama, pytest.mark.timeout(120)]

READY_LIMIT_S = 60.0
SLOTS = 2
TEXT = "The small red fox jumped over the quiet stream and ran into the green forest near the old stone mill."
COPY = f"Repeat this text exactly, word for word.\n\n{TEXT}\n{TEXT}"
POLICY = """
schema = 1
elsewhere = "plain"
[[segment]]
name = "copying"
pool = "spec"
max_temperature = 0.0
[[segment.when]]
temperature_max = 0.0
max_tokens_min = 24
"""
MESSAGES = [{"role": "user", "content": "What is the weather in Oslo?"}]
PROPERTIES = {"name": {"type": "string", "maxLength": 8}, "is_large": {"type": "boolean"}}
TOWN = {
    "type": "object",
    "properties": PROPERTIES,
    "required": [*PROPERTIES],
    "additionalProperties": False,
}


@dataclass
class Llama:
    """A server at a port of its own, also when it is started again."""

    engine: LlamaCpp
    arm: Arm
    port: int
    log: Path
    process: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        command = self.engine.command(self.arm, port=self.port)
        self.process = await ServerProcess.start(command, base_url=self.url, log=self.log, env=ENVIRONMENT)
        await self.process.wait_until_ready(path="/health", limit_s=READY_LIMIT_S)

    def kill(self) -> None:
        assert self.process is not None
        (engine,) = children(self.process.pid)
        os.kill(engine, signal.SIGKILL)

    async def stop(self) -> None:
        if self.process is not None:
            await self.process.stop()


@dataclass
class Pools:
    runner: asyncio.Runner
    spec: Llama
    plain: Llama
    gateway: GatewayProcess
    log: Path

    def ask(self, data: bytes) -> Answer:
        return answer_of(self.runner.run(self.gateway.said_to(data)))

    def ask_directly(self, pool: str, data: bytes) -> Answer:
        port = {"spec": self.spec, "plain": self.plain}[pool].port
        return answer_of(self.runner.run(said_by(port, data)))

    def lines(self, *ids: str) -> list[bytes]:
        """Of the log, once they are there."""

        def found() -> list[bytes]:
            lines = self.log.read_bytes().splitlines(keepends=True)
            return [line for line in lines if line.endswith(b"\n") and json.loads(line)["id"] in ids]

        eventually(lambda: len(found()) == len(ids), what="every request is in the log")
        return found()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    pool: str
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        document = json.loads(self.body)
        assert isinstance(document, dict)
        return document

    @property
    def events(self) -> list[dict[str, Any]]:
        *events, done, end = self.body.split(b"\n\n")
        assert (done, end) == (b"data: [DONE]", b"")
        return [json.loads(event.removeprefix(b"data: ")) for event in events]

    @property
    def text(self) -> str:
        choices = [choice for event in self.events for choice in event["choices"]]
        return "".join(choice["delta"].get("content") or "" for choice in choices)


def answer_of(answer: bytes) -> Answer:
    head = answer.partition(b"\r\n\r\n")[0].lower()
    fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    return Answer(
        status=int(head.split(b" ")[1]),
        pool=fields.get(b"x-speclift-pool", b"").decode(),
        body=dechunked(answer),
    )


def asked(content: str = COPY, **more: object) -> dict[str, object]:
    """Greedy, streamed, counted, and without what an earlier request left in the cache."""
    return {
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 32,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_prompt": False,
        **more,
    }


def named(body: Mapping[str, object], name: str = "any", *, path: str = CHAT) -> bytes:
    return post(json.dumps(body).encode(), path=path, fields=f"x-request-id: {name}\r\n")


def comparable(document: Mapping[str, Any]) -> dict[str, Any]:
    """Without what llama.cpp makes anew for each answer: its name, its time, how long it took."""
    kept = {name: value for name, value in document.items() if name not in ("id", "created")}
    if "timings" in kept:
        kept["timings"] = {name: value for name, value in kept["timings"].items() if name.endswith("_n")}
        kept["timings"]["accepted"] = document["timings"].get("draft_n_accepted")
    return kept


@pytest.fixture(scope="module")
def pools(embedded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pools]:
    folder = tmp_path_factory.mktemp("gateway")
    (folder / "policy.toml").write_text(POLICY)
    engine = LlamaCpp(ServerSettings(model=str(embedded_model), context_tokens=1024, threads=1, slots=SLOTS))
    spec, plain = (
        Llama(engine, arm, free_port(), folder / arm.name)
        for arm in (Arm(name="spec", speculation=NGram(k=7, n=3)), baseline_arm())
    )
    flags = ("--policy", folder / "policy.toml", "--access-log", folder / "access.jsonl", "--log-text")

    async def begin() -> GatewayProcess:
        for server in (spec, plain):
            stack.push_async_callback(server.stop)
        await asyncio.gather(spec.start(), plain.start())
        return await stack.enter_async_context(gateway_process(spec.url, plain.url, *flags))

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            gateway = runner.run(begin())
            yield Pools(runner, spec, plain, gateway, folder / "access.jsonl")
        finally:
            runner.run(stack.aclose())


# The same answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "pool"),
    [
        (asked(), "spec"),
        (asked("Write a poem about the sea."), "spec"),
        (asked(stream_options=None, timings_per_token=True), "spec"),
        (asked(max_tokens=16), "plain"),
        (asked(n=2, temperature=0.7, seed=5, max_tokens=8), "plain"),
    ],
    ids=["copy", "poem", "counts in every event", "plain", "two answers at once"],
)
def test_a_stream_is_the_servers_own_event_by_event(body: dict[str, object], pool: str, pools: Pools) -> None:
    through, direct = pools.ask(named(body)), pools.ask_directly(pool, named(body))
    assert (through.status, through.pool) == (200, pool)
    assert list(map(comparable, through.events)) == list(map(comparable, direct.events))
    assert through.text


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (get("/props"), 200),
        (get("/health"), 200),
        (get("/v1/nothing"), 404),
        (named({"content": TEXT}, path="/tokenize"), 200),
        (named({"messages": MESSAGES}, path="/apply-template"), 200),
        (named({"input": "x"}, path="/v1/embeddings"), 501),
        (named({"messages": 5}), 400),
        (post(b"{"), 400),
    ],
)
def test_what_is_no_generation_comes_byte_for_byte(data: bytes, status: int, pools: Pools) -> None:
    through, direct = pools.ask(data), pools.ask_directly("plain", data)
    assert (through.status, through.pool) == (status, "plain")
    assert through.body == direct.body


# Which pool, and what is noted of it ---------------------------------------------------------------------------------


def counted(pools: Pools, pool: str, name: str) -> float:
    counters = parse_counters(pools.ask(get("/metrics")).body.decode())
    wanted = (f'pool="{pool}"', 'temperature="0"')
    return sum(
        value
        for key, value in counters.values.items()
        if key.startswith(f"speclift_gateway_{name}_total{{") and all(label in key for label in wanted)
    )


@pytest.mark.parametrize("pool", ["spec", "plain"])
def test_tokens_and_acceptance_are_those_that_llama_cpp_tells(pool: str, pools: Pools) -> None:
    names = ("prompt_tokens", "output_tokens", "drafted_tokens", "accepted_tokens")
    before = [counted(pools, pool, name) for name in names]
    answer = pools.ask(named(asked(max_tokens=40 if pool == "spec" else 20), f"counted-{pool}"))
    (line,) = (json.loads(line) for line in pools.lines(f"counted-{pool}"))
    usage, timings = answer.events[-1]["usage"], answer.events[-1]["timings"]
    # llama.cpp says nothing of drafts where there were none.
    drafts = (timings.get("draft_n", 0), timings.get("draft_n_accepted", 0))
    told = (usage["prompt_tokens"], usage["completion_tokens"], *drafts)
    assert (line["prompt_tokens"], line["output_tokens"], line["drafted"], line["accepted"]) == told
    after = [counted(pools, pool, name) for name in names]
    assert [new - old for new, old in zip(after, before, strict=True)] == list(told)
    assert (line["accepted"] > 0) == (pool == "spec")
    (reason,) = {choice["finish_reason"] for event in answer.events for choice in event["choices"]} - {None}
    assert (line["pool"], line["end"], line["finish_reason"]) == (pool, "ok", reason)
    assert 0 < line["ttft_s"] < line["e2e_s"]
    assert line["tpot_s"] > 0


# A server that is killed ---------------------------------------------------------------------------------------------


async def streamed(port: int, body: bytes, begun: asyncio.Semaphore) -> bytes:
    """The whole answer; `begun` hears when its head came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(body)
        head = await reader.readuntil(b"\r\n\r\n")
        begun.release()
        return head + await reader.read()
    finally:
        writer.transport.abort()


def test_killed_under_load_the_other_pool_answers_and_it_comes_back(pools: Pools) -> None:
    """Two slots and four streams: two have begun, two wait in the server's queue."""
    names = [f"killed-{number}" for number in range(2 * SLOTS)]

    async def work() -> list[bytes]:
        begun = asyncio.Semaphore(0)
        bodies = [asked(f"Count to {90 + place}.", max_tokens=400) for place, _ in enumerate(names)]
        asking = [
            asyncio.create_task(streamed(pools.gateway.port, named(body, name), begun))
            for body, name in zip(bodies, names, strict=True)
        ]
        for _ in range(SLOTS):
            await begun.acquire()
        # Of those that wait, none begins before one of the others is through.
        assert not any(task.done() for task in asking)
        pools.spec.kill()
        async with asyncio.timeout(60):
            return await asyncio.gather(*asking)

    answers = [answer_of(answer) for answer in pools.runner.run(work())]
    cut = [answer for answer in answers if answer.pool == "spec"]
    whole = [answer for answer in answers if answer.pool == "plain"]
    assert (len(cut), len(whole)) == (SLOTS, SLOTS)
    for answer in cut:
        *events, last, end = answer.body.split(b"\n\n")
        assert end == b""
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == 502
        assert all("choices" in json.loads(event.removeprefix(b"data: ")) for event in events)
    for answer in whole:
        assert answer.events[-1]["usage"]["completion_tokens"] > 0
    lines = [json.loads(line) for line in pools.lines(*names)]
    assert sorted((line["pool"], line["end"], line["attempts"]) for line in lines) == [
        *[("plain", "ok", 2)] * SLOTS,
        *[("spec", "cut", 1)] * SLOTS,
    ]
    short = named(asked(max_tokens=24))
    assert pools.ask(short).pool == "plain"
    pools.runner.run(pools.spec.start())
    eventually(lambda: pools.ask(short).pool == "spec", what="the pool is back")


# OpenAI's client -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clients(pools: Pools) -> Iterator[tuple[Any, Any]]:
    """Through the gateway, and straight to the server that speculates."""
    openai = pytest.importorskip("openai")
    urls = (f"http://127.0.0.1:{pools.gateway.port}/v1", f"{pools.spec.url}/v1")
    through, direct = (openai.OpenAI(base_url=url, api_key="any", max_retries=0) for url in urls)
    with through, direct:
        yield through, direct


LIKEWISE = {"model": "m", "temperature": 0, "max_tokens": 40, "extra_body": {"cache_prompt": False}}


def test_openais_client_gets_what_a_grammar_forces(clients: tuple[Any, Any]) -> None:
    towns = {"type": "json_schema", "json_schema": {"name": "town", "schema": TOWN, "strict": True}}
    contents = []
    for client in clients:
        raw = client.chat.completions.with_raw_response.create(
            messages=MESSAGES, response_format=towns, **LIKEWISE
        )
        contents.append(raw.parse().choices[0].message.content)
    town = json.loads(contents[0])
    assert (town.keys(), type(town["name"]), type(town["is_large"])) == (PROPERTIES.keys(), str, bool)
    assert contents[0] == contents[1]


# The log, read back --------------------------------------------------------------------------------------------------


def test_the_log_is_read_back_by_replay_and_decide(
    pools: Pools, embedded_model: Path, cli: Cli, tmp_path: Path
) -> None:
    bodies = {
        "copied": asked(max_tokens=48),
        "whole": asked("Say hello.", stream=False, stream_options=None, max_tokens=24),
        "warm": asked("Name a colour.", temperature=0.5, max_tokens=8),
    }
    answers = {name: pools.ask(named(body, name)) for name, body in bodies.items()}
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"".join(pools.lines(*bodies)))
    lines = {line["id"]: line for line in map(json.loads, log.read_bytes().splitlines())}
    assert {name: line["request"] for name, line in lines.items()} == bodies
    assert lines["copied"]["response"] == answers["copied"].text
    message = answers["whole"].document["choices"][0]["message"]
    assert lines["whole"]["response"] == message["content"]

    replayed = cli(
        *("replay", log, "--engine", "llamacpp", "--method", "ngram:simple", "--k", 7, "--ngram", 3),
        *("--tokenizer", embedded_model, "--json"),
    )
    assert replayed.code == 0, replayed.stderr
    found = replayed.document["log"]
    assert (found["requests"], found["no_response"], found["unreadable"]) == (len(bodies), 0, 0)

    size = ("--requests", 3, "--launches", 1, "--json", "--study", "s")
    decided = cli("decide", "--prompts", log, *fake_flags(), *size)
    assert decided.code in {0, 3, 4, 5, 6}, decided.stderr
    assert {cell["segment"] for cell in decided.document["cells"]} >= {"copying"}
