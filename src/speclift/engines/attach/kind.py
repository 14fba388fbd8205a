"""Servers that somebody else started: nothing is launched, searched or resolved."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from speclift.core.address import address_of, base_of, joined, usable_key
from speclift.core.arm import EMBEDDED_MODEL, Arm, Endpoint, ServerSettings
from speclift.core.engine_spec import AttachSettings, EngineSpec
from speclift.core.engine_totals import usage_of
from speclift.core.errors import EngineError, UsageError
from speclift.core.records import Counters, Usage
from speclift.core.results import Finding
from speclift.engines.aside import aside
from speclift.engines.attach.detect import LLAMACPP, PROBE_LIMIT_S, VLLM, Detected, Facts, detect, facts
from speclift.engines.installed import Installed, Programs, interpreter_of, packages_of
from speclift.engines.kind import EngineKind
from speclift.engines.llamacpp.engine import HONEST_BODY
from speclift.engines.metrics import parse_counters
from speclift.engines.vllm.output import totals_only
from speclift.http.client import fetched
from speclift.lossless.soak.prompts import SoakDialect

# A server that is there takes a connection at once; one that does not may be slow, and is not called dead for it.
CONNECT_LIMIT_S = 1.0


class Attach:
    name = "attach"
    samples_wrongly = ""
    launches_at_once = 1

    def __init__(self, settings: ServerSettings, attach: AttachSettings) -> None:
        self.settings = settings
        self.model = settings.model
        self.attach = attach
        self._detected: dict[str, Detected] = {}

    def version(self) -> str:
        urls = (url for url in (self.attach.baseline_url, self.attach.spec_url) if url)
        return "; ".join(dict.fromkeys(str(self._detect(base_of(url))) for url in urls))

    def command(self, arm: Arm, *, port: int) -> tuple[str, ...]:
        return ("attach", self._url(arm))

    def configurations(self, arm: Arm) -> dict[str, str]:
        return {}

    def config(self, arm: Arm) -> dict[str, object]:
        return {}

    def fits_together(self, arms: tuple[Arm, ...]) -> bool:
        return bool(arms)

    def loses_scheduling(self, arm: Arm) -> bool:
        return False

    def risks(self, arms: Sequence[Arm]) -> tuple[Finding, ...]:
        return ()

    async def launch(self, arm: Arm, *, log: Path) -> AttachedServer:
        """Nothing starts, so nothing is logged."""
        url = self._url(arm)
        found = await aside(self._detect, url)
        model = self._served_model(found, url)
        asked = self.attach.baseline_metrics_url if arm.is_baseline else self.attach.spec_metrics_url
        metrics_url, key = asked or joined(url, "/metrics"), self._key()
        told = await aside(facts, found, base=url, metrics_url=metrics_url, model=model, key=key)
        _require_the_right_server(arm, url, told)
        endpoint = Endpoint(
            base_url=url, model=model, api_key=key, extra_body=HONEST_BODY if found.kind == LLAMACPP else ()
        )
        return AttachedServer(
            endpoint=endpoint,
            command=self.command(arm, port=0),
            metrics_url=metrics_url,
            kind=found.kind,
            told=told,
        )

    def _served_model(self, found: Detected, url: str) -> str:
        if not found.models:
            raise EngineError(f"{url} lists no models", hint="is it still loading? see its /v1/models")
        model = self.model or next(iter(found.models))
        if model not in found.models:
            raise EngineError(
                f"{url} does not serve {model!r}", hint=f"--model takes one of: {', '.join(found.models)}"
            )
        return model

    def _url(self, arm: Arm) -> str:
        url = self.attach.baseline_url if arm.is_baseline else self.attach.spec_url
        if url is None:
            raise UsageError("--spec-url is missing", hint="give the server with speculation")
        return base_of(url)

    def _key(self) -> str | None:
        name = self.attach.api_key_env
        if name is None:
            return None
        key = os.environ.get(name)
        if not key:
            raise UsageError(f"--api-key-env names {name}, which is not set", hint=f"export {name}=...")
        return usable_key(key, where=name)

    def _detect(self, base: str) -> Detected:
        if base not in self._detected:
            self._detected[base] = detect(base, self._key())
        return self._detected[base]


class AttachedServer:
    """Somebody else's: it is never stopped by us."""

    def __init__(
        self, *, endpoint: Endpoint, command: tuple[str, ...], metrics_url: str, kind: str, told: Facts
    ) -> None:
        self.endpoint = endpoint
        self.command = command
        self.kv_tokens = told.kv_tokens
        self.settings = told.settings
        self.notices: tuple[str, ...] = ()
        self._metrics_url = metrics_url
        self._kind = kind

    async def counters(self) -> Counters:
        page = await fetched(self._metrics_url, api_key=self.endpoint.api_key, limit_s=PROBE_LIMIT_S)
        counters = parse_counters(page)
        return totals_only(counters) if self._kind == VLLM else counters

    def death(self) -> str | None:
        """Looked for when asked, which is between turns, when nobody waits for tokens. Only a refused connection
        is proof that nobody is there; a proxy in front of a dead server answers, and its errors are records."""
        address = address_of(self.endpoint.base_url)
        try:
            socket.create_connection((address.host, address.port), timeout=CONNECT_LIMIT_S).close()
        except ConnectionRefusedError:
            return f"{self.endpoint.base_url} refuses connections"
        except OSError:  # slow, or out of reach for now: its requests say so themselves
            pass
        return None

    def usage(self) -> tuple[Usage, ...]:
        return ()

    async def sample(self) -> Usage | None:
        page = await fetched(self._metrics_url, api_key=self.endpoint.api_key, limit_s=PROBE_LIMIT_S)
        return usage_of(parse_counters(page), at_s=time.time())

    def process_ids(self) -> frozenset[int]:
        return frozenset()

    async def stop(self) -> None:
        return None


def _require_the_right_server(arm: Arm, url: str, told: Facts) -> None:
    """Where the server says whether it speculates. A baseline that does would be compared with itself."""
    if told.speculates is None or told.speculates != arm.is_baseline:
        return
    what = (
        "given as the baseline, but speculates"
        if arm.is_baseline
        else "given as --spec-url, but does not speculate"
    )
    raise EngineError(f"{url} is {what}; are --baseline-url and --spec-url swapped?")


DIALECTS = {VLLM: SoakDialect.VLLM, LLAMACPP: SoakDialect.LLAMACPP}


class AttachKind(EngineKind):
    name = "attach"
    launches = False

    def parts(self) -> dict[str, str]:
        return {}

    def installed(self, programs: Programs) -> tuple[Installed, ...]:
        """SGLang, which is not launched from here."""
        path = shutil.which("sglang")
        python = programs.vllm_python or (interpreter_of(path) if path else None) or sys.executable
        packages, _ = packages_of(python, ("sglang",))
        version = packages.get("sglang")
        if path is None and version is None:
            note = "speclift does not launch it: start it as its own documentation says, then --engine attach"
            return (Installed(name="sglang", note=note),)
        note = "found, not driven by speclift; use --engine attach"
        return (Installed(name="sglang", where=path or python, version=version, note=note),)

    def soak_dialect(self, version: str) -> SoakDialect:
        """By what the servers say they are, where they agree."""
        said = {word.partition(" ")[0] for word in version.split("; ")}
        return DIALECTS.get(said.pop(), SoakDialect.OPENAI) if len(said) == 1 else SoakDialect.OPENAI

    def build(self, spec: EngineSpec, settings: ServerSettings, *, version: str | None) -> Attach:
        if spec.attach is None:
            raise UsageError(
                "--engine attach needs --baseline-url", hint="give the server without speculation"
            )
        return Attach(settings, spec.attach)

    def model_path(self, reference: str, *, say: Callable[[str], None], fetches: bool) -> str:
        """Unsaid it is whatever the server serves."""
        return "" if reference == EMBEDDED_MODEL else reference


KIND = AttachKind()
