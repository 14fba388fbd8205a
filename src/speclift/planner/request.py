"""What is to be planned, and what a plan has to know of the engine: each engine's folder says that of itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

from speclift.core.hardware import Device
from speclift.core.model_shape import ModelShape
from speclift.planner.advice import Advice, Pairing
from speclift.planner.heads import PlannedHead
from speclift.planner.memory import Layout, MemoryPerGpu, Placed
from speclift.planner.prediction import Acceptance, EngineModel
from speclift.planner.tokens import TokenComparison


class EngineTerms(ABC):
    """What one engine's folder says of it. Unsaid it is what most engines do."""

    name: str
    # What its own rules about pairs of models were read from.
    rule_source = ""
    # Quantisations that make a model fit, the gentler first.
    fit_precisions: tuple[str, ...] = ("fp8", "int4")
    # How a look-up is named to `decide`.
    look_up = "ngram"
    reads_gguf = False
    runs_without_gpu = False
    # A 16-bit draft is offered quantised too: S4 quantises the draft before leaving the family.
    quantised_draft = "fp8"
    # Whether the GPUs of a group work as one; else each holds some layers, and they work one after the other.
    works_as_one = True
    # What to name where it cannot load what was named in the format that was asked for.
    weights_hint = "weights in that format"

    @abstractmethod
    def memory(self, request: PlanRequest, draft: Placed | None, *, speculates: bool) -> MemoryPerGpu: ...

    @abstractmethod
    def model_on(self, device: Device, version: str | None) -> EngineModel:
        """Its losses there and in that version, None being the one best known, and how far they are to be trusted."""

    @abstractmethod
    def kv_value_bytes(self, kv_dtype: str) -> float:
        """Of one key or value."""

    def check_split(self, shape: ModelShape, tensor_parallel: int) -> None:
        """UsageError where a model of this shape cannot be split so."""
        return

    def objection(self, pairing: Pairing, layout: Layout) -> str:
        """Why it will not run this pair; empty where it will."""
        return ""

    def format_objection(self, placed: Placed) -> str:
        """Why it will not load a model in this format; empty where it will. What a file is in was judged on reading."""
        return ""

    def method_objection(self, method: str, shape: ModelShape, version: str | None) -> str:
        """Why it will not draft so for this target; empty where it will."""
        return ""

    def size_objection(self, shape: ModelShape, layout: Layout) -> str:
        """Why it will not serve requests of this length, or not so split; empty where it will."""
        return ""

    def file_objection(self, target: PurePath, draft: PurePath) -> str:
        """The same by what stands in two GGUF files, for an engine that reads them."""
        return ""

    def way_out(self, objection: str) -> str:
        return "use a draft of the same family"

    def load_words(self, placed: Placed, *, is_gguf: bool) -> tuple[str, ...] | None:
        """Quantisations to name so that what was named is loaded in this format; None where it cannot be."""
        return ()

    def advice(self, request: PlanRequest) -> Iterable[Advice]:
        return ()

    def words(self, request: PlanRequest) -> list[str]:
        """Flags of `decide` that this engine needs to be measured as planned."""
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOption:
    """A draft the user named, or one the catalogue offers for this target."""

    placed: Placed
    reference: str
    comparison: TokenComparison | None
    is_asked_for: bool
    is_gguf: bool = False
    # What the engine's own check of both files objects to.
    objection: str = ""
    # The word of --method; a head drafts from the target's hidden states and is no pair of it.
    method: str = "draft"
    head: PlannedHead | None = None
    # One pass for all k tokens.
    is_parallel: bool = False

    @property
    def has_reference(self) -> bool:
        """Whether a command can name it: an estimated head is nobody's file, and MTP layers stand in the target."""
        return bool(self.reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMethod:
    """A way of drafting that was asked for by name; `option` None: it looks drafts up and loads nothing."""

    name: str
    option: DraftOption | None = None


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
    # Whether the target is a file of llama.cpp's.
    is_gguf: bool = False
    # As the engine writes it; None: the one best known.
    engine_version: str | None = None
    # Engines whose rules about the pair are told beside those of the one that is planned.
    others: tuple[EngineTerms, ...] = ()
    # As --method named them, the first being the one that is planned; empty: the draft, or a look-up.
    methods: tuple[PlannedMethod, ...] = ()
    # What was assumed about models that nobody could read, in words.
    assumptions: tuple[str, ...] = ()
    # False where the target is a size or a shape, and no model that could be loaded.
    has_target: bool = True

    @property
    def draft(self) -> DraftOption | None:
        """What the first method drafts with, else the first draft that was asked for."""
        if self.methods:
            return self.methods[0].option
        return next((option for option in self.drafts if option.is_asked_for), None)
