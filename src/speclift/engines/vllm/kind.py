"""vLLM: what it drafts with by default and how it is built."""

from __future__ import annotations

import math
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from speclift.core.arm import EMBEDDED_MODEL, Arm, Endpoint, ServerSettings
from speclift.core.deployment import ContainerImage
from speclift.core.drafting import Drafting, Template
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import EngineError, UsageError
from speclift.core.speculation import NGram, Suffix
from speclift.core.user_command import OwnLine
from speclift.engines.gpu_memory import compute_capability
from speclift.engines.installed import Installed, Programs, interpreter_of, packages_of, torch_build
from speclift.engines.kind import EngineKind
from speclift.engines.protocol import Scorer
from speclift.engines.vllm.dialect.command_line import DIALECT
from speclift.engines.vllm.dialect.tables import K_MAX, METHODS, SCHEDULE
from speclift.engines.vllm.engine import Vllm, ask_version
from speclift.engines.vllm.flags import parse_version, served_name
from speclift.engines.vllm.heads import found_drafts, found_heads
from speclift.engines.vllm.planning import VllmTerms
from speclift.linter.dialect import Dialect
from speclift.lossless.soak.prompts import SoakDialect
from speclift.planner.request import EngineTerms

if TYPE_CHECKING:
    from speclift.replayer.methods import LogDrafters


GET = "Get it with `pip install vllm` in an environment of its own, then --vllm-python ENVIRONMENT/bin/python"

# As its documentation names them (docs/deployment/docker.md; getting_started/installation/cpu, 0.32).
GPU_IMAGE, CPU_IMAGE = "vllm/vllm-openai", "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo"
# Without it vLLM's suffix decoding ends with an ImportError (0.32).
SUFFIX_PACKAGE = "arctic-inference"
# Batch-invariant kernels (model_executor/layers/batch_invariant.py) want this GPU or a newer one. 0.26 is the first
# version that was seen to start with them under speculation; later ones may refuse some methods as they start.
INVARIANT_SINCE, INVARIANT_CAPABILITY = (0, 26), (8, 0)
# Of asking what would run a pasted line, before any budget has begun.
OWN_RELEASE_LIMIT_S = 5.0
# The smallest block of any backend (0.32: 16 on GPUs, 128 on CPUs); of larger ones there is more room than needed.
KV_BLOCK_TOKENS = 16
# One is vLLM's own (the null block, v1/core/block_pool.py), the others hold what drafts look ahead.
KV_BLOCKS_SPARE = 8
BLOCKS_FLAG = "--num-gpu-blocks-override"


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
    dialect: Dialect | None = DIALECT
    schedule_key = SCHEDULE
    serving = "vllm"
    secret_flags: ClassVar[Mapping[str, str]] = {"--api-key": "VLLM_API_KEY"}

    def program_of(self, words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """`vllm serve`, or `python -m vllm.entrypoints.openai.api_server`."""
        count = 3 if "-m" in words[1:2] else 2
        return tuple(words[:count]), tuple(words[count:])

    def served_model(self, settings: ServerSettings) -> str:
        return served_name(settings)

    def soak_dialect(self, version: str) -> SoakDialect:
        return SoakDialect.VLLM

    def under_load(self, settings: ServerSettings, *, streams: int) -> ServerSettings:
        """With prompts cached, and room in the KV cache for one request of full length: more of them have to wait, or
        are preempted. The user's own line stays as it is."""
        if settings.line is not None:
            return settings
        blocks = math.ceil(settings.context_tokens / KV_BLOCK_TOKENS) + KV_BLOCKS_SPARE
        said = {word.partition("=")[0] for word in settings.engine_args}
        own = () if BLOCKS_FLAG in said else (BLOCKS_FLAG, str(blocks))
        return replace(settings, prefix_cache=True, engine_args=(*settings.engine_args, *own))

    def image(self, version: str, *, on_gpu: bool) -> ContainerImage | None:
        """vLLM's own images are tagged by release; a build between two releases has none."""
        text = parse_version(version)
        tag = "v" + ".".join(map(str, text.release))
        exact = re.search(r"(?:^|\s)v?\d+\.\d+(?:\.\d+)?(?:\+cpu)?$", version) is not None
        note = (
            ""
            if exact
            else f"the study ran {version}, which has no image of its own: this is the nearest release"
        )
        return ContainerImage(reference=f"{GPU_IMAGE if on_gpu else CPU_IMAGE}:{tag}", note=note)

    def installed(self, programs: Programs) -> tuple[Installed, ...]:
        script = shutil.which("vllm")
        named = programs.vllm_python
        python = named or (interpreter_of(script) if script else sys.executable)
        if python is None:
            note = "no Python script: give the python of its environment with --vllm-python"
            return (Installed(name=self.name, where=script, note=note),)
        packages, fault = packages_of(python, ("vllm", "vllm-cpu", "torch"))
        version = packages.get("vllm") or packages.get("vllm-cpu")
        if version is None:
            where = script if named is None else None
            return (Installed(name=self.name, where=where, note=fault or f"no vLLM in {python}. {GET}"),)
        is_cpu = "vllm-cpu" in packages or "cpu" in version.partition("+")[2]
        build = "CPU" if is_cpu else torch_build(packages.get("torch"))
        is_used = named is not None or python == sys.executable
        note = "" if is_used else f"used with --vllm-python {python}"
        return (
            Installed(
                name=self.name, where=python if is_used else script, version=version, build=build, note=note
            ),
        )

    def own_program(self, program: Sequence[str], line: OwnLine) -> tuple[dict[str, object], str]:
        """The interpreter that the line names, or the one that the `vllm` on the PATH was installed with."""
        python = _python_of(program)
        return ({"vllm_python": python} if python is not None else {}), ""

    def own_release(self, program: Sequence[str], programs: Mapping[str, object]) -> str | None:
        python = programs.get("vllm_python") or _python_of(program)
        try:
            return None if python is None else ask_version(str(python), limit_s=OWN_RELEASE_LIMIT_S)
        except EngineError:
            return None

    def build(self, spec: EngineSpec, settings: ServerSettings, *, version: str | None) -> Vllm:
        return Vllm(settings, python=spec.python, version=version)

    def side_by_side(self, spec: EngineSpec, arms: Sequence[Arm]) -> EngineSpec:
        return spec.sharing(self.build(spec, spec.settings, version=spec.version).share(arms))

    def model_path(self, reference: str, *, say: Callable[[str], None], fetches: bool) -> str:
        if reference == EMBEDDED_MODEL:
            raise UsageError(
                "--engine vllm needs --model", hint="give a Hugging Face folder, or an id in the local cache"
            )
        return reference

    def drafters(self, model: str) -> tuple[Template, ...]:
        """Look-ups, heads that the target carries or that lie beside it, a smaller model of its family there."""
        return (NGram(n=3, n_min=2), NGram(n=5, n_min=3), *found_heads(model), *found_drafts(model))

    def installed_drafters(self, spec: EngineSpec) -> tuple[Template, ...]:
        """On a GPU the look-up that runs there and keeps asynchronous scheduling; suffix decoding with its package."""
        engine = Vllm(spec.settings, python=spec.python, version=spec.version)
        version = engine.vllm_version
        gpu = NGram(variant="gpu", n=3, n_min=2)
        on_gpu = (gpu,) if not version.is_cpu and METHODS["ngram_gpu"].holds(version.release) else ()
        has_suffix = METHODS["suffix"].holds(version.release) and engine.has_package(SUFFIX_PACKAGE)
        return (*on_gpu, *((Suffix(),) if has_suffix else ()))

    def is_on_gpu(self, spec: EngineSpec) -> bool:
        return not Vllm(spec.settings, python=spec.python, version=spec.version).vllm_version.is_cpu

    def batch_invariant(self, spec: EngineSpec) -> EngineSpec | None:
        version = Vllm(spec.settings, python=spec.python, version=spec.version).vllm_version
        if version.is_cpu or version.release < INVARIANT_SINCE:
            return None
        capability = compute_capability()
        if capability is None or capability < INVARIANT_CAPABILITY:
            return None
        return spec.with_invariant_batches()

    def methods_at(self, methods: tuple[str, ...], ks: Sequence[int]) -> tuple[str, ...]:
        """The default look-up of 12 tokens is llama.cpp's."""
        return methods or ("ngram,n=3",)

    def log_drafters(self) -> LogDrafters:
        from speclift.engines.vllm.drafters import VllmDrafters  # numpy, for replay alone

        return VllmDrafters()

    async def scorer(self, endpoint: Endpoint) -> Scorer | None:
        from speclift.engines.vllm.scoring import VllmScorer, has_prompt_logprobs  # numpy, for the gate alone

        return VllmScorer(endpoint) if await has_prompt_logprobs(endpoint) else None


def _python_of(program: Sequence[str]) -> str | None:
    if tuple(program[1:2]) == ("-m",):
        return shutil.which(program[0])
    script = shutil.which("vllm")
    return None if script is None else interpreter_of(script)


KIND = VllmKind()
