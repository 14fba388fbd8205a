"""Attach: measure servers that somebody else started. Nothing is launched, stopped or assumed.

What kind of engine answers is read from its own endpoints; what cannot be read is unknown, never guessed.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speclift.core.arm import Arm, Endpoint, ServerSettings
from speclift.core.engine_spec import AttachSettings
from speclift.core.errors import EngineError, UsageError
from speclift.core.records import Counters, Usage
from speclift.engine.http import fetch
from speclift.engine.llamacpp import HONEST_BODY
from speclift.engine.prometheus import parse_counters

PROBE_LIMIT_S = 10.0
UNKNOWN = "unknown"
# Where each engine tells its version: path, engine, field.
VERSION_FIELDS = (
    ("/version", "vllm", "version"),
    ("/props", "llama.cpp", "build_info"),
    ("/get_server_info", "sglang", "version"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """What a server says it is."""

    kind: str
    version: str
    models: tuple[str, ...]


class Attach:
    name = "attach"
    launches_at_once = 1

    def __init__(self, settings: ServerSettings, attach: AttachSettings) -> None:
        self.settings = settings
        self.model = settings.model
        self.attach = attach
        self._detected: dict[str, Detected] = {}

    def version(self) -> str:
        urls = dict.fromkeys(url for url in (self.attach.baseline_url, self.attach.spec_url) if url)
        return "; ".join(f"{found.kind} {found.version}" for found in map(self._detect, urls))

    def command(self, arm: Arm, *, port: int) -> tuple[str, ...]:
        return ("attach", self._url(arm))

    def configurations(self, arm: Arm) -> dict[str, str]:
        return {}

    def config(self, arm: Arm) -> dict[str, object]:
        return {}

    def fits_together(self, arms: tuple[Arm, ...]) -> bool:
        return bool(arms)

    async def launch(self, arm: Arm, *, log: Path) -> AttachedServer:
        url = self._url(arm)
        found = await asyncio.to_thread(self._detect, url)
        if not found.models:
            raise EngineError(
                f"{url} lists no models", hint="is it an OpenAI-compatible server? see /v1/models"
            )
        model = self.model or found.models[0]
        if model not in found.models:
            raise EngineError(
                f"{url} does not serve {model!r}", hint=f"--model takes one of: {', '.join(found.models)}"
            )
        endpoint = Endpoint(
            base_url=url,
            model=model,
            api_key=self._key(),
            extra_body=HONEST_BODY if found.kind == "llama.cpp" else (),
        )
        metrics = self.attach.baseline_metrics_url if arm.is_baseline else self.attach.spec_metrics_url
        return AttachedServer(
            endpoint=endpoint, command=self.command(arm, port=0), metrics_url=metrics or f"{url}/metrics"
        )

    def _url(self, arm: Arm) -> str:
        url = self.attach.baseline_url if arm.is_baseline else self.attach.spec_url
        if url is None:
            raise UsageError("--spec-url is missing", hint="the server with speculation, to compare with")
        return url.rstrip("/").removesuffix("/v1")

    def _key(self) -> str | None:
        name = self.attach.api_key_env
        if name is None:
            return None
        key = os.environ.get(name)
        if not key:
            raise UsageError(f"--api-key-env names {name}, which is not set", hint=f"export {name}=...")
        return key

    def _detect(self, url: str) -> Detected:
        base = url.rstrip("/").removesuffix("/v1")
        if base not in self._detected:
            self._detected[base] = _detect(base, self._key())
        return self._detected[base]


class AttachedServer:
    """Somebody else's: it is never stopped by us."""

    def __init__(self, *, endpoint: Endpoint, command: tuple[str, ...], metrics_url: str) -> None:
        self.endpoint = endpoint
        self.command = command
        self.kv_tokens: int | None = None
        self.settings: dict[str, str] = {}
        self.notices: tuple[str, ...] = ()
        self._metrics_url = metrics_url

    async def counters(self) -> Counters:
        return parse_counters(
            await asyncio.to_thread(fetch, self._metrics_url, api_key=self.endpoint.api_key)
        )

    def death(self) -> str | None:
        return None

    def usage(self) -> tuple[Usage, ...]:
        return ()

    async def stop(self) -> None:
        return None


def _detect(base: str, key: str | None) -> Detected:
    listed = json.loads(fetch(f"{base}/v1/models", api_key=key, limit_s=PROBE_LIMIT_S))
    models = tuple(str(entry.get("id")) for entry in listed.get("data", ()))
    for path, kind, field in VERSION_FIELDS:
        found = _json_or_none(f"{base}{path}", key)
        if isinstance(found, dict) and found.get(field):
            return Detected(kind=kind, version=str(found[field]), models=models)
    return Detected(kind=UNKNOWN, version=UNKNOWN, models=models)


def _json_or_none(url: str, key: str | None) -> Any:
    """None where the server has no such endpoint: that is an answer, not a fault."""
    try:
        return json.loads(fetch(url, api_key=key, limit_s=PROBE_LIMIT_S))
    except (EngineError, ValueError):
        return None
