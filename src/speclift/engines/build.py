"""An engine from what a study stores of it."""

from __future__ import annotations

from speclift.core.arm import Arm
from speclift.core.engine_spec import EngineSpec
from speclift.engines.kind import engine_kind
from speclift.engines.protocol import Engine
from speclift.engines.varied import Varied


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
