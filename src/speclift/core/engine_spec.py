"""Which engine a study launches, as a value that can be stored and built again on resume."""

from __future__ import annotations

from dataclasses import dataclass

from speclift.core.arm import ServerSettings

ENGINES = ("llamacpp", "fake")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    kind: str
    settings: ServerSettings
    # The user's own program instead of the embedded one.
    binary: str | None = None
