"""Servers that somebody else started: nothing is launched, searched or resolved."""

from __future__ import annotations

from collections.abc import Callable

from speclift.core.arm import EMBEDDED_MODEL, ServerSettings
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import UsageError
from speclift.engines.attach.engine import Attach
from speclift.engines.kind import EngineKind


class AttachKind(EngineKind):
    name = "attach"
    launches = False

    def parts(self) -> dict[str, str]:
        return {}

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
