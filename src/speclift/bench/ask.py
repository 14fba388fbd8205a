"""What the user asked for, before any file was read: one value for the command line and the Python API."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from speclift.core.address import concealed, redacted_word
from speclift.core.engine_spec import EMBEDDED_MODEL
from speclift.core.goals import Goals
from speclift.core.units import Seconds, Tokens
from speclift.workload.experiment import LAUNCHES_DEFAULT

ADDRESS_FLAGS = {
    "baseline_url": "--baseline-url",
    "spec_url": "--spec-url",
    "baseline_metrics_url": "--baseline-metrics-url",
    "spec_metrics_url": "--spec-metrics-url",
}


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
    # Whether the study holds prompts and answers, or hashes of them.
    keeps_text: bool = True
    resume: bool = False
    seed: int = 0
    workers: int = 1
    threads: int | None = None
    llama_server: str | None = None
    vllm_python: str | None = None
    engine_args: tuple[str, ...] = ()
    context_tokens: Tokens = 2048
    gpu_layers: int | None = None
    kv_type_k: str | None = None
    kv_type_v: str | None = None
    target_quant: str | None = None
    draft_quant: str | None = None
    tensor_parallel: int = 1
    draft_tensor_parallel: int | None = None
    pipeline_parallel: int = 1
    sequences_max: int | None = None
    token_budget: Tokens | None = None
    # Further values of the same settings for a search to try; a study of named arms has one of each.
    more_target_quants: tuple[str | None, ...] = ()
    more_draft_quants: tuple[str | None, ...] = ()
    more_draft_tensor_parallels: tuple[int, ...] = ()
    more_token_budgets: tuple[Tokens, ...] = ()
    keeps_prefixes: bool = False
    schedules_ahead: bool | None = None
    # All servers of a round up at once, or one after the other; None is for what fits.
    together: bool | None = None
    # The lossless gate as a part of decide: quick, full or off.
    verify: str = "quick"
    # Whether a model that is missing may be fetched; a dry run says what would be.
    fetches: bool = True
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Secrets in addresses go no further than here."""
        for name, flag in ADDRESS_FLAGS.items():
            url = getattr(self, name)
            if url is not None:
                object.__setattr__(self, name, concealed(url, what=flag))
        object.__setattr__(self, "argv", tuple(redacted_word(word) for word in self.argv))

    @property
    def is_quick_look(self) -> bool:
        """Nothing was said about traffic or time: a first answer within minutes is wanted."""
        said = (self.prompts, self.segments, self.requests, self.max_tokens, self.budget_s)
        return not any(said)

    @property
    def has_variants(self) -> bool:
        """Whether a server setting was given several values."""
        return bool(
            self.more_target_quants
            or self.more_draft_quants
            or self.more_draft_tensor_parallels
            or self.more_token_budgets
        )
