"""What the user asked for, before any file was read. One value each for the command line, the study file and Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from speclift.core.arm import ServerSettings
from speclift.core.engine_spec import AttachSettings
from speclift.core.errors import UsageError, unknown_name
from speclift.core.flags import (
    AUTO_ON_OFF,
    COMPARED,
    COUNTS,
    DURATION,
    FLOATS,
    INTEGERS,
    SERVER,
    SIZE,
    STUDY,
    TRAFFIC,
    WORDS,
    Flag,
    Reading,
    assembled,
    read_ranges,
)
from speclift.core.fleet import fleet_address
from speclift.core.goals import Goals
from speclift.core.speculation import Combined, Drafter
from speclift.core.units import Bytes, Seconds, Tokens
from speclift.core.user_command import hidden_words
from speclift.planner.memory import MAX_SEQUENCES, UTILISATION_DEFAULT
from speclift.workload.experiment import LAUNCHES_DEFAULT

CONTEXT_DEFAULT = 8192
VERIFY_MODES = ("quick", "full", "off")
# Groups of the help of plan and of replay.
MODELS, MACHINE, REQUESTS, EXPECTED = "Models", "Machine", "Requests", "Acceptance rate and draft length"
JOB = "Job of a speclift.toml"
DRAFTERS, READING, WORTH = "Drafters", "Log", "Predicted speedup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Of the verbs that measure."""

    engine: Annotated[str, Flag("llamacpp, vllm, attach or fake.", COMPARED, "NAME")] = "llamacpp"
    server: ServerSettings = field(default_factory=ServerSettings)
    drafts: Annotated[
        tuple[str, ...], Flag("Draft model; repeatable.", COMPARED, "MODEL", names=("--draft",))
    ] = ()
    methods: Annotated[
        tuple[str, ...],
        Flag(
            "ngram, ngram:map-k, draft, ngram+draft, ... with settings: ngram,n=4. Repeatable.",
            COMPARED,
            "NAME",
            names=("--method",),
        ),
    ] = ()
    ks: Annotated[
        tuple[int, ...],
        Flag("Draft lengths, such as 1,3,5.", COMPARED, "N,...", names=("--k",), reading=INTEGERS),
    ] = ()
    attach: AttachSettings = field(default_factory=AttachSettings)

    prompts: Annotated[
        Path | None,
        Flag(
            "JSON lines, OpenAI batch or ShareGPT, also gzipped; default: the bundled prompts.",
            TRAFFIC,
            "FILE",
        ),
    ] = None
    segments: Annotated[
        tuple[str, ...], Flag("Use only this segment; repeatable.", TRAFFIC, "NAME", names=("--segment",))
    ] = ()
    requests: Annotated[
        int | None,
        Flag("Requests per load and launch; prompts repeat if there are fewer.", TRAFFIC, "N", low=1),
    ] = None
    max_tokens: Annotated[Tokens | None, Flag("Limit for every answer.", TRAFFIC, "N", low=1)] = None
    temperatures: Annotated[
        tuple[float, ...],
        Flag(
            "Such as 0,0.7; default: each prompt's own.",
            TRAFFIC,
            "X,...",
            names=("--temperature",),
            reading=FLOATS,
        ),
    ] = ()
    concurrency: Annotated[
        tuple[int, ...],
        Flag("Concurrent requests, such as 1,8,32; default: 1.", TRAFFIC, "N,...", reading=INTEGERS),
    ] = ()
    qps: Annotated[
        tuple[float, ...],
        Flag("Requests per second (open loop), such as 1,4,16.", TRAFFIC, "X,...", reading=FLOATS),
    ] = ()
    arrivals: Annotated[str, Flag("With --qps: poisson, constant or replay.", TRAFFIC, "NAME")] = "poisson"
    seed: Annotated[int, Flag("Random seed for prompt order, arrivals and sampling.", TRAFFIC, "N")] = 0
    workers: Annotated[
        int, Flag("Client processes; more if one core is not enough.", TRAFFIC, "N", low=1)
    ] = 1

    goals: Goals = field(default_factory=Goals)

    study: Annotated[Path | None, Flag("Study directory; default: studies/DATE-TIME.", STUDY, "DIR")] = None
    resume: Annotated[bool, Flag("Continue --study, or the latest one.", STUDY)] = False
    no_text: Annotated[bool, Flag("Store hashes instead of prompts and answers.", STUDY)] = False
    launches: Annotated[int, Flag("Passes over the requests on servers started anew.", STUDY, "N", low=1)] = (
        LAUNCHES_DEFAULT
    )
    fixed: Annotated[
        bool, Flag("Measure everything planned; default: stop when the verdict is settled.", STUDY)
    ] = False
    on: Annotated[
        str | None,
        Flag(
            "ray: launches on the nodes of a Ray cluster (ray:HOST:PORT for its head); default: here.",
            STUDY,
            "PLACE",
        ),
    ] = None
    budget_s: Annotated[
        Seconds | None,
        Flag(
            "Time limit, such as 3m; the verdict uses what was measured by then.",
            STUDY,
            "TIME",
            names=("--budget",),
            reading=DURATION,
        ),
    ] = None

    kv_dtype: Annotated[
        str | None, Flag("KV cache type of keys and values, such as fp8.", SERVER, "TYPE")
    ] = None
    # A study of named arms has one value of each of these four; a search tries all. None is the server's own way.
    target_quants: Annotated[
        tuple[str | None, ...],
        Flag(
            "Quantisation of the target (vLLM), such as fp8; tune takes several: none,fp8.",
            SERVER,
            "NAME,...",
            names=("--target-quant",),
            reading=WORDS,
        ),
    ] = ()
    draft_quants: Annotated[
        tuple[str | None, ...],
        Flag(
            "Quantisation of every draft model.", SERVER, "NAME,...", names=("--draft-quant",), reading=WORDS
        ),
    ] = ()
    draft_tps: Annotated[
        tuple[int, ...],
        Flag(
            "Tensor-parallel size of every draft; default: the target's.",
            SERVER,
            "N,...",
            names=("--draft-tp",),
            reading=COUNTS,
        ),
    ] = ()
    token_budgets: Annotated[
        tuple[Tokens, ...],
        Flag("Max tokens per step (vLLM).", SERVER, "N,...", names=("--token-budget",), reading=COUNTS),
    ] = ()
    # None is for what fits.
    side_by_side: Annotated[
        bool | None,
        Flag(
            "auto, on or off: run all servers at once and measure them in turn.",
            SERVER,
            "WHEN",
            reading=AUTO_ON_OFF,
        ),
    ] = None
    llama_server: Annotated[
        str | None, Flag("Your llama-server instead of the embedded one.", SERVER, "PATH")
    ] = None
    vllm_python: Annotated[str | None, Flag("Python of the environment with vLLM.", SERVER, "PATH")] = None

    # The speculation of the user's own line: an arm beside those that are named or searched.
    yours: Drafter | Combined | None = None
    # Nothing will be launched, and neither the engine nor its models need be here.
    is_elsewhere: bool = False
    # The lossless gate as a part of decide: quick, full or off.
    verify: str = "quick"
    # Whether a model that is missing may be fetched; a dry run says what would be.
    fetches: bool = True
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "argv", hidden_words(self.argv))
        if self.kv_dtype and (self.server.kv_type_k or self.server.kv_type_v):
            raise UsageError(
                "--kv-dtype sets keys and values at once", hint="leave out --kv-type-k and --kv-type-v"
            )
        if self.on is not None:
            fleet_address(self.on)
        if self.verify not in VERIFY_MODES:
            raise unknown_name(what="value of --verify", seen=self.verify, allowed=VERIFY_MODES)

    @classmethod
    def of(cls, **settings: object) -> Ask:
        """From flat names, as the flags have them: `Ask.of(methods=("ngram",), threads=4, min_speedup=1.2)`."""
        return assembled(cls, settings)

    @property
    def is_quick_look(self) -> bool:
        """Nothing was said about traffic or time: a first answer within minutes is wanted."""
        said = (self.prompts, self.segments, self.requests, self.max_tokens, self.budget_s)
        return not any(said)

    @property
    def has_variants(self) -> bool:
        """Whether a server setting was given several values."""
        lists = (self.target_quants, self.draft_quants, self.draft_tps, self.token_budgets)
        return any(len(values) > 1 for values in lists)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAsk:
    """Of plan."""

    # Empty only until it is known that no line names it either.
    target: Annotated[
        str,
        Flag(
            "Hugging Face folder or cached id, .gguf file, catalogue name such as llama-3.1-70b, or a size: 123B.",
            MODELS,
            "MODEL",
            names=("--target", "--model"),
        ),
    ] = ""
    drafts: Annotated[
        tuple[str, ...],
        Flag("Draft model; repeatable, the first one is planned.", MODELS, "MODEL", names=("--draft",)),
    ] = ()
    methods: Annotated[
        tuple[str, ...],
        Flag(
            "draft, ngram, eagle, eagle3, mtp, medusa, ...; repeatable, the first is planned. Default: draft or ngram.",
            MODELS,
            "NAME",
            names=("--method",),
        ),
    ] = ()
    target_quant: Annotated[
        str | None, Flag("bf16, fp8, int8, int4, awq, q4_k_m, ...; default: as stored.", MODELS, "NAME")
    ] = None
    draft_quant: Annotated[str | None, Flag("Same for the draft.", MODELS, "NAME")] = None
    engine: Annotated[
        str | None, Flag("vllm or llamacpp; default: by the model's format.", MACHINE, "NAME")
    ] = None
    engine_version: Annotated[
        str | None, Flag("Such as 0.24.0 or 0.32; default: the newest one measured.", MACHINE, "X")
    ] = None
    gpu: Annotated[
        str | None, Flag("Such as h100-80gb, or cpu; default: what the driver reports.", MACHINE, "NAME")
    ] = None
    gpus: Annotated[int, Flag("Number of GPUs.", MACHINE, "N")] = 1
    tp: Annotated[int | None, Flag("Tensor-parallel size; default: all GPUs.", MACHINE, "N")] = None
    draft_tp: Annotated[int | None, Flag("Same for the draft; default: the target's.", MACHINE, "N")] = None
    pp: Annotated[int, Flag("Pipeline-parallel size.", MACHINE, "N")] = 1
    utilisation: Annotated[
        float,
        Flag(
            "Share of the memory the engine may use.",
            MACHINE,
            "X",
            names=("--utilisation", "--utilization"),
        ),
    ] = UTILISATION_DEFAULT
    kv_cache_memory_bytes: Annotated[
        Bytes | None,
        Flag("KV cache size, such as 256M; replaces --utilisation.", MACHINE, "SIZE", reading=SIZE),
    ] = None
    context: Annotated[
        Tokens | None,
        Flag("Longest request in tokens; default: 8192, or less where the model ends sooner.", REQUESTS, "N"),
    ] = None
    concurrency: Annotated[
        tuple[int, ...], Flag("Concurrent requests; default: 1,8,32.", REQUESTS, "N,...", reading=INTEGERS)
    ] = ()
    kv_dtype: Annotated[str, Flag("auto, fp8; llama.cpp: f16, q8_0, q4_0, ...", REQUESTS, "TYPE")] = "auto"
    max_num_seqs: Annotated[int, Flag("Max requests per step (vLLM).", REQUESTS, "N")] = MAX_SEQUENCES
    token_budget: Annotated[Tokens | None, Flag("Max tokens per step (vLLM).", REQUESTS, "N")] = None
    acceptance: Annotated[
        str | None,
        Flag(
            "0.6,0.8 or 0.8/0.6/0.5 by position, a study, or JSON of replay; default: several rates.",
            EXPECTED,
            "RATES",
        ),
    ] = None
    ks: Annotated[
        tuple[int, ...],
        Flag("Draft lengths, such as 1,3,5.", EXPECTED, "N,...", names=("--k",), reading=INTEGERS),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAsk:
    """Of export, where a study is to run as a job of a cluster."""

    verb: Annotated[str, Flag("What it runs: decide, tune or measure.", JOB, "VERB")] = "decide"
    nodes: Annotated[int, Flag("Nodes of a ray-job.", JOB, "N", low=1)] = 1
    image: Annotated[str | None, Flag("Container image with speclift and the engine.", JOB, "NAME")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayAsk:
    """Of replay, beside the logs."""

    methods: Annotated[
        tuple[str, ...],
        Flag(
            "ngram, ngram:gpu (vLLM); ngram:simple, :map-k, :map-k4v, :mod, :cache (llama.cpp). Repeatable.",
            DRAFTERS,
            "NAME",
            names=("--method",),
        ),
    ] = ("ngram",)
    engine: Annotated[
        str | None, Flag("Engine of plain ngram: vllm (default) or llamacpp.", DRAFTERS, "NAME")
    ] = None
    ks: Annotated[
        tuple[int, ...],
        Flag(
            "Draft lengths: 1..16 or 3,5,8.",
            DRAFTERS,
            "N,...",
            names=("--k",),
            reading=Reading(read_ranges, default="1..16"),
        ),
    ] = tuple(range(1, 17))
    ngrams: Annotated[
        tuple[int, ...],
        Flag(
            "N-gram length in tokens: 2..5 or 3.",
            DRAFTERS,
            "N,...",
            names=("--ngram",),
            reading=Reading(read_ranges, default="2..5"),
        ),
    ] = (2, 3, 4, 5)
    tokenizer: Annotated[
        str | None,
        Flag(
            "GGUF, tokenizer.json or Hugging Face folder; default: the embedded model's. Not used for token ids.",
            READING,
            "PATH",
        ),
    ] = None
    segments: Annotated[
        tuple[str, ...], Flag("Use only this segment; repeatable.", READING, "NAME", names=("--segment",))
    ] = ()
    on: Annotated[
        str | None,
        Flag(
            "ray: parts of the log on the nodes of a Ray cluster (ray:HOST:PORT for its head); default: here.",
            READING,
            "PLACE",
        ),
    ] = None
    study: Annotated[Path | None, Flag("Use the step cost measured in this study.", WORTH, "DIR")] = None
    cost: Annotated[
        float | None,
        Flag("Cost of verifying one draft token, as a share of a step without speculation.", WORTH, "X"),
    ] = None

    def __post_init__(self) -> None:
        if self.on is not None:
            fleet_address(self.on)
