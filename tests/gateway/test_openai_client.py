"""OpenAI's own Python client, unchanged, through the gateway: streams, tools, structured output, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest

from gateways import ENDING, Asked, Backend, Running, gateway, tokens

openai = pytest.importorskip("openai")

MESSAGES = [{"role": "user", "content": "What is the weather in Oslo?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "town", "schema": {"type": "object", "properties": {"name": {"type": "string"}}}},
}


def completion(message: dict[str, object], finish_reason: str) -> bytes:
    return json.dumps(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
            "usage": {
                "prompt_tokens": 9,
                "completion_tokens": 4,
                "total_tokens": 13,
                "completion_tokens_details": {
                    "accepted_prediction_tokens": 3,
                    "rejected_prediction_tokens": 1,
                },
            },
        }
    ).encode()


def chunk(delta: dict[str, object], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    document = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


async def answers(asked: Asked) -> None:
    """As an engine does with what it is asked for."""
    body = json.loads(asked.body)
    if body.get("tools") and body.get("stream"):
        call = {"index": 0, "id": "call_1", "type": "function"}
        await asked.begin()
        await asked.chunk(chunk({"tool_calls": [{**call, "function": {"name": "weather", "arguments": ""}}]}))
        for text in ('{"ci', 'ty":"Os', 'lo"}'):
            await asked.chunk(chunk({"tool_calls": [{"index": 0, "function": {"arguments": text}}]}))
        await asked.chunk(chunk({}, "tool_calls") + b"data: [DONE]\n\n")
        await asked.end()
    elif body.get("tools"):
        function = {"name": "weather", "arguments": '{"city":"Oslo"}'}
        call = {"id": "call_1", "type": "function", "function": function}
        await asked.whole(
            completion({"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls")
        )
    elif body.get("response_format"):
        await asked.whole(completion({"role": "assistant", "content": '{"name":"Oslo"}'}, "stop"))
    else:
        await asked.begin()
        for part in tokens(5):
            await asked.chunk(part)
        await asked.chunk(ENDING)
        await asked.end()


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def client(running: Running) -> Any:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{running.port}/v1", api_key="any", max_retries=0)


def test_a_stream() -> None:
    async def work() -> None:
        async with gateway([Backend(answers)], [Backend()]) as running, client(running) as caller:
            stream = await caller.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            texts = [part.choices[0].delta.content async for part in stream if part.choices]
            assert "".join(text or "" for text in texts) == " token0 token1 token2 token3 token4"

    run(work())


def test_tools_whole_and_streamed() -> None:
    async def work() -> None:
        async with gateway([Backend(answers)], [Backend()]) as running, client(running) as caller:
            whole = await caller.chat.completions.create(model="m", messages=MESSAGES, tools=[TOOL])
            (call,) = whole.choices[0].message.tool_calls
            assert json.loads(call.function.arguments) == {"city": "Oslo"}
            stream = await caller.chat.completions.create(
                model="m", messages=MESSAGES, tools=[TOOL], stream=True
            )
            parts = [
                each.function.arguments or ""
                async for part in stream
                for each in part.choices[0].delta.tool_calls or ()
            ]
            assert json.loads("".join(parts)) == {"city": "Oslo"}
            one, two = await running.reported(2)
            assert (one.accepted, one.output_tokens) == (3, 4)
            assert two.ttft_s is not None

    run(work())


def test_structured_output_and_which_pool_answered() -> None:
    async def work() -> None:
        async with gateway([Backend(answers)], [Backend()]) as running, client(running) as caller:
            raw = await caller.chat.completions.with_raw_response.create(
                model="m", messages=MESSAGES, response_format=SCHEMA
            )
            assert raw.headers["x-speclift-pool"] == "spec"
            assert raw.headers["x-request-id"]
            assert json.loads(raw.parse().choices[0].message.content) == {"name": "Oslo"}

    run(work())


def test_a_server_that_dies_in_the_middle_is_an_error_and_no_end() -> None:
    async def dies(asked: Asked) -> None:
        await asked.begin()
        await asked.chunk(tokens(1)[0])
        await asyncio.sleep(0.05)
        asked.die()

    async def work() -> None:
        async with gateway([Backend(dies)], [Backend()]) as running, client(running) as caller:
            stream = await caller.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            with pytest.raises(openai.APIError, match="in the middle of the answer"):
                async for _ in stream:
                    pass

    run(work())
