"""vLLM: what it drafts with by default and how it is built."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from speclift.core.arm import EMBEDDED_MODEL, Endpoint, ServerSettings
from speclift.core.drafting import Drafting, Template
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import UsageError
from speclift.core.speculation import NGram
from speclift.engines.kind import EngineKind
from speclift.engines.protocol import Scorer
from speclift.engines.vllm.dialect.command_line import VllmDialect
from speclift.engines.vllm.dialect.key_table import K_MAX, SCHEDULE
from speclift.engines.vllm.engine import Vllm, interpreter_of
from speclift.engines.vllm.planning import VllmTerms
from speclift.linter.dialect import Dialect
from speclift.planner.request import EngineTerms

if TYPE_CHECKING:
    from speclift.replayer.methods import LogDrafters


class VllmKind(EngineKind):
    name = "vllm"
    launch_guess_s = 90.0
    k_max = K_MAX
    default_methods = ("ngram,k=4,n=3",)
    usual_ks: ClassVar[Mapping[Drafting, tuple[int, ...]]] = {
        Drafting.LOOK_UP: (2, 3, 4, 5, 6, 8, 10),
        Drafting.PASSES: (1, 2, 3, 4, 5, 6, 7, 8),
    }

    plan_terms: EngineTerms | None = VllmTerms()
    dialect: Dialect | None = VllmDialect()
    schedule_key = SCHEDULE

    def parts(self) -> dict[str, str]:
        return {"vllm": shutil.which("vllm") or "not found on PATH; give its environment with --vllm-python"}

    def own_program(self, program: Sequence[str]) -> tuple[dict[str, object], str]:
        """The interpreter that the line names, or the one that the `vllm` on the PATH was installed with."""
        if program[1:2] == ("-m",) and shutil.which(program[0]):
            return {"vllm_python": shutil.which(program[0])}, ""
        script = shutil.which("vllm")
        python = None if script is None else interpreter_of(Path(script))
        return ({"vllm_python": python} if python is not None else {}), ""

    def build(self, spec: EngineSpec, settings: ServerSettings, *, version: str | None) -> Vllm:
        return Vllm(settings, python=spec.python, version=version)

    def model_path(self, reference: str, *, say: Callable[[str], None], fetches: bool) -> str:
        if reference == EMBEDDED_MODEL:
            raise UsageError(
                "--engine vllm needs --model", hint="give a Hugging Face folder, or an id in the local cache"
            )
        return reference

    def drafters(self, model: str) -> tuple[Template, ...]:
        return (NGram(n=3, n_min=2), NGram(n=5, n_min=3))

    def methods_at(self, methods: tuple[str, ...], ks: Sequence[int]) -> tuple[str, ...]:
        """The default look-up of 12 tokens is llama.cpp's."""
        return methods or ("ngram,n=3",)

    def log_drafters(self) -> LogDrafters:
        from speclift.engines.vllm.drafters import VllmDrafters  # numpy, for replay alone

        return VllmDrafters()

    async def scorer(self, endpoint: Endpoint) -> Scorer | None:
        from speclift.engines.vllm.scoring import VllmScorer, has_prompt_logprobs  # numpy, for the gate alone

        return VllmScorer(endpoint) if await has_prompt_logprobs(endpoint) else None


KIND = VllmKind()
