"""Servers that somebody else started: nothing is launched, searched or resolved."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable

from speclift.core.arm import EMBEDDED_MODEL, ServerSettings
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import UsageError
from speclift.engines.attach.detect import LLAMACPP, VLLM
from speclift.engines.attach.engine import Attach
from speclift.engines.installed import Installed, Programs, interpreter_of, packages_of
from speclift.engines.kind import EngineKind
from speclift.lossless.soak.traffic import SoakDialect

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
