"""An engine from what a study stores of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from speclift.core.arm import Arm
from speclift.core.engine_spec import EngineSpec
from speclift.core.results import Finding
from speclift.engines.kind import engine_kind
from speclift.engines.protocol import Engine, Server


class Varied:
    """`shared` serves every arm that `own` does not name."""

    def __init__(self, shared: Engine, own: Mapping[str, Engine]) -> None:
        self.name, self.model = shared.name, shared.model
        self._shared, self._own = shared, dict(own)

    @property
    def launches_at_once(self) -> int:
        return self._shared.launches_at_once

    @property
    def samples_wrongly(self) -> str:
        return self._shared.samples_wrongly

    def version(self) -> str:
        return self._shared.version()

    def command(self, arm: Arm, *, port: int) -> tuple[str, ...]:
        return self._of(arm).command(arm, port=port)

    def configurations(self, arm: Arm) -> dict[str, str]:
        return self._of(arm).configurations(arm)

    def config(self, arm: Arm) -> dict[str, object]:
        return self._of(arm).config(arm)

    def fits_together(self, arms: tuple[Arm, ...]) -> bool:
        return self._shared.fits_together(arms)

    def loses_scheduling(self, arm: Arm) -> bool:
        return self._of(arm).loses_scheduling(arm)

    def risks(self, arms: Sequence[Arm]) -> tuple[Finding, ...]:
        return self._shared.risks(arms)

    async def launch(self, arm: Arm, *, log: Path) -> Server:
        return await self._of(arm).launch(arm, log=log)

    def _of(self, arm: Arm) -> Engine:
        return self._own.get(arm.name, self._shared)


def losing_scheduling(engine: Engine, arms: tuple[Arm, ...]) -> tuple[Arm, ...]:
    return tuple(arm for arm in arms if engine.loses_scheduling(arm))


def build_engine(spec: EngineSpec, *, version: str | None = None) -> Engine:
    """`version` where it is known already, as of a study that was measured on another machine."""
    kind = engine_kind(spec.kind)
    version = version or spec.version
    shared = kind.build(spec, spec.settings, version=version)
    if not spec.by_arm:
        return shared
    own = {name: kind.build(spec, settings, version=shared.version()) for name, settings in spec.by_arm}
    return Varied(shared, own)
