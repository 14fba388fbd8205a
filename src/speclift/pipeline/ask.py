"""What the user asked for, before any file was read: one value for the command line and the Python API."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from speclift.core.goals import Goals
from speclift.core.units import Seconds, Tokens
from speclift.plan.experiment import LAUNCHES_DEFAULT

EMBEDDED_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    engine: str = "llamacpp"
    model: str = EMBEDDED_MODEL
    drafts: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    ks: tuple[int, ...] = ()
    baseline_url: str | None = None
    spec_url: str | None = None
    baseline_metrics_url: str | None = None
    spec_metrics_url: str | None = None
    api_key_env: str | None = None
    concurrency: tuple[int, ...] = ()
    qps: tuple[float, ...] = ()
    arrivals: str = "poisson"
    prompts: Path | None = None
    segments: tuple[str, ...] = ()
    temperatures: tuple[float, ...] = ()
    max_tokens: Tokens | None = None
    requests: int | None = None
    launches: int = LAUNCHES_DEFAULT
    budget_s: Seconds | None = None
    goals: Goals = field(default_factory=Goals)
    study: Path | None = None
    resume: bool = False
    seed: int = 0
    threads: int | None = None
    llama_server: str | None = None
    vllm_python: str | None = None
    engine_args: tuple[str, ...] = ()
    context_tokens: Tokens = 2048
    gpu_layers: int | None = None
    kv_type_k: str | None = None
    kv_type_v: str | None = None
    argv: tuple[str, ...] = ()

    @property
    def is_quick_look(self) -> bool:
        """Nothing was said about traffic or time: a first answer within minutes is wanted."""
        said = (self.prompts, self.segments, self.requests, self.max_tokens, self.budget_s)
        return not any(said)
