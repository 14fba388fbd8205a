"""What is to be planned, and what a plan has to know of the engine: each engine's folder says that of itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from speclift.core.hardware import Device
from speclift.core.model_shape import ModelShape
from speclift.planner.acceptance_curve import Acceptance
from speclift.planner.advice import Advice, Pairing
from speclift.planner.memory import Layout, MemoryPlan, Placed
from speclift.planner.prediction import EngineModel
from speclift.planner.tokens import TokenComparison


class EngineTerms(Protocol):
    name: str
    # What its own rules about pairs of models were read from.
    rule_source: str
    # Quantisations that make a model fit, the gentler first.
    fit_precisions: tuple[str, ...]
    # How a look-up is named to `decide`.
    look_up: str
    reads_gguf: bool
    runs_without_gpu: bool
    # A 16-bit draft is offered quantised too: S4 quantises the draft before leaving the family.
    quantised_draft: str
    # Whether the GPUs of a group work as one; else each holds some layers, and they work one after the other.
    works_as_one: bool

    def check_split(self, shape: ModelShape, tensor_parallel: int) -> None:
        """UsageError where a model of this shape cannot be split so."""
        ...

    def memory(self, request: PlanRequest, draft: Placed | None, *, speculates: bool) -> MemoryPlan: ...

    def kv_value_bytes(self, kv_dtype: str) -> float:
        """Of one key or value."""
        ...

    def model_on(self, device: Device) -> EngineModel:
        """Its losses there, and how far they are to be trusted."""
        ...

    def objection(self, pairing: Pairing) -> str:
        """Why it will not run this pair; empty where it will."""
        ...

    def way_out(self, objection: str) -> str: ...

    def advice(self, request: PlanRequest) -> Iterator[Advice]: ...

    def words(self, request: PlanRequest) -> list[str]:
        """Flags of `decide` that this engine needs to be measured as planned."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOption:
    """A draft the user named, or one the catalogue offers for this target."""

    placed: Placed
    reference: str
    comparison: TokenComparison | None
    is_asked_for: bool
    # What the engine's own check of both files objects to.
    objection: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    engine: EngineTerms
    device: Device
    layout: Layout
    target: Placed
    # How a command names the target.
    reference: str
    drafts: tuple[DraftOption, ...]
    loads: tuple[int, ...]
    ks: tuple[int, ...]
    # Empty: nobody said one, so the whole curve is shown.
    acceptances: tuple[Acceptance, ...]
    gpu_count: int = 1

    @property
    def draft(self) -> DraftOption | None:
        """The first draft that was asked for."""
        return next((option for option in self.drafts if option.is_asked_for), None)
