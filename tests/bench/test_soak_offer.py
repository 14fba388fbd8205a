"""What a server says that it has beside its model; a server that says nothing, or nonsense, has nothing."""

from __future__ import annotations

import asyncio

import pytest

from scripted_http import answered, scripted
from speclift.bench.soak_run import adapter_ids_in, adapters_in, capabilities_of
from speclift.bench.soak_study import Offered
from speclift.core.arm import Endpoint
from speclift.lossless.soak.prompts import SoakDialect
from speclift.testing.fake_corruption import character_id
from speclift.testing.running import running

NOBODY = Endpoint(base_url="http://127.0.0.1:9", model="fake")


def test_adapters_and_tokens_of_a_server_that_lists_them() -> None:
    with running("adapters=tuned/other") as url:
        extras = asyncio.run(capabilities_of(Endpoint(base_url=url, model="fake"), SoakDialect.VLLM))

    assert extras == Offered(
        adapters=("tuned", "other"), banned=tuple((character_id(digit), digit) for digit in "379")
    )


@pytest.mark.parametrize("dialect", SoakDialect)
def test_a_server_that_is_not_there_has_nothing(dialect: SoakDialect) -> None:
    assert asyncio.run(capabilities_of(NOBODY, dialect)) == Offered()


@pytest.mark.parametrize(
    "models",
    [
        None,
        [],
        {"data": None},
        {"data": [1, {"id": 3}]},
        {"data": [{"id": "base"}, {"id": "another model"}]},
        {"data": [{"id": "child", "parent": "a stranger"}]},
        {"data": [{"parent": "base"}]},
    ],
)
def test_only_what_names_the_served_model_as_its_own_is_an_adapter(models: object) -> None:
    assert adapters_in(models, "base") == ()


def test_a_model_under_another_name_has_its_adapters_too() -> None:
    """The name that one asks for need not be the one in the list."""
    listed = {"data": [{"id": "/models/base"}, {"id": "tuned", "parent": "/models/base"}]}

    assert adapters_in(listed, "base") == ("tuned",)


def test_a_server_of_llamacpp_numbers_its_adapters() -> None:
    listed = b'[{"id": 0, "path": "a.gguf", "scale": 0.0}, {"id": 1, "path": "b.gguf", "scale": 0.0}]'

    async def ask() -> Offered:
        async with scripted(
            lambda head, _body: answered(listed if b"/lora-adapters" in head else b"{}")
        ) as server:
            return await capabilities_of(Endpoint(base_url=server.url, model="m"), SoakDialect.LLAMACPP)

    assert asyncio.run(ask()) == Offered(adapters=("0", "1"))


@pytest.mark.parametrize("listed", [None, {}, [], 7, [7, {"id": "x"}, {"id": -1}, {"id": 1.5}, {}]])
def test_nonsense_numbers_no_adapter(listed: object) -> None:
    assert adapter_ids_in(listed) == ()
