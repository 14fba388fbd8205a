"""Which engine a study launches, as a value that can be stored and built again on resume."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from speclift.core.address import concealed
from speclift.core.arm import GpuShare, ServerSettings
from speclift.core.flags import ATTACH, Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachSettings:
    """Servers somebody else started. The key itself is never kept, only where to find it."""

    baseline_url: Annotated[str | None, Flag("Server without speculation.", ATTACH, "URL")] = None
    spec_url: Annotated[str | None, Flag("Server with speculation.", ATTACH, "URL")] = None
    baseline_metrics_url: Annotated[
        str | None, Flag("Metrics of that server, if not at /metrics.", ATTACH, "URL")
    ] = None
    spec_metrics_url: Annotated[
        str | None, Flag("Metrics of that server, if not at /metrics.", ATTACH, "URL")
    ] = None
    api_key_env: Annotated[str | None, Flag("Environment variable with the API key.", ATTACH, "NAME")] = None

    def __post_init__(self) -> None:
        """Secrets in addresses go no further than here."""
        for name in ("baseline_url", "spec_url", "baseline_metrics_url", "spec_metrics_url"):
            url = getattr(self, name)
            if url is not None:
                object.__setattr__(self, name, concealed(url, what=f"--{name.replace('_', '-')}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    kind: str
    settings: ServerSettings
    # The user's own program instead of the embedded one.
    binary: str | None = None
    # The interpreter of the environment in which vLLM is installed.
    python: str | None = None
    attach: AttachSettings | None = None
    # Taken for granted where nothing will be launched; else the engine is asked.
    version: str | None = None
    # Arms whose server differs from the others' by more than speculation: another quantisation, another token budget.
    by_arm: tuple[tuple[str, ServerSettings], ...] = ()

    def sharing(self, share: GpuShare | None) -> EngineSpec:
        """With every server told so much of the GPU; None: each has it for itself."""
        return replace(
            self,
            settings=replace(self.settings, shared_gpu=share),
            by_arm=tuple((name, replace(own, shared_gpu=share)) for name, own in self.by_arm),
        )

    def with_invariant_batches(self) -> EngineSpec:
        return replace(
            self,
            settings=replace(self.settings, batch_invariant=True),
            by_arm=tuple((name, replace(own, batch_invariant=True)) for name, own in self.by_arm),
        )
