"""Which engine a study launches, as a value that can be stored and built again on resume."""

from __future__ import annotations

from dataclasses import dataclass

from speclift.core.arm import ServerSettings

# The target that llama.cpp is measured with where none is named.
EMBEDDED_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachSettings:
    """Servers somebody else started. The key itself is never kept, only where to find it."""

    baseline_url: str
    spec_url: str | None = None
    baseline_metrics_url: str | None = None
    spec_metrics_url: str | None = None
    api_key_env: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    kind: str
    settings: ServerSettings
    # The user's own program instead of the embedded one.
    binary: str | None = None
    # The interpreter of the environment in which vLLM is installed.
    python: str | None = None
    attach: AttachSettings | None = None
    # Arms whose server differs from the others' by more than speculation: another quantisation, another token budget.
    by_arm: tuple[tuple[str, ServerSettings], ...] = ()
