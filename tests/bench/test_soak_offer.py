"""What a server says that it has beside its model; a server that says nothing, or nonsense, has nothing."""

from __future__ import annotations

import asyncio

from scripted_http import answered, scripted
from speclift.bench.soak_run import capabilities_of
from speclift.bench.soak_study import Offered
from speclift.core.arm import Endpoint
from speclift.lossless.soak.prompts import SoakDialect
from speclift.testing.fake_corruption import character_id
from speclift.testing.running import running


def test_adapters_and_tokens_of_a_server_that_lists_them() -> None:
    with running("adapters=tuned/other") as url:
        extras = asyncio.run(capabilities_of(Endpoint(base_url=url, model="fake"), SoakDialect.VLLM))

    assert extras == Offered(
        adapters=("tuned", "other"), banned=tuple((character_id(digit), digit) for digit in "379")
    )


def test_a_server_of_llamacpp_numbers_its_adapters() -> None:
    listed = b'[{"id": 0, "path": "a.gguf", "scale": 0.0}, {"id": 1, "path": "b.gguf", "scale": 0.0}]'

    async def ask() -> Offered:
        async with scripted(
            lambda head, _body: answered(listed if b"/lora-adapters" in head else b"{}")
        ) as server:
            return await capabilities_of(Endpoint(base_url=server.url, model="m"), SoakDialect.LLAMACPP)

    assert asyncio.run(ask()) == Offered(adapters=("0", "1"))
