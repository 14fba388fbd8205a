"""The whole of an engine of somebody else's, in one module: it serves as the fake does and drafts two tokens.

Tests install it by an entry point, as pip would, and no line of speclift names it.
"""

from __future__ import annotations

from speclift.arithmetic.cost import EngineLosses
from speclift.core.arm import ServerSettings
from speclift.core.engine_spec import EngineSpec
from speclift.core.hardware import Device
from speclift.engines.fake.kind import Fake
from speclift.engines.kind import EngineKind
from speclift.linter.dialect import Dialect
from speclift.linter.rows import NameTable, Row, ValueKind, by_name
from speclift.planner.memory import MemoryPerGpu, PairBytes, Placed, kv_bytes_per_token
from speclift.planner.prediction import EngineModel
from speclift.planner.request import EngineTerms, PlanRequest


class Tiny(Fake):
    name = "tiny"

    def version(self) -> str:
        return "tiny 7"


class TinyTerms(EngineTerms):
    """Both models and then keys and values, to the last byte."""

    name = "tiny"

    def kv_value_bytes(self, kv_dtype: str) -> float:
        return 2.0

    def model_on(self, device: Device, version: str | None) -> EngineModel:
        return EngineModel(losses=EngineLosses(step_s=1e-3), factor=3.0, source="assumed")

    def memory(self, request: PlanRequest, draft: Placed | None, *, speculates: bool) -> MemoryPerGpu:
        total, target = request.device.memory_bytes, request.target
        drafting = draft.weights.total if draft else 0
        left = max(0, total - target.weights.total - drafting)
        per_token = [
            kv_bytes_per_token(each.shape, value_bytes=2.0) if each else 0.0 for each in (target, draft)
        ]
        tokens = int(left / sum(per_token))
        return MemoryPerGpu(
            total_bytes=total,
            usable_bytes=total,
            target_weight_bytes=target.weights.total,
            draft_weight_bytes=drafting,
            activation_bytes=0,
            speculation_bytes=0,
            runtime_bytes=0,
            kv_bytes=left,
            kv_bytes_per_token=PairBytes(target=round(per_token[0]), draft=round(per_token[1])),
            block_tokens=1,
            blocks=tokens,
            kv_tokens=tokens,
            max_concurrency=tokens / request.layout.context,
        )


class TinyDialect(Dialect):
    engine = "tiny"
    newest = (7, 0)
    programs = ("tiny-serve",)
    flags = NameTable(
        engine="Tiny",
        thing="flag",
        rows=by_name(
            (
                Row("--model", ValueKind.TEXT, (1, 0)),
                Row("--guess", ValueKind.INT, (1, 0), (5, 0), renamed_to="--draft-tokens"),
                Row("--draft-tokens", ValueKind.INT, (5, 0), low=1, high=2),
                Row("--turbo", ValueKind.SWITCH, (1, 0), (6, 0), note="it is always on"),
            ),
            source="tiny's manual",
        ),
    )


class TinyKind(EngineKind):
    name = "tiny"
    searches_unasked = False
    default_methods = ("ngram,k=2",)
    plan_terms: EngineTerms | None = TinyTerms()
    dialect: Dialect | None = TinyDialect()

    def build(self, spec: EngineSpec, settings: ServerSettings, *, version: str | None) -> Tiny:
        return Tiny(settings)

    def batch_invariant(self, spec: EngineSpec) -> EngineSpec | None:
        return spec.with_invariant_batches()


KIND = TinyKind()
