"""An arm: one engine configuration under test. What all arms share is in ServerSettings."""

from __future__ import annotations

from dataclasses import dataclass, fields

from speclift.core.errors import UsageError
from speclift.core.speculation import Equalised, Off, Speculation, draft_length, method_name
from speclift.core.units import Tokens

BASELINE = "baseline"
CONTROL = "control"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    name: str
    speculation: Speculation

    @property
    def is_baseline(self) -> bool:
        return isinstance(self.speculation, Off)

    @property
    def is_control(self) -> bool:
        return isinstance(self.speculation, Equalised)

    @property
    def speculates(self) -> bool:
        return not self.is_baseline and not self.is_control

    @property
    def method(self) -> str:
        return method_name(self.speculation)

    @property
    def k(self) -> int:
        return draft_length(self.speculation)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The part of a launch that is the same for every arm, so that only speculation differs."""

    model: str
    context_tokens: Tokens = 2048
    slots: int = 1
    threads: int | None = None
    gpu_layers: int | None = None
    kv_type_k: str | None = None
    kv_type_v: str | None = None
    quantisation: str | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    # vLLM: the most sequences in one step, the most tokens in one step, whether prefixes are kept.
    sequences_max: int | None = None
    token_budget: int | None = None
    keeps_prefixes: bool = False
    # Whether the next step is scheduled while this one runs; None is what the engine does by itself in each arm.
    schedules_ahead: bool | None = None
    extra_args: tuple[str, ...] = ()

    def require_only(self, known: tuple[str, ...], *, engine: str) -> None:
        """UsageError where a setting was given that this engine has no word for; silence would change the study."""
        for field in fields(self):
            flag = SETTING_FLAGS.get(field.name)
            if flag and field.name not in known and getattr(self, field.name) != field.default:
                raise UsageError(f"{flag} is not a setting of {engine}")


SETTING_FLAGS = {
    "gpu_layers": "--gpu-layers",
    "quantisation": "--target-quant",
    "tensor_parallel": "--tp",
    "pipeline_parallel": "--pp",
    "sequences_max": "--max-num-seqs",
    "token_budget": "--token-budget",
    "keeps_prefixes": "--prefix-cache",
    "schedules_ahead": "--async-scheduling",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """All that measure/ may know of a server."""

    base_url: str
    model: str
    api_key: str | None = None
    # Body fields this engine needs for an honest benchmark (llama.cpp: no prompt cache, step counts).
    extra_body: tuple[tuple[str, object], ...] = ()


def baseline_arm() -> Arm:
    return Arm(name=BASELINE, speculation=Off())


def control_arm() -> Arm:
    return Arm(name=CONTROL, speculation=Equalised())
