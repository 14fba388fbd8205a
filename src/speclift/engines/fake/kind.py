"""The fake engine: one arm unless a search is wanted."""

from __future__ import annotations

from speclift.core.arm import ServerSettings
from speclift.core.engine_spec import EngineSpec
from speclift.engines.fake.engine import Fake
from speclift.engines.kind import EngineKind
from speclift.engines.vllm.dialect.tables import SCHEDULE
from speclift.lossless.soak.traffic import SoakDialect
from speclift.testing.fake_dialect import MODEL


class FakeKind(EngineKind):
    name = "fake"
    launch_guess_s = 0.5
    searches_unasked = False
    reuses_prompts = False
    schedule_key = SCHEDULE
    honours_seeds = True

    def parts(self) -> dict[str, str]:
        return {}

    def soak_dialect(self, version: str) -> SoakDialect:
        return SoakDialect.LLAMACPP

    def served_model(self, settings: ServerSettings) -> str:
        return MODEL

    def build(self, spec: EngineSpec, settings: ServerSettings, *, version: str | None) -> Fake:
        return Fake(settings)


KIND = FakeKind()
