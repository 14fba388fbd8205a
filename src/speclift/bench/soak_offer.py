"""What a server offers beside its model, as far as it says so: adapters, and ids of tokens that can be forbidden."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from speclift.bench.soak_asking import digit_tokens
from speclift.core.address import joined
from speclift.core.arm import Endpoint
from speclift.core.errors import EngineError
from speclift.core.foreign_text import parse_json
from speclift.core.json_reading import as_object, as_objects, as_text, as_whole
from speclift.http.client import fetched
from speclift.lossless.soak.traffic import SoakDialect

ADAPTERS_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerExtras:
    adapters: tuple[str, ...] = ()
    banned: tuple[tuple[int, str], ...] = ()


async def extras_of(endpoint: Endpoint, dialect: SoakDialect) -> ServerExtras:
    """Nothing of what a server does not answer."""
    adapters = adapters_in(await _listed(endpoint, "/v1/models"), endpoint.model)
    if dialect is SoakDialect.LLAMACPP and not adapters:
        adapters = adapter_ids_in(await _listed(endpoint, "/lora-adapters"))
    return ServerExtras(adapters=adapters, banned=await digit_tokens(endpoint))


async def _listed(endpoint: Endpoint, path: str) -> object:
    with suppress(EngineError, ValueError):
        return parse_json(await fetched(joined(endpoint.base_url, path), api_key=endpoint.api_key))
    return None


def adapter_ids_in(listed: object) -> tuple[str, ...]:
    """As llama.cpp numbers what it was started with (b11549: GET /lora-adapters)."""
    ids = [as_whole(each.get("id")) for each in as_objects(listed)]
    return tuple(str(id) for id in ids if id is not None and id >= 0)[:ADAPTERS_MAX]


def adapters_in(models: object, served: str) -> tuple[str, ...]:
    """Models that name the served one as the one they are made from, as vLLM lists LoRA modules (0.32)."""
    listed = as_objects(as_object(models).get("data"))
    own = {served, *(as_text(each.get("id")) for each in listed if not each.get("parent"))}
    names = [as_text(each.get("id")) for each in listed if as_text(each.get("parent")) in own]
    return tuple(name for name in names if name)[:ADAPTERS_MAX]
