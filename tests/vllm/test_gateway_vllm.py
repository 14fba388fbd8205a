"""The gateway as a process in front of vLLM's CPU build, for real; two of them are too much for two cores, so the plain
pool is a fake one. Without a policy everything goes to the real one, and to the fake one where that fails."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from gateways import CHAT, GatewayProcess, gateway_process
from processes import children, command_line, eventually, guardian_of
from running import hosted
from speclift.core.arm import Arm, ServerSettings
from speclift.core.speculation import NGram
from speclift.engines.metrics import parse_counters
from speclift.engines.protocol import Server
from speclift.engines.vllm.engine import Vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

TEXT = "The small red fox jumped over the quiet stream and ran into the green forest near the old stone mill."
COPY = f"Repeat this text exactly, word for word.\n\n{TEXT}\n{TEXT}"
MESSAGES = [{"role": "user", "content": "What is the weather in Oslo?"}]
# uvicorn closes a connection on which nothing was asked for 5 s.
IDLE_S = 6.0
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
# Not strict, vLLM (0.32) forces the call and leaves its arguments free.
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}
CALLED = {"type": "function", "function": {"name": "weather"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    server: Server
    gateway: GatewayProcess
    log: Path

    @property
    def model(self) -> str:
        return self.server.endpoint.model

    @property
    def ports(self) -> tuple[int, int]:
        """Through the gateway, and straight to the server."""
        return self.gateway.port, int(self.server.endpoint.base_url.rpartition(":")[2])

    def body(self, content: str = COPY, **more: object) -> dict[str, object]:
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": 32,
            "stream": True,
            "stream_options": {"include_usage": True},
            **more,
        }

    def line(self, name: str) -> dict[str, Any]:
        """Of the log, once it is there."""

        def found() -> list[dict[str, Any]]:
            return [
                line for line in map(json.loads, self.log.read_bytes().splitlines()) if line["id"] == name
            ]

        eventually(lambda: bool(found()), what="the request is in the log")
        (line,) = found()
        return line


@pytest.fixture(scope="module")
def front(
    vllm_python: str, hugging_face_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("gateway")
    # One at a time, so that a second one waits.
    flags = (
        *("--enforce-eager", "--max-num-seqs=1"),
        *("--enable-auto-tool-choice", "--tool-call-parser=hermes"),
    )
    settings = ServerSettings(
        model=str(hugging_face_model), context_tokens=1024, threads=1, engine_args=flags
    )
    log = folder / "access.jsonl"

    async def begin(plain: str) -> Front:
        arm = Arm(name="spec", speculation=NGram(k=4, n=3))
        server = await Vllm(settings, python=vllm_python).launch(arm, log=folder / "log")
        stack.push_async_callback(server.stop)
        gateway = await stack.enter_async_context(
            gateway_process(server.endpoint.base_url, plain, "--access-log", log)
        )
        return Front(server=server, gateway=gateway, log=log)

    with asyncio.Runner() as runner, hosted("flavour=vllm") as plain:
        stack = AsyncExitStack()
        try:
            yield runner.run(begin(plain))
        finally:
            runner.run(stack.aclose())


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    pool: str | None
    body: bytes

    @property
    def events(self) -> list[dict[str, Any]]:
        *events, done, end = self.body.split(b"\n\n")
        assert (done, end) == (b"data: [DONE]", b"")
        return [json.loads(event.removeprefix(b"data: ")) for event in events]


def ask(
    port: int,
    body: Mapping[str, object] | None = None,
    *,
    path: str = CHAT,
    name: str = "any",
    kept: HTTPConnection | None = None,
) -> Answer:
    connection = asked_for(port, body, path=path, name=name, kept=kept)
    answer = answered(connection)
    if kept is None:
        connection.close()
    return answer


def asked_for(
    port: int,
    body: Mapping[str, object] | None = None,
    *,
    path: str = CHAT,
    name: str = "any",
    kept: HTTPConnection | None = None,
) -> HTTPConnection:
    connection = kept or HTTPConnection("127.0.0.1", port, timeout=60)
    fields = {"content-type": "application/json", "x-request-id": name}
    if body is None:
        connection.request("GET", path, headers=fields)
    else:
        connection.request("POST", path, json.dumps(body).encode(), fields)
    return connection


def answered(connection: HTTPConnection) -> Answer:
    response = connection.getresponse()
    return Answer(status=response.status, pool=response.headers["x-speclift-pool"], body=response.read())


def comparable(event: Mapping[str, Any]) -> dict[str, Any]:
    """Without what vLLM makes anew for each answer."""
    return {name: value for name, value in event.items() if name not in ("id", "created")}


def test_a_stream_is_the_servers_own_and_its_counts_are_in_the_log(front: Front) -> None:
    through, direct = (ask(port, front.body(), name="counted") for port in front.ports)
    assert (through.status, through.pool) == (200, "spec")
    assert list(map(comparable, through.events)) == list(map(comparable, direct.events))
    last, line = through.events[-1], front.line("counted")
    drafts = last["metrics"]["speculative_decoding"]
    assert (line["prompt_tokens"], line["output_tokens"]) == (
        last["usage"]["prompt_tokens"],
        last["usage"]["completion_tokens"],
    )
    assert (line["drafted"], line["accepted"]) == (
        drafts["num_draft_tokens"],
        drafts["num_accepted_draft_tokens"],
    )
    assert line["drafted"] > 0
    assert 0 < line["ttft_s"] < line["e2e_s"]
    assert line["tpot_s"] > 0


def test_a_server_that_closes_idle_connections_costs_no_second_try(front: Front) -> None:
    kept = HTTPConnection("127.0.0.1", front.gateway.port, timeout=60)
    short = front.body("Say hello.", max_tokens=4)
    assert ask(0, short, kept=kept).status == 200
    time.sleep(IDLE_S)
    answer = ask(0, short, name="after-idling", kept=kept)
    kept.close()
    assert (answer.status, answer.pool) == (200, "spec")
    line = front.line("after-idling")
    assert (line["end"], line["attempts"]) == ("ok", 1)


@pytest.fixture(scope="module")
def client(front: Front) -> Iterator[Any]:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{front.gateway.port}/v1", api_key="any", max_retries=0
    ) as client:
        yield client


def test_openais_client_gets_the_call_of_a_tool_whole_and_streamed(client: Any, front: Front) -> None:
    asked = {"model": front.model, "messages": MESSAGES, "tools": [TOOL], "tool_choice": CALLED}
    whole = client.chat.completions.create(**asked, temperature=0, max_tokens=60)
    (call,) = whole.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments).keys() == {"city"}
    stream = client.chat.completions.create(**asked, temperature=0, max_tokens=60, stream=True)
    calls = [call for part in stream for choice in part.choices for call in choice.delta.tool_calls or ()]
    assert calls[0].function.name == "weather"
    arguments = "".join(call.function.arguments or "" for call in calls)
    assert json.loads(arguments) == json.loads(call.function.arguments)


def test_an_engine_core_that_is_killed_cuts_what_had_begun_and_the_other_pool_answers(front: Front) -> None:
    """vLLM's API process outlives its core for seconds and answers errors meanwhile: nobody is to see those. To a
    stream that waits it says "200 OK" and sends an error as its first event."""
    port = front.gateway.port
    begun, waiting = (
        asked_for(port, front.body(f"Count to {number}.", max_tokens=800), name=f"killed-{number}")
        for number in (900, 901)
    )
    response = begun.getresponse()
    response.read(1)
    eventually(lambda: running_at(front) == 2, what="both are at the server")
    os.kill(engine_core(front.server), signal.SIGKILL)
    events = response.read().removesuffix(b"data: [DONE]\n\n").rstrip().split(b"\n\n")
    assert "error" in json.loads(events[-1].removeprefix(b"data: "))
    answer = answered(waiting)
    assert (answer.status, answer.pool) == (200, "plain")
    assert answer.events[-1]["usage"]["completion_tokens"] > 0
    for number in range(5):
        answer = ask(port, front.body(max_tokens=4), name=f"after-{number}")
        assert (answer.status, answer.pool) == (200, "plain")
    assert front.line("killed-900")["end"] in ("cut", "refused")
    assert (front.line("killed-901")["end"], front.line("killed-901")["attempts"]) == ("ok", 2)
    for connection in (begun, waiting):
        connection.close()


def running_at(front: Front) -> float:
    metrics = parse_counters(ask(front.gateway.port, path="/metrics").body.decode())
    return sum(
        value
        for key, value in metrics.values.items()
        if key.startswith("speclift_gateway_server_running{") and 'pool="spec"' in key
    )


def engine_core(server: Server) -> int:
    waiting = [guardian_of(server.command)]
    while waiting:
        pid = waiting.pop()
        if "VLLM::EngineCore" in (command_line(pid) or ("",))[0]:
            return pid
        waiting += children(pid)
    raise AssertionError("vLLM has no engine core")
