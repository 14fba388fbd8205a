"""An arm: one engine configuration under test. What all arms share is in ServerSettings."""

from __future__ import annotations

from dataclasses import dataclass

from speclift.core.speculation import Off, Speculation, draft_length, method_name
from speclift.core.units import Tokens

BASELINE = "baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    name: str
    speculation: Speculation

    @property
    def is_baseline(self) -> bool:
        return isinstance(self.speculation, Off)

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
    extra_args: tuple[str, ...] = ()


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
